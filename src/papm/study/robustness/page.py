"""`robustness.html`, and the files beside it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from papm import methods
from papm.engine.data import training_points
from papm.errors import DataError
from papm.files import write_json, write_text
from papm.metrics.counting import FEWEST
from papm.report import charts, page
from papm.report.charts import Series
from papm.report.displaced import draw_moved, window
from papm.report.examples import spread
from papm.report.page import Picture
from papm.report.svg import PALETTE
from papm.study import training
from papm.study.results import Result
from papm.study.robustness import table as tables
from papm.study.robustness.plan import KINDS, Asked, in_pixels, method_of
from papm.study.robustness.table import Table
from papm.study.show import SELECTED
from papm.study.tables import Study
from papm.text import n_of

log = logging.getLogger(__name__)

NEIGHBOURS = 8.0  # a picture is so many times the distance between neighbours wide
MOVES = 5.0  # ... and at least so many times the largest distance


def write_files(asked: Asked, study: Study, results: Sequence[Result], table: Table) -> dict[str, str]:
    """robustness.json, .csv and .html in the folder; where each is."""
    files = {kind: asked.out / f"robustness.{kind}" for kind in ("html", "csv", "json")}
    write_json(files["json"], tables.used(study, results, asked.select))
    write_text(files["csv"], tables.to_csv(table, asked.kind))
    write_page(asked, study, table, files["html"])
    return {kind: str(path) for kind, path in files.items()}


def write_page(asked: Asked, study: Study, table: Table, path: Path) -> Path:
    """The page: conclusion, table, chart, what the distances look like."""
    missing = len(table.methods) * len(table.distances) - len(table.figures)
    return page.render(
        "robustness.html.j2",
        path,
        title=study.title,
        conclusion=tables.conclusion(table),
        cost=tables.cost(table) if len(table.methods) > 1 else "",
        basis=tables.basis(table),
        warnings=warnings(asked, table),
        missing=missing,
        moved=f"{tables.listed([f'{d:g}' for d in table.distances if d] or ['0'])} px, {KINDS[asked.kind]}",
        table=table,
        best=tables.winners(table),
        names={d: in_pixels(d) for d in table.distances},
        charts=line_charts(table),
        pictures=pictures(asked, study),
        facts=facts(asked, study, table),
    )


def line_charts(table: Table) -> list[tuple[str, str, Any]]:
    """(heading, remark, chart): the MAE, and its change against exact dots, over distance; a line per method."""

    def chart(y_label: str, title: str, value: Callable[[str, float], float | None]) -> Any:
        series = []
        for k, method in enumerate(table.methods):
            known = [(d, v) for d in table.distances if (v := value(method, d)) is not None]
            x, y = [d for d, _ in known], [v for _, v in known]
            series.append(Series(method, x, y, colour=k, dash=k // len(PALETTE), marks=True))
        svg = charts.line_chart(series, title=title, x_label="dots moved by, px", y_label=y_label, log=False)
        return page.chart(svg)

    def mae(method: str, distance: float) -> float | None:
        found = table.get(method, distance)
        return None if found is None else found.mae

    def change(method: str, distance: float) -> float | None:
        found = table.change(method, distance) if distance else mae(method, 0.0) and 0.0
        return None if found is None else 100 * found

    return [
        ("MAE over distance", "low is good", chart("MAE, objects per image", "MAE over distance", mae)),
        (
            "Change over distance",
            "flat is robust",
            chart("change against exact dots, %", "Change of MAE over distance", change),
        ),
    ]


def warnings(asked: Asked, table: Table) -> list[str]:
    """What a reader must know before believing the figures."""
    found = []
    if asked.select == "test":
        found.append("The weights were chosen on the test images; expect larger errors on new images.")
    if table.images is not None and table.images < FEWEST:
        found.append(f"{n_of(table.images, 'test image')}: with fewer than {FEWEST} no difference can be called clear.")
    if len({methods.method(method_of(m)).network for m in table.methods}) > 1:
        found.append(
            "Methods of points train another network than the others: a difference between them is also the network's."
        )
    return found


def pictures(asked: Asked, study: Study) -> list[Picture]:
    """A training image of middling count: its dots, and where each distance puts them; as training saw them."""
    samples = [s for s in asked.data.splits.train.samples if len(s.points_inside)]
    if not samples:
        return []
    sample = samples[spread([s.count for s in samples], 1)[0]]
    cells = {float(c.settings["noise"]): c for c in study.cells}
    made = []
    try:
        image = sample.image
        exact: torch.Tensor | None = None
        place = (0, 0, 1)
        for distance, cell in sorted(cells.items()):
            config = training.configure(cell.settings)
            config = dataclasses.replace(config, seed=asked.seeds[0])
            points = torch.from_numpy(training_points(sample, config)[:, :2])
            if exact is None:
                exact = torch.from_numpy(training_points(sample, dataclasses.replace(config, noise=0.0))[:, :2])
                wanted = max(NEIGHBOURS * (asked.data.spacing or 0.0), MOVES * max(cells))
                place = window(exact, sample.size, wanted)
            if distance:
                picture = draw_moved(image, exact, points, place)
                caption = f"moved by {in_pixels(distance)}: {place[2]} × {place[2]} px of {sample.name}"
                made.append(page.picture(caption, picture))
    except DataError as error:  # a damaged image fails its training too
        log.warning("left out of the page: %s", error)
    return made


def facts(asked: Asked, study: Study, table: Table) -> list[tuple[str, str]]:
    """How the figures were made."""
    sizes = asked.data.splits.sizes
    said: list[tuple[str, str]] = [
        ("data", asked.data.spec),
        ("images", ", ".join(f"{n} {name}" for name, n in sizes.items())),
    ]
    if asked.data.spacing is not None:
        said.append(("neighbours", f"{asked.data.spacing:.1f} px from a training dot to the nearest other, the median"))
    said.append(("weights", SELECTED[asked.select]))
    said.append(("seeds", ", ".join(map(str, table.seeds or asked.seeds))))
    for method in table.methods:
        cell = next(c for c in study.cells if c.row == method)
        config = training.configure(cell.settings)
        trunk = training.starts_from(config, cell.settings.get("weights"))
        words = f"{config.backbone}, {config.steps:,} steps of {config.batch} crops of {config.crop} px"
        said.append((method, words + ("" if trunk == training.NONE else ", from pretrained weights")))
    if asked.settings:
        said.append(("settings", training.in_words(asked.settings)))
    return said


def to_json(asked: Asked, table: Table, files: dict[str, str]) -> dict[str, Any]:
    """The answer for other programs."""
    return {
        "data": asked.data.spec,
        "kind": asked.kind,
        "distances": list(table.distances),
        "methods": list(table.methods),
        "spacing": asked.data.spacing,
        "select": asked.select,
        "seeds": list(table.seeds or asked.seeds),
        "conclusion": tables.conclusion(table),
        "cost": tables.cost(table),
        "basis": tables.basis(table),
        "table": tables.to_rows(table, asked.kind),
        "files": files,
    }
