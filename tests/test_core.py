"""The core: what works with nothing but the dependencies of pyproject.toml, and what is said where an extra is missing."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

import papm
from papm import extras
from papm.errors import ConfigError

SOURCE = Path(papm.__file__).parents[1]
PROJECT = SOURCE.parent / "pyproject.toml"
NINE = {"torch", "numpy", "scipy", "pillow", "safetensors", "pyyaml", "typer", "rich", "filelock"}
needs_project = pytest.mark.skipif(not PROJECT.exists(), reason="installed without its sources")


def declared(extra: str | None = None) -> set[str]:
    """Names of the packages that pyproject.toml asks for."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def brought_by(names: set[str]) -> set[str]:
    """These packages and all that they need, as far as they are installed."""
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        needed = (Requirement(line) for line in lines)
        waiting |= {canonicalize_name(r.name) for r in needed if r.marker is None or r.marker.evaluate()} - found
    return found


@functools.cache
def absent() -> list[str]:
    """Modules that a core installation may lack, of all that are installed here."""
    core = brought_by(declared()) - {"jinja2", "markupsafe"}  # torch asks for them, and imports them only to compile
    of = metadata.packages_distributions()
    names = {module for module, packages in of.items() if not core & {canonicalize_name(p) for p in packages}}
    return sorted(names - {"papm", "_virtualenv"})


@needs_project
def test_the_core_has_nine_dependencies() -> None:
    assert declared() == NINE | {"click"}  # typer's, bounded because newer ones break it


@needs_project
def test_the_sentences_name_the_extras_that_there_are() -> None:
    for extra, packages in extras.EXTRAS.items():
        assert declared(extra) == set(packages.values()), extra
    assert {"lightning", "jinja2", "cv2", "onnx", "starlette", "hypothesis"} <= set(absent())
    assert not {"torch", "numpy", "click", "yaml", "PIL", "sympy"} & set(absent())


def test_what_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    assert extras.missing("train") == ["torchmetrics"]
    extras.require("train", "nothing needs", "tensorboard")
    with pytest.raises(ConfigError, match=r"^metrics need the package 'torchmetrics': pip install 'papm\[train\]'$"):
        extras.require("train", "metrics need")
    with pytest.raises(extras.MissingExtraError, match=r"papm\.metrics\.CountingMetrics needs .* 'papm\[train\]'"):
        _ = papm.metrics.CountingMetrics


RUN = """
import contextlib, io, json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # an import of it fails as that of a module that is not there
import papm, torch
loss = papm.losses.create("al-papm", stride=8)
density = torch.rand(1, 1, 16, 16, requires_grad=True)
for _ in range(3):
    density.grad = None
    loss(density, [torch.tensor([[20.0, 30.0], [70.5, 64.0]])]).total.backward()
assert density.grad.isfinite().all()

from papm.cli.main import main
said = []
for words in json.loads(sys.argv[2]):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
    said.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(said))
"""
TRAIN = "train synthetic:train=3,test=2,count=5-9,size=64x64 --backbone tiny steps=2 crop=32 batch=1 device=cpu"
# What a command needs beyond the core, and the sentence that it ends with.
REFUSED = {
    "serve run": ("serve", "papm serve needs the package 'starlette'"),
    "export run --out model.onnx": ("export", "exporting to ONNX needs the package 'onnx'"),
    "predict run film.mp4 --out videos": ("video", "videos need the package 'opencv-python-headless'"),
    "report run": ("report", "a page needs the package 'jinja2'"),
    "demo --out demo --steps 1": ("report", "a page needs the package 'jinja2'"),
    "robustness synthetic:train=3,test=1 --out moved": ("report", "a page needs the package 'jinja2'"),
    f"{TRAIN} --out two devices=2": (
        "train",
        "training on several processes needs the package 'lightning'",
    ),
}


@needs_project
@pytest.mark.slow
@pytest.mark.long
def test_a_core_trains_and_counts_and_names_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"")
    Image.new("RGB", (64, 48), "grey").save(tmp_path / "photo.png")
    works = [f"{TRAIN} --out run", "predict run photo.png --out counts", "doctor --json"]
    words = [line.split() for line in (*works, *REFUSED)]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, json.dumps(absent()), json.dumps(words)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert [code for code, _, _ in said[: len(works)]] == [0, 0, 0], said
    trained = said[0][2]
    assert "TensorBoard's events need the package 'tensorboard': pip install 'papm[train]'" in trained
    assert "a page needs the package 'jinja2': pip install 'papm[report]'; then: papm report run" in trained
    assert (tmp_path / "run" / "result.json").exists() and list((tmp_path / "run").glob("examples/*"))
    assert (tmp_path / "counts" / "counts.csv").exists()
    for line, (code, _, err) in zip(REFUSED, said[len(works) :]):
        extra, sentence = REFUSED[line]
        assert code == 2 and err.splitlines()[-1] == f"papm: {sentence}: pip install 'papm[{extra}]'", (line, err)
    assert not [
        name for name in ("model.onnx", "demo", "moved", "videos", "two/result.json") if (tmp_path / name).exists()
    ]
