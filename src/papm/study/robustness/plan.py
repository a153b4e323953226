"""The study behind `papm robustness`: its rows are methods, its columns the distances that training dots are moved by."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from papm import config as configuration
from papm import methods, models
from papm.config import SHARES as SHARED
from papm.errors import ConfigError, unknown
from papm.points import AGAIN
from papm.report.page import duration
from papm.study import tables, training
from papm.study.cells import Study
from papm.study.robustness.images import SILENT, Data, open_data
from papm.study.run import Request, Task, with_weights
from papm.text import n_of

KINDS: Mapping[str, str] = {
    "ring": "each by exactly that far, in a random direction",
    "disc": "each to anywhere within that distance",
    "gaussian": "each by a normal distribution with that standard deviation along x and along y",
    "missed": "that share of them left out",
    "doubled": f"that share of them with a second dot near the first (σ = {AGAIN:g} px)",
}
SHARES = (0.25, 0.5, 1.0)  # of the distance between neighbours: from hardly visible to the next object's place
USUAL = (4.0, 8.0, 16.0)  # px, where no image has two dots
USUAL_SHARES = (0.0, 0.05, 0.1, 0.2)  # of the dots that are missed or doubled
# Settings that are options of the command, or what the study itself varies.
TAKEN: Mapping[str, str] = {
    "data": "the first argument", "method": "--methods", "backbone": "--backbone", "weights": "--weights",
    "seed": "--seeds", "noise": "--distances", "noise_kind": "--kind",
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A request in full, and the study that it is."""

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

    def to_json(self) -> dict[str, Any]:
        """What is asked for, for other programs."""
        keys = ("methods", "distances", "kind", "backbone", "seeds", "select")
        return {"data": self.data.spec, "spacing": self.data.spacing, **{k: getattr(self, k) for k in keys}}

    @functools.cached_property
    def study(self) -> Study:
        """The table that is asked for; every cell is one training per seed."""
        _refuse_far(self)
        values = {
            "title": f"Misplaced dots: {self.data.spec}",
            "all": {"dataset": self.data.name},
            "columns": [
                {"name": amount(d, self.kind), "noise": d} | ({"noise_kind": self.kind} if d else {})
                for d in self.distances
            ],
            "rows": [self._row(name) for name in self.methods],
        }
        return tables.parse(values, "robustness", "robustness")

    def _row(self, name: str) -> dict[str, Any]:
        own = {**network_of(name, self.backbone), **self.settings, **own_settings(name)}
        return {"name": name, "method": method_of(name), **with_weights(own, self.weights)}


def ask(
    spec: str,
    settings: Sequence[str] = (),
    *,
    methods: str,
    distances: str | None = None,
    kind: str = "ring",
    backbone: str | None = None,
    **given: Any,
) -> Asked:
    """The words of the command as a request; the cheap mistakes are found before the data is read."""
    values = training.read_settings(settings, TAKEN)
    plain = {k: v for k, v in values.items() if "." not in k}
    config = configuration.from_mapping({"select": "last", **plain})
    values.pop("select", None)
    names = read_methods(methods)
    if kind not in KINDS:
        raise unknown("kind of displacement", kind, KINDS)
    moved = None if distances is None else read_distances(distances, kind)
    network = backbone or usual_backbone(names, config.device)
    for name in names:
        network_of(name, network)
    options = {k.removeprefix("data."): v for k, v in values.items() if k.startswith("data.")}
    opened = open_data(spec, options, config.select, given["seeds"][0], config.val_fraction)
    moved = moved or (USUAL_SHARES if kind in SHARED else usual_distances(opened.spacing))
    return Asked(opened, names, moved, kind, network, settings=values, select=config.select, **given)


# -- methods and distances -----------------------------------------------------------------------------------------------


def usual_distances(median: float | None) -> tuple[float, ...]:
    """0, ¼, ½ and 1 × the median distance between neighbours, in whole pixels; 0, 4, 8, 16 where there is none.

    >>> usual_distances(22.4), usual_distances(2.9), usual_distances(None)
    ((0.0, 6.0, 11.0, 22.0), (0.0, 1.0, 3.0), (0.0, 4.0, 8.0, 16.0))
    """
    moved = USUAL if median is None else [float(max(1, round(s * median))) for s in SHARES]
    return (0.0, *dict.fromkeys(moved))


def read_distances(text: str, kind: str = "ring") -> tuple[float, ...]:
    """Pixels from `0,4,8`, or shares from `0.1,0.2`, in order and once each; 0, what the others are compared with, is always
    among them.

    >>> read_distances("8,4,4.0"), read_distances("0.1", "missed")
    ((0.0, 4.0, 8.0), (0.0, 0.1))
    """
    try:
        found = [float(t) for t in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= d < float("inf") for d in found):
        raise ConfigError(f"--distances is pixels separated by commas, such as 0,4,8,16; got '{text}'")
    if kind in SHARED and max(found) >= 1:
        raise ConfigError(f"--distances is shares below 1 where dots are {kind}, such as 0.05,0.1,0.2; got '{text}'")
    return tuple(sorted({0.0, *(d + 0.0 for d in found)}))


