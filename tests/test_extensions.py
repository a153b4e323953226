"""Losses and datasets from outside the package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import papm
from papm.cli.main import main
from papm.errors import ConfigError
from papm.extensions import VARIABLE, load_extensions
from papm.methods import METHODS

MINE = """
from papm.losses import register
from papm.losses.density import hd_papm
from papm import methods
from papm.methods import METHODS, Method

if "outside" in METHODS:
    raise RuntimeError("imported twice")
register("outside", hd_papm)
methods.register(Method("outside", "outside", "from outside"))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    from papm.losses.registry import LOSSES

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(papm.__file__).parents[1]))
    before = dict(METHODS._items), dict(LOSSES._items), set(sys.modules)
    yield tmp_path
    METHODS._items.clear()
    METHODS._items.update(before[0])
    LOSSES._items.clear()
    LOSSES._items.update(before[1])
    for name in set(sys.modules) - before[2]:
        if name.startswith("papm_import_"):
            del sys.modules[name]


def test_a_file_registers_what_it_has_once(here: Path) -> None:
    (here / "mine.py").write_text(MINE, encoding="utf-8")
    assert load_extensions("mine.py") == ("mine.py",) and "outside" in METHODS
    assert load_extensions(f" {here / 'mine.py'} {os.pathsep}") == (str(here / "mine.py"),)  # the same file: not again


def test_a_module_of_the_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "papm_import_me.py").write_text(MINE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(here))
    assert load_extensions("papm_import_me") == ("papm_import_me",) and "outside" in METHODS


def test_nothing_is_imported_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert load_extensions() == ()


def install(folder: Path, value: str) -> None:
    """What pip leaves of a package that declares one entry point."""
    info = folder / "crowd_losses-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crowd-losses\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[papm]\nlosses = {value}\n", encoding="utf-8")


def test_an_installed_package_is_found_by_its_entry_point(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    (here / "papm_import_installed.py").write_text(MINE, encoding="utf-8")
    install(here, "papm_import_installed")
    monkeypatch.syspath_prepend(str(here))
    assert papm.load_extensions() == ("papm_import_installed",) and "outside" in METHODS
    assert papm.load_extensions() == ("papm_import_installed",)  # not again


def test_an_installed_package_that_cannot_be_imported_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(here, "papm_import_nowhere")
    monkeypatch.syspath_prepend(str(here))
    with pytest.raises(
        ConfigError, match=r"^entry point 'losses' of crowd-losses: papm_import_nowhere .*; mend it, or uninstall"
    ):
        load_extensions()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = 1\nraise ValueError('no\\nway')", r"bad\.py cannot be imported \(ValueError: no\) on line 2; mend it"),
        ("import sys\nsys.exit(3)", r"bad\.py cannot be imported \(SystemExit: 3\) on line 2"),
        ("x = (", r"bad\.py cannot be imported \(SyntaxError: .* line 1\)\)"),
        ("import papm.nothing", r"bad\.py cannot be imported \(ModuleNotFoundError: .*papm.nothing.*\) on line 1"),
        ("from papm.errors import ConfigError\nraise ConfigError('side is 3')", r"bad\.py: side is 3"),
        (None, r"bad\.py: no such file in .*; a full path works"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(here: Path, content: str | None, words: str) -> None:
    if content is not None:
        (here / "bad.py").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^PAPM_IMPORT: {words}") as caught:
        load_extensions("bad.py")
    assert "\n" not in str(caught.value) and "papm_import_bad" not in sys.modules


def test_commands_import_it(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(VARIABLE, "nowhere.py")
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 2 and "PAPM_IMPORT: nowhere.py: no such file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_trainings_of_a_study_know_it(here: Path) -> None:
    (here / "mine.py").write_text(MINE, encoding="utf-8")
    (here / "mine.yaml").write_text(
        "all: {dataset: synthetic, backbone: tiny, steps: 2, data.train: 2, data.test: 1, data.size: 64, crop: 64}\n"
        "rows: [{name: Mine, method: outside}]\n",
        encoding="utf-8",
    )
    words = [sys.executable, "-m", "papm", "study", "run", "mine.yaml", "device=cpu"]
    ended = subprocess.run(words, env={**os.environ, VARIABLE: "mine.py"}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "1 of 1 training done" in ended.stdout, ended.stderr
