"""One small valid tree of every published layout, written by hand: two or more images of each split, three points each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

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


def nuclei(root: Path) -> None:
    mask = np.zeros((30, 40, 3), np.uint8)
    for value, (x, y) in enumerate(POINTS.astype(int), start=1):
        mask[y : y + 3, x : x + 3, 0] = value
    for split, numbers in (("training", (1, 2)), ("validation", (3, 4)), ("test", (5, 6))):
        names = [f"IXMtest_A0{k}_s1_w1" for k in numbers]
        for name in names:
            image(root / "images" / f"{name}.tif")
            image(root / "masks" / f"{name}.png")
            Image.fromarray(mask).save(root / "masks" / f"{name}.png")
        text(root / "metadata" / f"{split}.txt", "\n".join(names))


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
    "bbbc039": nuclei,
}
