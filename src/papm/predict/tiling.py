"""Large images in tiles: the memory of one tile, the result of the whole image.

A cell of a convolutional network sees its own pixels and `network.receptive_field` pixels around them. A tile is cut with that
much more on every side, at multiples of `network.multiple`, and only the cells inside are kept:

    ┌───────────────────────────┐  seen by the network
    │  receptive field          │
    │    ┌─────────────────┐    │
    │    │ kept            │    │  side of the kept zone = tile − 2·field, rounded to the multiple
    │    └─────────────────┘    │
    └───────────────────────────┘

What is kept is then what the whole image would have given, but for rounding. Networks that look at the whole image
(attention, pooling over all of it) have no `receptive_field`: they count in windows of the size of their training crops
(`Inference.window`), which is what they have learned to see, side by side and without an overlap.

The image stays uint8 where it is; only one tile at a time is made of floats.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from papm.errors import ConfigError
from papm.imagenet import normalize
from papm.inference import Inference
from papm.structures import DensityOutput, PointProposals

log = logging.getLogger(__name__)
Tile = int | str  # "auto", "none", or the side in pixels of what a network sees at once
Output = DensityOutput | PointProposals
OnTile = Callable[[int, int], None]  # (tiles done, tiles in all)
HALVES = {"bf16": torch.bfloat16, "16": torch.float16}


@dataclass(frozen=True)
class Limits:
    """When `auto` begins to cut, and how large the pieces are."""

    pixels: int  # images of at most this many are taken whole
    side: int  # of a tile


# VGG19 takes about 0.8 KB per pixel in float32 (docs/speed.md): 3 GB for the largest image taken whole on a CPU, 0.8 GB for a
# tile. A GPU has more to give, and wants larger pieces.
LIMITS = {"cpu": Limits(4_000_000, 1024), "cuda": Limits(16_000_000, 2048)}
# Cutting changes what a network that looks at the whole image finds: later, larger, and the same on every device.
APPROXIMATE = Limits(16_000_000, 2048)
NARROW = 32  # pixels of a side: what networks pad to at most; narrower tiles of any network cost as much as these
CONTEXT = 256  # pixels around the kept zone of a network that sees the whole image


@dataclass(frozen=True)
class Zone:
    """One tile, in pixels of the image: what the network sees and what of it is kept, each top, bottom, left, right."""

    seen: tuple[int, int, int, int]
    kept: tuple[int, int, int, int]


def check(tile: Tile) -> Tile:
    """`auto`, `none`, or a side in pixels; the text of a number is that number.

    >>> check("512"), check("auto")
    (512, 'auto')
    """
    if tile in ("auto", "none"):
        return tile
    text = str(tile)
    if isinstance(tile, bool) or not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ConfigError(f"tile is auto, none or a side in pixels, not '{tile}'")
    return int(text)


def computed_pixels(network: torch.nn.Module, size: tuple[int, int]) -> int:
    """Pixels of an image of (H, W) as a network computes them: a short side is framed and padded, to 32 pixels or more.

    >>> computed_pixels(torch.nn.Identity(), (1, 1000)), computed_pixels(torch.nn.Identity(), (50, 1000))
    (32000, 50000)
    """
    padded = int(getattr(network, "multiple", NARROW)) + 2 * int(getattr(network, "frame", 0))
    return max(size) * max(min(size), padded, NARROW)


def side_of(network: torch.nn.Module, size: tuple[int, int], tile: Tile = "auto") -> int | None:
    """The side of the tiles that an image of (H, W) is cut into, or None when the network takes it whole."""
    tile = check(tile)
    if tile == "none":
        return None
    if tile == "auto" and contract_of(network).window:
        return contract_of(network).window
    if tile == "auto":
        device = _device(network).type
        limits = LIMITS.get(device, LIMITS["cuda"]) if _receptive_field(network) is not None else APPROXIMATE
        return limits.side if computed_pixels(network, size) > limits.pixels else None
    assert isinstance(tile, int)
    return tile if max(size) > tile else None


def zones(size: tuple[int, int], side: int, field: int, multiple: int) -> list[Zone]:
    """Tiles of at most `side` pixels that cover an image of (H, W); the kept zones do not overlap.

    >>> [z.kept for z in zones((64, 150), 96, 16, 16)]
    [(0, 64, 0, 64), (0, 64, 64, 128), (0, 64, 128, 150)]
    >>> zones((64, 150), 96, 16, 16)[1].seen, [z.kept for z in zones((16, 70), 96, 16, 16)]
    ((0, 64, 48, 144), [(0, 16, 0, 48), (0, 16, 48, 70)])
    """
    margin = -(-field // multiple) * multiple
    core = (side - 2 * margin) // multiple * multiple
    if core < multiple:
        least = 2 * margin + multiple
        raise ConfigError(
            f"a tile of {side} px leaves nothing to keep: this network sees {field} px around each cell; "
            f"use at least {least}, better {4 * margin} or more"
        )

    def along(length: int) -> Iterator[tuple[int, int, int, int]]:
        pieces = -(-length // core)
        even = -(-length // (pieces * multiple)) * multiple  # no sliver at the end
        for start in range(0, length, even):
            end = min(start + even, length)
            yield max(0, start - margin), min(length, end + margin), start, end

    return [
        Zone((top, bottom, left, right), (first, last, begin, end))
        for top, bottom, first, last in along(size[0])
        for left, right, begin, end in along(size[1])
    ]


def windows(size: tuple[int, int], side: int, multiple: int) -> list[Zone]:
    """Windows of `side` pixels that cover an image of (H, W); the last ones lie inside the image too, and keep what is left.

    >>> [(z.seen, z.kept) for z in windows((64, 150), 96, 16)]
    [((0, 64, 0, 96), (0, 64, 0, 96)), ((0, 64, 64, 150), (0, 64, 96, 150))]
    """

    def along(length: int) -> Iterator[tuple[int, int, int, int]]:
        last = max(0, -(-(length - side) // multiple) * multiple)
        for start in range(0, length, side):
            seen = min(start, last)
            yield seen, min(seen + side, length), start, min(start + side, length)

    return [
        Zone((top, bottom, left, right), (first, end, begin, over))
        for top, bottom, first, end in along(size[0])
        for left, right, begin, over in along(size[1])
    ]


@torch.no_grad()
def infer(
    network: torch.nn.Module,
    image: Tensor,
    tile: Tile = "auto",
    on_tile: OnTile | None = None,
    precision: str | None = None,
) -> Output:
    """Run a network on one image, uint8 [3, H, W], on the network's device; in tiles where the image asks for it.

    `precision` "32", "bf16" or "16"; without one, that of the caller.
    """
    size = (int(image.shape[1]), int(image.shape[2]))
    side = side_of(network, size, tile)
    with _precision(network, precision):
        if side is None:
            return _in_float32(_forward(network, image[None]), precision)
        least = side if tile == "auto" and contract_of(network).window else 0
        cut = _cut(network, size, side, windowed=least > 0)
        whole: Tensor | None = None
        found: list[PointProposals] = []
        for k, zone in enumerate(cut):
            top, bottom, left, right = zone.seen
            output = _forward(network, image[None, :, top:bottom, left:right], least)
            if isinstance(output, DensityOutput):
                whole, stride = _filled(whole, zone, output, size), output.stride
            else:
                found.append(_kept(zone, output))
            if on_tile is not None:
                on_tile(k + 1, len(cut))
    return _in_float32(DensityOutput(whole, stride), precision) if whole is not None else _joined(found)


@torch.no_grad()
def infer_together(network: torch.nn.Module, images: Tensor, precision: str) -> list[Output]:
    """`infer` of images that are taken whole, uint8 [B, 3, H, W], in one pass; an output per image."""
    with _precision(network, precision):
        output = _forward(network, images)
    if isinstance(output, DensityOutput):
        return [DensityOutput(density[None].float(), output.stride) for density in output.density]
    each = zip(output.points, output.logits)
    return [PointProposals(points[None], logits[None], output.reference) for points, logits in each]


def _cut(network: torch.nn.Module, size: tuple[int, int], side: int, windowed: bool) -> list[Zone]:
    """Windows where the network has learned to count in them, else tiles that overlap by what a cell sees."""
    field, multiple = _receptive_field(network), int(getattr(network, "multiple", 32))
    if windowed:
        return windows(size, side, multiple)
    if field is None:
        _say_approximate(type(network).__name__)
    return zones(size, side, CONTEXT if field is None else field, multiple)


def _precision(network: torch.nn.Module, precision: str | None) -> AbstractContextManager[object]:
    if precision is None:
        return nullcontext()
    half = HALVES.get(precision)
    return torch.autocast(_device(network).type, dtype=half, enabled=half is not None)


def _in_float32(output: Output, precision: str | None) -> Output:
    if precision is None or not isinstance(output, DensityOutput):
        return output
    return dataclasses.replace(output, density=output.density.float())


def _forward(network: torch.nn.Module, images: Tensor, least: int = 0) -> Output:
    """uint8 [B, 3, H, W] through a network, on its device and normalised as it wants them.

    Sides below `least` are filled up with the mean colour, as in training.
    """
    inference = contract_of(network)
    images = normalize(images.to(_device(network)), inference.mean, inference.std)
    down, across = (max(0, least - n) for n in images.shape[-2:])
    if down or across:
        images = torch.nn.functional.pad(images, (0, across, 0, down))
    # Not through __call__: a compiled network would be compiled again for every image size.
    output: Output = network.forward(images)
    return output


def _device(network: torch.nn.Module) -> torch.device:
    """Where a network computes; one that another runtime computes has no parameters."""
    return next(itertools.chain(network.parameters(), network.buffers())).device


def contract_of(network: torch.nn.Module) -> Inference:
    """How a network counts; the default contract where it does not say."""
    found: Inference = getattr(network, "inference", Inference())
    return found


def _receptive_field(network: torch.nn.Module) -> int | None:
    value: Any = getattr(network, "receptive_field", None)
    return None if value is None else int(value)


@functools.lru_cache(maxsize=32)
def _say_approximate(name: str) -> None:
    log.warning(
        "%s looks at the whole image; in tiles its counts differ a little (tile=none takes the image whole, if memory allows)",
        name,
    )


def _filled(whole: Tensor | None, zone: Zone, output: DensityOutput, size: tuple[int, int]) -> Tensor:
    """The map of the whole image with the kept cells of one more tile."""
    stride, density = output.stride, output.density
    if whole is None:
        whole = density.new_zeros(1, density.shape[1], -(-size[0] // stride), -(-size[1] // stride))
    top, bottom, left, right = zone.kept
    row, column = top // stride, left // stride
    last_row, last_column = -(-bottom // stride), -(-right // stride)
    up, aside = zone.seen[0] // stride, zone.seen[2] // stride
    whole[..., row:last_row, column:last_column] = density[
        ..., row - up : last_row - up, column - aside : last_column - aside
    ]
    return whole


def _kept(zone: Zone, output: PointProposals) -> PointProposals:
    """The proposals of a tile that start in its kept zone, in pixels of the image."""
    top, bottom, left, right = zone.kept
    corner = output.reference.new_tensor([zone.seen[2], zone.seen[0]])
    reference = output.reference + corner
    x, y = reference.unbind(-1)
    mine = (x >= left) & (x < right) & (y >= top) & (y < bottom)
    points, logits = output.points[:, mine] + corner, output.logits[:, mine]
    return PointProposals(points, logits, reference[mine])


def _joined(found: list[PointProposals]) -> PointProposals:
    points, logits = (torch.cat([getattr(f, part) for f in found], 1) for part in ("points", "logits"))
    return PointProposals(points, logits, torch.cat([f.reference for f in found]))
