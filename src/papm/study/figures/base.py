"""What a figure is: its name, the trainings it is drawn from where no runs are given, and the function that draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import Tensor

from papm.draw import save_png
from papm.errors import ConfigError
from papm.files import write_text
from papm.registry import Registry
from papm.study import tables
from papm.study.cells import Study
from papm.study.results import Result
from papm.study.run import Request, Task, plan
from papm.text import Brief

DRAWN: Mapping[str, Any] = {"dataset": "synthetic", "data.train": 80, "data.test": 40, "device": "cpu"}
STEPS = 600  # of a small network on drawn scenes


@dataclass(frozen=True)
class Asked:
    """What a figure is drawn from."""

    runs: tuple[Path, ...] = ()
    data: str | None = None  # images other than the runs' own test images
    split: str = "test"
    results: Sequence[Result] = ()
    images: int = 3  # how many are shown
    device: str = "auto"


@dataclass(frozen=True, eq=False, repr=False)
class Made(Brief):
    """A figure: an SVG document or a picture uint8 [3, h, w], what it says in a few sentences, and its numbers."""

    picture: Markup | Tensor
    words: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def suffix(self) -> str:
        """The ending of its file."""
        return ".svg" if isinstance(self.picture, Markup) else ".png"

    def save(self, path: Path) -> Path:
        """Write it; the file appears whole or not at all."""
        if path.suffix.lower() != self.suffix:
            raise ConfigError(f"{path}: this figure is written as {self.suffix}; give a file that ends so")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self.picture, Markup):
            write_text(path, str(self.picture))
            return path
        return save_png(self.picture, path)


Trainings = Sequence[tuple[Study, tuple[int, ...]]]  # studies and seeds


@dataclass(frozen=True)
class Figure:
    """A figure by name. `trainings` are those of a small network on drawn scenes, made where no runs are given."""

    name: str
    summary: str
    where: str  # in the paper
    draw: Callable[[Asked], Made]
    trainings: Callable[[int], Trainings] | None = None  # of so many steps


FIGURES: Registry[Figure] = Registry("figure")


def register(figure: Figure) -> Figure:
    """Make a figure known by its name."""
    FIGURES.register(figure.name, figure)
    return figure


def drawn_study(steps: int, methods: Sequence[str], noise: Sequence[float] = (0,), look: str = "crowd") -> Study:
    """Small networks, a row for each method and a column for each distance that training dots are moved by."""
    rows: list[dict[str, Any]] = []
    for name in methods:
        network = {"backbone": "p2pnet", "network.trunk": "tiny"} if name.startswith("p2p") else {"backbone": "tiny"}
        rows.append({"name": name, "method": name, **network})
    columns = [{"name": f"{d:g} px", "noise": d} for d in noise]
    every = {**DRAWN, "steps": steps, "eval_every": steps, **({} if look == "crowd" else {"data.look": look})}
    return tables.parse({"all": every, "columns": columns, "rows": rows}, "figure", "figure")


def tasks_of(figure: Figure, steps: int | None, folder: Path) -> list[Task]:
    """The small trainings of a figure, done or not; figures share those that are the same."""
    if steps is not None and steps < 1:
        raise ConfigError(f"--steps must be at least 1, not {steps}")
    found: dict[Path, Task] = {}
    for study, seeds in figure.trainings(steps or STEPS) if figure.trainings else ():
        for task in plan(study, [], Request(out=folder / "runs", results=folder / "results", seeds=seeds)):
            found.setdefault(task.folder, task)
    return list(found.values())
