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
from papm.report.suspects import Item, suspects, unique
from papm.report.svg import note, safe
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


def write_dataset_page(path: Path, name: str, splits: Mapping[str, Dataset], pairs: Sequence[Pair] = ()) -> Path:
    """Write the page of a dataset; `pairs` are near-duplicates across its splits."""
    items = unique(splits)
    facts = summary(splits)
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
        splits=list(facts),
        table=[(words, [_cell(f.get(key)) for f in facts.values()]) for words, key in ROWS],
        charts=[(heading, remark, page.chart(svg)) for heading, remark, svg in _charts(items)],
        agreement=_between(people) if people else None,
        suspects=suspects(splits, pairs),
    )


def _warnings(splits: Mapping[str, Dataset], whole: Mapping[str, Any], images: int) -> list[str]:
    found = []
    if sum(map(len, splits.values())) > images:
        found.append(
            "The splits overlap: an image is counted in each split it is in, and once in the figures and charts."
        )
    if any(d.hidden for d in splits.values()):
        hidden = ", ".join(s for s, d in splits.items() if d.hidden)
        found.append(f"The annotations of {hidden} are not published: its images show as empty here.")
    if any(s.original is not None for d in splits.values() for s in d):
        found.append(
            "Images are shown at another size than that of their files; distances are those of the shown size."
        )
    if whole["count_min"] == whole["count_max"] and whole["images"] > 3:
        found.append(f"Every image has the same number of points, {whole['count_max']}.")
    return found


def _figures(whole: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    near = whole["neighbour_distance"]
    return [
        ("Images", page.whole(whole["images"]), f"{whole['without_points']:,} without points"),
        ("Points", page.whole(whole["points"]), f"{whole['outside']:,} outside their image"),
        (
            "Objects an image",
            page.figure(whole["count_mean"]),
            f"{whole['count_min']:,} to {whole['count_max']:,}, median {whole['count_median']:,.0f}",
        ),
        ("Nearest neighbour", "–" if near is None else f"{near:.1f} px", "in a typical image"),
        ("Repeated points", page.whole(whole["duplicates"]), "at exactly the same place as another"),
    ]


def _charts(items: Sequence[Item]) -> list[tuple[str, str, str]]:
    counts = [float(s.count) for _, s in items if not s.meta.get("hidden")]
    distances = [d for _, s in items if len(s.points_inside) > 1 for d in spacing(s.points_inside, 1).tolist()]
    far = sorted(distances)[int(0.99 * (len(distances) - 1))] if distances else 0.0
    shown = [(i, s) for i, s in items if not s.meta.get("hidden")][:MANY]
    tips = [f"{s.name} ({split}): {n_of(s.count, 'point')}, {s.size[1]}×{s.size[0]}" for split, s in shown]
    one_each = 0 < len(shown) <= charts.FEW
    made = [
        (
            "Objects an image",
            "one bar per image" if one_each else n_of(len(counts), "image"),
            charts.bar_chart(
                [f"{s.name} ({split})" for split, s in shown],
                [charts.Bars("objects", [s.count for _, s in shown])],
                title="Count of each image",
                y_label="objects",
            )
            if one_each
            else charts.histogram(counts, title="Histogram of counts", x_label="objects per image", y_label="images"),
        ),
        (
            "Distance to the nearest neighbour",
            f"points inside their image; the farthest hundredth, beyond {far:,.0f} px, is left out",
            charts.histogram(
                [d for d in distances if d <= far],
                title="Histogram of distances to the nearest neighbour",
                x_label="px",
                y_label="points",
            ),
        ),
    ]
    sides = {s.size for _, s in items if not s.meta.get("hidden")}
    if len(sides) == 1:  # marks upon marks would show nothing
        [(h, w)] = sides
        made.append(("Image sizes", "", note(f"Every image is {w}×{h} px, width by height.", "Image sizes")))
    else:
        made += _sizes(shown, tips)
    sizes = [e for _, s in items if s.extents is not None for e in s.extents.tolist()]
    if sizes:
        top = sorted(sizes)[int(0.99 * (len(sizes) - 1))]
        made.append(
            (
                "Object sizes",
                f"√(w·h) of the box; the largest hundredth, beyond {top:,.0f} px, is left out",
                charts.histogram(
                    [e for e in sizes if e <= top], title="Histogram of object sizes", x_label="px", y_label="objects"
                ),
            )
        )
    return made


def _sizes(shown: Sequence[Item], tips: Sequence[str]) -> list[tuple[str, str, str]]:
    """Widths, heights and counts of images that differ in size."""
    return [
        (
            "Image sizes",
            "one mark an image",
            charts.scatter_chart(
                [float(s.size[1]) for _, s in shown],
                [float(s.size[0]) for _, s in shown],
                title="Widths and heights",
                x_label="width, px",
                y_label="height, px",
                tips=tips,
            ),
        ),
        (
            "Objects and image size",
            "one mark an image",
            charts.scatter_chart(
                [s.size[0] * s.size[1] / 1e6 for _, s in shown],
                [float(s.count) for _, s in shown],
                title="Counts over megapixels",
                x_label="megapixels",
                y_label="objects",
                tips=tips,
            ),
        ),
    ]


def _between(people: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    rows = []
    for words, key in BETWEEN:
        share = key in ("unpaired", "count_difference_relative")
        values = [f[key] for f in people.values()]
        rows.append((words, [page.percent(v) if share else _cell(v) for v in values]))
    return {"splits": list(people), "table": rows}


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        numbers = all(isinstance(v, int) for v in value)
        return ("×" if numbers else ", ").join(str(safe(v)) if numbers else str(v) for v in value)
    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
