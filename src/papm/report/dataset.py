"""A dataset as one page: totals, how counts, distances and sizes are spread, and the images that deserve a look."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from papm.data.agreement import agreement
from papm.data.base import Dataset
from papm.data.near_duplicates import Pair
from papm.data.summary import summary
from papm.points import spacing
from papm.report import charts, page
from papm.report.charts import Card
from papm.report.page import Fact
from papm.report.suspects import Item, suspects, unique
from papm.report.svg import note
from papm.text import n_of

MANY = 5000  # marks of a scatter chart that a browser still draws at once

ROWS = (
    ("images", "images"),
    ("points", "points"),
    ("objects per image, fewest", "count_min"),
    ("objects per image, mean", "count_mean"),
    ("objects per image, median", "count_median"),
    ("objects per image, most", "count_max"),
    ("images without points", "without_points"),
    ("points outside their image", "outside"),
    ("points repeated exactly", "duplicates"),
    ("nearest neighbour in a typical image, px", "neighbour_distance"),
    ("smallest image, H×W", "size_min"),
    ("largest image, H×W", "size_max"),
)
BETWEEN = (
    ("annotators", "annotators"),
    ("images marked by several", "images"),
    ("distance of two clicks on one object, median px", "distance_median"),
    ("90 % are nearer than, px", "distance_90"),
    ("implied error of one click along each axis, px", "click_error"),
    ("points that the other did not mark", "unpaired"),
    ("difference of counts, mean", "count_difference"),
    ("difference of counts, relative", "count_difference_relative"),
)
SHARES = ("unpaired", "count_difference_relative")  # shown in percent


def write_dataset_page(path: Path, name: str, splits: Mapping[str, Dataset], pairs: Sequence[Pair] = ()) -> Path:
    """Write the page of a dataset; `pairs` are near-duplicates across its splits."""
    items = unique(splits)
    whole = summary({"all": Dataset([s for _, s in items])})["all"]
    people = {s: found for s, d in splits.items() if (found := agreement(d)) is not None}
    first = next(iter(splits.values()))
    return page.render(
        "dataset.html.j2",
        path,
        title=name,
        subtitle=f"{first.name or 'dataset'} · splits: {', '.join(splits)}",
        warnings=_warnings(splits, whole, len(items)),
        figures=_figures(whole),
        splits=list(splits),
        table=_table(ROWS, summary(splits)),
        charts=_charts([i for i in items if not i[1].meta.get("hidden")]),
        annotators=list(people),
        agreement=_table(BETWEEN, people),
        suspects=suspects(splits, pairs),
    )


def _table(rows: Sequence[tuple[str, str]], facts: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A row of text for each of the figures, a column for each split."""
    return [
        [words, *(page.percent(f[key]) if key in SHARES else _cell(f.get(key)) for f in facts.values())]
        for words, key in rows
    ]


def _warnings(splits: Mapping[str, Dataset], whole: Mapping[str, Any], images: int) -> list[str]:
    hidden = ", ".join(s for s, d in splits.items() if d.hidden)
    return page.said(
        (sum(map(len, splits.values())) > images,
         "The splits overlap: an image is counted in each split it is in, and once in the figures and charts."),
        (hidden, f"The annotations of {hidden} are not published: its images show as empty here."),
        (any(s.original is not None for d in splits.values() for s in d),
         "Images are shown at another size than that of their files; distances are those of the shown size."),
        (whole["count_min"] == whole["count_max"] and whole["images"] > 3,
         f"Every image has the same number of points, {whole['count_max']}."),
    )  # fmt: skip


def _figures(whole: Mapping[str, Any]) -> list[Fact]:
    near, between = whole["neighbour_distance"], f"{whole['count_min']:,} to {whole['count_max']:,}"
    return [
        Fact("Images", page.whole(whole["images"]), f"{whole['without_points']:,} without points"),
        Fact("Points", page.whole(whole["points"]), f"{whole['outside']:,} outside their image"),
        Fact("Objects per image", page.figure(whole["count_mean"]), f"{between}, median {whole['count_median']:,.0f}"),
        Fact("Nearest neighbour", "–" if near is None else f"{near:.1f} px", "in a typical image"),
        Fact("Repeated points", page.whole(whole["duplicates"]), "at exactly the same place as another"),
    ]


def _charts(items: Sequence[Item]) -> list[Card]:
    """How counts, distances and sizes are spread; `items` are the images whose annotations are published."""
    distances = [d for _, s in items if len(s.points_inside) > 1 for d in spacing(s.points_inside, 1).tolist()]
    extents = [e for _, s in items if s.extents is not None for e in s.extents.tolist()]
    near = ("Distance to the nearest neighbour", "points inside their image; the farthest", "points")
    made = [_counts(items), _without_farthest(distances, *near), *_sizes(items)]
    if extents:
        made.append(_without_farthest(extents, "Object sizes", "√(w·h) of the box; the largest", "objects"))
    return made


def _without_farthest(values: Sequence[float], title: str, remark: str, of: str) -> Card:
    """How values are spread, the largest hundredth left out."""
    limit = sorted(values)[int(0.99 * (len(values) - 1))] if values else 0.0
    remark += f" hundredth, beyond {limit:,.0f} px, is left out"
    return charts.histogram([v for v in values if v <= limit], title=title, remark=remark, x_label="px", y_label=of)


def _counts(items: Sequence[Item]) -> Card:
    """The count of each image, or how counts are spread."""
    counts, title = [s.count for _, s in items], "Objects per image"
    if 0 < len(items) <= charts.FEW:
        names, bars = [f"{s.name} ({split})" for split, s in items], [charts.Bars("objects", counts)]
        return charts.bar_chart(names, bars, title=title, remark="one bar per image", y_label="objects")
    remark = n_of(len(counts), "image")
    return charts.histogram(counts, title=title, remark=remark, x_label="objects per image", y_label="images")


def _sizes(items: Sequence[Item]) -> list[Card]:
    """Widths, heights and counts of images that differ in size."""
    sides, title = {s.size for _, s in items}, "Image sizes"
    if len(sides) == 1:  # marks upon marks would show nothing
        [(h, w)] = sides
        return [Card(title, "", note(f"Every image is {w}×{h} px, width by height.", title))]
    shown = items[:MANY]
    tips = [f"{s.name} ({split}): {n_of(s.count, 'point')}, {s.size[1]}×{s.size[0]}" for split, s in shown]
    chart = functools.partial(charts.scatter_chart, remark="one mark per image", tips=tips)
    widths, heights = [float(s.size[1]) for _, s in shown], [float(s.size[0]) for _, s in shown]
    areas, counts = [w * h / 1e6 for w, h in zip(widths, heights)], [float(s.count) for _, s in shown]
    return [
        chart(widths, heights, title=title, x_label="width, px", y_label="height, px"),
        chart(areas, counts, title="Objects and image size", x_label="megapixels", y_label="objects"),
    ]


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ("×" if all(isinstance(v, int) for v in value) else ", ").join(map(str, value))
    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
