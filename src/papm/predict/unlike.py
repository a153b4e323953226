"""Whether an image is unlike those that a model was trained on, why, and what to do about it (`papm.likeness`)."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papm.images import resize_image
from papm.likeness import GROUPS, Profile, Vector, appearance
from papm.models import Network
from papm.predict.outputs import objects
from papm.predict.tiling import infer
from papm.structures import DensityOutput, PointProposals
from papm.text import Brief

log = logging.getLogger(__name__)

SQUARE = 64  # pixels of the side of a square in which objects are counted
PACKED = 1.5  # times as many objects in a square as in any training image
ALIKE = 1.3  # times the distance of the best change that leaves another one possible
BETTER = 0.6  # share of the distance that must be left where a change of the training images explains it
CHECK = "look at its points, or train on images like it"
FOCUS = 640  # pixels: of larger images the middle is counted at half its size
FEW = 3.0  # objects that are added to both counts, so that one more or less of a few changes little
NAMED = 4  # networks, in a sentence about what several of them say


@dataclass(eq=False, repr=False)
class Pooled(Brief):
    """The deepest features of a network, averaged over each image of a batch, of every forward pass that it hears."""

    sums: list[Tensor] = field(default_factory=list)  # [B, C]
    cells: int = 0

    def hear(self, output: Any) -> None:
        last = output[-1] if isinstance(output, list | tuple) else output
        self.sums.append(last.detach().float().sum((2, 3)))
        self.cells += last.shape[2] * last.shape[3]

    def mean(self, image: int = 0) -> Vector | None:
        """[C] of one image, over all its tiles; None where nothing was heard."""
        if not self.sums:
            return None
        found: Vector = (torch.stack([s[image] for s in self.sums]).double().sum(0) / self.cells).cpu().numpy()
        return found


@contextmanager
def listening(network: torch.nn.Module, wanted: bool = True) -> Iterator[Pooled]:
    """Hear what the network makes of images in this thread, where it says which of its parts describes them."""
    pooled, me = Pooled(), threading.get_ident()
    part = network.described if wanted and isinstance(network, Network) else None
    if part is None:
        yield pooled
        return

    def hear(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if threading.get_ident() == me:
            pooled.hear(output)

    handle = part.register_forward_hook(hear)
    try:
        yield pooled
    finally:
        handle.remove()


def packing(output: DensityOutput | PointProposals) -> float:
    """Objects in a square of 64 pixels as an object sees it: Σ n²/Σ n over the squares; 0 where there is nothing."""
    if isinstance(output, DensityOutput):
        cells = max(1, SQUARE // output.stride)
        density = output.density.detach().float().sum(1, keepdim=True)
        squares = torch.nn.functional.avg_pool2d(density, cells, ceil_mode=True, divisor_override=1).flatten()
    else:
        found = output.points[0][objects(output)[0]].detach().div(SQUARE).floor().long().clamp(min=0).cpu()
        squares = torch.unique(found, dim=0, return_counts=True)[1].float()
    total = float(squares.sum())
    return float(squares.square().sum()) / total if total > 0 else 0.0


def steadiness(network: torch.nn.Module, image: Tensor, output: DensityOutput | PointProposals) -> float | None:
    """ln((½ + 3)/(1 + 3)) of the counts of the middle of an image, uint8 [3, H, W], at half its size and as it is, `output`.

    What is not an object to a network that learned several sizes is one at a size of its own: of cars that a network for
    heads counts, nine tenths are gone at half the size. None for networks that give points, for exported ones that take one
    size, and where a count is not finite.
    """
    if not isinstance(output, DensityOutput) or getattr(network, "fixed", None) is not None:
        return None
    (top, bottom), (left, right) = (_middle(n, SQUARE) for n in image.shape[1:])
    part, s = image[:, top:bottom, left:right], output.stride
    one = output.density[..., top // s : -(-bottom // s), left // s : -(-right // s)].sum()
    halved = resize_image(part.cpu(), (max(1, part.shape[1] // 2), max(1, part.shape[2] // 2)))
    half = infer(network, halved, precision="32")
    assert isinstance(half, DensityOutput)
    before, after = float(one), float(half.density.sum())
    if not math.isfinite(before) or not math.isfinite(after):
        return None
    return math.log((max(0.0, after) + FEW) / (max(0.0, before) + FEW))


def _middle(length: int, multiple: int) -> tuple[int, int]:
    """From where to where the middle FOCUS pixels of a side reach, where it is longer; on cells of any stride."""
    first = max(0, length - FOCUS) // 2 // multiple * multiple
    return first, min(length, first + FOCUS)


def unlike(
    profile: Profile,
    image: Tensor,
    pooled: Vector | None,
    output: DensityOutput | PointProposals,
    scale: float = 1.0,
    steady: float | None = None,
) -> dict[str, str]:
    """Why an image, as the network sees it, is unlike the training images: reasons by name, each with a clause.

    `scale`: the factor that its sides were resized by. `steady`: its `steadiness`.
    """
    seen = appearance(image)
    excess = {name: usual.excess(seen[GROUPS[name]]) for name, usual in profile.usual.items()}
    found: dict[str, str] = {}
    if excess.get("sharpness", 0.0) > 1 or _far_along(profile, seen):
        kind, clause = _changed(profile, seen, excess, scale)
        found[kind] = clause
    if excess.get("light", 0.0) > 1:
        found["light"] = _light(*(seen[GROUPS["light"]] - profile.usual["light"].mean))
    if excess.get("colour", 0.0) > 1:
        found["colour"] = "it has no colour" if seen[9] < np.log(0.02 + 0.01) else "its colours are others"
    known = profile.features
    heard = None if known is None or pooled is None or len(pooled) != len(known.mean) else known.along(pooled)
    if known is not None and heard is not None and known.usual.excess(heard) > 1:
        found["features"] = "the network sees something new in it"
    now = packing(output)
    if profile.packing and now > PACKED * profile.packing:
        apart, before = (SQUARE / max(n, 1e-6) ** 0.5 for n in (now, profile.packing))
        found["spacing"] = f"objects are {apart:.2g} px apart, in training {before:.2g} px or more"
    if profile.steady is not None and steady is not None and not profile.steady[0] <= steady <= profile.steady[1]:
        found["steadiness"] = f"at half its size {math.exp(steady):.2g} times as many objects are counted"
    return found


def sentence(reasons: Mapping[str, str], size: str = "") -> str:
    """What is said about an image, after its name: its scale, else its `size` where there is a remark, else all the rest.

    >>> sentence({"colour": "it has no colour", "blur": "it is less sharp"})
    'unlike the training images: it has no colour, it is less sharp; look at its points, or train on images like it'
    """
    if size or "scale" in reasons:
        return reasons.get("scale", size)
    return f"unlike the training images: {', '.join(reasons.values())}; {CHECK}"


_compared: ContextVar[dict[str, list[str]] | None] = ContextVar("compared", default=None)


@contextmanager
def compared() -> Iterator[None]:
    """Several networks count the same images in this block: what they say alike is logged once, at its end, with names."""
    heard: dict[str, list[str]] = {}
    token = _compared.set(heard)
    try:
        yield
    finally:
        _compared.reset(token)
        for said, networks in heard.items():
            names = list(dict.fromkeys(filter(None, networks)))
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            log.warning("%s%s", said, f" ({', '.join(names[:NAMED])}{more})" if names else "")


def say(said: str, network: str = "") -> None:
    """Log what makes a count of this network doubtful, now or at the end of `compared`."""
    if (heard := _compared.get()) is None:
        log.warning("%s", said)
    else:
        heard.setdefault(said, []).append(network)


def _far_along(profile: Profile, seen: Vector) -> bool:
    """Whether detail lies farther in the direction of a change than that of the training images."""
    usual = profile.usual.get("sharpness")
    return usual is not None and any(c.along(seen[GROUPS["sharpness"]], usual) > c.limit for c in profile.changes)


def _changed(profile: Profile, seen: Vector, excess: dict[str, float], scale: float) -> tuple[str, str]:
    """The change of the training images that makes their detail most like that of this image, and a clause of it."""
    usual, detail = profile.usual["sharpness"], seen[GROUPS["sharpness"]]
    left = {c: usual.excess(detail - np.asarray(c.offset)) for c in profile.changes}
    best = {kind: min((c for c in left if c.kind == kind), key=lambda c: left[c]) for kind in {c.kind for c in left}}
    first = min(best.values(), key=lambda c: left[c], default=None)
    # An image of something else may have the detail of an enlarged one: its light and colour tell.
    strange = max(excess.get("light", 0.0) / 1.5, excess.get("colour", 0.0)) > 1
    if first is None or left[first] > min(1.0, BETTER * excess["sharpness"]) or (first.kind == "scale" and strange):
        finer = float((detail - np.asarray(usual.mean))[:2].sum()) > 0
        return "sharpness", f"its finest detail is {'stronger' if finer else 'weaker'}"
    if first.kind == "noise":
        return first.kind, "it is noisier"
    other = best.get("scale" if first.kind == "blur" else "blur")
    doubtful = other is not None and best["scale"].amount > 1 and left[other] < ALIKE * left[first] + 0.1
    if first.kind == "blur" and not doubtful:
        return first.kind, "it is less sharp"
    larger = best["scale"].amount
    how = f"{larger:.2g} times as large as" if larger > 1 else f"{1 / larger:.2g} times smaller than"
    if doubtful:  # in photographs, where detail has every size, these two look the same
        return (
            "scale",
            f"it is less sharp, or objects are about {how} in training: if so, try --scale {scale / larger:.2g}",
        )
    return "scale", f"objects look about {how} in training: try --scale {scale / larger:.2g}"


def _light(contrast: float, brightness: float) -> str:
    """What differs more from the training images."""
    if abs(brightness) > abs(contrast):
        return f"it is {'brighter' if brightness > 0 else 'darker'}"
    return f"its contrast is {'higher' if contrast > 0 else 'lower'}"
