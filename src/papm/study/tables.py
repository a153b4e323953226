"""A table as data: rows and columns of settings, and what the paper prints in each cell.

The paper's tables are the YAML files in `paper/`; a file of one's own has the same form:

    title: Crowd counting on six datasets
    where: Table 1                      # in the paper
    metrics: [mae, rmse]                # names of `metrics.METRICS`
    all: {backbone: vgg19}              # settings of every cell
    columns:                            # one without a name where there are none
      - {name: ShTech A, dataset: shanghaitech-a}
    rows:
      - {name: AL-PAPM, method: al-papm, paper: [57.1/92.5]}
    settings:                           # of some cells, for which the recipe of network and method is not enough
      - {for: {column: ShTech B, backbone: [vgg19, csrnet]}, crop: 512}
    notes:
      - {text: What is known about a figure., row: AL-PAPM, column: ShTech A}

Settings are those of `papm train`: dataset, method, backbone, weights (none: from nothing), noise, steps, `loss.sigma` and so
on; a row's come before a column's, a column's before those of `all`. Those under `settings` come before all of them, later ones
first. They are part of the recipe: a result with other values still belongs to the cell (`results.assign`). A setting that is a
list asks for one training a value, and the figure is their mean. `paper` has an entry a column, its metrics divided by slashes
as printed, `~` where the paper has none and no cell is meant; without `paper` every column is a cell without printed figures.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from papm import config as configuration
from papm import methods
from papm.data import base
from papm.errors import ConfigError, unknown
from papm.study.metrics import METRICS, Metric

FOLDER = Path(__file__).parent / "paper"
NAMED = ("dataset", "method", "backbone")  # what every cell must have
OWN = ("name", "paper", "printed", "quoted")  # keys of a row that are no settings
KEYS = ("title", "where", "label", "metrics", "all", "columns", "rows", "settings", "notes")
CHOICES = ("row", "column", *NAMED)  # by which `settings` choose their cells


@dataclass(frozen=True)
class Note:
    """A remark on some cells; no rows or no columns means all of them."""

    text: str
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def about(self, row: str, column: str) -> bool:
        """Whether the remark is about this cell."""
        return (not self.rows or row in self.rows) and (not self.columns or column in self.columns)

    @property
    def general(self) -> bool:
        """Whether it is about the whole table."""
        return not self.rows and not self.columns


@dataclass(frozen=True)
class Special:
    """Settings of the cells whose row, column, dataset, method and network are among those named."""

    where: Mapping[str, tuple[str, ...]]  # of CHOICES
    settings: Mapping[str, Any]

    def about(self, values: Mapping[str, Any]) -> bool:
        """Whether they are for the cell with these values of CHOICES."""
        return all(str(values[key]) in names for key, names in self.where.items())


@dataclass(frozen=True)
class Cell:
    """One figure of a table: what is trained, and what the paper prints, one text a metric."""

    row: str
    column: str
    settings: Mapping[str, Any]  # as written in the file; a list where several trainings make the figure
    paper: tuple[str, ...] = ()  # nothing where none is printed
    quoted: bool = False  # the paper took it from elsewhere
    notes: tuple[int, ...] = ()  # places in `Study.notes`, without the general ones
    special: Mapping[str, Any] = field(default_factory=dict)  # those of the settings that are its recipe

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{self.row}, {self.column}" if self.column else self.row

    @property
    def parts(self) -> tuple[dict[str, Any], ...]:
        """The settings of each training that the figure is a mean of; usually one."""
        several = {k: v for k, v in self.settings.items() if isinstance(v, list)}
        return tuple({**self.settings, **dict(zip(several, values))} for values in itertools.product(*several.values()))

    def printed(self, metric: int) -> float | None:
        """The paper's figure of that metric."""
        return float(self.paper[metric]) if self.paper else None

    def answers(self, words: Sequence[str]) -> bool:
        """Whether each of the words, or one of its alternatives (`vgg19,csrnet`), names something of this cell."""
        mine = {str(v).lower() for v in (self.row, self.column, *(self.settings.get(k) for k in NAMED))}
        return all(any(w.strip().lower() in mine for w in word.split(",")) for word in words)


