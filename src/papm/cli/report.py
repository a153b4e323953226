"""`papm report`: the page of a run, or of several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from papm.cli import ui
from papm.cli.options import Json
from papm.errors import ConfigError, PapmError
from papm.text import n_of

if TYPE_CHECKING:
    from papm.metrics.counting import PairedDifference
    from papm.report.compare import ComparedRun

    Differences = Mapping[tuple[str, str], PairedDifference]


def report(
    runs: Annotated[list[Path], Argument(help="A run folder, or several to compare.")],
    out: Annotated[
        Path | None, Option(help="With several: the page to write; comparison.html beside the first run.")
    ] = None,
    json: Json = False,
) -> None:
    """Write report.html of a run again, from what its folder holds; of several runs, compare them.

    Runs on the same test images are compared image by image: is the first one better, or was it luck? And what is the
    mean of their counts worth? Networks that err on different images do better together.

    Examples:

    papm report runs/first

    papm report runs/first runs/second
    """

    if len(runs) > 1:
        _compare(runs, out, json)
        return
    if out is not None or json:
        raise ConfigError("--out and --json go with several runs; the page of one run is its report.html")
    from papm.report.run import write_report

    ui.say(f"Report: {write_report(runs[0])}")


def _compare(folders: list[Path], out: Path | None, json: bool) -> None:
    from papm.report.compare import differences, together, write_comparison

    runs = [_finished(folder, label) for folder, label in zip(folders, _labels(folders))]
    labels, groups = ([*dict.fromkeys(names)] for names in zip(*((r.label, r.group) for r in runs)))
    found, joint = differences(runs, labels, groups), together(runs)
    page = out or folders[0].resolve().parent / "comparison.html"
    intro = f"{n_of(len(runs), 'run')}; differences are to {labels[0]}, on the same images where both have them."
    notes = [
        f"The mean of the counts of {j.runs} runs has an MAE of {j.score.mae:.2f} on {g}." for g, j in joint.items()
    ]
    write_comparison(page, title=" · ".join(labels), intro=intro, runs=runs, notes=notes)
    if json:
        ui.print_json({"first": str(folders[0]), **_as_json(runs, found, joint), "page": str(page)})
    else:
        _show(runs, found, joint, labels[0])
        ui.say(f"Page: {page}")


def _finished(folder: Path, label: str) -> ComparedRun:
    from papm.report.compare import ComparedRun
    from papm.report.load import read_run

    result = read_run(folder).result
    if result is None:
        raise PapmError(f"{folder}: this run has not finished, so there is nothing to compare; go on with --resume")
    group = " ".join(str(result[k]) for k in ("dataset", "split") if result.get(k))
    return ComparedRun(label, group or "test", folder, result)


def _as_json(runs: list[ComparedRun], found: Differences, joint: Mapping[str, Any]) -> dict[str, Any]:
    from papm.report.load import number

    rows: list[dict[str, Any]] = []
    for r in runs:
        versus = found.get((r.label, r.group))
        figures = {k: number(r.result, k) for k in ("mae", "rmse", "nae", "bias")}
        rows.append({"run": str(r.folder), "data": r.group, **figures, "against_first": versus and versus.to_dict()})
    means = [
        {"data": group, "runs": j.runs, **j.score.to_dict(), "against_first": j.against_first.to_dict()}
        for group, j in joint.items()
    ]
    return {"runs": rows, "mean_of_counts": means}


def _show(runs: list[ComparedRun], found: Differences, joint: Mapping[str, Any], first: str) -> None:
    from papm.metrics.counting import FEWEST
    from papm.report.load import number

    table: list[list[object]] = []
    for r in runs:
        values = [v if (v := number(r.result, k)) is not None else "–" for k in ("mae", "rmse")]
        table.append([r.label, r.group, *values, *_against(found.get((r.label, r.group)))])
    for group, j in joint.items():
        table.append([f"mean of {j.runs}", group, j.score.mae, j.score.rmse, *_against(j.against_first)])
    ui.table(["run", "data", "MAE", "RMSE", f"MAE less {first}, 95 % interval", ""], table)
    if not found:
        ui.note("None of the others was tested on the same images as the first, so nothing is compared image by image.")
    if any(d.n < FEWEST for d in found.values()):
        ui.note(f"With fewer than {FEWEST} test images a difference may be chance: the verdict is unclear.")


def _against(difference: PairedDifference | None) -> tuple[str, str]:
    """A difference and its verdict, for a table."""
    if difference is None:
        return "", ""
    return f"{difference.difference:+.2f} ({difference.low:+.2f} to {difference.high:+.2f})", difference.verdict


def _labels(folders: list[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart.

    >>> _labels([Path("a/run"), Path("b/run")])
    ['a/run', 'b/run']
    """
    resolved = [f.resolve() for f in folders]
    if len(set(resolved)) < len(resolved):
        raise ConfigError("a run is given twice")
    for depth in range(1, max(len(r.parts) for r in resolved) + 1):
        names = ["/".join(r.parts[-depth:]) for r in resolved]
        if len(set(names)) == len(names):
            return names
    return [str(r) for r in resolved]
