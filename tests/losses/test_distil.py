"""Learning from teachers: mass is kept between strides, the term is least at the teachers' mean, and a student follows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from papm import checkpoint, data, losses, models
from papm.checkpoint import ModelSpec
from papm.engine import train as engine
from papm.engine.build import build_loss, resolve
from papm.errors import ConfigError
from papm.inference import Inference
from papm.losses.base import LossContext
from papm.losses.distil import DistilLoss, Teacher, in_blocks, recoloured
from papm.predict.predictor import Counter
from papm.structures import DensityOutput

COLOURS = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
SPEC = "synthetic:look=cells,train=6,test=2,size=96,count=5-10"
KEYS: dict[str, Any] = {"data": SPEC, "device": "cpu", "crop": 64, "batch": 2, "select": "last", "log_every": 1}


class Constant(torch.nn.Module):
    """A network that sees `value` objects in every cell of its stride."""

    def __init__(self, value: float, stride: int) -> None:
        super().__init__()
        self.value, self.stride = value, stride

    def forward(self, images: torch.Tensor) -> DensityOutput:
        h, w = (-(-n // self.stride) for n in images.shape[-2:])
        return DensityOutput(images.new_full((len(images), 1, h, w), self.value), self.stride)


def distil(*teachers: tuple[float, int], stride: int = 4, weight: float = 2.0) -> DistilLoss:
    made = [Teacher(Constant(*t), t[1], COLOURS) for t in teachers]
    return DistilLoss(losses.create("hd-papm", stride=stride), made, weight, COLOURS)


@pytest.mark.parametrize("times", [1, 2, 4])
def test_blocks_keep_mass(times: int) -> None:
    maps = torch.rand(2, 1, 7, 10, generator=torch.Generator().manual_seed(0))
    assert in_blocks(maps, times).sum().item() == pytest.approx(maps.sum().item(), rel=1e-5)


def test_colours_change_and_come_back() -> None:
    images, other = torch.rand(1, 3, 4, 4), ((0.1, 0.2, 0.3), (1.0, 0.5, 2.0))
    assert torch.allclose(recoloured(recoloured(images, COLOURS, other), other, COLOURS), images, atol=1e-6)


@pytest.mark.parametrize("strides", [(4, 4), (8, 8), (2, 8), (4, 16)])
def test_the_term_is_nothing_at_the_mean_of_the_teachers(strides: tuple[int, int]) -> None:
    per_pixel = (0.001, 0.003)
    loss = distil(*((v * s * s, s) for v, s in zip(per_pixel, strides)))
    context = LossContext(images=torch.zeros(1, 3, 32, 32))
    mean = torch.full((1, 1, 8, 8), 0.002 * 16, requires_grad=True)
    found = loss(mean, [torch.zeros(0, 2)], context=context)
    assert found.terms["teachers"].item() == pytest.approx(0, abs=1e-8)
    off = loss(mean + 0.1, [torch.zeros(0, 2)], context=context)
    times = loss.side // 4
    assert off.terms["teachers"].item() == pytest.approx(0.5 * (8 // times) ** 2 * (0.1 * times**2) ** 2, rel=1e-4)
    total = sum(off.weights[k] * off.terms[k] for k in off.terms)
    assert off.total.item() == pytest.approx(float(total), rel=1e-5)


def test_what_does_not_count_teaches_nothing() -> None:
    mask = torch.zeros(1, 32, 32, dtype=torch.bool)
    context = LossContext(mask=mask, images=torch.zeros(1, 3, 32, 32))
    found = distil((1.0, 8))(torch.zeros(1, 1, 8, 8, requires_grad=True), [torch.zeros(0, 2)], context=context)
    assert found.terms["teachers"].item() == 0


def test_teachers_are_neither_saved_nor_trained() -> None:
    loss = distil((1.0, 4))
    assert not list(loss.parameters()) and not loss.state_dict() and not loss.capturable and loss.needs_images


def test_what_cannot_teach_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no common cells"):
        distil((1.0, 6))
    with pytest.raises(ConfigError, match="needs the images"):
        distil((1.0, 4))(torch.zeros(1, 1, 2, 2, requires_grad=True), [torch.zeros(0, 2)])
    with pytest.raises(ConfigError, match="matches points"):
        resolve("p2p-papm", "p2pnet", {"teachers": "a"})
    for name, backbone, options, words in (
        ("points", "p2pnet", {"trunk": "tiny"}, "gives points"),
        ("classes", "tiny", {"num_classes": 2}, "counts 2 classes"),
    ):
        path = tmp_path / f"{name}.ckpt"
        made = models.create(backbone, **options)
        checkpoint.save(path, ModelSpec(backbone, options, inference=made.inference), made.state_dict())
        with pytest.raises(ConfigError, match=words):
            build_loss(resolve("hd-papm", "tiny", {**KEYS, "teachers": str(path)}), 4)
    path = tmp_path / "resized.ckpt"
    made = models.create("tiny")
    contract = Inference.from_mapping({**made.inference.to_mapping(), "resize": {"max_side": 512}})
    checkpoint.save(path, ModelSpec("tiny", inference=contract), made.state_dict())
    with pytest.raises(ConfigError, match="resized otherwise"):
        build_loss(resolve("hd-papm", "tiny", {**KEYS, "teachers": str(path)}), 4)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A network of another stride and other colours that counts 20 objects in every 64 × 64 pixels, whatever it sees."""
    torch.manual_seed(0)
    network = models.create("tiny", stride=8)
    with torch.no_grad():
        network.output.weight.zero_()  # type: ignore[union-attr, operator]
        network.output.bias.fill_(20 / 64 / network.gain)  # type: ignore[union-attr, operator]
    contract = Inference(mean=(0.1, 0.1, 0.1), std=(1.0, 1.0, 1.0))
    path = tmp_path / "teacher.safetensors"
    checkpoint.save(path, ModelSpec("tiny", {"stride": 8}, "hd-papm", inference=contract), network.state_dict())
    return path


