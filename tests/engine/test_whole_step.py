"""A whole step does what Lightning's step does. Recording needs a GPU; all the rest of it runs here."""

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
from papm.engine.build import build_loss, build_network, resolve
from papm.engine.module import CountingModule
from papm.engine.run_folder import read_metrics
from papm.engine.whole_step import WholeStep
from papm.errors import PapmError

CPU = torch.device("cpu")


def pair(kind: type[torch.optim.Optimizer]) -> list[tuple[nn.Linear, torch.optim.Optimizer]]:
    torch.manual_seed(0)
    start = nn.Linear(4, 3).state_dict()
    out = []
    for _ in range(2):
        layer = nn.Linear(4, 3)
        layer.load_state_dict(start)
        groups = [{"params": [layer.weight], "lr": 1e-2}, {"params": [layer.bias], "lr": 1e-3}]
        out.append((layer, kind(groups, weight_decay=0.1)))
    return out


def whole(layer: nn.Linear, optimizer: torch.optim.Optimizer, clip: float) -> WholeStep:
    def forward(plan: Plan) -> tuple[Tensor, Tensor]:
        total = layer(plan.rows).square().sum()
        return total, total.detach()[None]

    return WholeStep(forward, optimizer, clip, CPU, record=False)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_the_update_is_that_of_the_optimiser(kind: type[torch.optim.Optimizer], clip: float) -> None:
    (a, plain), (b, other) = pair(kind)
    step = whole(b, other, clip)
    for k in range(5):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(k))
        for optimizer in (plain, other):
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + k)
        loss = a(x).square().sum()
        plain.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(a.parameters(), clip)
        plain.step()
        torch.testing.assert_close(step(Plan(x, x)), loss.detach())
    torch.testing.assert_close(a.state_dict(), b.state_dict())
    states = [[v for s in o.state_dict()["state"].values() for v in s.values()] for o in (plain, other)]
    torch.testing.assert_close(*states)


@pytest.mark.parametrize("clip", [0.0, 0.1])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_changes_no_weight(bad: float, clip: float) -> None:
    (a, optimizer), _ = pair(torch.optim.AdamW)
    step = whole(a, optimizer, clip)
    step(Plan(torch.ones(2, 4), torch.ones(2, 2)))
    before = {k: v.clone() for k, v in a.state_dict().items()}
    steps = [s["step"].clone() for s in optimizer.state.values()]
    step(Plan(torch.full((2, 4), bad), torch.ones(2, 2)))
    torch.testing.assert_close(a.state_dict(), before, rtol=0, atol=0)
    assert [s["step"] for s in optimizer.state.values()] == steps
    assert step.sums is not None and not torch.isfinite(step.sums).all()


def test_a_gradient_that_is_not_finite_is_told_too() -> None:
    """The step is skipped though its loss is a number: a run that skips every step must not look like one that learns."""
    (a, optimizer), _ = pair(torch.optim.AdamW)

    def forward(plan: Plan) -> tuple[Tensor, Tensor]:
        total = a(plan.rows).square().sum().sub(a(plan.rows).square().sum().detach()).sqrt()  # 0, derivative infinite
        return total, total.detach()[None]

    step = WholeStep(forward, optimizer, 0.1, CPU, record=False)
    before = {k: v.clone() for k, v in a.state_dict().items()}
    assert step(Plan(torch.ones(2, 4), torch.ones(2, 2))) == 0
    torch.testing.assert_close(a.state_dict(), before, rtol=0, atol=0)
    assert step.sums is not None and not torch.isfinite(step.sums).any()


def test_a_state_saved_on_another_device_is_taken_up() -> None:
    """There weights lie otherwise in memory (channels last), and the state of the optimiser with them."""
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    a = nn.Conv2d(4, 5, 3)
    b = nn.Conv2d(4, 5, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    plain, other = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (a, b))

    def descend() -> None:
        plain.zero_grad()
        a(x).square().mean().backward()
        plain.step()

    def forward(plan: Plan) -> tuple[Tensor, Tensor]:
        total = b(x).square().mean()
        return total, total.detach()[None]

    descend()
    b.load_state_dict(a.state_dict())
    other.load_state_dict(copy.deepcopy(plain.state_dict()))
    WholeStep(forward, other, 0.0, CPU, record=False)(Plan(x, x))
    descend()
    torch.testing.assert_close(a.state_dict(), b.state_dict())


