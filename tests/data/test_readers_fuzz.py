"""Every published layout with one thing wrong: an error that names a file, or data that opens; never a hang or a crash."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import papm.data
from fuzzing.trees import TREES
from papm.data.base import readers
from papm.data.check import check
from papm.errors import PapmError


def replaced(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def linked(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()


def piped(path: Path) -> None:
    """A link to a pipe that nobody writes to: opening it would wait for ever."""
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    linked(path, pipe)


def numbers(path: Path, word: bytes) -> None:
    """Every 3 becomes another number, where a file is text."""
    path.write_bytes(path.read_bytes().replace(b"3", word).replace(b"2", word))


def noisy(path: Path) -> None:
    """Some bytes changed at random."""
    rng = random.Random(path.name)
    content = bytearray(path.read_bytes())
    for _ in range(1 + len(content) // 40):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "empty": lambda p: replaced(p, b""),
    "half": lambda p: replaced(p, p.read_bytes()[: p.stat().st_size // 2]),
    "all but a byte": lambda p: replaced(p, p.read_bytes()[:-1]),
    "zeros": lambda p: replaced(p, bytes(p.stat().st_size)),
    "noise": noisy,
    "utf-16": lambda p: replaced(p, p.read_bytes().decode("latin-1").encode("utf-16")),
    "latin-1": lambda p: replaced(p, p.read_bytes() + "\n3 4 5 6 caf\u00e9".encode("latin-1")),
    "twice": lambda p: replaced(p, p.read_bytes() * 2),
    "words": lambda p: replaced(p, b"one two three four five six seven eight nine ten\n"),
    "huge numbers": lambda p: numbers(p, b"9" * 400),
    "too large": lambda p: numbers(p, b"1e300"),
    "not a number": lambda p: numbers(p, b"nan"),
    "a folder": foldered,
    "a loop": lambda p: linked(p, p),
    "a broken link": lambda p: linked(p, p.with_name("nowhere")),
    "a pipe": piped,
}


class Hangs(BaseException):
    """No OSError, which readers may catch."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def one_of_each(root: Path) -> list[Path]:
    """A file of each kind: folder and ending tell them apart."""
    kinds: dict[tuple[str, str], Path] = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        split = path.parent.name if path.parent.name not in ("train", "val", "test", "Train", "Test") else "split"
        ending = next((e for e in ("dots.png", "mask.mat", "_ann.mat") if path.name.endswith(e)), path.suffix)
        kinds.setdefault((split, path.name if split == path.parent.name == root.name else ending), path)
    return [p.relative_to(root) for p in kinds.values()]


def use(name: str, root: Path) -> None:
    """Open it and look at everything that is read later."""
    for dataset in papm.data.open(name, root).values():
        for sample in dataset:
            assert sample.points.isfinite().all()
            assert sample.roi is None or tuple(sample.roi.shape) == sample.size
            assert sample.image.shape[1:] == sample.size


def test_every_published_dataset_has_a_tree() -> None:
    assert set(TREES) == set(readers()) - {"folder", "synthetic"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
def test_one_thing_wrong(name: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    TREES[name](whole)
    use(name, whole)
    raised = 0
    for file in one_of_each(whole):
        for damage, apply in DAMAGES.items():
            root = tmp_path / "data"
            shutil.copytree(whole, root)
            apply(root / file)
            where = f"{name}: {file}: {damage}"
            with at_most(20):
                try:
                    use(name, root)
                except PapmError as e:
                    raised += 1
                    words = str(e)
                    assert "\n" not in words and len(words) < 600 and str(tmp_path) in words, f"{where}: {words}"
                except Exception as e:
                    raise AssertionError(f"{where}: {e!r}") from e
                try:
                    readers()[name].recognise(root)
                    findings = check(name, root)
                except Exception as e:
                    raise AssertionError(f"check of {where}: {e!r}") from e
                assert all("\n" not in str(f) for f in findings), where
            shutil.rmtree(root)
    assert raised > len(DAMAGES), "most damages are noticed"
