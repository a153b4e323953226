"""What `papm robustness` trains: methods are the rows of a study, distances that training dots are moved by its columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from papm import data, methods, models
from papm.data import base
from papm.data.splits import Splits, choose
from papm.errors import ConfigError, DataError, unknown
from papm.files import write_json
from papm.points import spacing
from papm.study import tables, training
from papm.study.run import Request, slug
from papm.study.tables import Study

# Two targets and two transports, each without and with the paper's kernel.
METHODS = ("gaussian", "hd-papm", "dm-count", "al-papm")
KINDS: Mapping[str, str] = {
    "ring": "each by exactly that far, in a random direction",
    "disc": "each to anywhere within that distance",
    "gaussian": "each by a normal distribution with that standard deviation along x and along y",
}
SHARES = (0.25, 0.5, 1.0)  # of the distance between neighbours: from hardly visible to the next object's place
USUAL = (4.0, 8.0, 16.0)  # px, where no image has two dots
MARK = "asked.json"  # what the results in a folder belong to
# Settings that change a result and are not among those by which a study tells results apart.
SILENT = ("noise_edge", "val_fraction", "init")
# Settings that are options of the command, or what the study itself varies.
TAKEN: Mapping[str, str] = {
    "data": "the first argument", "method": "--methods", "backbone": "--backbone", "weights": "--weights",
    "seed": "--seeds", "noise": "--distances", "noise_kind": "--kind",
}  # fmt: skip


@dataclass(frozen=True)
class Data:
    """The images, as a study names them, and what their dots are like."""

    spec: str
    name: str
    folder: str | None  # or what follows `synthetic:`
    splits: Splits
    spacing: float | None  # px from a training dot to its nearest neighbour, the median
    fingerprint: str  # changes with any image's size or dot


@dataclass(frozen=True)
class Asked:
    """A request in full."""

    data: Data
    methods: tuple[str, ...]  # each with settings of its own where it has some: `hd-papm loss.sigma=8`
    distances: tuple[float, ...]
    kind: str = "ring"
    backbone: str = "tiny"
    weights: Mapping[str, str] = field(default_factory=dict)  # as `Request.weights`
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    select: str = "last"
    out: Path = Path("robustness")

    @property
    def request(self) -> Request:
        """Where the study finds and puts things."""
        folders = {} if self.data.folder is None else {self.data.name: self.data.folder}
        return Request(folders, self.weights, self.out / "runs", self.out / "results", self.seeds, self.select)


def open_data(spec: str, options: Mapping[str, Any], select: str, seed: int, val_fraction: float = 0.1) -> Data:
    """The images of `NAME:FOLDER`, a name or a path; refused where nothing could be measured on them."""
    splits = data.open_spec(spec, **options)
    chosen = choose(splits, select, val_fraction, seed)
    if chosen.test is None:
        raise DataError(f"{spec}: has no test images to measure on; divide it with 'papm data split'")
    data.require_annotated(chosen.test)
    name, root = data.parse_spec(spec)
    drawn = str(root) if base.reader(name).make is not None else ""  # what is drawn has options in place of a folder
    near = [spacing(s.points_inside, 1) for s in chosen.train if len(s.points_inside) > 1]
    median = float(torch.cat(near).median()) if near else None
    folder = None if root is None else str(root)
    return Data(spec, name, folder, chosen, median or None, _fingerprint(splits, drawn))


def _fingerprint(splits: Mapping[str, data.Dataset], drawn: str) -> str:
    made = hashlib.sha256(drawn.encode())
    for split, dataset in sorted(splits.items()):
        for sample in dataset:
            made.update(f"{split}/{sample.name} {sample.size} {sample.count}\n".encode("utf-8", "replace"))
            made.update(np.ascontiguousarray(sample.points.numpy()).tobytes())
    return made.hexdigest()[:16]


def usual_distances(median: float | None) -> tuple[float, ...]:
    """0, ¼, ½ and 1 × the median distance between neighbours, in whole pixels; 0, 4, 8, 16 where there is none.

    >>> usual_distances(22.4), usual_distances(2.9), usual_distances(None)
    ((0.0, 6.0, 11.0, 22.0), (0.0, 1.0, 3.0), (0.0, 4.0, 8.0, 16.0))
    """
    moved = USUAL if median is None else [float(max(1, round(s * median))) for s in SHARES]
    return (0.0, *dict.fromkeys(moved))


def read_distances(text: str) -> tuple[float, ...]:
    """Pixels from `0,4,8`, in order and once each; 0, what the others are compared with, is always among them.

    >>> read_distances("8,4,4.0")
    (0.0, 4.0, 8.0)
    """
    try:
        found = [float(t) for t in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= d < float("inf") for d in found):
        raise ConfigError(f"--distances is pixels separated by commas, such as 0,4,8,16; got '{text}'")
    return tuple(sorted({0.0, *(d + 0.0 for d in found)}))


def read_methods(text: str) -> tuple[str, ...]:
    """Methods from `gaussian,hd-papm,hd-papm loss.sigma=8`, once each."""
    found = tuple(dict.fromkeys(" ".join(t.split()) for t in text.split(",")))
    for name in found:
        methods.method(method_of(name))
        own_settings(name)
    return found


def method_of(name: str) -> str:
    """The method of a row.

    >>> method_of("hd-papm loss.sigma=8")
    'hd-papm'
    """
    return name.partition(" ")[0]


def own_settings(name: str) -> dict[str, Any]:
    """The settings of a row: those that tell trainings on the same images apart.

    >>> own_settings("hd-papm loss.sigma=8")
    {'loss.sigma': 8}
    """
    common = dict.fromkeys((*SILENT, "select"), "a setting of every training")
    found = training.read_settings(name.split()[1:], {**TAKEN, **common})
    for key in found:
        if key.startswith("data."):
            raise ConfigError(f"give {key} as a setting of every training, not of '{method_of(name)}'")
    return found


def read_kind(text: str) -> str:
    """A kind of displacement."""
    if text not in KINDS:
        raise unknown("kind of displacement", text, KINDS)
    return text


def usual_backbone(names: Sequence[str], device: str) -> str:
    """`tiny` on a CPU, else VGG19, or P2PNet where every method is one of points."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "tiny"
    return "p2pnet" if all(methods.method(method_of(n)).network == "points" for n in names) else "vgg19"


