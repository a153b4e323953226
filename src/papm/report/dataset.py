"""A dataset as one page: totals, how counts, distances and sizes are spread, and the images that deserve a look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from papm.data.agreement import agreement
from papm.data.base import Dataset
from papm.data.near_duplicates import Pair
from papm.data.summary import summary
from papm.points import spacing
from papm.report import charts, page
from papm.report.page import Card, Fact
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
    near, far = _without_farthest(distances)
    small, large = _without_farthest(extents)
    left_out = "hundredth, beyond {:,.0f} px, is left out"
    made = [
        _counts(items),
        Card(
            "Distance to the nearest neighbour",
            f"points inside their image; the farthest {left_out.format(far)}",
            charts.histogram(
                near, title="Histogram of distances to the nearest neighbour", x_label="px", y_label="points"
            ),
        ),
        *_sizes(items),
    ]
    if extents:
        svg = charts.histogram(small, title="Histogram of object sizes", x_label="px", y_label="objects")
        made.append(Card("Object sizes", f"√(w·h) of the box; the largest {left_out.format(large)}", svg))
    return made


def _without_farthest(values: Sequence[float]) -> tuple[list[float], float]:
    """The values without the largest hundredth, and where that begins."""
    limit = sorted(values)[int(0.99 * (len(values) - 1))] if values else 0.0
    return [v for v in values if v <= limit], limit


def _counts(items: Sequence[Item]) -> Card:
    """The count of each image, or how counts are spread."""
    counts, heading = [s.count for _, s in items], "Objects per image"
    if 0 < len(items) <= charts.FEW:
        names, bars = [f"{s.name} ({split})" for split, s in items], [charts.Bars("objects", counts)]
        return Card(
            heading,
            "one bar per image",
            charts.bar_chart(names, bars, title="Count of each image", y_label="objects"),
        )
    svg = charts.histogram(counts, title="Histogram of counts", x_label="objects per image", y_label="images")
    return Card(heading, n_of(len(counts), "image"), svg)


def _sizes(items: Sequence[Item]) -> list[Card]:
    """Widths, heights and counts of images that differ in size."""
    sides = {s.size for _, s in items}
    if len(sides) == 1:  # marks upon marks would show nothing
        [(h, w)] = sides
        return [Card("Image sizes", "", note(f"Every image is {w}×{h} px, width by height.", "Image sizes"))]
    shown = items[:MANY]
    tips = [f"{s.name} ({split}): {n_of(s.count, 'point')}, {s.size[1]}×{s.size[0]}" for split, s in shown]
    widths, heights = [float(s.size[1]) for _, s in shown], [float(s.size[0]) for _, s in shown]
    areas, counts = [w * h / 1e6 for w, h in zip(widths, heights)], [float(s.count) for _, s in shown]
    sizes = charts.scatter_chart(
        widths, heights, title="Widths and heights", x_label="width, px", y_label="height, px", tips=tips
    )
    crowds = charts.scatter_chart(
        areas, counts, title="Counts over megapixels", x_label="megapixels", y_label="objects", tips=tips
    )
    each = "one mark per image"
    return [Card("Image sizes", each, sizes), Card("Objects and image size", each, crowds)]


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ("×" if all(isinstance(v, int) for v in value) else ", ").join(map(str, value))
    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
