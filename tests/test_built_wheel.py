"""A wheel that carries its C loops: they are used without a compiler, and only where they belong."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import papm
from papm import c_sources, compiled
from papm.compiled import c_library

ROOT = Path(papm.__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(not c_sources.compilers(), reason="no C compiler"),
    pytest.mark.skipif(os.name != "posix", reason="libraries are built for POSIX systems"),
]
TWICE = "int twice(int x) { return 2 * x; }"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one C source and its library, on a machine without a compiler."""
    (tmp_path / "twice.c").write_text(TWICE)
    monkeypatch.setattr(c_sources, "LOOPS", {"twice.c": ("-DNOTHING",)})
    c_sources.build_all(tmp_path, tmp_path / c_sources.BUILT)
    monkeypatch.setattr(compiled, "PACKAGE", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def test_a_built_library_needs_no_compiler_and_no_cache(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPM_CACHE", str(package / "cache"))
    library = c_library(package / "twice.c", "-DNOTHING", functions=("twice",))
    assert isinstance(library, ctypes.CDLL) and library.twice(21) == 42
    assert not (package / "cache").exists()
    monkeypatch.setenv("PAPM_NATIVE", "0")
    assert c_library(package / "twice.c", "-DNOTHING") is None


def test_one_of_another_source_or_of_other_flags_is_not_used(package: Path) -> None:
    assert c_library(package / "twice.c") is None
    (package / "twice.c").write_text(f"{TWICE} /* changed */")
    assert c_library(package / "twice.c", "-DNOTHING") is None


def test_one_that_lacks_a_function_is_not_used(package: Path) -> None:
    assert c_library(package / "twice.c", "-DNOTHING", functions=("thrice",)) is None


def test_one_that_does_not_load_is_not_used(package: Path) -> None:
    for built in (package / c_sources.BUILT).iterdir():
        built.write_bytes(b"no library")
    assert c_library(package / "twice.c", "-DNOTHING") is None


def test_the_processor_decides(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [name for name, _, _ in c_sources.built_names(package / "twice.c", ("-DNOTHING",))]
    loaded: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: loaded.append(Path(name).name))
    monkeypatch.setattr(compiled, "_processor", lambda: "flags : fpu sse2")
    c_library(package / "twice.c", "-DNOTHING")
    assert loaded == [made[-1]]
    monkeypatch.setattr(compiled, "_processor", lambda: "flags : avx avx2 bmi1 bmi2 f16c fma abm movbe xsave")
    c_library(package / "twice.c", "-DNOTHING")
    assert loaded[-1] == made[0]


USED = "import json; from papm.engine.fast_paths import c_paths; print(json.dumps(c_paths()))"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not (ROOT / "hatch_build.py").exists(), reason="installed without its sources")
def test_the_wheel_carries_every_loop(tmp_path: Path) -> None:
    pytest.importorskip("build")
    kept = ("src", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
    for name in kept:  # a build leaves files behind
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path / "dist"),
        str(tmp_path),
    ]
    subprocess.run(command, env={**os.environ, "PAPM_BUILD_C": "1"}, check=True, capture_output=True, timeout=300)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert "-py3-none-" in wheel.name and "-any" not in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    levels = len(c_sources.LEVELS.get(os.uname().machine, c_sources.PLAIN))
    built = list((tmp_path / "installed" / "papm" / c_sources.BUILT).glob("*.so"))
    assert len(built) == levels * len(c_sources.LOOPS) == levels * len([*(ROOT / "src").rglob("*.c")])
    env = {"PATH": "/nonexistent", "PYTHONPATH": str(tmp_path / "installed"), "PAPM_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", USED], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and all(json.loads(done.stdout).values()), done.stderr
    assert not (tmp_path / "cache").exists()
