"""Files: a reader sees the old one or the new one."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papm.errors import PapmError
from papm.files import cache_root, guarded, private_folder, unguarded, write_atomic, write_json, write_text
from papm.predict.results import write_counts


def only(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "a.txt"
    for text in ("first", "Größe — 50 %\n"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert only(path.parent) == ["a.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002])
def test_the_umask_is_honoured_and_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int) -> None:
    """It belongs to all threads of the process: to switch it for a moment gives their new files away."""
    before = os.umask(mask)
    try:
        with monkeypatch.context() as patch:
            patch.delattr(os, "umask")
            write_text(tmp_path / "a.txt", "x")
            write_counts([], tmp_path / "b.csv")
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in sorted(tmp_path.iterdir())] == [0o666 & ~mask] * 2


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127)  # 254 bytes
    write_text(path, "x")
    assert only(tmp_path) == [path.name]


def test_a_private_folder_is_closed_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path / "new" / "er", tmp_path):
        tmp_path.chmod(0o775)
        private_folder(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="another user"):
        private_folder(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail(*args: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(PapmError) as caught:
        write_text(path, "new")
    assert str(caught.value) == f"{path}: cannot be written ({os.strerror(code)}); what was there before is kept"
    assert path.read_text() == "old" and only(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError("half way"), KeyboardInterrupt()])
def test_a_writer_that_breaks_off_keeps_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.bin"
    write_text(path, "old")

    def write(stream: IO[bytes]) -> None:
        stream.write(b"half")
        raise error

    with pytest.raises(type(error)):
        write_atomic(path, write)
    assert path.read_text() == "old" and only(tmp_path) == ["a.bin"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PapmError, match="cannot be written"):
        write_text(tmp_path / "file" / "a.txt", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PapmError, match="folder: cannot be written"):
        write_text(tmp_path / "folder", "x")
    assert only(tmp_path) == ["file", "folder"] and only(tmp_path / "folder") == []


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"name": "Größe", "mae": 1.5, "list": [1, None, True]}
    write_json(path, value)
    assert json.loads(path.read_text(encoding="utf-8")) == value and "Größe" in path.read_text(encoding="utf-8")
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON"):
            write_json(path, {"mae": bad})
    assert json.loads(path.read_text(encoding="utf-8")) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "home/.cache/papm"), ("", "home/.cache/papm"), ("~/kept", "home/kept"), ("/elsewhere", "/elsewhere")],
)
def test_the_cache_folder(value: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PAPM_CACHE", raising=False)
    if value is not None:
        monkeypatch.setenv("PAPM_CACHE", value)
    assert cache_root() == tmp_path / expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("/var/c", "/var/c/papm"), ("c", "home/.cache/papm"), ("", "home/.cache/papm")],
)
def test_the_cache_folder_of_the_desktop(
    value: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths in XDG_CACHE_HOME are absolute; others are to be ignored (XDG Base Directory Specification)."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PAPM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_root() == tmp_path / expected
    monkeypatch.setenv("PAPM_CACHE", "/first")
    assert cache_root() == Path("/first")


@given(st.text(max_size=8) | st.text(alphabet="'=+-@\t\r\n1a", max_size=6))
def test_cells_come_back_and_are_no_formulas(text: str) -> None:
    cell = guarded(text)
    assert unguarded(cell) == text
    if cell and cell[0] in "=+-@\t\r\n":
        assert not math.isnan(float(cell))  # a number


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    taken = tmp_path / "results"
    taken.write_text("mine")
    with pytest.raises(PapmError, match="results is a file, not a folder"):
        write_text(taken / "counts.csv", "x")
    assert taken.read_text() == "mine"
