"""Exported files are models again: they count as their checkpoints do, and files of others are refused in one sentence."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import papm
from papm import checkpoint, exported, models
from papm.checkpoint import ModelSpec
from papm.errors import CheckpointError, ConfigError, DataError, PapmError
from papm.exported import About
from papm.inference import Calibration, CountInterval, Inference
from papm.predict.ensemble import Ensemble

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from papm.export import export_model, export_onnx  # noqa: E402
from papm.likeness import Profile  # noqa: E402

INFERENCE = Inference(
    frame=16,
    calibration=Calibration(1.25, 1.1, 1.4, 12, 30.0, 18.5),
    interval=CountInterval(0.5, 12),
    calibrated_on=("a", "b"),
)
ABOUT = About("tiny", "density", 4, 8, 71, 1, "hd-papm", 7, "0a", "CC0-1.0", None, INFERENCE)


def image(height: int = 150, width: int = 203) -> Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def write(folder: Path, backbone: str, inference: Inference, **options: Any) -> Path:
    torch.manual_seed(0)
    spec = ModelSpec(backbone, options, "hd-papm", {"data": "/home/someone/photos"}, 7, inference)
    checkpoint.save(folder / "best.ckpt", spec, models.create(backbone, inference=inference, **options).state_dict())
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run"), "tiny", INFERENCE, activation="abs")


@pytest.fixture(scope="module")
def file(run: Path) -> Path:
    return export_onnx(run, run / "model.onnx", licence="CC0-1.0")


def same(own: papm.Prediction, other: papm.Prediction) -> None:
    assert other.count == pytest.approx(own.count, rel=1e-4)
    if own.raw_count is not None:
        assert other.raw_count == pytest.approx(own.raw_count, rel=1e-4)
    assert other.interval is None if own.interval is None else other.interval == pytest.approx(own.interval, rel=1e-4)
    assert own.points is not None and other.points is not None
    torch.testing.assert_close(other.points, own.points, rtol=1e-3, atol=1e-2)
    if own.density is not None:
        torch.testing.assert_close(other.density, own.density, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_an_onnx_file_counts_as_its_checkpoint(run: Path, file: Path) -> None:
    own, other = papm.Counter.load(run, "cpu"), papm.Counter.load(file)
    assert other.inference == own.inference and other.spec.method == "hd-papm"
    roi = torch.zeros(150, 203, dtype=torch.bool)
    roi[40:, 30:90] = True
    for asked in ({}, {"roi": roi}):
        same(own.predict(image(), **asked), other.predict(image(), **asked))
    for one, two in zip(own.predict([image(), image()], batch=2), other.predict([image(), image()], batch=2)):
        same(one, two)
    whole = other.predict(image(400, 420)).count
    assert papm.Counter.load(file, tile=320).predict(image(400, 420)).count == pytest.approx(whole, rel=1e-4)
    both = Ensemble.load([run, file], "auto")
    assert both.predict(image()).count == pytest.approx(own.predict(image()).count, rel=1e-4)


@pytest.mark.slow
def test_the_file_says_what_it_is_and_nothing_of_its_owner(file: Path) -> None:
    text = {p.key: p.value for p in onnx.load(str(file)).metadata_props}["papm.model"]
    about = About.from_text(text)
    assert about.inference == INFERENCE and about.licence == "CC0-1.0" and len(about.revision) == 16 and about.step == 7
    assert b"someone" not in file.read_bytes()


@pytest.mark.slow
def test_proposals_of_a_point_network(tmp_path: Path) -> None:
    run = write(tmp_path, "p2pnet", Inference(decode="expected"), trunk="tiny", num_classes=2)
    file = export_onnx(run, tmp_path / "model.onnx")
    same(papm.Counter.load(run, "cpu").predict(image()), papm.Counter.load(file).predict(image()))
    own, other = (papm.Counter.load(f, "cpu", count="points").predict(image()) for f in (run, file))
    assert own.count == other.count


@pytest.mark.slow
def test_a_file_for_one_size_counts_that_size(run: Path, tmp_path: Path) -> None:
    counter = papm.Counter.load(export_onnx(run, tmp_path / "fixed.onnx", (64, 96), dynamic=False))
    own = papm.Counter.load(run, "cpu").predict(image(64, 96))
    for found in counter.predict([image(64, 96)] * 2, batch=2):
        same(own, found)
    counter.change(profile=Profile({}, steady=(-1e-9, 1e-9)))  # a second look at half the size is not to be had
    assert counter.predict(image(64, 96)).unlike == ()
    with pytest.raises(DataError, match=r"64×96 pixels only .* not of 65×96: export the model without --fixed"):
        counter.predict(image(65, 96))


@pytest.mark.slow
def test_openvino(run: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("openvino") is None:  # not importorskip, which would import its telemetry
        pytest.skip("OpenVINO is not installed: pip install 'papm[openvino]'")
    made = export_model(run, tmp_path / "model.xml")
    assert (
        made.difference is not None and made.difference.small and made.bytes > (tmp_path / "model.bin").stat().st_size
    )
    assert {p.name for p in tmp_path.iterdir()} == {"model.xml", "model.bin"}
    same(papm.Counter.load(run, "cpu").predict(image()), papm.Counter.load(made.file).predict(image()))
    assert sys.modules.get("openvino_telemetry") is None
    (tmp_path / "model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"with its \.bin beside it"):
        papm.Counter.load(made.file)


def test_without_openvino_one_sentence(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'papm\[openvino\]'"):
        exported.import_openvino()


@pytest.mark.slow
def test_a_package_is_written_and_checked_and_never_loaded(run: Path, tmp_path: Path) -> None:
    made = export_model(run, tmp_path / "model.pt2")
    assert made.difference is not None and made.difference.small
    stored = {"papm.json": ""}
    program = torch.export.load(str(made.file), extra_files=stored).module()
    assert About.from_text(stored["papm.json"]) == made.about
    counter = papm.Counter.load(run, "cpu")
    with torch.no_grad():
        (density,) = program(torch.zeros(1, 3, 50, 70))
        torch.testing.assert_close(density, counter.network(torch.zeros(1, 3, 50, 70)).density)
    with pytest.raises(CheckpointError, match="can run code of whoever wrote them"):
        papm.Counter.load(made.file)


def changed(file: Path, out: Path, text: str | None) -> Path:
    proto = onnx.load(str(file))
    kept = [(p.key, p.value) for p in proto.metadata_props if p.key != "papm.model"]
    del proto.metadata_props[:]
    for key, value in [*kept, *([] if text is None else [("papm.model", text)])]:
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(proto, str(out))
    return out


@pytest.mark.slow
def test_files_that_are_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged.onnx").write_bytes(b"\xff\x00 nothing")
    changed(file, tmp_path / "other.onnx", None)
    changed(file, tmp_path / "wrong.onnx", "[]")
    for name, sentence in (
        ("none.onnx", "no such file"),
        ("damaged.onnx", "not a readable ONNX file"),
        ("other.onnx", "not a model that papm exported"),
        ("wrong.onnx", "not as this papm writes it"),
    ):
        with pytest.raises(CheckpointError, match=sentence) as caught:
            papm.Counter.load(tmp_path / name)
        assert "\n" not in str(caught.value)
    for how in ({"device": "cuda"}, {"precision": "bf16"}):
        with pytest.raises(ConfigError, match="counts on the CPU"):
            papm.Counter.load(file, **how)


@pytest.mark.slow
def test_outputs_are_what_the_contract_says(file: Path, tmp_path: Path) -> None:
    about = papm.Counter.load(file).network.about
    for change in ({"stride": 8}, {"num_classes": 2}, {"kind": "points"}):
        text = dataclasses.replace(about, **change).to_text()
        counter = papm.Counter.load(changed(file, tmp_path / "m.onnx", text))
        with pytest.raises(CheckpointError, match="does not give what its contract says"):
            counter.predict(image())


@pytest.mark.parametrize(
    "change",
    [
        {"stride": 0},
        {"stride": 1.5},
        {"stride": True},
        {"multiple": 10**6},
        {"num_classes": -1},
        {"receptive_field": "all"},
        {"receptive_field": -3},
        {"kind": "boxes"},
        {"step": None},
        {"size": [3]},
        {"size": [3, 0]},
        {"size": "large"},
        {"method": ["x"]},
        {"format": 2},
        {"inference": None},
        {"inference": {"frame": 10**9}},
        {"inference": {"trick": 1}},
        {"inference": {"std": [0, 0, 0]}},
        {"inference": {"calibration": {"scale": 1e9}}},
        {"more": 1},
    ],
)
def test_a_contract_that_is_not_ours(change: dict[str, Any]) -> None:
    values = {**json.loads(ABOUT.to_text()), **change}
    with pytest.raises(PapmError):
        About.from_text(json.dumps(values))


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"inference": {}}', "1e999", '"' + "x" * exported.LONGEST + '"']
)
def test_a_text_that_is_no_contract(text: str) -> None:
    with pytest.raises(ConfigError, match="contract"):
        About.from_text(text)


def test_what_needs_a_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(CheckpointError, match="needs the checkpoint or run folder"):
        checkpoint.load(tmp_path / "model.onnx")
