"""Train on a disk that is too small, do what the error says, and compare with a run that had room.

    python benchmarks/full_disk.py [--sizes 24] [--smallest 40] [--largest 4000] [--shim]

Each size in kB is a tmpfs of its own, which needs root; where mounting is refused, or with --shim, writing fails once the
folder holds as much. A run must end with a sentence and exit code 2, or with 0, never with a traceback. Once there is room, the
command that the sentence asks for must lead to the weights of the run that had room, to the last bit. Prints a table and exits
with 1 when a size fails.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ENOUGH = 64_000  # kB
TRAIN = ["train", "synthetic:train=8,test=3,size=64,count=5-10", "--backbone", "tiny", "device=cpu", "select=test"]
SETTINGS = ["steps=24", "crop=64", "batch=2", "log_every=5", "save_every=6", "eval_every=4", "lr=0.01", "seed=3"]
LIMIT = "FULL_DISK_LIMIT"  # what the shim reads: kB and a folder


def fill(folder: Path, kilobytes: int) -> None:
    """The shim: nothing is flushed to a folder that holds more than so much."""
    flush = os.fsync

    def full(handle: int) -> None:
        flush(handle)
        if sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) > 1000 * kilobytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.fsync = full


def mount(place: Path, kilobytes: int, *more: str) -> bool:
    """Put a tmpfs there; False where that is refused."""
    option = ",".join((*more, f"size={kilobytes}k"))
    words = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(place)]
    with contextlib.suppress(OSError):
        return subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0
    return False


@contextlib.contextmanager
def small_disk(place: Path, kilobytes: int, shim: bool) -> Iterator[dict[str, str]]:
    """A folder that holds so much, and what its processes need in their environment."""
    place.mkdir()
    mounted = not shim and mount(place, kilobytes)
    try:
        yield {} if mounted else {"PAPM_IMPORT": str(Path(__file__).resolve()), LIMIT: f"{kilobytes} {place}"}
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def train(folder: Path, resume: bool, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and complaints of one command."""
    words = [sys.executable, "-m", "papm", *TRAIN, *SETTINGS, "--out", str(folder), *(["--resume"] if resume else [])]
    made = subprocess.run(
        words,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    return made.returncode, made.stderr.strip()


def same(a: Path, b: Path) -> bool:
    """Whether two runs have the same chosen and the same last weights, and the same counts."""
    import torch

    from papm import checkpoint

    for name in ("best.ckpt", "last.ckpt"):
        if not (a / name).exists() or not (b / name).exists():
            return False
        (one, first), (two, second) = (checkpoint.load(f / name) for f in (a, b))
        if one.step != two.step or not all(torch.equal(first[k], second[k]) for k in first):
            return False
    one, two = ((f / "predictions.csv").read_bytes() for f in (a, b))
    return one == two


def main() -> int:
    """Each size in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=24)
    parser.add_argument("--smallest", type=float, default=40, help="kB")
    parser.add_argument("--largest", type=float, default=4000, help="kB")
    parser.add_argument("--shim", action="store_true", help="do not mount, raise ENOSPC")
    given = parser.parse_args()
    ratio = (given.largest / given.smallest) ** (1 / max(1, given.sizes - 1))
    failed = 0
    with tempfile.TemporaryDirectory() as top:
        whole = Path(top) / "whole"
        if train(whole, False, {})[0]:
            return 1
        print(
            "| kB | exit | left in the folder | then | weights | what it said |\n|---|---|---|---|---|---|", flush=True
        )
        for k in range(given.sizes):
            size = round(given.smallest * ratio**k)
            place = Path(top) / str(size)
            with small_disk(place, size, given.shim) as environment:
                run = place / "run"
                code, said = train(run, False, environment)
                names = ("config.yaml", "last.ckpt", "best.ckpt", "result.json")
                left = ", ".join(n for n in names if (run / n).exists()) or "nothing"
                last = said.splitlines()[-1].replace(f"{place}/", "") if said else ""
                if not environment:
                    mount(place, ENOUGH, "remount")
                resume = code == 0 or "--resume" in last
                then, complaint = train(run, resume, {})
                equal = then == 0 and same(whole, run)
            good = equal and code in (0, 2) and "Traceback" not in said + complaint
            failed += not good
            verdict = "equal" if equal else f"DIFFER ({then}: {complaint.splitlines()[-1:]})"
            how = "--resume" if resume else "anew"
            print(f"| {size} | {code} | {left} | {how} | {verdict} | {last} |", flush=True)
    print(f"\n{given.sizes - failed} of {given.sizes} sizes end in a sentence and lead to the same weights")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
if LIMIT in os.environ:  # imported by papm, as PAPM_IMPORT asks
    kilobytes, _, place = os.environ[LIMIT].partition(" ")
    fill(Path(place), int(kilobytes))
