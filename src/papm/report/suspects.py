"""Images of a dataset that deserve a look, drawn with what is odd about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from papm.data.base import Dataset
from papm.data.near_duplicates import Pair
from papm.draw import overlay, panel
from papm.errors import DataError
from papm.points import spacing
from papm.report import page
from papm.report.page import Picture
from papm.structures import Sample
from papm.text import n_of

LONGEST = 760  # px of a picture's longer side; two stand side by side
SHOWN = 4  # pictures of a kind
MARGIN = 0.12  # of the image, around it, where points outside it are drawn
TIGHT = 4.0  # px; dots whose median neighbour is nearer can hardly be told apart

Item = tuple[str, Sample]  # (split, sample)


@dataclass(frozen=True)
class Part:
    """One kind of oddity."""

    title: str
    remark: str
    pictures: list[Picture]


def suspects(splits: Mapping[str, Dataset], pairs: Sequence[Pair] = ()) -> list[Part]:
    """Everything that stands out; kinds without an image are left out."""
    items = unique(splits)
    crowded = _most(items, lambda s: s.count)
    outside = _most(items, lambda s: int((~s.inside).sum()))
    twice = _most(items, lambda s: int(repeated(s.points).sum()))
    tight = _most(items, lambda s: -tightness(s) if tightness(s) < TIGHT else 0)
    empty = [i for i in items if not i[1].count and not i[1].meta.get("hidden")]
    parts = [
        _part("Most crowded", "The images with the most points.", crowded, lambda s: n_of(s.count, "point")),
        _part(
            "Points outside their image",
            f"{n_of(len(outside), 'image')}. The grey border is no part of the image; points beyond it are drawn on its edge.",
            outside,
            lambda s: f"{int((~s.inside).sum())} of {n_of(s.count, 'point')} outside",
            beyond,
        ),
        _part(
            "Points repeated exactly",
            f"{n_of(len(twice), 'image')} with two or more points at one place: a double click, or an object marked twice.",
            twice,
            lambda s: f"{n_of(int(repeated(s.points).sum()), 'point')} repeated",
            doubled,
        ),
        _part(
            "Hardly apart",
            f"{n_of(len(tight), 'image')} in which half the points have a neighbour within {TIGHT:g} px: too small to be told "
            "apart by a network that sees them at this size, or points in other units.",
            tight,
            lambda s: f"median neighbour at {tightness(s):.1f} px, {n_of(s.count, 'point')}",
        ),
        _part(
            "Without points",
            f"{n_of(len(empty), 'image')}. Are there really no objects?",
            empty,
            lambda s: "no points",
        ),
        _near_duplicates(pairs),
    ]
    return [p for p in parts if p.pictures]


def unique(splits: Mapping[str, Dataset]) -> list[Item]:
    """Every image once, with the first split it is in: splits may overlap."""
    once: dict[object, Item] = {}
    for split, dataset in splits.items():
        for sample in dataset:
            once.setdefault(sample.published.identity, (split, sample))
    return list(once.values())


def repeated(points: Tensor) -> Tensor:
    """bool [n]: points that another point before them has the place of."""
    if not len(points):
        return torch.zeros(0, dtype=torch.bool)
    _, first = np.unique(points.numpy(), axis=0, return_index=True)
    mask = torch.ones(len(points), dtype=torch.bool)
    mask[torch.from_numpy(first)] = False
    return mask


def tightness(sample: Sample) -> float:
    """Median distance to the nearest neighbour, 0 where that says nothing."""
    points = torch.unique(sample.points_inside, dim=0)
    return float(spacing(points, 1).median()) if len(points) > 9 else 0.0


def plain(sample: Sample, image: Tensor) -> Tensor:
    """The image with its points."""
    return overlay(image, points=sample.points_inside, max_side=LONGEST)


def doubled(sample: Sample, image: Tensor) -> Tensor:
    """The image with its points, a ring around the repeated ones."""
    again = sample.points[repeated(sample.points) & sample.inside]
    return overlay(image, points=sample.points_inside, truth=again, max_side=LONGEST)


def beyond(sample: Sample, image: Tensor) -> Tensor:
    """The image on a grey ground, a ring around the points outside it."""
    h, w = sample.size
    edge = round(MARGIN * max(h, w))
    ground = F.pad(image, (edge, edge, edge, edge), value=110)
    limit = sample.points.new_tensor([w, h]) + (2 * edge - 6)
    moved = (sample.points + edge).clamp(min=6).minimum(limit)
    return overlay(ground, points=moved, truth=moved[~sample.inside], max_side=LONGEST)


def _most(items: Sequence[Item], measure: Callable[[Sample], float]) -> list[Item]:
    """The images whose measure is not zero, the largest first."""
    found = [(n, i) for i in items if (n := measure(i[1]))]
    return [i for _, i in sorted(found, key=lambda f: -f[0])]


def _part(
    title: str,
    remark: str,
    items: Sequence[Item],
    words: Callable[[Sample], str],
    draw: Callable[[Sample, Tensor], Tensor] = plain,
) -> Part:
    shown = [(f"{s.name} ({split}): {words(s)}", partial(draw, s), [s]) for split, s in items[:SHOWN]]
    return Part(title, remark, _pictures(shown))


def _near_duplicates(pairs: Sequence[Pair]) -> Part:
    shown = []
    for p in pairs[:SHOWN]:
        (one, a), (two, b) = p.first, p.second
        words = f"{a.name} ({one}) and {b.name} ({two}): likeness {p.likeness:.3f}"
        shown.append((words, partial(_side_by_side, [f"{one}: {a.name}", f"{two}: {b.name}"]), [a, b]))
    some = "" if len(pairs) <= SHOWN else f"; the {SHOWN} most similar are shown"
    remark = f"{n_of(len(pairs), 'pair')} of images in different splits that look the same{some}."
    return Part("Near-duplicates across splits", f"{remark} A test on what was trained on flatters.", _pictures(shown))


def _side_by_side(titles: list[str], *images: Tensor) -> Tensor:
    return panel([overlay(i, max_side=LONGEST) for i in images], titles)


def _pictures(shown: Sequence[tuple[str, Callable[..., Tensor], Sequence[Sample]]]) -> list[Picture]:
    """Each caption over what is drawn of its images."""
    made = []
    for caption, draw, samples in shown:
        try:
            made.append(page.picture(caption, draw(*(s.image for s in samples))))
        except DataError:  # a damaged image is for `papm data check`
            continue
    return made
