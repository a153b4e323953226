"""A table as data: rows and columns of settings, and what the paper prints in each cell.

The paper's tables are the YAML files in `paper/`; a file of one's own has the same form:

    title: Crowd counting on six datasets
    where: Table 1                      # in the paper
    metrics: [mae, rmse]                # names of `metrics.METRICS`
    beside: [nae]                       # more of them, which the paper does not print
    all: {backbone: vgg19}              # settings of every cell
    columns:                            # one without a name where there are none
      - {name: ShTech A, dataset: shanghaitech-a}
    rows:
      - {name: AL-PAPM, method: al-papm, paper: [57.1/92.5]}
    settings:                           # of some cells, for which the recipe of network and method is not enough
      - {for: {column: ShTech B, backbone: [vgg19, csrnet]}, crop: 512}
    tiers:                              # what `run --tier 1` trains, and with which seeds (one, when not said)
      - {tier: 1, for: {column: ShTech A}, seeds: [0, 1]}
    claims:                             # of the paper: in every column that has both rows, or in those named
      - {row: AL-PAPM, below: DM-Count}
    notes:
      - {text: What is known about a figure., row: AL-PAPM, column: ShTech A}
    seeds: [0, 1, 2]                    # to train with where nobody says; 0
    pairs: [[DM-Count, AL-PAPM]]        # rows to compare over columns of noise, the base first

Settings are those of `papm train`: dataset, method, backbone, weights (none: from nothing), noise, steps, `loss.sigma` and so
on; a row's come before a column's, a column's before those of `all`. Those under `settings` come before all of them, later ones
first. They are part of the recipe: a result with other values still belongs to the cell (`results.assign`). A setting that is a
list asks for one training per value, and the figure is their mean. `paper` has an entry per column, its metrics divided by
slashes as printed, `~` where the paper has none and no cell is meant; without `paper` every column is a cell.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from papm import config as configuration
from papm import methods
from papm.data import base
from papm.errors import ConfigError, unknown
from papm.study.cells import NAMED, Cell, Choice, Note, Special, Tier, refuse_same
from papm.study.cells import Study as Study
from papm.study.claim_forms import read_claim
from papm.study.metrics import METRICS

FOLDER = Path(__file__).parent / "paper"
RECIPES = Path(__file__).parent / "recipes"  # studies by which recipes are chosen, and what they reach
MORE = Path(__file__).parent / "own"  # studies that the paper does not have
FOLDERS = (FOLDER, RECIPES, MORE)
OWN = ("name", "paper", "printed", "quoted")  # keys of a row that are no settings
KEYS = (
    "title",
    "where",
    "label",
    "metrics",
    "all",
    "columns",
    "rows",
    "settings",
    "tiers",
    "claims",
    "notes",
    "beside",
    "seeds",
    "pairs",
)


def names(folder: Path = FOLDER) -> list[str]:
    """The paper's tables, in its order; those of another folder by name."""
    return [s.name for s in sorted(map(load, (p.stem for p in folder.glob("*.yaml"))), key=_place)]


def more_names() -> list[str]:
    """The studies that come with papm and are not the paper's."""
    return [*names(RECIPES), *sorted(p.stem for p in MORE.glob("*.yaml"))]


def _place(study: Study) -> tuple[int, int, str]:
    kind, _, rest = study.where.partition(" ")
    number = "".join(itertools.takewhile(str.isdigit, rest))
    return ("Table", "Figure").index(kind) if number else 2, int(number or 0), study.name


@functools.lru_cache(maxsize=64)
def load(name: str) -> Study:
    """The study of that name, or of that file (`mine.yaml`)."""
    for own in (folder / f"{name}.yaml" for folder in FOLDERS if "/" not in name):
        if own.is_file():
            return parse(configuration.load(own), name, own.name)
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        return parse(configuration.load(path), path.stem, str(path))
    raise unknown("study", name, (p.stem for folder in FOLDERS for p in folder.glob("*.yaml")))


