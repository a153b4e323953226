"""Compiling at first use: a library that works, one that is made once, and nothing that fails where it cannot be made."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import platform
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from papm.compiled import buildable, c_library, on_threads

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


def plant(folder: Path, source: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another library under the name that the one of `source` will have; loading it leaves a file `marker`."""
    native = folder / "native"
    with monkeypatch.context() as patch:
        patch.setenv("PAPM_CACHE", str(folder))
        patch.setattr(ctypes, "CDLL", lambda name: None)  # to learn the name, nothing has to be loaded
        c_library(source)
    [made] = native.iterdir()
    made.unlink()
    text = f'#include <stdio.h>\n__attribute__((constructor)) void ran(void) {{ fclose(fopen("{marker}", "w")); }}\n'
    evil = source.with_name("evil.c")
    evil.write_text(text + "int twice(int x) { return -1; }")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    subprocess.run([compiler, "-shared", "-fPIC", str(evil), "-o", str(made)], check=True)
    made.chmod(0o755)
    return made


@needs_compiler
@pytest.mark.parametrize("whose", ["writable", "another's file", "another's folder"])
def test_planted_code_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    source = write(tmp_path, f"int twice(int x) {{ return 2 * x; }} /* {whose} */")
    planted = plant(tmp_path / "cache", source, tmp_path / "ran", monkeypatch)
    if whose == "writable":
        planted.parent.chmod(0o777)
        planted.chmod(0o777)
    elif os.geteuid():
        pytest.skip("only root gives files away")
    else:
        planted.parent.chmod(0o777)
        os.chown(planted, 65534, 65534)
        if whose == "another's folder":
            os.chown(planted.parent, 65534, 65534)
    before = planted.read_bytes()
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    library = c_library(source)
    assert not (tmp_path / "ran").exists()
    assert library is not None and library.twice(21) == 42
    if whose == "another's folder":
        assert planted.read_bytes() == before
        assert f"{planted.parent}: belongs to another user" in caplog.text and "set PAPM_CACHE" in caplog.text
    else:
        assert planted.read_bytes() != before and planted.stat().st_uid == os.geteuid()
        assert planted.parent.stat().st_mode & 0o777 == 0o700 and planted.stat().st_mode & 0o777 == 0o700


@needs_compiler
def test_a_library_without_its_function_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from papm import _kernel_maps

    source = write(tmp_path, "int once(int x) { return x; }")
    monkeypatch.setattr(_kernel_maps, "SOURCE", source)
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    _kernel_maps._library.cache_clear()
    try:
        assert _kernel_maps._library() is None
    finally:
        _kernel_maps._library.cache_clear()
    assert "papm_windows" in caplog.text and "a slower path is used" in caplog.text
    assert list((tmp_path / "cache" / "native").iterdir()) == []


@needs_compiler
def test_a_compiler_may_be_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    monkeypatch.setenv("CC", f"env {compiler} -DTIMES=5")
    library = c_library(write(tmp_path, "int twice(int x) { return TIMES * x; }"))
    assert library is not None and library.twice(3) == 15
    monkeypatch.setenv("CC", "gcc 'half a quote")
    assert c_library(write(tmp_path, "int twice(int x) { return 7 * x; }")) is None


@needs_compiler
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="elsewhere it is no library of its own")
def test_libraries_are_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    assert c_library(write(tmp_path, "#include <math.h>\nfloat twice(float x) { return logf(x); }"), "-lm") is not None
    [made] = (tmp_path / "cache" / "native").iterdir()
    assert b"libm.so" in made.read_bytes()


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


def test_jobs_on_threads_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for pays in (True, False):
        assert on_threads(lambda k: k * k, 7, pays) == [k * k for k in range(7)] and on_threads(str, 0, pays) == []
    with pytest.raises(ZeroDivisionError):
        on_threads(lambda k: 1 // k, 4, pays=True)
    met = {on_threads(lambda k: threading.get_ident(), 2, pays)[0] for pays in (True, False)}
    assert len(met) == 2 and threading.get_ident() in met


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its parent are not there any more: waiting for them would be for ever."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert on_threads(lambda k: k, 4, pays=True) == [0, 1, 2, 3]
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(on_threads(lambda k: 2 * k, 4, pays=True)))
    child.start()
    child.join(60)
    assert child.exitcode == 0 and answers.get() == [0, 2, 4, 6]
