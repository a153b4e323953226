"""Every published layout with one thing wrong: an error that names a file, or data that opens; never a hang or a crash."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

import papm.data
from papm.data.base import readers
from papm.data.check import check
from papm.errors import PapmError

POINTS = np.array([[3.0, 4.0], [20.5, 11.25], [39.0, 29.0]])


def image(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), (shade % 256, 7, 9)).save(path)
    return path


def text(path: Path, words: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words)


def mat(path: Path, **values: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, values)


def shanghaitech(part: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for split in ("train", "test"):
            for k in (1, 2):
                base = root / f"part_{part}_final" / f"{split}_data"
                image(base / "images" / f"IMG_{k}.jpg", k)
                cell = np.empty((1, 1), object)
                cell[0, 0] = {"location": POINTS, "number": np.array([[3]])}
                mat(base / "ground_truth" / f"GT_IMG_{k}.mat", image_info=cell)

    return make


def cc50(root: Path) -> None:
    for k in (1, 2, 11):
        image(root / f"{k}.jpg", k)
        mat(root / f"{k}_ann.mat", annPoints=POINTS)


def qnrf(root: Path) -> None:
    for split in ("Train", "Test"):
        for k in (1, 2):
            image(root / split / f"img_{k:04d}.jpg", k)
            mat(root / split / f"img_{k:04d}_ann.mat", annPoints=POINTS)


def jhu(root: Path) -> None:
    for split in ("train", "val", "test"):
        for k in (1, 2):
            image(root / split / "images" / f"{k:04d}.jpg", k)
            text(root / split / "gt" / f"{k:04d}.txt", "3 4 5 6 1 0\n20 11 4 4 2 1\n")
        text(root / split / "image_labels.txt", "0001,2,street,0,0\n0002,2,stadium,1,0\n")


def nwpu(root: Path) -> None:
    for n in (1, 2, 3110, 3610):
        image(root / "images" / f"{n:04d}.jpg", n)
        if n < 3610:
            content = {"human_num": 3, "points": POINTS.tolist(), "boxes": [[1, 2, 8, 9]] * 3}
            text(root / "jsons" / f"{n:04d}.json", json.dumps(content))
            mat(root / "mats" / f"{n:04d}.mat", annPoints=POINTS, annBoxes=np.ones((3, 4)))
    for split, ids in {"train": (1, 2), "val": (3110,), "test": (3610,)}.items():
        text(root / f"{split}.txt", "".join(f"{n:04d} 1 2\n" for n in ids))


def trancos(root: Path) -> None:
    for k in (1, 2, 3):
        stem = f"image-1-{k:06d}"
        image(root / "images" / f"{stem}.jpg", k)
        text(root / "images" / f"{stem}.txt", "3\t4\n20\t11\n")
        dots = np.zeros((30, 40, 3), np.uint8)
        dots[3, 2, 0] = 255
        Image.fromarray(dots).save(root / "images" / f"{stem}dots.png")
        mat(root / "images" / f"{stem}mask.mat", BW=np.ones((30, 40), np.uint8))
    for name, ks in {"training": (1,), "validation": (2,), "trainval": (1, 2), "test": (3,)}.items():
        text(root / "image_sets" / f"{name}.txt", "".join(f"image-1-{k:06d}.jpg\n" for k in ks))


def cars(kit: str, suffix: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        base = root / f"{kit}_devkit" / "data"
        for k in (1, 2):
            image(base / "Images" / f"a_{k}{suffix}", k)
            text(base / "Annotations" / f"a_{k}.txt", "2 4 10 8 1\n30 20 20 10 1\n")
        text(base / "ImageSets" / "train.txt", "a_1\n")
        text(base / "ImageSets" / "test.txt", "a_2\n")

    return make


def dota(root: Path) -> None:
    for split in ("train", "val"):
        for k in (1, 2):
            image(root / split / "images" / f"P000{k}.png", k)
            words = "imagesource:GoogleEarth\ngsd:0.1\n2 2 10 2 10 6 2 6 ship 0\n20 10 24 14 20 18 16 14 plane 1\n"
            text(root / split / "labelTxt" / f"P000{k}.txt", words)


TREES: dict[str, Callable[[Path], None]] = {
    "shanghaitech-a": shanghaitech("A"),
    "shanghaitech-b": shanghaitech("B"),
    "ucf-cc-50": cc50,
    "ucf-qnrf": qnrf,
    "jhu-crowd": jhu,
    "nwpu": nwpu,
    "trancos": trancos,
    "carpk": cars("CARPK", ".png"),
    "pucpr": cars("PUCPR+", ".jpg"),
    "dota": dota,
}


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