@dataclass(frozen=True)
class Study:
    """A table: its cells row by row."""

    name: str
    title: str
    metrics: tuple[str, ...]
    cells: tuple[Cell, ...]
    notes: tuple[Note, ...] = ()
    where: str = ""
    label: str = ""  # the LaTeX label of the paper's table
    printed: Mapping[str, str] = field(default_factory=dict)  # row → its name in the paper, where it is another
    specials: tuple[Special, ...] = ()

    @property
    def figures(self) -> tuple[Metric, ...]:
        """The metrics of every cell."""
        return tuple(METRICS[m] for m in self.metrics)

    @property
    def datasets(self) -> tuple[str, ...]:
        """Datasets that the cells need, in order."""
        return tuple(dict.fromkeys(str(c.settings["dataset"]) for c in self.cells))

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
        _distinct_trainings(cells, self.name)
        return replace(self, cells=cells)

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


def names() -> list[str]:
    """The paper's tables, in its order."""
    return [s.name for s in sorted(map(load, (p.stem for p in FOLDER.glob("*.yaml"))), key=_place)]


def _place(study: Study) -> tuple[int, int, str]:
    kind, _, rest = study.where.partition(" ")
    number = "".join(itertools.takewhile(str.isdigit, rest))
    return ("Table", "Figure").index(kind) if number else 2, int(number or 0), study.name


@functools.lru_cache(maxsize=64)
def load(name: str) -> Study:
    """The study of that name, or of that file (`mine.yaml`)."""
    own = FOLDER / f"{name}.yaml"
    if "/" not in name and own.is_file():
        return parse(configuration.load(own), name, own.name)
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        return parse(configuration.load(path), path.stem, str(path))
    raise unknown("study", name, (p.stem for p in FOLDER.glob("*.yaml")))


def parse(values: Mapping[str, Any], name: str, where: str) -> Study:
    """A study from the mapping of its file; `where` is what messages call it."""
    for key in values:
        if key not in KEYS:
            raise ConfigError(f"{where}: {unknown('key', str(key), KEYS)}")
    metrics = tuple(_list(values, "metrics", where) or ["mae", "rmse"])
    for metric in metrics:
        if metric not in METRICS:
            raise ConfigError(f"{where}: {unknown('metric', str(metric), METRICS)}")
    common = _mapping(values.get("all") or {}, where, "all")
    columns = [_mapping(c, where, "a column") for c in _list(values, "columns", where) or [{"name": ""}]]
    rows = [_mapping(r, where, "a row") for r in _list(values, "rows", where)]
    if not rows:
        raise ConfigError(f"{where}: a study needs rows")
    for kind, every in (("row", rows), ("column", columns)):
        _distinct(where, kind, [str(e.get("name", "")) for e in every])
    notes = tuple(_note(n, where, rows, columns) for n in _list(values, "notes", where))
    specials = tuple(_special(s, where) for s in _list(values, "settings", where))
    cells = tuple(_cells(common, columns, rows, metrics, notes, specials, where))
    _known(specials, cells, where)
    _distinct_trainings(cells, where)
    return Study(
        name=name,
        title=str(values.get("title", name)),
        metrics=metrics,
        cells=cells,
        notes=notes,
        where=str(values.get("where", "")),
        label=str(values.get("label", "")),
        printed={str(r["name"]): str(r["printed"]) for r in rows if "printed" in r},
        specials=specials,
    )


def _cells(
    common: Mapping[str, Any],
    columns: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    metrics: Sequence[str],
    notes: Sequence[Note],
    specials: Sequence[Special],
    where: str,
) -> Iterable[Cell]:
    for row in rows:
        name = str(row.get("name", ""))
        printed = row.get("paper", [()] * len(columns))
        if not isinstance(printed, list) or len(printed) != len(columns):
            raise ConfigError(f"{where}: row '{name}' needs {len(columns)} entries under 'paper', one a column, or ~")
        for column, entry in zip(columns, printed):
            if entry is None:
                continue
            merged = {**common, **column, **row}
            settings = {k: v for k, v in merged.items() if k not in OWN}
            title = str(column.get("name", ""))
            here = f"{where}: cell '{name}, {title}'" if title else f"{where}: row '{name}'"
            _check_named(settings, here)
            values = {"row": name, "column": title, **{k: settings[k] for k in NAMED}}
            special = {k: v for s in specials if s.about(values) for k, v in s.settings.items()}
            settings |= special
            _check(settings, here)
            about = tuple(k for k, n in enumerate(notes) if not n.general and n.about(name, title))
            paper = _figures(entry, metrics, here)
            yield Cell(name, title, settings, paper, bool(row.get("quoted", False)), about, special)


