"""From what a network makes of an image to a prediction in pixels of that image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

import torch
from torch import Tensor

from papm import localize
from papm.predict.outputs import class_counts, counts
from papm.predict.prediction import Prediction
from papm.predict.restore import restore
from papm.predict.scale import factor
from papm.predict.unlike import sentence
from papm.structures import DensityOutput, PointProposals
from papm.text import Brief


@dataclass(frozen=True, eq=False, repr=False)
class View(Brief):
    """An image as a network sees it."""

    image: Tensor  # uint8 [3, h, w]
    name: str
    roi: Tensor | None  # bool [h, w]
    size: tuple[int, int]  # (h, w)
    original: tuple[int, int]  # (H, W) of the image given
    warning: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Seen(Brief):
    """What a network made of a view, inside its region."""

    view: View
    output: DensityOutput | PointProposals
    classes: tuple[str, ...] = ()
    unlike: Mapping[str, str] = field(default_factory=dict)  # why the view is unlike the training images, by name

    @property
    def reasons(self) -> tuple[str, ...]:
        """What makes the count doubtful, by name."""
        return (*(["size"] if self.view.warning else []), *self.unlike)

    @property
    def warning(self) -> str:
        """The same in a sentence. What is seen in the image says more than its size does."""
        return "" if not self.reasons else sentence(self.unlike, self.view.warning)

    @property
    def count(self) -> float:
        """Objects in all."""
        return float(counts(self.output))

    @property
    def by_class(self) -> tuple[float, ...]:
        """Objects of several classes; nothing where there is one."""
        if isinstance(self.output, PointProposals):
            return tuple(class_counts(self.output)[0].tolist()) if self.output.logits.shape[-1] > 2 else ()
        density = self.output.density[0]
        return tuple(density.float().cpu().double().sum((1, 2)).tolist()) if len(density) > 1 else ()


@dataclass(frozen=True)
class Agreed:
    """What several models count together, instead of what one of them does."""

    count: float
    by_class: tuple[float, ...] = ()


def predicted(seen: Seen, points: bool = True, agreed: Agreed | None = None) -> Prediction:
    """The prediction, with `points` if asked; with `agreed`, a map scaled to that count, and as many points."""
    of = _of_proposals if isinstance(seen.output, PointProposals) else _of_map
    view = seen.view
    made = replace(of(seen, points, agreed), name=view.name, classes=seen.classes)
    if seen.reasons:
        made = replace(made, unlike=seen.reasons, warning=seen.warning)
    if view.size == view.original:
        return made
    return replace(restore(made, view.original), scale=factor(view.original, view.size))


def _of_proposals(seen: Seen, points: bool, agreed: Agreed | None) -> Prediction:
    output, size = seen.output, seen.view.size
    assert isinstance(output, PointProposals)
    count, apart = (agreed.count, agreed.by_class) if agreed else (seen.count, seen.by_class)
    if not points:  # to look for them takes longer than to count, where probabilities count
        return Prediction(count, size, by_class=apart)
    # All of them, so that the count is the number of points (rounded, where probabilities count): each began inside the
    # image, and one that was moved across the border belongs to an object at it.
    if output.expected:
        xy, scores, labels = localize.expected_points(output, 0, round(count), seen.view.roi)
    elif agreed:
        xy, scores, labels = (t[: round(count)] for t in localize.from_proposals(output, 0, threshold=-1.0))
    else:
        xy, scores, labels = localize.from_proposals(output, 0)
    limit = xy.new_tensor([size[1], size[0]])
    xy = xy.clamp(min=0).minimum(torch.nextafter(limit, torch.zeros_like(limit)))
    by_class = apart if output.expected or agreed else ()
    return Prediction(count, size, points=xy.cpu(), scores=scores.cpu(), labels=labels.cpu(), by_class=by_class)


def _of_map(seen: Seen, points: bool, agreed: Agreed | None) -> Prediction:
    output, size = seen.output, seen.view.size
    assert isinstance(output, DensityOutput)
    density = output.density[0].float().cpu()
    if agreed:
        density = _scaled(density, agreed.by_class or (agreed.count,))
    found: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
    if points and len(density) > 1:
        found = localize.peaks_by_class(density, output.stride, size=size)
    elif points:
        found = (*localize.peaks(density, output.stride, size=size), None)
    # Of several models: a class that this one does not see is missing in its map.
    count, by_class = (agreed.count, agreed.by_class) if agreed else (seen.count, ())
    return Prediction(count, size, density, output.stride, *found, by_class=by_class)


def calibrated(made: Prediction, factors: Sequence[float]) -> Prediction:
    """Counts and map multiplied, by one factor or one for each class; the points stay, and `raw_count` is what it was."""
    by_class = tuple(f * c for f, c in zip(cycle(factors), made.class_counts))
    density = None if made.density is None else made.density * made.density.new_tensor(factors)[:, None, None]
    count = factors[0] * made.count if len(factors) == 1 else sum(by_class)
    return replace(made, count=count, raw_count=made.count, density=density, by_class=by_class)


def _scaled(density: Tensor, sums: Sequence[float]) -> Tensor:
    """A map [C, h, w] with these sums, class by class; nothing stays nothing."""
    before = density.double().sum((1, 2))
    factor = torch.tensor(sums, dtype=torch.float64) / before
    return (density.double() * torch.where(before > 0, factor, 1.0)[:, None, None]).to(density)
