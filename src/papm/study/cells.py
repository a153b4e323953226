"""A table: its cells, and what is said of some of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from papm.errors import ConfigError
from papm.study.metrics import METRICS, Metric

AUTO = "auto"  # of crop, batch, steps, turn: what `papm train` chooses by the data

NAMED = ("dataset", "method", "backbone")  # what every cell must have


@dataclass(frozen=True)
class Choice:
    """Some cells: those whose row, column, dataset, method and network are among the names given; all where none are."""

    where: Mapping[str, tuple[str, ...]]

    def about(self, cell: Mapping[str, Any]) -> bool:
        """Whether a cell with that row, column, … is among them."""
        return all(str(cell[key]) in names for key, names in self.where.items())

    def __str__(self) -> str:
        return "; ".join(f"{key} {', '.join(names)}" for key, names in self.where.items())


@dataclass(frozen=True)
class Note(Choice):
    """A remark on some cells, or on the whole table."""

    text: str


@dataclass(frozen=True)
class Special(Choice):
    """Settings of some cells."""

    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Tier(Choice):
    """Some cells that are trained before others, and the seeds that they are trained with."""

    number: int
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Claim:
    """That a row has a lower (or higher) figure than others, in some columns; or that it changes less between two columns."""

    row: str
    others: tuple[str, ...]
    columns: tuple[str, ...]  # in each of which it is a claim; with `change` the first and the last of a change
    metric: str
    lower: bool = True
    change: bool = False


@dataclass(frozen=True)
class Cell:
    """One figure of a table: what is trained, and what the paper prints, one text per metric."""

    row: str
    column: str
    settings: Mapping[str, Any]  # as written in the file; a list where several trainings make the figure
    paper: tuple[str, ...] = ()  # of the first metrics; nothing where none is printed
    quoted: bool = False  # the paper took it from elsewhere
    notes: tuple[int, ...] = ()  # places in `Study.notes`, without those on the whole table
    special: Mapping[str, Any] = field(default_factory=dict)  # those of the settings that are its recipe

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{self.row}, {self.column}" if self.column else self.row

    @property
    def plain(self) -> bool:
        """Whether it asks for no more than a network, a method and a dataset: exact dots, and no settings of its own."""
        own = {k for k in self.settings if k not in (*NAMED, *self.special) and not k.startswith("data.")}
        own = {k for k in own if self.settings[k] != AUTO}
        return not own - {"network.activation"}

    @property
    def place(self) -> dict[str, Any]:
        """By what notes and settings choose it."""
        return {"row": self.row, "column": self.column, **{k: self.settings[k] for k in NAMED}}

    @property
    def parts(self) -> tuple[dict[str, Any], ...]:
        """The settings of each training that the figure is a mean of; usually one."""
        several = {k: v for k, v in self.settings.items() if isinstance(v, list)}
        return tuple({**self.settings, **dict(zip(several, values))} for values in itertools.product(*several.values()))

    def printed(self, metric: int) -> float | None:
        """The paper's figure of that metric."""
        return float(self.paper[metric]) if metric < len(self.paper) else None

    def answers(self, words: Sequence[str]) -> bool:
        """Whether each of the words, or one of its alternatives (`vgg19,csrnet`), names something of this cell.

        A name may have commas of its own.
        """
        mine = {str(v).lower() for v in self.place.values()}
        return all(any(w.strip().lower() in mine for w in (word, *word.split(","))) for word in words)


@dataclass(frozen=True)
class Study:
    """A table: its cells row by row."""

    name: str
    title: str
    metrics: tuple[str, ...]
    cells: tuple[Cell, ...]
    notes: tuple[Note, ...] = ()
    where: str = ""
    specials: tuple[Special, ...] = ()
    tiers: tuple[Tier, ...] = ()
    claims: tuple[Claim, ...] = ()
    seeds: tuple[int, ...] = (0,)  # that it is meant to be trained with
    pairs: tuple[tuple[str, str], ...] = ()  # rows to compare: a base, and what is to be better than it

    @property
    def figures(self) -> tuple[Metric, ...]:
        """The metrics of every cell."""
        return tuple(METRICS[m] for m in self.metrics)

    @property
    def datasets(self) -> tuple[str, ...]:
        """Datasets that the cells need, in order."""
        return tuple(dict.fromkeys(str(c.settings["dataset"]) for c in self.cells))

    def seeds_in(self, cell: Cell, tier: int) -> tuple[int, ...]:
        """The seeds that a cell has in a tier; none where it is in another."""
        found = {s for t in self.tiers if t.number == tier and t.about(cell.place) for s in t.seeds}
        return tuple(sorted(found))

    def wanted(self, tiers: Sequence[int], seeds: Sequence[int]) -> list[tuple[Cell, int]]:
        """Cells and seeds: tier by tier where tiers are asked for, the first seed of every cell before the second.

        Without `seeds` those of the tiers, or of the study.
        """
        if not tiers:
            return [(cell, seed) for seed in seeds or self.seeds for cell in self.cells]
        out: dict[tuple[str, int], tuple[Cell, int]] = {}
        for tier in tiers:
            found = [(c, seeds or own) for c in self.cells if (own := self.seeds_in(c, tier))]
            for seed in sorted({s for _, each in found for s in each}):
                out |= {(c.name, seed): (c, seed) for c, each in found if seed in each and (c.name, seed) not in out}
        return list(out.values())

    def with_settings(self, settings: Mapping[str, Any]) -> Study:
        """The study with these settings in every cell, over its own."""
        cells = tuple(
            replace(
                c,
                settings={**c.settings, **settings},
                special={k: v for k, v in c.special.items() if k not in settings},
            )
            for c in self.cells
        )
        return replace(self, cells=refuse_same(cells))

    def only(self, words: Sequence[str]) -> Study:
        """The study with the cells that answer to all the words."""
        if not words:
            return self
        kept = tuple(c for c in self.cells if c.answers(words))
        if not kept:
            raise ConfigError(
                f"no cell of '{self.name}' answers to {' and '.join(words)}; give rows, columns, datasets, networks or methods"
            )
        return replace(self, cells=kept)


def refuse_same(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The cells, unless two of them are one training."""
    kept, seen = tuple(cells), dict[str, str]()
    for cell in kept:
        for part in cell.parts:
            other = seen.setdefault(repr(sorted(part.items(), key=lambda item: item[0])), cell.name)
            if other != cell.name:
                raise ConfigError(f"the cells '{other}' and '{cell.name}' ask for the same training")
    return kept
