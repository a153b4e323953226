"""The C loops of papm and how each is compiled: at first use (`papm.compiled`), or into a wheel (`hatch_build.py`).

Standard library only: a build loads this file by itself, without papm and torch.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

FLAGS = ("-O3", "-std=c99", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
# Every source, from the folder of the package, with the flags of its own.
LOOPS: dict[str, tuple[str, ...]] = {
    "_kernel_maps.c": ("-fno-signed-zeros", "-ffinite-math-only", "-fassociative-math"),
    "matching/assign.c": ("-fno-signed-zeros", "-ffinite-math-only"),
    "transport/sinkhorn.c": (),
    "transport/softmin.c": ("-lm",),
    "models/depthwise.c": ("-ffp-contract=fast",),
}
BUILT = "_built"  # the folder of a wheel's libraries, in the package
# Of processors that differ by what they know, the better first: flags of the compiler, and what /proc/cpuinfo must list.
LEVELS: dict[str, tuple[tuple[str, tuple[str, ...], frozenset[str]], ...]] = {
    "x86_64": (
        (
            "v3",
            ("-march=x86-64-v3",),
            frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"]),
        ),
        ("v1", ("-march=x86-64",), frozenset()),
    ),
}
PLAIN = (("any", (), frozenset[str]()),)


def compilers() -> list[str]:
    """The system's C compiler, as the first word of a command; nothing where there is none."""
    return [c for c in map(shutil.which, ("cc", "gcc", "clang")) if c][:1]


def compile_c(source: Path, target: Path, compiler: Sequence[str], flags: Sequence[str], *tries: Sequence[str]) -> None:
    """Build beside the target, then rename: several processes may do this at once. The first of `tries` that works counts."""
    libraries = [f for f in flags if f.startswith("-l")]  # a linker drops what nothing before it asks for
    options = [f for f in flags if f not in libraries]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        for extra in tries or ((),):
            command = [*compiler, *options, *extra, str(source), "-o", str(made), *libraries]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode == 0:
                made.chmod(0o700)
                made.replace(target)
                return
        raise OSError(done.stderr.strip()[-300:])


def built_names(source: Path, flags: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...], frozenset[str]]]:
    """Names of the libraries that a wheel may have of this very source and flags, the fastest first, each with the flags that
    make it and what a processor must know to run it."""
    machine = platform.machine()
    text = source.read_bytes().replace(b"\r\n", b"\n") + " ".join((*FLAGS, *flags)).encode()
    digest = hashlib.sha256(text).hexdigest()[:16]
    for level, own, knows in LEVELS.get(machine, PLAIN):
        yield f"{source.stem}-{machine}-{level}-{digest}.so", own, knows


def build_all(package: Path, folder: Path) -> list[Path]:
    """Compile every loop into a folder, for each kind of processor; OSError where that cannot be."""
    compiler = compilers()
    if not compiler:
        raise OSError("no C compiler found")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, flags in LOOPS.items():
        for built, own, _ in built_names(package / name, flags):
            compile_c(package / name, folder / built, compiler, (*FLAGS, *flags), own)
            (folder / built).chmod(0o755)
            made.append(folder / built)
    return made