def _figures(entry: Any, metrics: Sequence[str], here: str) -> tuple[str, ...]:
    """`57.1/92.5` as one text a metric."""
    if entry == ():
        return ()
    texts = tuple(t.strip() for t in str(entry).split("/"))
    try:
        numbers = [float(t) for t in texts]
    except ValueError:
        numbers = []
    if len(numbers) != len(metrics):
        raise ConfigError(f"{here}: '{entry}' is not {'/'.join(metrics)}, numbers divided by slashes")
    return texts


def _check_named(settings: Mapping[str, Any], here: str) -> None:
    for key in NAMED:
        if key not in settings:
            raise ConfigError(f"{here} has no {key}; every cell needs {', '.join(NAMED)}")


def _check(settings: Mapping[str, Any], here: str) -> None:
    """Refuse names that nothing has; the other settings are looked at when they are resolved."""
    if settings["dataset"] not in base.readers():
        raise ConfigError(f"{here}: {unknown('dataset', str(settings['dataset']), base.readers())}")
    if settings["method"] not in methods.METHODS:
        raise ConfigError(f"{here}: {unknown('method', str(settings['method']), methods.METHODS)}")
    known = {*configuration.names(), *NAMED} - {"data", "loss", "network", "options", "seed", "select"}
    for key in settings:
        group, dot, _ = key.partition(".")
        if key in configuration.GROUPS:
            raise ConfigError(f"{here}: write options one by one, {key}.NAME: value")
        if not (dot and group in configuration.GROUPS) and key not in known:
            raise ConfigError(f"{here}: {unknown('setting', key, known)}")


def _note(value: Any, where: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]]) -> Note:
    found = _mapping({"text": value} if isinstance(value, str) else value, where, "a note")
    for key in found:
        if key not in ("text", "row", "column"):
            raise ConfigError(f"{where}: {unknown('key of a note', str(key), ('text', 'row', 'column'))}")
    about: dict[str, tuple[str, ...]] = {}
    for key, every in (("row", rows), ("column", columns)):
        given = found.get(key) or []
        about[key] = tuple(str(g) for g in (given if isinstance(given, list) else [given]))
        for one in about[key]:
            if one not in [str(e.get("name", "")) for e in every]:
                raise ConfigError(f"{where}: a note is about {key} '{one}', which the table does not have")
    return Note(str(found.get("text", "")), about["row"], about["column"])


def _special(value: Any, where: str) -> Special:
    found = _mapping(value, where, "an entry of settings")
    chosen = _mapping(found.pop("for", {}), where, "'for' of settings")
    for key in chosen:
        if key not in CHOICES:
            raise ConfigError(f"{where}: {unknown('key of for', str(key), CHOICES)}")
    if not chosen or not found:
        raise ConfigError(f"{where}: settings are written {{for: {{column: NAME}}, crop: 512}}, not '{value}'")
    for key in found:
        if key in (*NAMED, *OWN):
            raise ConfigError(f"{where}: {key} is what a row or a column says; settings cannot change it")
    every = {k: v if isinstance(v, list) else [v] for k, v in chosen.items()}
    return Special({k: tuple(map(str, v)) for k, v in every.items()}, found)


def _known(specials: Sequence[Special], cells: Sequence[Cell], where: str) -> None:
    """Refuse settings for what the table does not have."""
    have = [{"row": c.row, "column": c.column, **{k: str(c.settings[k]) for k in NAMED}} for c in cells]
    for special in specials:
        for key, names in special.where.items():
            for name in names:
                if name not in {h[key] for h in have}:
                    raise ConfigError(f"{where}: settings are for {key} '{name}', which the table does not have")
        if not any(special.about(h) for h in have):
            raise ConfigError(f"{where}: settings are for {in_words(special)}, which no cell is")


def in_words(special: Special) -> str:
    """For which cells settings are."""
    return "; ".join(f"{key} {', '.join(names)}" for key, names in special.where.items())


def _mapping(value: Any, where: str, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {what} is a mapping of settings, not '{value}'")
    return {str(k): v for k, v in value.items()}


def _list(values: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = values.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{where}: {key} is a list, not '{found}'")
    return found


def _distinct(where: str, kind: str, every: Sequence[str]) -> None:
    for name in every:
        if every.count(name) > 1:
            raise ConfigError(f"{where}: two {kind}s are called '{name}'")


def _distinct_trainings(cells: Sequence[Cell], where: str) -> None:
    seen: dict[str, str] = {}
    for cell in cells:
        for part in cell.parts:
            key = repr(sorted(part.items(), key=lambda item: item[0]))
            if key in seen and seen[key] != cell.name:
                raise ConfigError(f"{where}: the cells '{seen[key]}' and '{cell.name}' ask for the same training")
            seen[key] = cell.name