@pytest.mark.slow
def test_a_student_follows_its_teacher(tmp_path: Path, teacher: Path) -> None:
    """The dots say 5 to 10 in 96 × 96 pixels, the teacher, which weighs far more, 45 in every one."""
    settings = {**KEYS, "steps": 150, "eval_every": 150, "crop": 96, "margin": 16, "clip": 1.0}
    config = resolve("hd-papm", "tiny", {**settings, "teachers": str(teacher), "teacher_weight": 100.0})
    engine.train(config, tmp_path / "student")
    counter = Counter.load(tmp_path / "student", "cpu")
    counts = [counter.predict(sample.image).count for sample in data.open_spec(SPEC)["test"]]
    assert counts == pytest.approx([45.0, 45.0], rel=0.2)


@pytest.mark.slow
def test_a_student_that_was_stopped_goes_on_as_if_it_were_not(tmp_path: Path, teacher: Path) -> None:
    config = resolve(
        "hd-papm", "tiny", {**KEYS, "steps": 6, "save_every": 3, "eval_every": 6, "teachers": str(teacher)}
    )

    class Crash:
        def on_start(self, sizes: dict[str, int]) -> None: ...
        def on_evaluation(self, step: int, values: dict[str, float]) -> None: ...
        def on_step(self, step: int, total: int, values: dict[str, float]) -> None:
            if step == 4:
                raise MemoryError("crash")

    engine.train(config, tmp_path / "whole")
    with pytest.raises(MemoryError):
        engine.train(config, tmp_path / "stopped", watcher=Crash())
    engine.train(config, tmp_path / "stopped", resume=True)
    one, two = (checkpoint.load(tmp_path / name / "last.ckpt")[1] for name in ("whole", "stopped"))
    assert all(torch.equal(one[key], two[key]) for key in one)
