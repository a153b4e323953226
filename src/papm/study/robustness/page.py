"""`robustness.html`, a page of a study with an answer, curves and pictures, and the files beside it."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import torch

from papm import methods
from papm.config import SHARES
from papm.engine.data import training_points
from papm.errors import DataError
from papm.files import write_json, write_text
from papm.metrics.counting import FEWEST
from papm.points import AGAIN
from papm.report import charts, page
from papm.report.charts import Card, Series
from papm.report.displaced import draw_moved, window
from papm.report.examples import spread
from papm.report.page import Picture
from papm.report.svg import PALETTE
from papm.study import training
from papm.study.robustness import words
from papm.study.robustness.figures import Table
from papm.study.robustness.plan import KINDS, Asked, amount, amounts, done, method_of
from papm.study.show import SELECTED, View
from papm.text import n_of

log = logging.getLogger(__name__)

NEIGHBOURS = 8.0  # a picture is so many times the distance between neighbours wide
MOVES = 5.0  # ... and at least so many times the largest distance


def write_files(asked: Asked, shown: View, table: Table) -> dict[str, str]:
    """robustness.json, .csv and .html in the folder; where each is."""
    files = {kind: asked.out / f"robustness.{kind}" for kind in ("html", "csv", "json")}
    seeds = [s for line in shown.lines if line.group is not None for s in line.group.seeds]
    write_json(files["json"], [dict(r.values) for s in seeds for r in s.results])
    write_text(files["csv"], words.to_csv(table, asked.kind))
    write_page(asked, table, files["html"])
    return {kind: str(path) for kind, path in files.items()}


def write_page(asked: Asked, table: Table, path: Path) -> Path:
    """The page: conclusion, table, curves, what the distances look like."""
    moved = words.listed(amounts([d for d in table.distances if d], asked.kind) or ["0"])
    below = "the lowest and the highest of the seeds" if len(table.seeds) > 1 else "its 95 % interval over images"
    winners = table.winners.items() if len(table.methods) > 1 else ()
    return page.render(
        "study.html.j2",
        path,
        title=asked.study.title,
        kind="Robustness",
        lead=[
            f"Training dots were {done(asked.kind)} {moved}, {KINDS[asked.kind]}, once, before training. Test dots are exact."
        ],
        warnings=warnings(asked, table),
        answer=words.answer(table),
        heading=("MAE, objects per image", "lower is better; in percent, the change against exact dots"),
        columns=words.columns(table),
        rows=words.rows(table),
        best={(table.methods.index(m), 1 + table.distances.index(d)) for d, m in winners if m is not None},
        caption=f"Below each figure: {below}. In colour: clearly the best of its column. "
        "A question mark: chance may explain the change.",
        charts=line_charts(table),
        pictures=pictures(asked),
        facts=facts(asked, table),
    )


def line_charts(table: Table) -> list[Card]:
    """The MAE, and its change against exact dots, over distance; a line per method."""
    maes = {key: found.mae for key, found in table.figures.items()}
    changes = {(m, d): 100 * (table.change(m, d) or 0.0) for m, d in maes if not d or table.change(m, d) is not None}
    made = []
    for title, remark, y_label, values in (
        ("MAE over distance", "low is good", "MAE, objects per image", maes),
        ("Change over distance", "flat is robust", "change against exact dots, %", changes),
    ):
        series = []
        for k, method in enumerate(table.methods):
            x = [d for d in table.distances if (method, d) in values]
            y = [values[method, d] for d in x]
            series.append(Series(method, x, y, colour=k, dash=k // len(PALETTE), marks=True))
        far = f"share of dots {table.kind}" if table.kind in SHARES else "dots moved by, px"
        made.append(charts.line_chart(series, title=title, remark=remark, x_label=far, y_label=y_label, log=False))
    return made


def warnings(asked: Asked, table: Table) -> list[str]:
    """What a reader must know before believing the figures."""
    images, cells = table.images or FEWEST, len(table.methods) * len(table.distances)
    missing = cells - len(table.figures)
    return page.said(
        (asked.select == "test", "The weights were chosen on the test images; expect larger errors on new images."),
        (images < FEWEST, f"{n_of(images, 'test image')}: with fewer than {FEWEST} no difference can be called clear."),
        (len({methods.method(method_of(m)).network for m in table.methods}) > 1,
         "Methods of points train another network than the others: a difference between them is also the network's."),
        (missing, f"{missing} of {cells} cells are not measured yet; the same command goes on."),
    )  # fmt: skip


def pictures(asked: Asked) -> list[Picture]:
    """A training image of middling count: its dots, and where each distance puts them; as training saw them."""
    samples = [s for s in asked.data.splits.train.samples if len(s.points_inside)]
    if not samples:
        return []
    sample = samples[spread([s.count for s in samples], 1)[0]]
    first = dataclasses.replace(training.configure(asked.study.cells[0].settings), seed=asked.seeds[0])

    def dots(distance: float) -> torch.Tensor:
        moved = dataclasses.replace(first, noise=distance, noise_kind=asked.kind)  # type: ignore[arg-type]
        return torch.from_numpy(training_points(sample, moved)[:, :2])

    exact = dots(0.0)
    place = window(
        exact,
        sample.size,
        max(
            NEIGHBOURS * (asked.data.spacing or 0.0), MOVES * (AGAIN if asked.kind in SHARES else max(asked.distances))
        ),
    )
    made = []
    for distance in filter(None, asked.distances):
        caption = f"{done(asked.kind)} {amount(distance, asked.kind)}: {place[2]} × {place[2]} px of {sample.name}"
        try:
            made.append(page.picture(caption, draw_moved(sample.image, exact, dots(distance), place)))
        except DataError as error:  # a damaged image fails its training too
            log.warning("left out of the page: %s", error)
    return made


def facts(asked: Asked, table: Table) -> list[tuple[str, str]]:
    """How the figures were made."""
    near = asked.data.spacing
    said = [
        ("data", asked.data.spec),
        ("images", ", ".join(f"{n} {name}" for name, n in asked.data.splits.sizes.items())),
        ("neighbours", "" if near is None else f"{near:.1f} px from a training dot to the nearest other, the median"),
        ("weights", SELECTED[asked.select]),
        ("seeds", ", ".join(map(str, table.seeds or asked.seeds))),
    ]
    for cell in (c for c in asked.study.cells if not c.settings["noise"]):
        config = training.configure(cell.settings)
        trunk = training.starts_from(config, cell.settings.get("weights"))
        trained = f"{config.backbone}, {config.steps:,} steps of {config.batch} crops of {config.crop} px"
        said.append((cell.row, trained + ("" if trunk == training.NONE else ", from pretrained weights")))
    said.append(("settings", training.in_words(asked.settings)))
    return [(name, value) for name, value in said if value]


def to_json(asked: Asked, table: Table, files: dict[str, str]) -> dict[str, Any]:
    """The answer for other programs."""
    return {
        **asked.to_json(),
        "seeds": list(table.seeds or asked.seeds),
        "conclusion": words.conclusion(table),
        "cost": words.cost(table),
        "basis": words.basis(table),
        "table": words.to_rows(table, asked.kind),
        "files": files,
    }
