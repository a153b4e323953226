"""A captured step does what a step kernel by kernel does. Capturing needs a GPU; all the rest of it runs here."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from papm import checkpoint, data
from papm.config import TrainConfig
from papm.data.augment import Plan
from papm.engine import train as engine
from papm.engine import training as parts
from papm.engine.build import build_network, resolve
from papm.engine.graphed import Step
from papm.engine.optimizer import Optimizer
from papm.engine.run_folder import read_metrics
from papm.errors import PapmError
from papm.structures import Batch

CPU = torch.device("cpu")


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def optimizer_of(layer: nn.Linear, clip: float = 0.0, decoupled: bool = True, half: bool = False) -> Optimizer:
    groups = [([layer.weight], 1e-2), ([layer.bias], 1e-3)]
    return Optimizer(groups, CPU, decoupled=decoupled, weight_decay=0.1, clip=clip, half=half)


def step_of(layer: nn.Linear, optimizer: Optimizer, capture: bool = False) -> Step:
    def forward(plan: Plan | Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(plan, Plan)
        total = layer(plan.rows.reshape(-1, 4)).square().sum() * plan.counts.sum()
        return total, total.detach()[None]

    return Step(forward, optimizer, CPU, capture)


def plan_of(rows: Tensor) -> Plan:
    return Plan(rows, torch.full((1, 2), 0.5))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
@pytest.mark.parametrize("clip", [0.0, 0.1])
@pytest.mark.parametrize("half", [False, True])
def test_the_update_is_that_of_torch(kind: type[torch.optim.Optimizer], clip: float, half: bool) -> None:
    a, b = layer(), layer()
    plain = kind([{"params": [a.weight], "lr": 1e-2}, {"params": [a.bias], "lr": 1e-3}], weight_decay=0.1)  # type: ignore[call-arg]
    other = optimizer_of(b, clip, kind is torch.optim.AdamW, half)
    step = step_of(b, other)
    for k in range(5):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(k))
        other.set_rates(1 / (1 + k))
        for group, lr in zip(plain.param_groups, (1e-2, 1e-3)):
            group["lr"] = lr / (1 + k)
        loss = a(x).square().sum()
        plain.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(a.parameters(), clip)
        plain.step()
        torch.testing.assert_close(step(plan_of(x)), loss.detach())
    torch.testing.assert_close(a.state_dict(), b.state_dict())
    states = [plain.state[p] for p in (a.weight, a.bias)]
    torch.testing.assert_close(other.means, [s["exp_avg"] for s in states])
    torch.testing.assert_close(other.squares, [s["exp_avg_sq"] for s in states])
    assert float(other.taken) == 5


def test_fp16_halves_its_scale_until_gradients_are_finite_and_says_nothing() -> None:
    a = layer()
    optimizer = optimizer_of(a, half=True)
    assert optimizer.scale is not None
    optimizer.scale.fill_(1e38)
    step, x = step_of(a, optimizer), plan_of(torch.full((2, 4), 3.0))
    before = {k: v.clone() for k, v in a.state_dict().items()}
    step(x)
    torch.testing.assert_close(a.state_dict(), before, rtol=0, atol=0)
    assert float(optimizer.scale) == pytest.approx(0.5e38) and float(optimizer.taken) == 0
    for _ in range(12):
        step(x)
    assert float(optimizer.taken) > 0 and step.sums is not None and bool(torch.isfinite(step.sums).all())


@pytest.mark.parametrize("clip", [0.0, 0.1])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_changes_no_weight(bad: float, clip: float) -> None:
    a = layer()
    optimizer = optimizer_of(a, clip)
    step = step_of(a, optimizer)
    step(plan_of(torch.ones(2, 4)))
    before = {k: v.clone() for k, v in a.state_dict().items()}
    step(plan_of(torch.full((2, 4), bad)))
    torch.testing.assert_close(a.state_dict(), before, rtol=0, atol=0)
    assert float(optimizer.taken) == 1
    assert step.sums is not None and not torch.isfinite(step.sums).all()


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_a_gradient_that_is_not_finite_is_told_too(clip: float) -> None:
    """The step is skipped though its loss is a number: a run that skips every step must not look like one that learns."""
    a = layer()

    def forward(plan: Plan | Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(plan, Plan)
        total = a(plan.rows).square().sum().sub(a(plan.rows).square().sum().detach()).sqrt()  # 0, derivative infinite
        return total, total.detach()[None]

    step = Step(forward, optimizer_of(a, clip), CPU)
    before = {k: v.clone() for k, v in a.state_dict().items()}
    assert step(plan_of(torch.ones(2, 4))) == 0
    torch.testing.assert_close(a.state_dict(), before, rtol=0, atol=0)
    assert step.sums is not None and not torch.isfinite(step.sums).any()


def test_a_state_saved_on_another_device_is_taken_up() -> None:
    """There weights lie otherwise in memory (channels last), and the state of the optimiser with them."""
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    a = nn.Conv2d(4, 5, 3)
    b = nn.Conv2d(4, 5, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    one, other = (Optimizer([(list(m.parameters()), 1e-2)], CPU) for m in (a, b))

    def descend(module: nn.Module, optimizer: Optimizer) -> None:
        total = module(x).square().mean()
        optimizer(optimizer.gradients(total), total.detach())

    descend(a, one)
    b.load_state_dict(a.state_dict())
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert other.means[0].stride() == b.weight.stride() != one.means[0].stride()
    descend(a, one)
    descend(b, other)
    torch.testing.assert_close(a.state_dict(), b.state_dict())


def test_captured_steps_are_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a stand-in runs the step again: a graph for each length and phase, fed with the plan of each step."""
    monkeypatch.setattr("papm.engine.graphed.capture", lambda function, warm, pool: (function, None))
    a, b = layer(), layer()
    usual, captured = step_of(a, optimizer_of(a, 0.1)), step_of(b, optimizer_of(b, 0.1), capture=True)
    phases: list[int] = []
    for k in range(20):
        rng = torch.Generator().manual_seed(k)
        plan = Plan(torch.randn(2, (4, 8)[k % 2], generator=rng), torch.rand(2, 2, generator=rng))
        torch.testing.assert_close(captured(plan, k >= 12), usual(plan, k >= 12))
        phases.append(len(captured.graphs))
    torch.testing.assert_close(a.state_dict(), b.state_dict())
    assert (phases[5], phases[7], phases[-1]) == (0, 2, 4)
    assert captured.means() == pytest.approx(usual.means())


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"clip": 0.5}, {"method": "al-papm"}])
def test_a_run_of_captured_steps_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    keys: dict[str, Any] = {"data": "synthetic:train=6,test=2,size=96,count=5-10", "device": "cpu", "steps": 12,
                            "crop": 64, "batch": 4, "log_every": 2, "select": "last", "warmup": 3, **more}  # fmt: skip
    config: TrainConfig = resolve(keys.pop("method", "hd-papm"), "tiny", keys)
    engine.train(config, tmp_path / "plain")
    monkeypatch.setattr(parts, "can_capture", lambda training: True)
    monkeypatch.setattr("papm.engine.graphed.capture", lambda function, warm, pool: (function, None))
    engine.train(config, tmp_path / "whole")
    rows = [read_metrics(tmp_path / name / "metrics.csv") for name in ("plain", "whole")]
    for a, b in zip(*rows, strict=True):
        assert a["step"] == b["step"]
        for key in set(a) - {"seconds"}:
            assert b[key] == pytest.approx(a[key], rel=1e-4, abs=1e-5)
    torch.testing.assert_close(*(checkpoint.load(tmp_path / n / "best.ckpt")[1] for n in ("plain", "whole")))


