"""The contract of a model: stored with it, the same as what older files meant, and obeyed by training, counting and export."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from papm import checkpoint, imagenet, models
from papm.checkpoint import ModelSpec
from papm.config import to_mapping
from papm.data.resize import Resize
from papm.engine.build import inference_of, resolve
from papm.engine.train import train
from papm.inference import Inference
from papm.predict.predictor import Counter

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def picture(h: int = 90, w: int = 130) -> Tensor:
    return torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_what_is_stored_is_plain_and_read_back() -> None:
    made = Inference(32, Resize(max_side=640), "expected", 0.25, MEAN, STD, ("car", "bus"), (0.5, 1.0, 1.0))
    stored = made.to_mapping()
    assert stored["resize"] == {"max_side": 640} and stored["mean"] == list(MEAN)
    assert Inference.from_mapping(stored) == made and Inference.from_mapping({}) == Inference()


SETTINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("hd-papm", "tiny", {}),
    ("al-papm", "tiny", {"margin": 16, "crop": 96, "options": {"max_side": 64}}),
    ("hd-papm", "tiny", {"correct": 20.0, "correct_kind": "gaussian", "options": {"min_side": 128}}),
    ("p2pnet", "p2pnet", {"network": {"trunk": "tiny"}, "count": "points"}),
    ("p2pnet", "p2pnet", {"network": {"trunk": "tiny"}, "count": "expected", "loss": {"background_weight": 0.25}}),
]


@pytest.mark.parametrize(("method", "backbone", "given"), SETTINGS)
def test_files_with_and_without_the_contract_count_the_same(
    tmp_path: Path, method: str, backbone: str, given: dict[str, Any]
) -> None:
    config = resolve(method, backbone, {"data": "synthetic", **given})
    contract = inference_of(config)
    torch.manual_seed(0)
    state = models.create(backbone, **config.network).state_dict()
    spec = ModelSpec(backbone, dict(config.network), method, to_mapping(config), 7, contract)
    checkpoint.save(tmp_path / "new.ckpt", spec, state)
    off = {"rebalance": None, **({"context": False} if backbone == "p2pnet" else {})}  # options that are gone, not used
    older = {k: v for k, v in spec.to_mapping().items() if k != "inference"}
    older |= {"options": {**older["options"], **off}, "config": {**older["config"], "a setting that is gone": 5}}
    torch.save({"papm": older, "state_dict": {f"network.{k}": v for k, v in state.items()}}, tmp_path / "old.ckpt")
    new, old = (Counter.load(tmp_path / name, "cpu") for name in ("new.ckpt", "old.ckpt"))
    assert new.inference == old.inference == contract
    assert new.predict(picture()).count == old.predict(picture()).count
    again = replace(spec, config={})  # the settings say nothing any more
    checkpoint.save(tmp_path / "bare.ckpt", again, state)
    assert Counter.load(tmp_path / "bare.ckpt", "cpu").predict(picture()).count == new.predict(picture()).count


@pytest.fixture
def other_colours() -> Iterator[str]:
    """A network of other statistics than ImageNet's, which remembers the images of its last step."""

    class Remembering(models.tiny.Tiny):
        def density(self, images: Tensor) -> Tensor:
            if self.training:
                seen.append(images.detach())
            return super().density(images)

    seen: list[Tensor] = []
    about: dict[str, Any] = {"kind": "density", "stride": 4, "summary": "for tests", "mean": MEAN, "std": STD}

    @models.register("other-colours", **about)
    def build(*, num_classes: int = 1) -> models.Network:
        return Remembering(num_classes, 4, "relu")

    build.seen = seen  # type: ignore[attr-defined]
    yield "other-colours"
    del models.NETWORKS._items["other-colours"]


@pytest.mark.slow
def test_a_network_with_statistics_of_its_own_trains_counts_and_exports_with_them(
    other_colours: str, tmp_path: Path
) -> None:
    given = {"data": "synthetic:train=3,test=2,size=64,count=3-9", "steps": 2, "crop": 64, "batch": 2, "select": "last"}
    train(resolve("hd-papm", other_colours, {**given, "device": "cpu", "colour": 0.0, "grey": 0.0}), tmp_path / "run")
    [*crops] = models.info(other_colours).factory.seen  # type: ignore[attr-defined]
    low, high = (torch.tensor([(v - m) / s for m, s in zip(MEAN, STD)]) for v in (0.0, 1.0))
    pixels = torch.cat(crops).transpose(0, 1).flatten(1)
    assert bool((pixels.amin(1) >= low - 1e-5).all() and (pixels.amax(1) <= high + 1e-5).all())
    back = pixels * torch.tensor(STD)[:, None] + torch.tensor(MEAN)[:, None]
    assert float((back * 255 - (back * 255).round()).abs().max()) < 1e-2  # whole numbers: no other mean gives them
    counter = Counter.load(tmp_path / "run", "cpu")
    assert (counter.inference.mean, counter.inference.std) == (MEAN, STD)
    expected = counter.network(imagenet.normalize(picture(), MEAN, STD)[None]).density.sum()
    assert counter.predict(picture()).count == pytest.approx(expected.item(), rel=1e-5)
    pytest.importorskip("onnxscript")
    from papm.export import export_onnx, onnx_metadata

    about = onnx_metadata(export_onnx(tmp_path / "run", tmp_path / "model.onnx"))
    assert tuple(about["mean"]) == MEAN and tuple(about["std"]) == STD
