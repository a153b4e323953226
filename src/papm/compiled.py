"""Small C and CUDA sources beside the Python ones, compiled at first use; where they cannot be, another path does the work.

C is built with the system's compiler into the cache folder (`PAPM_CACHE`, else ~/.cache/papm), named after source, compiler,
flags and processor. `PAPM_NATIVE=0` turns it off. CUDA is built by NVRTC, which comes with torch's CUDA build.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from papm.files import cache_root

log = logging.getLogger(__name__)
T = TypeVar("T")
FLAGS = ("-O3", "-std=c99", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
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


def _compile(source: Path, target: Path, compiler: str, flags: tuple[str, ...]) -> None:
    """Build beside the target, then rename: several processes may do this at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        for extra in (("-march=native",), ()):
            command = [compiler, *flags, *extra, str(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode == 0:
                made.replace(target)
                return
        raise OSError(done.stderr.strip()[-300:])


def c_library(source: Path, *flags: str) -> ctypes.CDLL | None:
    """The library made of one C file, or None (and a line in the log) where it cannot be made or is not wanted."""
    if os.environ.get("PAPM_NATIVE", "1") == "0":
        return None
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        log.info("no C compiler found: %s is not used", source.name)
        return None
    try:
        every = (*FLAGS, *flags)
        text = source.read_bytes() + compiler.encode() + " ".join(every).encode() + _processor().encode()
        target = cache_root() / "native" / f"{source.stem}-{hashlib.sha256(text).hexdigest()[:16]}.so"
        if not target.exists():
            _compile(source, target, compiler, every)
        return ctypes.CDLL(str(target))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        log.warning("%s could not be compiled, a slower path is used: %s", source.name, error)
        return None


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
