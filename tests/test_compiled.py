"""Compiling at first use: a library that works, one that is made once, and nothing that fails where it cannot be made."""

from __future__ import annotations

import ctypes
import logging
import shutil
from pathlib import Path

import pytest
import torch

from papm.compiled import buildable, c_library

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")


def write(folder: Path, text: str) -> Path:
    path = folder / "twice.c"
    path.write_text(text)
    return path


@needs_compiler
def test_made_once_for_each_source_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    source = write(tmp_path, "#ifndef TIMES\n#define TIMES 2\n#endif\nint twice(int x) { return TIMES * x; }")
    library = c_library(source)
    assert isinstance(library, ctypes.CDLL) and library.twice(21) == 42
    [made] = (tmp_path / "cache" / "native").iterdir()
    before = made.stat().st_mtime_ns
    assert c_library(source) is not None and made.stat().st_mtime_ns == before
    other = c_library(source, "-DTIMES=3")
    assert other is not None and other.twice(2) == 6
    assert len(list((tmp_path / "cache" / "native").iterdir())) == 2


@needs_compiler
def test_what_does_not_compile_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING, logger="papm"):
        assert c_library(write(tmp_path, "this is not C")) is None
    assert "twice.c could not be compiled" in caplog.text
    assert list((tmp_path / "cache" / "native").iterdir()) == []


def test_turned_off_or_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, "int twice(int x) { return 2 * x; }")
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PAPM_NATIVE", "0")
    assert c_library(source) is None
    monkeypatch.delenv("PAPM_NATIVE")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert c_library(source) is None
    assert not (tmp_path / "cache").exists()


def test_a_kernel_that_cannot_be_built_is_said_once_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise RuntimeError("no headers")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", None, raising=False)  # a torch that has it
    assert buildable(lambda: "made", "a kernel") and not caplog.text
    assert not buildable(fails, "a kernel")
    assert "a kernel could not be built, another path is used: no headers" in caplog.text
    monkeypatch.delattr(torch.cuda, "_compile_kernel")
    caplog.clear()
    assert not buildable(lambda: "made", "a kernel") and not caplog.text  # an older torch: nothing to mend
