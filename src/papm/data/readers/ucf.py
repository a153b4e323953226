"""UCF_CC_50 and UCF-QNRF: JPEG images, each with a MATLAB file `NAME_ann.mat` that holds `annPoints`, n × 2, as (x, y).

    UCF_CC_50/1.jpg, 1_ann.mat … 50.jpg, 50_ann.mat
    UCF-QNRF_ECCV18/{Train,Test}/img_0001.jpg, img_0001_ann.mat
    UCF-Train-Val-Test/{train,val,test}/img_0001.jpg, img_0001.npy      as the code of the Bayesian loss prepares UCF-QNRF

Copies that part images and annotations into `images` and `ground_truth` do as well. UCF_CC_50 is evaluated by five-fold
cross-validation over images 1–10, 11–20, …: it opens as `all` and the images to test on, `fold1` … `fold5`; `fold=k` gives
`train` and `test`. Pixel origin: −0.5, as of MATLAB; assumed, not measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.faults import Fault, Faults
from papm.data.readers.matfile import load_mat
from papm.data.readers.npyfile import load_npy
from papm.data.readers.numbers import table, tensor
from papm.data.readers.published import Home, by_stem, children, entry, files, finish, named_folder, read_list
from papm.data.splits import draw
from papm.errors import ConfigError, DataError
from papm.images import find_images, is_image_name
from papm.registry import Range

ORIGIN = -0.5
FOLDS = 5
Fold = Annotated[int, Range(f"is a whole number from 1 to {FOLDS}", 1, FOLDS)]
_FOLD_SIZE = 10
_ANNOTATIONS = ("ground_truth", "ground-truth", "annotations", "mats", "gt")
_SPLITS = ("train", "val", "test")


def read_points(path: Path, origin: float = ORIGIN) -> Annotation:
    """Head positions of one NAME_ann.mat, or NAME.npy."""
    if path.suffix.lower() == ".npy":
        rows = load_npy(path, expected="an array of n × 2 or more numbers, x and y first")
        rows = rows[:, :2] if rows.ndim == 2 else rows
        return Annotation(tensor(table(path, rows, "the array", 2), origin))
    points = load_mat(path, "annPoints", expected="a MATLAB 5 file with annPoints of n × 2 numbers")["annPoints"]
    return Annotation(tensor(table(path, points, "'annPoints'", 2), origin))


def _entries(folder: Path, origin: float) -> list[Entry]:
    """Each image of a folder with the file its annotation is, or should be."""
    images = find_images(named_folder(folder, "images", "img") or folder)
    beside = images[0].parent if images else folder
    truth = named_folder(folder, *_ANNOTATIONS) or beside
    known = files(truth, ".npy") | files(truth, ".mat")
    paths = [known.get(f"{i.stem}_ann") or known.get(i.stem) or truth / f"{i.stem}_ann.mat" for i in images]
    return [entry(image, path, read_points, origin) for image, path in zip(images, paths)]


def _annotated(folder: Path, name: str, *endings: str) -> bool:
    """Whether an image of this kind of name lies here with a file that ends so; cheap."""
    truth = named_folder(folder, *_ANNOTATIONS)
    images = named_folder(folder, "images", "img") or folder
    try:
        known = {p.stem + p.suffix.lower() for p in (truth or images).iterdir()}
        return any(
            is_image_name(p.name) and re.fullmatch(name, p.stem) and any(f"{p.stem}{e}" in known for e in endings)
            for p in images.iterdir()
        )
    except OSError:
        return False


# --- UCF_CC_50 ---------------------------------------------------------------------------------------------------------

CC50 = Home(
    "UCF_CC_50", lambda d: _annotated(d, r"[0-9]{1,2}", "_ann.mat"), "1.jpg and 1_ann.mat … 50.jpg and 50_ann.mat"
)


def cc50_entries(root: Path, *, fold: Fold | None = None, origin: float = ORIGIN) -> dict[str, list[Entry]]:
    """All images and the ten of each fold; with `fold` the forty to train on and the ten to test on."""
    folder = CC50.find(root)
    folds: dict[int, list[Entry]] = {k: [] for k in range(1, FOLDS + 1)}
    for e in _entries(folder, origin):
        number = int(e.name) if re.fullmatch(r"[0-9]{1,2}", e.name) else 0
        if 1 <= number <= FOLDS * _FOLD_SIZE:  # else a picture that somebody put beside them
            folds[(number - 1) // _FOLD_SIZE + 1].append(e)
    if fold is None:
        return {"all": [e for es in folds.values() for e in es]} | {f"fold{k}": es for k, es in folds.items() if es}
    if not folds[fold]:
        raise DataError(f"{folder}: no image of fold {fold}, which is {10 * fold - 9}.jpg to {10 * fold}.jpg")
    return {"train": [e for k, es in folds.items() if k != fold for e in es], "test": folds[fold]}


# --- UCF-QNRF ----------------------------------------------------------------------------------------------------------


def _folders(folder: Path) -> dict[str, Path]:
    there = {d.name.lower(): d for d in children(folder)}
    return {split: there[split] for split in _SPLITS if split in there}


def _is_qnrf(folder: Path) -> bool:
    return any(_annotated(d, r"img_[0-9]+", "_ann.mat", ".npy") for d in _folders(folder).values())


QNRF = Home("UCF-QNRF", _is_qnrf, "Train and Test with img_0001.jpg and img_0001_ann.mat")


def qnrf_entries(
    root: Path, *, val: str | float | None = None, val_seed: int = 0, origin: float = ORIGIN
) -> dict[str, list[Entry]]:
    """Images of Train and Test; `val` takes some of the training images for validation: a list file, or a share."""
    folder = QNRF.find(root)
    found: dict[str, list[Entry]] = {}
    for split, place in _folders(folder).items():
        found[split] = _entries(place, origin)
        if not found[split]:
            raise DataError(f"{place}: no images here; expected img_0001.jpg, img_0002.jpg, …")
    if val is None:
        return found
    if "val" in found:
        raise ConfigError(f"{folder} has a folder of validation images already; leave out val=")
    train = found.pop("train", [])
    faults: list[Fault] = Faults()
    chosen = _validation(val, val_seed, [e.image for e in train], root, faults)
    parts = {"train": [e for e in train if e.image not in chosen], "val": [e for e in train if e.image in chosen]}
    return finish(parts | found, faults)


def _validation(val: str | float, seed: int, train: Sequence[Path], root: Path, faults: list[Fault]) -> set[Path]:
    """The training images that a list names, or a seeded share of them."""
    if isinstance(val, int | float):
        if isinstance(val, bool) or not 0 < val < 1 or len(train) < 2:
            raise ConfigError(
                f"val is a share between 0 and 1 of at least two training images, or a list file; got {val!r}"
            )
        order, k = draw(len(train), val, seed)
        return {train[i] for i in order[:k]}
    path = next((p for p in (Path(val).expanduser(), root / val) if p.is_file()), None)
    if path is None:
        raise DataError(f"{val}: no such list of validation images, neither here nor in {root}")
    out = {listed.image for listed in read_list(path, by_stem(train), faults)}
    if not faults and len(out) == len(train):
        faults.append(Fault(path, None, f"names all {len(train)} training images; some must be left"))
    return out


register(
    Reader(
        name="ucf-cc-50",
        summary="UCF_CC_50: 50 images of very dense crowds, five folds",
        entries=cc50_entries,
        recognise=CC50.recognise,
        origin=ORIGIN,
        layout="{1.jpg, 1_ann.mat, …, 50.jpg, 50_ann.mat}",
        expected={"all": (50, 63_974)},  # points: the dataset's page
    )
)
register(
    Reader(
        name="ucf-qnrf",
        summary="UCF-QNRF: crowds in high resolution, 1201 train / 334 test",
        entries=qnrf_entries,
        recognise=QNRF.recognise,
        origin=ORIGIN,
        layout="{Train,Test}/{img_0001.jpg, img_0001_ann.mat}",
        # points: Idrees et al. 2018; then the lists of the Bayesian loss, whose files leave points outside out
        expected=(
            {"train": (1201, None), "test": (334, None), "*": (1535, 1_251_642)},
            {"train": (1081, None), "val": (120, None), "test": (334, None)},
        ),
    )
)
