"""From the plan of a batch to its pixels and points, on any device.

Cropping, resizing, turning, greying and normalising happen for the whole batch at once, from images that already live on the
device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from papm.data.augment import HEAD, Augment, Plan
from papm.data.cache import ImageStore
from papm.data.disk_cache import DiskStore
from papm.structures import Batch, PointBatch

Crops = tuple[Tensor, Tensor, Tensor, Tensor]


def render(
    store: ImageStore | DiskStore,
    plan: Plan,
    augment: Augment,
    cut: Callable[[ImageStore, Tensor, Augment], Crops] | None = None,
) -> Batch:
    """The pixels and points of a plan, on the device of the store.

    `cut` may be a compiled form of `cut_crops`.
    """
    if cut is None:
        cut = cut_crops if plan.rows.is_cuda or not augment.resizes else cut_one_by_one
    heads = plan.rows[:, :HEAD].contiguous()  # strides would tell a compiler of the length of the points
    if isinstance(store, DiskStore):
        store, heads = store.windows(heads, augment.crop, augment.scale_min, augment.resizes)
    images, mask, offsets, sizes = cut(store, heads, augment)
    n = (plan.rows.shape[1] - HEAD) // augment.columns
    p = plan.rows[:, HEAD:].reshape(len(plan.rows), n, augment.columns)
    place = torch.arange(n, device=p.device)
    labels = p[..., 3].long() if augment.labelled else None
    halo = PointBatch(p[..., :2], place < plan.counts[:, 1:], p[..., 2], labels)
    inside = PointBatch(p[..., :2], place < plan.counts[:, :1], p[..., 2], labels)
    return Batch(images=images, points=inside, mask=mask, offsets=offsets, sizes=sizes, halo=halo)


def cut_crops(store: ImageStore, heads: Tensor, augment: Augment) -> Crops:
    """Images [B, 3, C, C], mask [B, C, C], corners [B, 2] and sizes [B, 2] of the crops that `heads` [B, HEAD] describe.

    Resizing is bilinear with pixel centres kept, and antialiased when it shrinks (a triangle filter as wide as the
    source pixels of one output pixel).
    """
    image, x, y, scale, turn, grey, contrast, brightness = heads.unbind(1)
    index = image.long()
    size = store.sizes[index]  # [B, 2] (H, W)
    c = augment.crop
    k = torch.arange(c, device=heads.device, dtype=torch.float32)
    mirrored, upside_down = turn % 2 >= 1, turn % 4 >= 2
    column = torch.where(mirrored[:, None], c - 1 - k, k)  # [B, C] source column of the crop
    line = torch.where(upside_down[:, None], c - 1 - k, k)
    pitch = size[:, 1] if store.pitch is None else store.pitch[index]
    col, col_weight = _taps(column + x[:, None], scale, size[:, 1], augment.scale_min, augment.resizes)
    row, row_weight = _taps(line + y[:, None], scale, size[:, 0], augment.scale_min, augment.resizes)
    base = store.starts[index][:, None, None] + row * pitch[:, None, None]  # [B, C, T]
    pixels = _gather(store.pixels, base, row_weight, col, col_weight)  # [B, C, C, 3] in 0..255

    # Channel by channel with plain numbers: a constant tensor would be copied to the device at every step.
    colour = [v / 255 for v in pixels.unbind(-1)]
    if augment.grey:
        luma = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
        colour = [torch.where(grey[:, None, None] > 0, luma, v) for v in colour]
    if augment.colour:
        more, lighter = contrast[:, None, None], brightness[:, None, None]
        colour = [((v - 0.5) * more + 0.5 + lighter).clamp(0, 1) for v in colour]
    pixels = torch.stack([(v - augment.mean[k]) / augment.std[k] for k, v in enumerate(colour)], -1)

    scaled = (size.float() * scale[:, None]).round().clamp(min=1)  # (H, W) after resizing
    in_x = (column + x[:, None] >= 0) & (column + x[:, None] < scaled[:, 1, None])
    in_y = (line + y[:, None] >= 0) & (line + y[:, None] < scaled[:, 0, None])
    real = in_y[:, :, None] & in_x[:, None, :]
    pixels = pixels * real[..., None]  # beyond the image: the mean colour, which is zero after normalising
    mask = real
    if augment.margin:
        shown = (k >= augment.margin) & (k < c - augment.margin)
        mask = mask & shown[:, None] & shown[None, :]
    if store.roi is not None:
        j, i = (
            ((place + 0.5) / scale[:, None]).long().clamp(min=0).minimum(side[:, None] - 1)  # the nearest source pixel
            for place, side in ((column + x[:, None], size[:, 1]), (line + y[:, None], size[:, 0]))
        )
        start = store.starts[index][:, None, None]
        mask = mask & store.roi[start + i[:, :, None] * pitch[:, None, None] + j[:, None, :]]
    corner_x = torch.where(mirrored, scaled[:, 1] - c - x, x)  # of the image turned likewise
    corner_y = torch.where(upside_down, scaled[:, 0] - c - y, y)
    corner = torch.stack([corner_x, corner_y], 1)
    if augment.turn:
        across = turn >= 4
        pixels = torch.where(across[:, None, None, None], pixels.transpose(1, 2), pixels)
        mask = torch.where(across[:, None, None], mask.transpose(1, 2), mask)
        corner, scaled = (torch.where(across[:, None], v.flip(1), v) for v in (corner, scaled))
    # Channels-last in memory, as it was gathered.
    return pixels.permute(0, 3, 1, 2), mask, corner, scaled


def cut_one_by_one(store: ImageStore, heads: Tensor, augment: Augment) -> Crops:
    """`cut_crops`, with as many source pixels per output pixel as each crop's own scale asks for: one where it keeps its size.

    For a batch at once the smallest scale decides. That saves kernel launches, of which a host has none.
    """
    made = [
        cut_crops(store, head, dataclasses.replace(augment, scale_min=scale, scale_max=scale))
        for head, scale in zip(heads[:, None], heads[:, 3].tolist())
    ]
    images, mask, corners, sizes = (torch.cat(parts) for parts in zip(*made))
    return images.contiguous(memory_format=torch.channels_last), mask, corners, sizes


def _taps(place: Tensor, scale: Tensor, length: Tensor, scale_min: float, resized: bool) -> tuple[Tensor, Tensor]:
    """Source pixels and their weights [B, C, T] for output pixels at `place` of an axis resized by `scale`."""
    last = (length - 1)[:, None, None]
    if not resized:
        return place.long()[..., None].clamp(min=0).minimum(last), torch.ones_like(place)[..., None]
    centre = (place + 0.5) / scale[:, None]
    support = torch.clamp(1 / scale, min=1.0)[:, None, None]  # half width of the triangle, in source pixels
    taps = 2 * math.ceil(max(1.0, 1 / scale_min))
    first = (centre[..., None] - 0.5).floor() - (taps // 2 - 1)
    source = first + torch.arange(taps, device=place.device)
    weight = (1 - (source + 0.5 - centre[..., None]).abs() / support).clamp(min=0)
    weight = weight / weight.sum(-1, keepdim=True)
    return source.long().clamp(min=0).minimum(last), weight


def _gather(pixels: Tensor, base: Tensor, row_weight: Tensor, col: Tensor, col_weight: Tensor) -> Tensor:
    """Σ over taps of weight × pixel, [B, C, C, 3] float."""
    out: Tensor | None = None
    for r in range(base.shape[-1]):
        for c in range(col.shape[-1]):
            index = base[:, :, None, r] + col[:, None, :, c]
            value = pixels[index].float()
            if base.shape[-1] > 1 or col.shape[-1] > 1:
                value = value * (row_weight[:, :, None, r] * col_weight[:, None, :, c])[..., None]
            out = value if out is None else out + value
    assert out is not None
    return out