def test_a_run_that_stops_goes_on_with_its_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the optimiser is saved and taken up again, and so are the sums that make the next row of the log."""
    keys: dict[str, Any] = {"data": "synthetic:train=6,test=2,size=96,count=5-10", "device": "cpu", "steps": 6,
                            "crop": 64, "batch": 4, "save_every": 3, "select": "last"}  # fmt: skip
    config = resolve("hd-papm", "tiny", keys)
    engine.train(config, tmp_path / "whole")

    seen = []
    plain = Step.__call__

    def stop_after_three(self: Step, plan: Plan | Batch, phase: Any = None) -> Tensor:
        seen.append(plan)
        if len(seen) == 5:
            raise RuntimeError("power cut")
        return plain(self, plan, phase)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", stop_after_three)
        with pytest.raises(RuntimeError, match="power cut"):
            engine.train(config, tmp_path / "parts")
    engine.train(config, tmp_path / "parts", resume=True)
    torch.testing.assert_close(
        *(checkpoint.load(tmp_path / n / "best.ckpt")[1] for n in ("whole", "parts")), rtol=0, atol=0
    )
    whole, parts = (
        [r["loss"] for r in read_metrics(tmp_path / n / "metrics.csv") if "loss" in r] for n in ("whole", "parts")
    )
    assert len(whole) == 1 and parts == whole  # the mean of all six steps


def test_an_output_that_is_not_finite_stops_the_run_and_names_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where nothing looks at the maps of a step."""
    keys: dict[str, Any] = {"data": "synthetic:train=2,test=1,size=96,count=5-10", "device": "cpu", "steps": 6,
                            "crop": 64, "batch": 2, "log_every": 2, "select": "last", "eval_every": 6}  # fmt: skip
    config = resolve("hd-papm", "tiny", keys)
    build = build_network

    def broken(config: TrainConfig, *given: Any) -> Any:
        network = build(config)
        plain = network.density
        network.density = lambda images: plain(images) + float("nan")  # type: ignore[attr-defined,method-assign]
        return network

    monkeypatch.setattr(engine, "build_network", broken)
    monkeypatch.setattr("papm.losses.inputs.check_density", lambda density: None)
    names = [s.name for s in data.open_spec(config.data)["train"]]
    with pytest.raises(PapmError, match=rf"became nan at step 0 \(first with a crop of ({names[0]}|{names[1]})"):
        engine.train(config, tmp_path / "run")


