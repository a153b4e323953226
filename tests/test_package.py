"""The package as a user meets it: light to import, one version, lazy front door."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import papm
from papm import version

SOURCE = Path(papm.__file__).parents[1]
PROJECT = SOURCE.parent / "pyproject.toml"


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAVY = ["lightning", "pytorch_lightning", "torchmetrics", "tensorboard", "typer", "rich", "jinja2"]
ABSENT = ["pydantic", "click", "torchvision", "timm", "pandas", "cv2", "matplotlib", "ray", "pyarrow"]


def loaded(statement: str) -> set[str]:
    names = json.loads(python(f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"))
    return {n.partition(".")[0] for n in names}


def test_import_is_light() -> None:
    found = loaded("import papm")
    assert "papm" in found and not found & {*HEAVY, *ABSENT}


def test_the_library_needs_no_trainer_and_nothing_that_may_be_missing() -> None:
    """Losses, targets, networks, data and predictions, without Lightning, plots, or packages we promised not to need."""
    parts = (
        "ggd, points, targets, losses, models, data, localize, config, methods, checkpoint, data.augment, data.cache"
    )
    statement = "; ".join(f"import papm.{p.strip()}" for p in parts.split(",")) + "; import papm; papm.Counter"
    assert not loaded(statement) & {*HEAVY, *ABSENT}


def test_front_door() -> None:
    assert papm.Counter.__name__ == "Counter" and papm.__version__ == version.__version__
    assert papm.losses.names() and papm.ggd.kernel and papm.targets.density_map
    assert {"Counter", "errors", "losses", "targets", "__version__"} <= set(dir(papm))
    assert papm.errors.PapmError.__name__ == "PapmError"
    assert callable(papm.train) and callable(papm.evaluate) and papm.Run.__name__ == "Run"
    assert set(papm.__all__) <= set(dir(papm))
    with pytest.raises(AttributeError, match="module 'papm' has no attribute 'nothing'"):
        _ = papm.nothing


@pytest.mark.slow
def test_the_parts_that_users_name_are_found_without_an_import_of_their_own() -> None:
    assert python("import papm; print(papm.structures.PointBatch.__name__, papm.points.flip.__name__)").split() == [
        "PointBatch",
        "flip",
    ]


# mypy looks at papm itself and takes what it stands on as Any: seconds instead of half a minute.
QUICK = """
[mypy]
strict = true
follow_imports = silent
cache_dir = /dev/null
[mypy-torch.*,torchmetrics.*,lightning.*,numpy.*,scipy.*,PIL.*,yaml.*,onnx.*,onnxruntime.*,cv2.*]
follow_imports = skip
ignore_missing_imports = true
"""


@pytest.mark.slow
def test_a_misspelt_name_is_an_error_to_a_type_checker(tmp_path: Path) -> None:
    """Everything that `papm.` offers has a type, and nothing else passes."""
    pytest.importorskip("mypy")
    (tmp_path / "mypy.ini").write_text(QUICK, encoding="utf-8")
    good = ["import papm", *(f"papm.{name}" for name in papm.__all__), 'reveal_type(papm.losses.create("hd-papm"))']
    bad = ["papm.losses.creat", "papm.Count", "papm.trian"]
    (tmp_path / "user.py").write_text("\n".join([*good, *bad]), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "user.py"]
    env = {**os.environ, "MYPYPATH": str(SOURCE)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    told = [line for line in done.stdout.splitlines() if line.startswith("user.py:")]
    assert 'Revealed type is "papm.losses.base.CountingLoss"' in told[0], done.stdout
    assert [int(line.split(":")[1]) for line in told[1:]] == [len(good) + 1, len(good) + 2, len(good) + 3], told
    assert all("[attr-defined]" in line for line in told[1:])


@pytest.mark.skipif(not PROJECT.exists(), reason="installed without its sources")
def test_one_version() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    path = PROJECT.parent / project["tool"]["hatch"]["version"]["path"]
    assert path.resolve() == Path(version.__file__).resolve()
    scope: dict[str, str] = {}
    exec(path.read_text(encoding="utf-8"), scope)
    assert scope["__version__"] == papm.__version__
    assert len(papm.__version__.split(".")) >= 3


@pytest.mark.skipif(not PROJECT.exists(), reason="installed without its sources")
def test_command_and_typing_are_declared() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    module, _, function = project["project"]["scripts"]["papm"].partition(":")
    import importlib

    assert callable(getattr(importlib.import_module(module), function))
    assert (Path(papm.__file__).parent / "py.typed").exists()
    required = {r.split(">")[0].split("=")[0].split("[")[0] for r in project["project"]["dependencies"]}
    assert not required & {"torchvision", "timm", "pandas", "opencv-python-headless"}


def test_python_dash_m() -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "papm", "--version"], capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 0 and papm.__version__ in done.stdout