def parse(values: Mapping[str, Any], name: str, where: str) -> Study:
    """A study from the mapping of its file; `where` is what messages call it."""
    try:
        return _parse(values, name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _parse(values: Mapping[str, Any], name: str) -> Study:
    _refuse_others("key", values, KEYS)
    printed = tuple(_list(values, "metrics") or ["mae", "rmse"])
    metrics = (*printed, *_list(values, "beside"))
    _refuse_others("metric", metrics, METRICS)
    common = _mapping(values.get("all") or {}, "all")
    columns = [{"name": "", **_mapping(c, "a column")} for c in _list(values, "columns") or [{}]]
    rows = [{"name": "", **_mapping(r, "a row")} for r in _list(values, "rows")]
    if not rows:
        raise ConfigError("a study needs rows")
    have = {"row": _names("row", rows), "column": _names("column", columns)}
    notes = tuple(_note(n, have) for n in _list(values, "notes"))
    specials = tuple(_special(s) for s in _list(values, "settings"))
    cells = refuse_same(_cells(common, columns, rows, printed, notes, specials))
    tiers = tuple(_tier(t) for t in _list(values, "tiers"))
    _refuse_idle("settings", specials, cells)
    _refuse_idle("tiers", tiers, cells)
    claims = tuple(read_claim(_mapping(c, "a claim"), cells, metrics) for c in _list(values, "claims"))
    where = str(values.get("where", ""))
    seeds, pairs = _seeds(_list(values, "seeds") or [0]), _pairs(_list(values, "pairs"), have["row"], cells)
    about = (notes, where, specials, tiers, claims, seeds, pairs)
    return Study(name, str(values.get("title", name)), metrics, cells, *about)


def _seeds(given: Sequence[Any]) -> tuple[int, ...]:
    if not all(type(s) is int and s >= 0 for s in given):
        raise ConfigError(f"seeds are whole numbers of at least 0, not '{given}'")
    return tuple(dict.fromkeys(given))


def _pairs(given: Sequence[Any], rows: Sequence[str], cells: Sequence[Cell]) -> tuple[tuple[str, str], ...]:
    """Rows that are compared over the distances of the columns."""
    for pair in given:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConfigError(f"a pair is two rows, [BASE, OTHER], not '{pair}'")
        _refuse_others("row of a pair", pair, rows)
    if given and any("noise" not in c.settings for c in cells):
        raise ConfigError("pairs are compared over distances: every column needs its noise")
    return tuple((str(a), str(b)) for a, b in given)


def _cells(
    common: Mapping[str, Any],
    columns: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    metrics: Sequence[str],
    notes: Sequence[Note],
    specials: Sequence[Special],
) -> Iterator[Cell]:
    for row in rows:
        printed = row.get("paper", [()] * len(columns))
        if not isinstance(printed, list) or len(printed) != len(columns):
            raise ConfigError(f"row '{row['name']}' needs {len(columns)} entries under 'paper', one per column, or ~")
        for column, entry in zip(columns, printed):
            if entry is None:
                continue
            settings = {k: v for k, v in {**common, **column, **row}.items() if k not in OWN}
            cell = Cell(str(row["name"]), str(column["name"]), settings, quoted=bool(row.get("quoted", False)))
            try:
                paper = () if entry == () else _figures(entry, metrics)
                yield _with_specials(replace(cell, paper=paper), notes, specials)
            except ConfigError as error:
                here = f"cell '{cell.name}'" if cell.column else f"row '{cell.row}'"
                raise ConfigError(f"{here}: {error}") from None


def _figures(entry: Any, metrics: Sequence[str]) -> tuple[str, ...]:
    """`57.1/92.5` as one text per metric."""
    texts = tuple(t.strip() for t in str(entry).split("/"))
    try:
        numbers = [float(t) for t in texts]
    except ValueError:
        numbers = []
    if len(numbers) != len(metrics):
        raise ConfigError(f"'{entry}' is not {'/'.join(metrics)}, numbers divided by slashes")
    return texts


def _with_specials(cell: Cell, notes: Sequence[Note], specials: Sequence[Special]) -> Cell:
    """The cell with the settings and the notes that are for it, once its settings are known to be some."""
    for key in NAMED:
        if key not in cell.settings:
            raise ConfigError(f"there is no {key}; every cell needs {', '.join(NAMED)}")
    special = {k: v for s in specials if s.about(cell.place) for k, v in s.settings.items()}
    settings = {**cell.settings, **special}
    _refuse_others("dataset", [settings["dataset"]], base.readers())
    _refuse_others("method", [settings["method"]], methods.METHODS)
    known = {*configuration.names(), *NAMED} - {"data", "loss", "network", "options", "seed", "select"}
    for key in settings:
        group, dot, _ = key.partition(".")
        if key in configuration.GROUPS:
            raise ConfigError(f"write options one by one, {key}.NAME: value")
        if not dot or group not in configuration.GROUPS:
            _refuse_others("setting", [key], known)
    about = tuple(k for k, n in enumerate(notes) if n.where and n.about(cell.place))
    return replace(cell, settings=settings, special=special, notes=about)


def _note(value: Any, have: Mapping[str, Sequence[str]]) -> Note:
    found = _mapping({"text": value} if isinstance(value, str) else value, "a note")
    _refuse_others("key of a note", found, ("text", *have))
    where = _chosen({k: found[k] for k in have if found.get(k)})
    for key, names in where.items():
        for name in names:
            if name not in have[key]:
                raise ConfigError(f"a note is about {key} '{name}', which the table does not have")
    return Note(where, str(found.get("text", "")))


def _special(value: Any) -> Special:
    found = _mapping(value, "an entry of settings")
    chosen = _mapping(found.pop("for", {}), "'for' of settings")
    _refuse_others("key of for", chosen, ("row", "column", *NAMED))
    if not chosen or not found:
        raise ConfigError(f"settings are written {{for: {{column: NAME}}, crop: 512}}, not '{value}'")
    for key in found:
        if key in (*NAMED, *OWN):
            raise ConfigError(f"{key} is what a row or a column says; settings cannot change it")
    return Special(_chosen(chosen), found)


def _tier(value: Any) -> Tier:
    found = _mapping(value, "an entry of tiers")
    _refuse_others("key of a tier", found, ("tier", "for", "seeds"))
    chosen = _mapping(found.get("for") or {}, "'for' of a tier")
    _refuse_others("key of for", chosen, ("row", "column", *NAMED))
    number, seeds = found.get("tier"), found.get("seeds", [0])
    if (
        type(number) is not int
        or not isinstance(seeds, list)
        or any(type(s) is not int or s < 0 for s in seeds)
        or not seeds
    ):
        raise ConfigError(f"a tier is written {{tier: 1, for: {{column: NAME}}, seeds: [0, 1]}}, not '{value}'")
    return Tier(_chosen(chosen), number, tuple(dict.fromkeys(seeds)))


def _chosen(given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {k: tuple(map(str, v if isinstance(v, list) else [v])) for k, v in given.items()}


def _refuse_idle(what: str, chosen: Sequence[Choice], cells: Sequence[Cell]) -> None:
    """Refuse settings or tiers for what the table does not have."""
    for some in chosen:
        for key, names in some.where.items():
            for name in names:
                if name not in {str(c.place[key]) for c in cells}:
                    raise ConfigError(f"{what} are for {key} '{name}', which the table does not have")
        if not any(some.about(c.place) for c in cells):
            raise ConfigError(f"{what} are for {some}, which no cell is")


def _refuse_others(kind: str, given: Iterable[Any], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise unknown(kind, str(name), known)


def _names(kind: str, every: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of rows or columns, which must differ."""
    names = [str(e["name"]) for e in every]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two {kind}s are called '{name}'")
    return names


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is a mapping of settings, not '{value}'")
    return {str(k): v for k, v in value.items()}


def _list(values: Mapping[str, Any], key: str) -> list[Any]:
    found = values.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{key} is a list, not '{found}'")
    return found