def amount(distance: float, kind: str = "ring") -> str:
    """A distance or a share as columns are called.

    >>> amount(8.0), amount(0.1, "missed"), amount(0.0)
    ('8 px', '10 %', 'exact')
    """
    if not distance:
        return "exact"
    return f"{100 * distance:g} %" if kind in SHARED else f"{distance:g} px"


def amounts(distances: Sequence[float], kind: str = "ring") -> list[str]:
    """Several, the unit behind the last only.

    >>> amounts([4.0, 8.0]), amounts([0.05, 0.1], "missed")
    (['4', '8 px'], ['5', '10 %'])
    """
    said = [amount(d, kind) if d else "0" for d in distances]
    return [*(s.split()[0] for s in said[:-1]), *said[-1:]]


def done(kind: str) -> str:
    """What is done to dots, before an amount.

    >>> done("ring"), done("missed")
    ('moved by', 'missed:')
    """
    return f"{kind}:" if kind in SHARED else "moved by"


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


def usual_backbone(names: Sequence[str], device: str) -> str:
    """`tiny` on a CPU, else VGG19, or P2PNet where every method is one of points."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "tiny"
    return "p2pnet" if all(methods.method(method_of(n)).network == "points" for n in names) else "vgg19"


def network_of(name: str, backbone: str) -> dict[str, Any]:
    """The settings of a row's network: methods of points have P2PNet, with a tiny trunk where the others are tiny.

    >>> network_of("p2p-papm", "tiny"), network_of("hd-papm loss.sigma=8", "vgg19")
    ({'backbone': 'p2pnet', 'network.trunk': 'tiny'}, {'backbone': 'vgg19'})
    """
    kind = models.info(backbone).kind
    if kind in ("points", methods.method(method_of(name)).network):
        return {"backbone": backbone}
    return {"backbone": "p2pnet", **({"network.trunk": "tiny"} if backbone == "tiny" else {})}


def _refuse_far(asked: Asked) -> None:
    """Beyond half an image there is no place left to move a dot to."""
    if asked.kind in SHARED:
        return
    sides = sorted(min(s.size) for s in asked.data.splits.train)
    limit = sides[len(sides) // 2] / 2
    if (far := max(asked.distances)) > limit:
        raise ConfigError(
            f"--distances: {far:g} px is more than half of an image of {2 * limit:g} px; give at most {limit:g}"
        )


# -- before it begins ----------------------------------------------------------------------------------------------------


def announcement(asked: Asked, tasks: Sequence[Task], each: Mapping[str, float], jobs: int) -> list[str]:
    """What is about to happen, and how long it takes about; `each` is seconds of a training by row."""
    near, far = asked.data.spacing, ", ".join(amounts(asked.distances, asked.kind))
    said = []
    if asked.kind not in SHARED and asked.distances == usual_distances(near):
        why = (
            "since no training image has two dots"
            if near is None
            else (f"which is 0, ¼, ½ and 1 × the median distance between neighbouring training dots, {near:.1f} px")
        )
        said.append(f"Distances: {far}, {why}; --distances sets others.")
    total = len(asked.study.cells) * len(asked.seeds)
    networks = dict.fromkeys(str(c.settings["backbone"]) for c in asked.study.cells)
    said.append(
        f"{n_of(len(asked.methods), 'method')} ({', '.join(asked.methods)}) × "
        f"{n_of(len(asked.distances), 'share' if asked.kind in SHARED else 'distance')} ({far}, {asked.kind}:"
        f" {KINDS[asked.kind]}) × "
        f"{n_of(len(asked.seeds), 'seed')}: "
        f"{n_of(total, 'training')} on {' and '.join(networks)}, of which {total - len(tasks)} are done."
    )
    if tasks:
        whole = sum(each[t.cell.row] for t in tasks)
        least = duration(whole / min(jobs, len(tasks)))
        at_once = f"; {jobs} at a time may take as little as {least}" if jobs > 1 else ""
        one = ", ".join(f"{m} {duration(s)}" for m, s in each.items())
        said.append(f"About {duration(whole)} one after another ({one} each){at_once}.")
    return said


def planned(asked: Asked, tasks: Sequence[Task], each: Mapping[str, float]) -> dict[str, Any]:
    """The same for other programs."""
    return {
        **asked.to_json(),
        "trainings": len(asked.study.cells) * len(asked.seeds),
        "missing": [t.name for t in tasks],
        "seconds_each": {m: round(s, 1) for m, s in each.items()},
        "seconds": round(sum(each[t.cell.row] for t in tasks), 1),
    }