def test_graphs_make_room_for_a_step_that_does_not_fit_beside_them() -> None:
    a = layer()
    step = step_of(a, optimizer_of(a))
    plain, calls = step.forward, []

    def crowded(plan: Plan | Batch) -> tuple[Tensor, Tensor]:
        calls.append(len(step.graphs))
        if step.graphs:
            raise torch.OutOfMemoryError("no room")
        return plain(plan)

    step.forward = crowded
    step.graphs["another length"] = object()  # type: ignore[assignment]
    step.captures = True
    step(plan_of(torch.ones(2, 4)))
    assert calls == [1, 0] and not step.captures and not step.graphs

    def full(plan: Plan | Batch) -> tuple[Tensor, Tensor]:
        raise torch.OutOfMemoryError("no room at all")

    step.forward = full
    with pytest.raises(torch.OutOfMemoryError):
        step(plan_of(torch.ones(2, 4)))


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@GPU
@pytest.mark.parametrize(
    "method, backbone",
    [("hd-papm", "tiny"), ("al-papm", "tiny"), ("p2p-papm", "p2pnet"), ("al-papm", "man"), ("dm-count", "msfanet")],
)
def test_on_a_gpu_captured_steps_are_the_steps_kernel_by_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, backbone: str
) -> None:
    """Twenty steps, several lengths of points, the change of phase of p2p-papm among them; man and msfanet have dropout."""
    keys: dict[str, Any] = {"data": "synthetic:train=8,test=2,size=160,count=5-200", "device": "cuda", "steps": 20,
                            "crop": 128, "batch": 4, "log_every": 1, "select": "last", "precision": "32",
                            "compile": "no", "eval_every": 20}  # fmt: skip
    if backbone == "p2pnet":
        keys["network"] = {"trunk": "tiny"}
    # Which proposals are matched is a choice: rounding that differs from run to run would become another training.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    rows = []
    for graph in ("auto", "no"):
        config = resolve(method, backbone, {**keys, "graph": graph})
        engine.train(config, tmp_path / graph)
        rows.append([r for r in read_metrics(tmp_path / graph / "metrics.csv") if "loss" in r])
    assert len(rows[0]) == 20
    for a, b in zip(*rows, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-2), a["step"]


@GPU
def test_on_a_gpu_a_second_training_in_one_process_is_captured_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Any] = {"data": "synthetic:train=8,test=2,size=160,count=5-20", "device": "cuda", "steps": 30,
                            "crop": 128, "batch": 4, "select": "last", "compile": "no", "eval_every": 30}  # fmt: skip
    for k in range(3):
        engine.train(resolve("al-papm", "tiny", {**keys, "seed": k}), tmp_path / str(k))
    assert "cannot be captured" not in caplog.text