def test_recorded_steps_are_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a stand-in runs the step again: a recording for each length and phase, fed with the plan of each step."""
    monkeypatch.setattr("papm.engine.whole_step.capture", lambda function, warm, pool: (function, None))
    (a, plain), (b, other) = pair(torch.optim.AdamW)
    phases: list[int] = []

    def forward(layer: nn.Linear, plan: Plan) -> tuple[Tensor, Tensor]:
        total = layer(plan.rows.reshape(-1, 4)).square().sum() * plan.counts.sum()
        return total, total.detach()[None]

    usual = WholeStep(lambda plan: forward(a, plan), plain, 0.1, CPU, record=False)
    recorded = WholeStep(lambda plan: forward(b, plan), other, 0.1, CPU, record=True)
    for k in range(20):
        rng = torch.Generator().manual_seed(k)
        plan = Plan(torch.randn(2, (4, 8)[k % 2], generator=rng), torch.rand(2, 2, generator=rng))
        torch.testing.assert_close(recorded(plan, k >= 12), usual(plan, k >= 12))
        phases.append(len(recorded.records))
    torch.testing.assert_close(a.state_dict(), b.state_dict())
    assert (phases[5], phases[7], phases[-1]) == (0, 2, 4)


@pytest.mark.parametrize("more", [{}, {"clip": 0.5}, {"method": "al-papm"}])
def test_a_run_of_whole_steps_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    keys: dict[str, Any] = {"data": "synthetic:train=6,test=2,size=96,count=5-10", "device": "cpu", "steps": 6,
                            "crop": 64, "batch": 4, "log_every": 2, "select": "last", "warmup": 3, **more}  # fmt: skip
    config: TrainConfig = resolve(keys.pop("method", "hd-papm"), "tiny", keys)
    engine.train(config, tmp_path / "plain")
    monkeypatch.setattr(engine, "records_whole_steps", lambda *args: True)
    engine.train(config, tmp_path / "whole")
    rows = [read_metrics(tmp_path / name / "metrics.csv") for name in ("plain", "whole")]
    for a, b in zip(*rows, strict=True):
        assert a["step"] == b["step"]
        for key in set(a) - {"seconds"}:
            assert b[key] == pytest.approx(a[key], rel=1e-4, abs=1e-5)
    torch.testing.assert_close(*(checkpoint.load(tmp_path / n / "best.ckpt")[1] for n in ("plain", "whole")))


def test_a_run_that_stops_goes_on_with_whole_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the optimiser is saved and taken up again, and so are the sums that make the next row of the log."""
    keys: dict[str, Any] = {"data": "synthetic:train=6,test=2,size=96,count=5-10", "device": "cpu", "steps": 6,
                            "crop": 64, "batch": 4, "save_every": 3, "select": "last"}  # fmt: skip
    config = resolve("hd-papm", "tiny", keys)
    monkeypatch.setattr(engine, "records_whole_steps", lambda *args: True)
    engine.train(config, tmp_path / "whole")

    seen = []
    plain = WholeStep.__call__

    def stop_after_three(self: WholeStep, plan: Plan, phase: Any = None) -> Tensor:
        seen.append(plan)
        if len(seen) == 5:
            raise RuntimeError("power cut")
        return plain(self, plan, phase)

    with monkeypatch.context() as patch:
        patch.setattr(WholeStep, "__call__", stop_after_three)
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

    def broken(config: TrainConfig, progress: Any = None) -> Any:
        network = build(config)
        plain = network.density
        network.density = lambda images: plain(images) + float("nan")  # type: ignore[attr-defined,method-assign]
        return network

    monkeypatch.setattr(engine, "records_whole_steps", lambda *args: True)
    monkeypatch.setattr(engine, "build_network", broken)
    monkeypatch.setattr("papm.losses.inputs.check_density", lambda density: None)
    names = [s.name for s in data.open_spec(config.data)["train"]]
    with pytest.raises(PapmError, match=rf"became nan before step 2 \(first with a crop of ({names[0]}|{names[1]})"):
        engine.train(config, tmp_path / "run")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_fused_optimiser_skips_a_gradient_that_is_not_finite(bad: float) -> None:
    config = resolve("al-papm", "tiny", {"data": "synthetic:train=2,test=1", "device": "cpu"})
    module = CountingModule(build_network(config), build_loss(config, 4), config)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    for value, moves in ((1.0, True), (bad, False), (1.0, True)):
        before = [p.detach().clone() for p in module.parameters()]
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        p.grad.view(-1)[0] = value  # one number of one layer
        module.configure_gradient_clipping(optimizer)
        optimizer.step()
        changed = [not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)]
        assert all(changed) if moves else not any(changed)


def test_graphs_make_room_for_a_step_that_does_not_fit_beside_them() -> None:
    (layer, optimizer), _ = pair(torch.optim.AdamW)
    step = whole(layer, optimizer, 0.0)
    plain, calls = step.forward, []

    def crowded(plan: Plan) -> tuple[Tensor, Tensor]:
        calls.append(len(step.records))
        if step.records:
            raise torch.OutOfMemoryError("no room")
        return plain(plan)

    step.forward = crowded
    step.records["another length"] = object()  # type: ignore[assignment]
    step(Plan(torch.ones(2, 4), torch.ones(2, 2)))
    assert calls == [1, 0] and not step.usable and not step.records

    def full(plan: Plan) -> tuple[Tensor, Tensor]:
        raise torch.OutOfMemoryError("no room at all")

    step.forward = full
    with pytest.raises(torch.OutOfMemoryError):
        step(Plan(torch.ones(2, 4), torch.ones(2, 2)))


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@GPU
@pytest.mark.parametrize(
    "method, backbone",
    [("hd-papm", "tiny"), ("al-papm", "tiny"), ("p2p-papm", "p2pnet"), ("al-papm", "man"), ("dm-count", "msfanet")],
)
def test_on_a_gpu_recorded_steps_are_the_steps_kernel_by_kernel(
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
def test_on_a_gpu_a_second_training_in_one_process_is_recorded_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Any] = {"data": "synthetic:train=8,test=2,size=160,count=5-20", "device": "cuda", "steps": 30,
                            "crop": 128, "batch": 4, "select": "last", "compile": "no", "eval_every": 30}  # fmt: skip
    for k in range(3):
        engine.train(resolve("al-papm", "tiny", {**keys, "seed": k}), tmp_path / str(k))
    assert "cannot be recorded" not in caplog.text
