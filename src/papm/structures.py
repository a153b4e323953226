"""The currency between the parts: what a reader yields, a network returns, a loss reports.

Coordinates everywhere: points are (x, y) in pixels of the image they belong to, pixel (row i, column j) has its centre
at (j + ½, i + ½), so an image of width W spans 0 ≤ x < W. A map of stride S has ceil(H/S) × ceil(W/S) cells; the cell of a
point is floor(p / S), its centre sits at ((j + ½)·S, (i + ½)·S).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.export import register_dataclass

from papm.text import Brief

if TYPE_CHECKING:
    from PIL import Image

ImageSource = Path | Callable[[], Tensor]


def as_tensor(value: Tensor | ArrayLike) -> Tensor:
    """A tensor as it is, an array as one: in a loss nothing may ask the host for a copy."""
    return value if isinstance(value, Tensor) else torch.as_tensor(value)


@dataclass(frozen=True, eq=False, repr=False)
class Sample(Brief):
    """One annotated image: where its pixels come from, its points, and what a dataset adds.

    `points` holds every annotated point, also those outside the image: they count in published figures. Training uses
    `points_inside`. `image` decodes on every access and is never cached here.
    """

    name: str
    source: ImageSource
    points: Tensor  # [n, 2] float32, (x, y)
    size: tuple[int, int]  # (H, W) after EXIF rotation
    labels: Tensor | None = None  # [n] int64, class of each point
    boxes: Tensor | None = None  # [n, 4] float32, x1 y1 x2 y2
    extents: Tensor | None = None  # [n] float32, size of each object in pixels
    roi_source: Callable[[], Tensor] | None = None  # -> bool [H, W], True where objects count
    meta: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # points [n, 2] of each person, where several clicked
    original: Sample | None = None  # the sample of the files, when this one shows it at another size

    @property
    def path(self) -> Path | None:
        """The image file, or None for a scene that is drawn on demand and for an image at another size than its file."""
        return self.source if isinstance(self.source, Path) else None

    @property
    def file(self) -> Path | None:
        """`path`, also of a reader that decodes a whole file in a way of its own: `partial(read, path, white=255)`."""
        parts = self.source.args if isinstance(self.source, functools.partial) else (self.source,)
        return parts[0] if len(parts) == 1 and isinstance(parts[0], Path) else None

    @property
    def identity(self) -> object:
        """What tells its image from others: one file is one image, also in splits that overlap (folds, trainval)."""
        return self.file or self.source

    @property
    def image(self) -> Tensor:
        """Pixels, uint8 [3, H, W], RGB, upright."""
        if isinstance(self.source, Path):
            from papm.images import read_image

            return read_image(self.source)
        return self.source()

    @property
    def roi(self) -> Tensor | None:
        """Region of interest, bool [H, W], or None when the whole image counts."""
        return None if self.roi_source is None else self.roi_source()

    @property
    def count(self) -> int:
        """Number of annotated points, those outside the image included (as published)."""
        return len(self.points)

    @property
    def inside(self) -> Tensor:
        """bool [n]: which points lie inside the image."""
        h, w = self.size
        x, y = self.points.unbind(-1)
        return (x >= 0) & (x < w) & (y >= 0) & (y < h)

    @property
    def counted(self) -> Tensor:
        """bool [n]: which points count: all of them, or those inside the region of interest where there is one."""
        return self.counted_in(self.roi)

    def counted_in(self, region: Tensor | None) -> Tensor:
        """`counted`, of a region that was decoded already: `roi` reads its file at every access."""
        if region is None:
            return torch.ones(len(self.points), dtype=torch.bool)
        column, row = self.points.floor().long().unbind(-1)
        h, w = self.size
        return self.inside & region[row.clamp(0, h - 1), column.clamp(0, w - 1)].bool()

    @property
    def points_inside(self) -> Tensor:
        """The points inside the image: what a network can learn from."""
        return self.points[self.inside]

    @property
    def published(self) -> Sample:
        """The sample of the files, whose points, size and region figures are compared with."""
        return self.original or self

    def draw(self, max_side: int | None = 1600) -> Image.Image:
        """The image with a ring around every point under its name and their number, the longer side at most `max_side`."""
        from papm.draw import figure, to_pil

        return to_pil(figure(self.image, truth=self.points, name=self.name, max_side=max_side))

    def keep(self, mask: Tensor) -> Sample:
        """The same sample with only the points that `mask` picks (bool [n] or indices)."""
        pick: dict[str, Any] = {
            k: None if (v := getattr(self, k)) is None else v[mask] for k in ("labels", "boxes", "extents")
        }
        original = None if self.original is None else self.original.keep(mask)
        return replace(self, points=self.points[mask], original=original, **pick)


@dataclass(frozen=True, eq=False, repr=False)
class PointBatch(Brief):
    """Points of B images padded to a common length, so that one copy takes them to the device.

    >>> batch = PointBatch.from_list([torch.zeros(2, 2), torch.zeros(0, 2)])
    >>> batch.xy.shape, batch.counts.tolist()
    (torch.Size([2, 2, 2]), [2.0, 0.0])
    """

    xy: Tensor  # [B, N, 2]; padding rows are zero
    valid: Tensor  # [B, N] bool
    extents: Tensor | None = None  # [B, N], size or spacing of each object in pixels
    labels: Tensor | None = None  # [B, N] int64

    @staticmethod
    def from_list(
        points: Sequence[Tensor],
        device: torch.device | str | None = None,
        extents: Sequence[Tensor] | None = None,
        labels: Sequence[Tensor] | None = None,
        length: int | None = None,
    ) -> PointBatch:
        """Pad a list of [n_b, 2] tensors; `length` asks for more padding than the longest needs (static shapes)."""
        n = max([len(p) for p in points], default=0)
        n = max(n, length or 0)
        # float32, or the widest there is. Half precision is too coarse for pixels: at 1000 px it has steps of half a pixel.
        kind = functools.reduce(torch.promote_types, [p.dtype for p in points if p.is_floating_point()], torch.float32)
        xy = torch.zeros(len(points), n, 2, dtype=kind)
        valid = torch.zeros(len(points), n, dtype=torch.bool)
        sizes = torch.zeros(len(points), n) if extents is not None else None
        classes = torch.zeros(len(points), n, dtype=torch.int64) if labels is not None else None
        for b, p in enumerate(points):
            xy[b, : len(p)] = p.reshape(-1, 2)
            valid[b, : len(p)] = True
            if sizes is not None and extents is not None:
                sizes[b, : len(p)] = extents[b]
            if classes is not None and labels is not None:
                classes[b, : len(p)] = labels[b]
        batch = PointBatch(xy, valid, sizes, classes)
        return batch if device is None else batch.to(device)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PointBatch:
        """The same points on another device."""

        def move(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device, non_blocking=non_blocking)

        return PointBatch(
            self.xy.to(device, non_blocking=non_blocking),
            self.valid.to(device, non_blocking=non_blocking),
            move(self.extents),
            move(self.labels),
        )

    def pin_memory(self) -> PointBatch:
        """The same points in page-locked memory."""
        pick = (None if t is None else t.pin_memory() for t in (self.extents, self.labels))
        return PointBatch(self.xy.pin_memory(), self.valid.pin_memory(), *pick)

    def repeat(self, times: int) -> PointBatch:
        """The points of each image so many times, one after the other: [B·times, N]."""

        def each(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.repeat_interleave(times, 0)

        xy, valid = (t.repeat_interleave(times, 0) for t in (self.xy, self.valid))
        return PointBatch(xy, valid, each(self.extents), each(self.labels))

    def keep(self, mask: Tensor) -> PointBatch:
        """Only the points that `mask` (bool [B, N]) picks, first and in their order; the length stays, so nothing waits.

        >>> batch = PointBatch.from_list([torch.tensor([[1.0, 1], [2, 2], [3, 3]])])
        >>> batch.keep(torch.tensor([[False, True, True]])).xy[0].tolist()
        [[2.0, 2.0], [3.0, 3.0], [0.0, 0.0]]
        """
        mask = mask & self.valid
        order = (~mask).to(torch.uint8).argsort(dim=-1, stable=True)
        valid = mask.gather(1, order)

        def pick(t: Tensor | None) -> Tensor | None:
            return None if t is None else torch.where(valid, t.gather(1, order), 0)

        xy = self.xy.gather(1, order[..., None].expand(-1, -1, 2))
        return PointBatch(torch.where(valid[..., None], xy, 0.0), valid, pick(self.extents), pick(self.labels))

    @property
    def counts(self) -> Tensor:
        """float [B]: number of points of each image."""
        return self.valid.sum(1).to(self.xy.dtype)

    def to_list(self) -> list[Tensor]:
        """Back to one [n_b, 2] tensor an image."""
        return [p[v] for p, v in zip(self.xy, self.valid)]

    def __len__(self) -> int:
        return len(self.xy)


@dataclass(frozen=True, eq=False, repr=False)
class DensityOutput(Brief):
    """What a density network returns: a non-negative map whose sum is the count."""

    density: Tensor  # [B, C, ceil(H/stride), ceil(W/stride)]
    stride: int
    aux: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class PointProposals(Brief):
    """What a point network returns: candidate points with class logits, and where each candidate started."""

    points: Tensor  # [B, M, 2] in input pixels
    logits: Tensor  # [B, M, classes + 1], column 0 is background
    reference: Tensor  # [M, 2]

    def probabilities(self, background: float) -> Tensor:
        """Probability of each proposal to be matched to a point, by class, [B, M, classes]; their sum is the expected count.

        One proposal is matched to a point. Cross-entropy in which `background` weighs w is least at scores q₀ ∝ w·p₀ and
        q_c ∝ p_c, where p are the probabilities: p_c = w·q_c/(q₀ + w·(1 − q₀)).

        >>> made = PointProposals(torch.zeros(1, 1, 2), torch.tensor([[[0.0, 0.0]]]), torch.zeros(1, 2))
        >>> made.probabilities(0.5)  # a score of ½, learned with a background that weighs ½
        tensor([[[0.3333]]])
        """
        q = self.logits.float().softmax(-1)
        below = q[..., :1] + background * (1 - q[..., :1])
        return background * q[..., 1:] / below.clamp(min=torch.finfo(q.dtype).tiny)


# So that torch.export takes a network as it is.
for _kind in (DensityOutput, PointProposals):
    register_dataclass(_kind, serialized_type_name=f"papm.{_kind.__name__}")


@dataclass(frozen=True, eq=False, repr=False)
class LossOutput(Brief):
    """`total` is the weighted sum of the named `terms`: total = Σ weight·term, with `weights` saying which."""

    total: Tensor
    terms: Mapping[str, Tensor]
    weights: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, terms: Mapping[str, Tensor], weights: Mapping[str, float] | None = None) -> LossOutput:
        """Total = Σ weight·term, and the terms without their gradients; without weights all are 1. A weight of 0 only logs.

        >>> LossOutput.of({"count": torch.tensor(2.0), "shape": torch.tensor(3.0)}, {"count": 1.0, "shape": 0.5}).total
        tensor(3.5000)
        """
        weights = dict.fromkeys(terms, 1.0) if weights is None else dict(weights)
        used = [(w, terms[k]) for k, w in weights.items() if w or terms[k].requires_grad]
        parts = [t if w == 1 else w * t for w, t in used]
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        return cls(total, {k: terms[k].detach() for k in weights}, weights)

    def __post_init__(self) -> None:
        if not self.weights:
            object.__setattr__(self, "weights", dict.fromkeys(self.terms, 1.0))


@dataclass(frozen=True, eq=False, repr=False)
class LossContext(Brief):
    """What a loss may know beyond the density and the points; without it a loss works on the crop alone."""

    mask: Tensor | None = None  # [B, H, W] bool: True where a pixel is real and counts
    offsets: Tensor | None = None  # [B, 2]: (x, y) of the crop's corner in the scaled full image
    sizes: Tensor | None = None  # [B, 2]: (H, W) of the scaled full image
    halo: PointBatch | None = None  # the points of the crop and of a band around it, in the crop's coordinates
    images: Tensor | None = None  # [B, 3, H, W] float, ImageNet-normalised: what the network saw


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Batch(LossContext):
    """A training batch: normalised crops, their points, and the context that a loss is given with them."""

    images: Tensor
    points: PointBatch

    @property
    def real(self) -> Tensor | None:
        """bool [B, H, W]: which pixels are of the image, whether they count or not; None where that is not known."""
        if self.offsets is None or self.sizes is None:
            return None
        inside = []
        for axis, n in enumerate(self.images.shape[-2:]):
            place = torch.arange(n, device=self.offsets.device) + self.offsets[:, 1 - axis, None]
            inside.append((place >= 0) & (place < self.sizes[:, axis, None]))
        return inside[0][:, :, None] & inside[1][:, None]

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory."""
        return self._each(lambda t: t.pin_memory())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self._each(lambda t: t.to(device, non_blocking=True))

    def _each(self, change: Callable[[Any], Any]) -> Batch:
        return replace(self, **{f.name: change(v) for f in fields(self) if (v := getattr(self, f.name)) is not None})
