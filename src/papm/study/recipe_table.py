"""One recipe on all data: what each network and method has on each dataset, whatever table of the paper it is in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from papm.data.base import HOLDOUT
from papm.methods import RECIPE
from papm.report.load import number
from papm.study.cells import Study
from papm.study.results import Result, has, recipe_of
from papm.study.show import DASH, markdown_table, text_of

Key = tuple[str, str, str]  # dataset, method, network
SMALL = "tiny"  # the network, or trunk, of studies on a CPU; the notebook has them


def table(results: Iterable[Result], studies: Sequence[Study]) -> str:
    """Networks and methods by datasets, in Markdown: MAE, bias of the total, and the paper's MAE where it prints one."""
    found, paper = _whole(_longest(results, studies), studies), _paper(studies)
    datasets = [d for d in _in_order(studies) if any(key[0] == d for key in found)]
    rows = sorted({(network, method) for _, method, network in found})
    body = []
    for network, method in rows:
        keys: list[Key] = [(d, method, network) for d in datasets]
        body.append([f"`{network}` `{method}`", *(_text(found.get(key), paper.get(key)) for key in keys)])
    return markdown_table(["", *(f"`{d}`" for d in datasets)], body)


def _data(studies: Iterable[Study]) -> dict[str, dict[str, Any]]:
    """What the paper's tables set of each dataset, such as which images of TRANCOS teach."""
    known: dict[str, dict[str, Any]] = {}
    for cell in (c for s in studies for c in s.cells):
        own = {k: v for k, v in cell.settings.items() if k.startswith("data.") and not isinstance(v, list)}
        known.setdefault(str(cell.settings["dataset"]), {f"data.{HOLDOUT}": None, **own})
    return known


def _lengths(studies: Iterable[Study]) -> dict[Key, int]:
    """Steps that the paper's tables set for themselves."""
    cells = [c for s in studies for c in s.cells if c.plain and "steps" in c.special]
    return {_key(c.settings): int(c.special["steps"]) for c in cells}


def _key(values: Mapping[str, Any]) -> Key:
    return str(values["dataset"]), str(values["method"]), str(values["backbone"])


def _longest(results: Iterable[Result], studies: Sequence[Study]) -> dict[Key, list[Result]]:
    """Of each network, method and dataset the trainings by today's recipe on exact dots, of any seed: those of the length that
    its table sets, or else of most steps."""
    data, lengths = _data(studies), _lengths(studies)
    found: dict[Key, list[Result]] = {}
    for result in results:
        v = result.values
        exact = not v.get("noise") and v.get("select") == "last" and v.get("split", "test") == "test"
        whole = "init" not in v and has(result, data.get(str(v["dataset"]), {}))
        small = SMALL in (v["backbone"], result.settings.get("network.trunk"))
        if recipe_of(v) != RECIPE or small or not exact or not whole:
            continue
        key = _key(v)

        def rank(one: Result, wanted: int | None = lengths.get(key)) -> tuple[bool, int]:
            return one.values["steps"] == wanted, int(one.values["steps"])

        best = max(map(rank, found.get(key, [])), default=(False, 0))
        if rank(result) > best:
            found[key] = [result]
        elif rank(result) == best:
            found[key].append(result)
    return found


def _whole(found: Mapping[Key, list[Result]], studies: Iterable[Study]) -> dict[Key, list[Result]]:
    """Without those of which some folds are missing: their mean is of other images than the paper's."""
    folds: dict[str, int] = {}
    for cell in (c for s in studies for c in s.cells):
        dataset = str(cell.settings["dataset"])
        folds[dataset] = max(len(cell.parts), folds.get(dataset, 1))
    return {k: rs for k, rs in found.items() if len({r.settings.get("data.fold") for r in rs}) >= folds.get(k[0], 1)}


def _paper(studies: Iterable[Study]) -> dict[Key, float]:
    """What the paper prints for exact dots and its usual settings; the first table that has it."""
    printed: dict[Key, float] = {}
    for study in (s for s in studies if "mae" in s.metrics):
        for cell in (c for c in study.cells if c.plain):
            mae = cell.printed(study.metrics.index("mae"))
            if mae is not None:
                printed.setdefault(_key(cell.settings), mae)
    return printed


def _in_order(studies: Iterable[Study]) -> list[str]:
    return list(dict.fromkeys(d for s in studies for d in s.datasets))


def _text(found: Sequence[Result] | None, paper: float | None) -> str:
    if not found:
        return DASH
    mae, bias = _mean(found, "mae"), _mean(found, "bias")
    digits = 2 if (mae or 0) < 10 else 1
    reached = paper is not None and mae is not None and mae <= paper
    said = f"**{text_of(mae, digits)}**" if reached else text_of(mae, digits)
    if bias is not None:
        said += f", {text_of(100 * bias, 1, '+')} %"
    steps = int(found[0].values["steps"])
    beside = [f"paper {paper:g}"] if paper is not None else []
    seeds = {r.values["seed"] for r in found}
    folds = {r.settings.get("data.fold") for r in found}
    beside.append(f"{steps:,} steps")
    beside += [f"{len(each)} {what}" for each, what in ((seeds, "seeds"), (folds, "folds")) if len(each) > 1]
    return f"{said} ({'; '.join(beside)})"


def _mean(found: Sequence[Result], key: str) -> float | None:
    values: list[Mapping[str, object]] = [r.values for r in found]
    known = [v for each in values if (v := number(each, key)) is not None]
    return fmean(known) if known else None
