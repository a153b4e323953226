"""Models whose weights or counts are not finite numbers: refused by every command, never a count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.errors import CheckpointError, DataError
from papm.predict.predictor import Counter

Run = Callable[..., tuple[int, str, str]]
SCENES = "synthetic:train=1,test=1,size=64,count=3-6"
DAMAGE: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda v: v * float("nan"),
    "inf": lambda v: v + float("inf"),
    "one": lambda v: torch.where(torch.arange(v.numel()).reshape(v.shape) == 0, float("nan"), v),
    "double": lambda v: v.double() * 1e300,  # finite in the file, infinite in the network
    "large": lambda v: v * 1e8,  # finite weights, counts that overflow
}
NETWORKS = {"tiny": {}, "p2pnet": {"trunk": "tiny"}}


@pytest.fixture
def broken(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A checkpoint of the network with damaged weights."""
    name, damage = request.param
    torch.manual_seed(0)
    state = models.create(name, **NETWORKS[name]).state_dict()
    state = {k: DAMAGE[damage](v) if v.is_floating_point() else v for k, v in state.items()}
    checkpoint.save(tmp_path / "bad.ckpt", ModelSpec(name, NETWORKS[name], "hd-papm"), state)
    return tmp_path / "bad.ckpt"


every = pytest.mark.parametrize(
    "broken", [(n, d) for n in NETWORKS for d in DAMAGE], ids=lambda p: "-".join(p), indirect=True
)


@pytest.mark.slow
@every
def test_a_broken_model_gives_no_counts(broken: Path, tmp_path: Path, run_papm: Run) -> None:
    image, out = tmp_path / "a.png", tmp_path / "out"
    Image.effect_noise((64, 48), 60).convert("RGB").save(image)
    for words in (
        ["predict", broken, image, "--out", out],
        ["predict", broken, image, "--out", out, "--no-points", "--json"],
        ["eval", broken, SCENES, "--json", "--out", out],
        ["eval", broken, SCENES, "--localization", "qnrf"],
    ):
        code, said, err = run_papm(*words)
        assert code == 2 and not said and err.count("\n") == 1, (words, said, err)
        assert "not finite numbers" in err or "the model's count is not a number" in err
    assert not out.exists()
    with pytest.raises(CheckpointError):
        Counter.load(broken, "cpu").predict(image)


@every
def test_a_broken_model_is_not_exported(broken: Path, tmp_path: Path, run_papm: Run) -> None:
    pytest.importorskip("onnx")
    code, said, err = run_papm("export", broken, "--out", tmp_path / "m.onnx")
    assert code == 2 and not said and err.count("\n") == 1 and "not finite numbers" in err, err
    assert [p.name for p in tmp_path.iterdir()] == ["bad.ckpt"]


@pytest.mark.slow
def test_a_comparison_with_nan_fails(tmp_path: Path) -> None:
    """The difference of two outputs that are not numbers is no 0.0."""
    pytest.importorskip("onnxruntime")
    from papm.export.onnx import check_onnx, export_onnx

    network = models.create("tiny")
    file = export_onnx(network, tmp_path / "m.onnx", (64, 64), dynamic=False)
    assert check_onnx(file, network, [(64, 64)]) < 1e-4
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    with pytest.raises(DataError, match="the file gives numbers that are not finite"):
        check_onnx(file, network, [(64, 64)])
    with pytest.raises(CheckpointError, match="not finite"):
        export_onnx(network, tmp_path / "n.onnx", (64, 64), dynamic=False)
    assert not (tmp_path / "n.onnx").exists()
