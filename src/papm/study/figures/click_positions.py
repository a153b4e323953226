"""Where dots lie within the boxes of their objects.

The place of a dot is its offset from the box's centre in half sides of the box: (0, 0) is the centre, ±1 an edge. Data needs a
box for each dot that was not made from the dot, nor the dot from the box. Where none is given, clicks are drawn: a person who
clicks anywhere on the object, by the generalized Gaussian (`papm.data.click_model`), on drawn crowds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from papm import data
from papm.data.click_model import Annotator, annotate_dataset
from papm.data.spec import open_split
from papm.errors import DataError
from papm.report import svg
from papm.report.charts import Card, histogram
from papm.structures import Sample
from papm.study.figures.base import Asked, Figure, Made, register
from papm.study.figures.sheet import sheet
from papm.text import n_of

CLICKS = Annotator("extent", 0.35)  # nearly uniform over a round object
BINS = 21
SIDE = 290.0  # px of the map


def places(samples: list[Sample]) -> NDArray[np.float64]:
    """Offsets [n, 2] of dots from the centres of their boxes, in half sides; boxes without an area are left out."""
    found = []
    for s in samples:
        if s.boxes is not None and len(s.boxes) == len(s.points):
            low, high = s.boxes[:, :2].double(), s.boxes[:, 2:].double()
            half = (high - low) / 2
            kept = (half > 0).all(1)
            found.append(((s.points.double() - (low + high) / 2) / half)[kept].numpy())
    return np.concatenate(found) if found else np.zeros((0, 2))


def draw(asked: Asked) -> Made:
    """A map of the places, and how far they are from the centre."""
    if asked.data is None:
        scenes = annotate_dataset(data.open("synthetic", train=1, test=120)["test"], CLICKS, 0)
        what, samples = "drawn crowds, clicks drawn from papm's click model", list(scenes)
    else:
        dataset = open_split(asked.data, asked.split)
        what, samples = f"{dataset.name}/{dataset.split}", list(dataset)
    found = places(samples)
    if not len(found):
        raise DataError(f"{what}: has no boxes beside its dots; this figure needs both")
    far = np.abs(found).max(1)  # in which of the boxes around the same centre
    if float(far.max()) < 1e-3:
        raise DataError(f"{what}: every dot is the centre of its box, so the dots were made from the boxes")
    central = float((far <= 0.5).mean())
    distance = np.hypot(found[:, 0], found[:, 1])
    cards = [
        _map(
            found,
            f"{n_of(len(found), 'dot')}: {what}. Dashed: the central quarter of the box, with {central:.0%} of the dots.",
        ),
        histogram(
            distance.clip(max=2).tolist(),
            title="Distance from the centre of the box",
            remark=f"Median {np.median(distance):.2f} half sides; beyond 2 counted as 2.",
            x_label="distance, half sides of the box",
            y_label="dots",
        ),
    ]
    outside = float((far > 1).mean())
    words = (
        f"{what}: {central:.0%} of the dots lie in the central quarter of their box (a uniform choice: 25 %), "
        f"{outside:.1%} outside it; the median distance from its centre is {np.median(distance):.2f} half sides.",
    )
    values = {"dots": len(found), "central": central, "outside": outside, "median": float(np.median(distance))}
    return Made(sheet(cards, "Where dots lie within boxes"), words, values)


def _map(found: NDArray[np.float64], remark: str) -> Card:
    """How many dots lie where in the box, the darker the more."""
    reach = 1.2
    counts, _, _ = np.histogram2d(found[:, 1], found[:, 0], BINS, [[-reach, reach]] * 2)
    left, top = 52.0, 24.0
    cell, most = SIDE / BINS, counts.max() or 1.0

    def at(value: float) -> float:
        return (value + reach) / (2 * reach) * SIDE

    parts = [svg.text(8.0, 14.0, "y, half sides of the box")]
    for i, j in np.argwhere(counts > 0):
        shade = f"fill:{svg.PALETTE[0]};fill-opacity:{0.08 + 0.92 * counts[i, j] / most:.2f}"
        parts.append(
            svg.element("rect", x=left + j * cell, y=top + i * cell, width=cell + 0.3, height=cell + 0.3, style=shade)
        )
    for half, style in ((1.0, "stroke-width:2"), (0.5, "stroke-width:1.5;stroke-dasharray:6 4")):
        line = f"fill:none;stroke:{svg.PALETTE[1]};{style}"
        parts.append(svg.rect(left + at(-half), top + at(-half), SIDE * half / reach, SIDE * half / reach, line))
    parts.append(svg.rect(left, top, SIDE, SIDE, f"fill:none;{svg.GRID}"))
    for tick in (-1.0, -0.5, 0.0, 0.5, 1.0):
        label = f"{tick:g}".replace("-", "−")
        parts.append(svg.text(left + at(tick), top + SIDE + 17, label, anchor="middle"))
        parts.append(svg.text(left - 6, top + at(tick) + 4.2, label, anchor="end"))
    parts.append(svg.text(left + SIDE / 2, top + SIDE + 36, "x, half sides of the box", anchor="middle"))
    title = "Places of dots in their boxes"
    return Card(title, remark, svg.document(parts, title, left + SIDE + 18, top + SIDE + 46))


FIGURE = register(Figure("click-positions", "where dots lie within the boxes of their objects", "Figure 2b", draw))
