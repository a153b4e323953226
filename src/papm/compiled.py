"""Small C and CUDA sources beside the Python ones, compiled at first use; where they cannot be, another path does the work.

C is built with the system's compiler (`CC`) into `native/` of the cache folder (`papm.files.cache_root`), which is this user's
alone, and named after source, compiler, flags and processor. A wheel may carry the loops compiled (`hatch_build.py`): they are
used where the processor can run them and no `CC` is given. `PAPM_NATIVE=0` turns C off. CUDA is built by NVRTC, which comes
with torch's CUDA build.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from papm.c_sources import BUILT, FLAGS, built_names, compile_c, compilers
from papm.files import cache_root, is_private, private_folder

log = logging.getLogger(__name__)
T = TypeVar("T")
PACKAGE = Path(__file__).parent
NATIVE = (("-march=native",), ())  # not every compiler knows this processor
# Bytes of shared memory kept for the arrays that a CUDA kernel declares itself, and for the system.
OWN_SHARED = 4 * 1024
ASKED_SHARED = 48 * 1024  # torch asks for no less: it takes less to be there, whatever the kernel declares
PLAIN_SHARED = ASKED_SHARED - OWN_SHARED  # bytes beside those that it gets without asking


def _processor() -> str:
    """What distinguishes machines that may share a home folder: -march=native code of one can be illegal on another."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    except OSError:
        pass
    return platform.processor() + platform.node()


def c_library(source: Path, *flags: str, functions: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    """The library made of one C file, or None (and a line in the log) where it cannot be made or is not wanted.

    It is code that runs with the user's rights: a file that another user made or may change is not loaded.
    """
    if os.environ.get("PAPM_NATIVE", "1") == "0":
        return None
    try:
        given = shlex.split(os.environ.get("CC", ""))
        if not given and (library := _from_wheel(source, flags, functions)) is not None:
            return library
        compiler = given or compilers()
        if not compiler:
            log.info("no C compiler found: %s is not used", source.name)
            return None
        every = (*FLAGS, *flags)
        text = source.read_bytes() + " ".join((*compiler, *every)).encode() + _processor().encode()
        name = f"{source.stem}-{hashlib.sha256(text).hexdigest()[:16]}.so"
        folder = cache_root() / "native"
        try:
            private_folder(folder)
        except OSError as error:
            _say_not_kept(folder, error.strerror or str(error))
            with tempfile.TemporaryDirectory() as own:
                compile_c(source, Path(own) / name, compiler, every, *NATIVE)
                return _loaded(Path(own), name, functions)
        if not (folder / name).exists() or not is_private((folder / name).lstat()):
            compile_c(source, folder / name, compiler, every, *NATIVE)
        return _loaded(folder, name, functions)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        log.warning("%s could not be compiled, a slower path is used: %s", source.name, error)
        return None


def _from_wheel(source: Path, flags: tuple[str, ...], functions: tuple[str, ...]) -> ctypes.CDLL | None:
    """The library that came with papm, if it was made of this source and this processor can run it.

    It lies beside the Python code, and whoever could change it could change that too.
    """
    folder = PACKAGE / BUILT
    if not folder.is_dir() or PACKAGE not in source.parents:
        return None
    knows = set(_processor().split())
    for name, _, needed in built_names(source, flags):
        if needed <= knows and (folder / name).is_file():
            try:
                library = ctypes.CDLL(str(folder / name))
                for function in functions:
                    getattr(library, function)
                return library
            except (OSError, AttributeError) as error:  # another C library than where it was built
                log.info("%s: cannot be used here (%s)", folder / name, error)
    return None


@functools.lru_cache(maxsize=4)
def _say_not_kept(folder: Path, reason: str) -> None:
    log.warning("%s: %s; code is compiled again each time: set PAPM_CACHE to a folder of your own", folder, reason)


def _loaded(folder: Path, name: str, functions: tuple[str, ...]) -> ctypes.CDLL:
    """The library `name` of a private folder, with all of its functions; one that is of no use is removed."""
    with _held(folder) as place:
        if not is_private(place.stat()) or not is_private((place / name).lstat()):
            raise OSError(f"{folder / name} is another user's")
        try:
            library = ctypes.CDLL(str(place / name))
            for function in functions:
                getattr(library, function)
        except (OSError, AttributeError) as error:
            (place / name).unlink(missing_ok=True)
            raise OSError(f"{folder / name} was of no use ({error}), and is removed") from None
        return library


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[Path]:
    """A folder by a name that stays its own, where the system has one: another cannot take its place after it was checked."""
    if not Path("/proc/self/fd").is_dir():
        yield folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


@functools.lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Kept, since starting threads takes as long as a small job; by process, since a fork has none of them."""
    return ThreadPoolExecutor(threads, "papm-compiled")


def on_threads(job: Callable[[int], T], number: int, pays: bool) -> list[T]:
    """job(0), job(1), …, several at a time where that pays: compiled code does not hold the interpreter's lock."""
    threads = min(torch.get_num_threads(), number)
    if threads > 1 and pays:
        return list(_pool(os.getpid(), threads).map(job, range(number)))
    return [job(k) for k in range(number)]


def cuda_kernel(text: str, name: str, device: torch.device) -> Any:
    """The kernel `name` of a CUDA source; raises whatever the driver or the compiler does."""
    with torch.cuda.device(device):
        return torch.cuda._compile_kernel(text, name)


def buildable(build: Callable[[], object], what: str) -> bool:
    """Whether this torch and this device build a CUDA kernel; a line in the log where they should and cannot."""
    if not hasattr(torch.cuda, "_compile_kernel"):
        return False
    try:
        build()
        return True
    except Exception as error:  # any failure of the driver or the compiler: another path does the work
        log.warning("%s could not be built, another path is used: %s", what, error)
        return False


def ask_for_shared(kernel: Any, number: int) -> None:
    """Let a kernel be launched with so many bytes of shared memory beside its own."""
    if number >= PLAIN_SHARED:
        kernel.set_shared_memory_config(max(number, ASKED_SHARED))  # less would not be asked for


@functools.lru_cache(maxsize=8)
def shared_limit(device: torch.device) -> int:
    """Bytes of shared memory a block may have here: more than the plain 48 KB has to be asked for."""
    if not hasattr(torch.cuda._utils._CudaKernel, "set_shared_memory_config"):
        return PLAIN_SHARED - 1
    offered = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", ASKED_SHARED)
    return int(offered) - OWN_SHARED
