"""A model of the person who clicks: near the centre rather than on it, now and then not at all or twice.

Given a sample whose points are the truth, `Annotator.annotate` returns the sample that such a person would have made. What
happens to an image depends on the seed and the image's name alone, not on the order or the company it comes in.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from papm.data.base import Dataset
from papm.errors import DataError
from papm.points import DisplacementKind, EdgeRule, displace
from papm.registry import NonNegative, Positive, Share, check_fields
from papm.structures import Sample

AnnotatorKind = Literal["extent", "ring", "disc", "gaussian", "none"]


@dataclass(frozen=True)
class Annotator:
    """How a person clicks.

    `kind` says where a click lands. "extent": anywhere on the object, by the generalized Gaussian with σ = amount·extent and
    exponent `shape`; at shape 8 that is nearly uniform in a disc of radius √2·σ, so amount 0.35 covers a round object. "ring",
    "disc", "gaussian": at distance `amount` pixels, uniformly within it, or normal with that σ per axis, whatever the
    object's size. "none": exactly on the point.
    `missed` is the chance that an object gets no click; `doubled` the chance that a clicked one gets a second, independent
    click. `edge` is what happens to a click that falls outside the image (see `papm.points.displace`).

    >>> import torch
    >>> sample = Sample("a", lambda: torch.zeros(3, 32, 32), torch.tensor([[16.0, 16.0]]), (32, 32))
    >>> moved = Annotator("ring", 4.0).annotate(sample, seed=0)
    >>> round(float((moved.points - sample.points).norm()), 4)
    4.0
    """

    kind: AnnotatorKind = "extent"
    amount: NonNegative = 0.0
    shape: Positive = 8.0
    missed: Share = 0.0
    doubled: Share = 0.0
    edge: EdgeRule = "redraw"

    def __post_init__(self) -> None:
        check_fields("annotator", self)

    def annotate(self, sample: Sample, seed: int) -> Sample:
        """The sample as this person would have annotated it; labels, boxes and extents stay with their points.

        Points outside the image are left out first: nobody clicks there, and moving them would plant them on borders.
        Who is missed and who is doubled does not change with `amount`, `kind` or `shape`.
        """
        rng = generator(seed, sample.name)
        seen = sample.inside.nonzero()[:, 0]
        missed, doubled = rng.random((2, len(seen)))
        clicked = seen[torch.from_numpy(missed >= self.missed)]
        again = seen[torch.from_numpy((missed >= self.missed) & (doubled < self.doubled))]
        chosen = sample.keep(torch.cat([clicked, again]))
        moved, kept = self._move(chosen, rng)
        return replace(chosen.keep(kept), points=moved)

    def _move(self, sample: Sample, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Clicks for the points of a sample, and the index of the points they belong to."""
        if self.kind == "none":
            return sample.points.clone(), torch.arange(len(sample.points))
        kind: DisplacementKind = "ggd" if self.kind == "extent" else self.kind
        extents = sample.extents if kind == "ggd" else None
        if kind == "ggd":
            if extents is None:
                raise DataError(
                    f"{sample.name}: an annotator of kind 'extent' needs the size of each object and this data has none; "
                    "choose kind 'ring', 'disc' or 'gaussian' with an amount in pixels"
                )
            if len(extents) and not bool((torch.isfinite(extents) & (extents >= 0)).all()):
                raise DataError(f"{sample.name}: object sizes must be finite and ≥ 0 for an annotator of kind 'extent'")
        return displace(
            sample.points, sample.size, self.amount, kind, rng, extents=extents, shape=self.shape, edge=self.edge
        )


def generator(seed: int, name: str) -> np.random.Generator:
    """The random stream of one image: seeded by the SHA-256 of seed and name, so the same in every process."""
    digest = hashlib.sha256(f"{int(seed)}\0{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big"))))


def annotate_dataset(dataset: Dataset, annotator: Annotator, seed: int) -> Dataset:
    """Every sample of a dataset as the annotator would have made it; pixels stay lazy."""
    return dataset.like([annotator.annotate(sample, seed) for sample in dataset])
