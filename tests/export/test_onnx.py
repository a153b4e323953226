"""ONNX files give what their networks give, at every size, and say what they are."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from papm import checkpoint, imagenet, models
from papm.checkpoint import ModelSpec
from papm.cli.main import main
from papm.data.resize import Resize
from papm.errors import ConfigError, DataError, WriteError
from papm.export import check_onnx, export_model, export_onnx, formats, onnx_metadata
from papm.export.program import SIZES, Difference
from papm.inference import Inference
from papm.structures import DensityOutput
from papm.version import __version__

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

# Every network once; the large ones in the form that tells most. A ReLU at the end could hide differences behind zeros.
NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("tiny", {"activation": "abs", "num_classes": 2}),
    ("mcnn", {"activation": "abs"}),
    ("lite", {"activation": "abs", "stride": 4}),
    ("dinov2", {"activation": "abs"}),
    ("csrnet", {"activation": "abs"}),
    ("vgg19", {"activation": "abs", "stride": 4}),
    ("msfanet", {"activation": "abs"}),
    ("man", {"activation": "abs", "stride": 8}),
    ("p2pnet", {"trunk": "tiny", "offsets": False}),
    ("p2pnet", {"trunk": "tiny", "num_classes": 2}),
]
LIMIT = 1e-4  # of the largest value


def test_every_network_is_exported_here() -> None:
    assert {name for name, _ in NETWORKS} == set(models.names())


def build(name: str, **options: Any) -> models.Network:
    torch.manual_seed(0)
    return models.create(name, **options).eval()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), NETWORKS, ids=[name for name, _ in NETWORKS])
def test_the_file_gives_what_the_network_gives(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    network = build(name, **options).train()
    file = export_onnx(network, tmp_path / "model.onnx")
    assert network.training  # the caller's network is left as it was
    assert 0 <= check_onnx(file, network.eval()) < LIMIT
    about = onnx_metadata(file)
    assert about["stride"] == network.stride and about["num_classes"] == network.num_classes
    # A batch of three, at a size that needs padding.
    images = torch.randn(3, 3, 37, 50)
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        output = network(images)
    wanted = [output.density] if hasattr(output, "density") else [output.points, output.logits, output.reference]
    for own, other in zip(wanted, session.run(None, {"images": images.numpy()}), strict=True):
        assert float(own.abs().max()) > 0
        np.testing.assert_allclose(other, own, rtol=0, atol=LIMIT * float(own.abs().max()))


@pytest.mark.parametrize(("name", "options"), [NETWORKS[0], NETWORKS[-1]], ids=["tiny", "p2pnet"])
def test_openvino_reads_the_file(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    network = build(name, **options)
    core = openvino.Core()
    model = core.compile_model(
        core.read_model(export_onnx(network, tmp_path / "m.onnx")), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    for size in SIZES:
        images = torch.randn(1, 3, *size)
        with torch.no_grad():
            made = network(images)
        own = (made.density,) if isinstance(made, DensityOutput) else (made.points, made.logits, made.reference)
        found = model([images.numpy()])
        for k, expected in enumerate(own):
            torch.testing.assert_close(torch.from_numpy(found[k].copy()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("name", "options"), [NETWORKS[0], NETWORKS[-1]], ids=["tiny", "p2pnet"])
@pytest.mark.slow
def test_a_frame_is_part_of_the_file(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    network = build(name, **options)
    file = export_onnx(network, tmp_path / "plain.onnx")
    network.inference = Inference(frame=32)
    assert check_onnx(file, network) > LIMIT
    assert check_onnx(export_onnx(network, tmp_path / "framed.onnx"), network) < LIMIT


@pytest.mark.slow
def test_exporting_points_for_one_size_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = build("p2pnet", trunk="tiny")
    file = export_onnx(network, tmp_path / "fixed.onnx", size=(48, 64), dynamic=False)
    assert check_onnx(file, network, [(48, 64)]) < LIMIT
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_file_for_one_size(tmp_path: Path) -> None:
    network = build("tiny", activation="abs")
    file = export_onnx(network, tmp_path / "fixed.onnx", size=(33, 50), dynamic=False)
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [1, 3, 33, 50]
    assert session.get_outputs()[0].shape == [1, 1, 9, 13]
    assert check_onnx(file, network, [(33, 50)]) < LIMIT
    assert onnx_metadata(file)["size"] == [33, 50]
    with pytest.raises(ConfigError, match="needs that size"):
        export_onnx(network, tmp_path / "x.onnx", dynamic=False)
    with pytest.raises(ConfigError, match="at least 1"):
        export_onnx(network, tmp_path / "x.onnx", size=(0, 5), dynamic=False)


@pytest.mark.slow
def test_a_changed_weight_is_noticed(tmp_path: Path) -> None:
    network = build("tiny", activation="abs")
    file = export_onnx(network, tmp_path / "model.onnx")
    with torch.no_grad():
        network.output.bias.add_(0.1)  # type: ignore[union-attr, operator]
    assert check_onnx(file, network, [(16, 16)]) > 0.01


@pytest.mark.slow
def test_metadata_of_a_checkpoint(tmp_path: Path) -> None:
    network = build("tiny")
    spec = ModelSpec("tiny", {}, "al-papm", {}, 7, Inference(resize=Resize(min_side=512), classes=("car", "bus")))
    checkpoint.save(tmp_path / "best.ckpt", spec, network.state_dict())
    about = onnx_metadata(export_onnx(tmp_path, tmp_path / "model.onnx"))
    assert about["backbone"] == "tiny" and about["method"] == "al-papm" and about["version"] == __version__
    assert about["kind"] == "density" and about["size"] is None
    assert about["classes"] == ["car", "bus"] and about["resize"] == {"min_side": 512}
    assert tuple(about["mean"]) == imagenet.MEAN and tuple(about["std"]) == imagenet.STD


@pytest.mark.slow
def test_a_number_in_a_text_stays_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papm.export.onnx.__version__", "1.0")
    spec = ModelSpec("tiny", {}, "true", {}, 7, Inference(classes=("1", "müßig")))
    about = onnx_metadata(export_onnx(build("tiny"), tmp_path / "model.onnx", spec=spec))
    assert about["version"] == "1.0" and about["method"] == "true" and about["classes"] == ["1", "müßig"]


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\xff\x00 nothing")
    with pytest.raises(DataError, match="not a readable ONNX file"):
        onnx_metadata(tmp_path / "model.onnx")
    with pytest.raises(DataError, match="no such file"):
        onnx_metadata(tmp_path / "none.onnx")


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    spec = ModelSpec("tiny", {"stride": 8}, "hd-papm", {}, 7)
    checkpoint.save(tmp_path / "run" / "best.ckpt", spec, build("tiny", stride=8).state_dict())
    return tmp_path / "run"


def call(*words: object) -> int:
    try:
        main([str(w) for w in words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.slow
def test_the_command_writes_checks_and_says(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "model.onnx"
    assert call("export", run, "--out", file) == 0
    said = capsys.readouterr()
    assert "tiny, stride 8" in said.out and "any size" in said.out and "Checked with onnxruntime" in said.out
    assert not said.err
    assert call("export", run, "--out", file, "--fixed", "40x64", "--json") == 0
    about = json.loads(capsys.readouterr().out)
    assert about["size"] == [40, 64] and about["difference"] < LIMIT and about["bytes"] == file.stat().st_size
    assert [p.name for p in file.parent.iterdir()] == ["model.onnx"]  # no drafts are left


@pytest.mark.parametrize("before", [None, b"of yesterday"])
@pytest.mark.slow
def test_a_file_that_differs_is_not_written(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    before: bytes | None,
) -> None:
    file = tmp_path / "new" / "model.onnx"
    if before is not None:
        file.parent.mkdir()
        file.write_bytes(before)
    for wrong in (Difference(0.5, 0.0), Difference(0.0, 0.002), Difference(float("nan"), 0.0)):
        monkeypatch.setattr("papm.export.formats.compare", lambda *args, wrong=wrong: wrong)
        assert call("export", run, "--out", file) == 2
        said = capsys.readouterr().err
        assert f"{file}: not written, because" in said and said.count("\n") == 1
        assert {p.name: p.read_bytes() for p in file.parent.iterdir()} == (
            {} if before is None else {file.name: before}
        )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--out", "model.pt"], "ends in .onnx"),
        (["--out", "model.onnx", "--format", "openvino"], "ends in .xml"),
        (["--format", "tflite"], "openvino"),
        (["--fixed", "512"], "--fixed is height x width"),
        (["--fixed", "0x5"], "--fixed is height x width"),
    ],
)
def test_wrong_usage(run: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("export", run, *words) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_without_onnx_one_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "onnx" else found(name, *a))
    assert call("export", run, "--out", tmp_path / "model.onnx") == 2
    said = capsys.readouterr().err
    assert "pip install 'papm[export]'" in said and said.count("\n") == 1
    assert not (tmp_path / "model.onnx").exists()


def test_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("export", tmp_path / "none.ckpt", "--out", tmp_path / "model.onnx") == 2
    assert "no such checkpoint file" in capsys.readouterr().err
    assert call("export", tmp_path / "none.ckpt", "--out", tmp_path / "new" / "model.onnx") == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_place_that_cannot_be_written(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken.onnx").mkdir()
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "taken.onnx", tmp_path / "file" / "model.onnx"):
        assert call("export", run, "--out", out) == 2
        said = capsys.readouterr().err
        assert f"{out}: cannot be written" in said and said.count("\n") == 1


def test_a_full_disk_names_the_file_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(network: Any, file: Path, *_: Any) -> None:
        raise WriteError(f"{file}: cannot be written (No space left on device)")

    monkeypatch.setitem(formats.WRITERS, "onnx", full)
    out = tmp_path / "mine.onnx"
    with pytest.raises(WriteError) as caught:
        export_model("cells", out)
    assert str(caught.value) == f"{out}: cannot be written (No space left on device)"
    assert list(tmp_path.iterdir()) == []