def network_of(method: str, backbone: str) -> dict[str, Any]:
    """The settings of a method's network: methods of points have P2PNet, with a tiny trunk where the others are tiny.

    >>> network_of("p2p-papm", "tiny"), network_of("hd-papm", "vgg19")
    ({'backbone': 'p2pnet', 'network.trunk': 'tiny'}, {'backbone': 'vgg19'})
    """
    if methods.method(method).network == models.info(backbone).kind or models.info(backbone).kind == "points":
        return {"backbone": backbone}
    return {"backbone": "p2pnet", **({"network.trunk": "tiny"} if backbone == "tiny" else {})}


def in_pixels(distance: float) -> str:
    """A distance as columns are called."""
    return f"{distance:g} px" if distance else "exact"


def study(asked: Asked) -> Study:
    """The table that is asked for; every cell is one training a seed."""
    _refuse_far(asked)
    rows: list[dict[str, Any]] = [
        {
            "name": m,
            "method": method_of(m),
            **network_of(method_of(m), asked.backbone),
            **asked.settings,
            **own_settings(m),
        }
        for m in asked.methods
    ]
    for row in rows:
        row["weights"] = asked.weights.get(str(row["backbone"]), asked.weights.get("", "imagenet"))
    columns = [{"name": in_pixels(d), "noise": d, **({"noise_kind": asked.kind} if d else {})} for d in asked.distances]
    values = {
        "title": f"Misplaced dots: {asked.data.spec}",
        "metrics": ["mae", "rmse"],
        "all": {"dataset": asked.data.name},
        "columns": columns,
        "rows": rows,
    }
    made = tables.parse(values, "robustness", "robustness")
    _refuse_same(made)
    return made


def _refuse_same(study: Study) -> None:
    """Two spellings of one training, or settings by which results are not told apart: both would be one run folder."""
    seen: dict[str, str] = {}
    for cell in study.cells:
        row = seen.setdefault(slug(cell.settings, 0, "last"), cell.row)
        if row != cell.row:
            raise ConfigError(
                f"--methods: '{row}' and '{cell.row}' are the same training; give settings that change what is learned"
            )


def _refuse_far(asked: Asked) -> None:
    """Beyond half an image there is no place left to move a dot to."""
    sides = sorted(min(s.size) for s in asked.data.splits.train)
    limit = sides[len(sides) // 2] / 2
    for distance in asked.distances:
        if distance > limit:
            raise ConfigError(
                f"--distances: {distance:g} px is more than half of an image of {2 * limit:g} px; give at most {limit:g}"
            )


def check_folder(asked: Asked) -> None:
    """Refuse a folder that holds something else, or results on other images."""
    mark, out = asked.out / MARK, asked.out
    if not mark.exists():
        if out.exists() and (not out.is_dir() or (out / "results").exists() or (out / "runs").exists()):
            raise ConfigError(f"{out}: holds something else than a robustness study; choose another --out")
        return
    try:
        theirs = json.loads(mark.read_text(encoding="utf-8"))
        was = theirs["data"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{mark}: cannot be read; choose another --out") from None
    if {**theirs, "data": asked.data.spec} != _belongs_to(asked):
        raise ConfigError(
            f"{out}: holds results on {was} with other images, dots or {', '.join(SILENT)}; choose another --out"
        )


def claim_folder(asked: Asked) -> None:
    """Say in the folder what its results belong to."""
    write_json(asked.out / MARK, _belongs_to(asked))


def _belongs_to(asked: Asked) -> dict[str, str]:
    silent = {k: str(asked.settings[k]) for k in SILENT if k in asked.settings}
    return {"data": asked.data.spec, "images_and_dots": asked.data.fingerprint, **silent}
