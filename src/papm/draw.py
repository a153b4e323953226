"""Pictures of predictions: the density over the photo, the points on it, and around it what colours and dots mean."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from papm.errors import DataError
from papm.files import write_atomic
from papm.legend import INK, PAPER, SQUARE, Entry, bar, fitted, headline, text_size
from papm.marks import OUTLINE, PREDICTED, TRUTH, Picture, class_colour, dots, radii, rings

READABLE, LARGEST = 768, 1600  # px of the longer side of a picture
MOST_TIMES = 8  # that an image is enlarged
RAMP = 256  # colours of a bar
_BAND = 8_000_000  # pixels of a large image that are turned around at once
# Every fifth colour of Turbo (A. Mikhailov, Google, 2019, Apache-2.0); lines between them stay within 1/255 of all 256.
_TURBO = bytes.fromhex(
    "30123b36215f3b2f803f3e9c424bb54559cb4666dd4773eb4680f6458cfd4099ff38a5fb2fb2f427bee91fc9dd1ad4d018ddc21ae4b6"
    "22ebaa2ff19b3ff68a52fa7a65fd6979fe598bff4b9cfe40a9fb39b7f735c3f134d0ea34dbe236e5d938eecf3af5c53afaba39fdae35"
    "fea130fe932afc8423f9751df46617ef5811e84b0ce14109d83706ce2d04c32503b71d02a916019b0f018b09027a0403"
)


class Size(TypedDict, total=False):
    """How an `overlay` is drawn."""

    alpha: float
    max_side: int | None
    min_side: int | None


def overlay(
    image: Tensor,
    density: Tensor | None = None,
    stride: float = 1,
    points: Tensor | None = None,
    truth: Tensor | None = None,
    *,
    labels: Tensor | None = None,
    alpha: float = 0.85,
    max_side: int | None = LARGEST,
    min_side: int | None = READABLE,
) -> Tensor:
    """Draw a prediction over its image uint8 [3, H, W] -> uint8 [3, h, w], nothing around it.

    `density` [h', w'] or [C, h', w'] colours the photo, opaque to `alpha` where it is densest and clear where it is empty;
    `points` [n, 2] are dots, by class where `labels` [n] are given, and the true ones, `truth` [m, 2], rings, all in pixels of
    `image` and sized to their spacing. The longer side is shrunk to `max_side`, or multiplied to reach `min_side`.
    """
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise DataError(f"an image to draw on is [3, H, W]; got {list(image.shape)}")
    height, width = image.shape[-2:]
    scale = factor((height, width), max_side, min_side)
    canvas = _resized(image, (max(1, round(height * scale)), max(1, round(width * scale))))
    if density is not None:
        canvas = _tint(canvas, density, stride * scale, alpha)
    if truth is not None:
        rings(canvas, truth, scale, TRUTH)
    if points is not None:
        kinds = None if labels is None else labels.detach().cpu()
        sizes = radii(points, scale, canvas, 1.0 if density is None else 0.75)  # colours show around them
        for k in [0] if kinds is None else sorted(set(kinds.tolist())):
            some = slice(None) if kinds is None else kinds == k
            dots(canvas, points.detach().cpu()[some], scale, class_colour(k), sizes[some])
    return from_pil(_pil(canvas))


def figure(
    image: Tensor,
    density: Tensor | None = None,
    stride: float = 1,
    points: Tensor | None = None,
    truth: Tensor | None = None,
    *,
    labels: Tensor | None = None,
    classes: Sequence[tuple[str, float]] = (),
    count: float | None = None,
    name: str = "",
    headed: bool = True,
    text: int | None = None,
    **size: Unpack[Size],
) -> Tensor:
    """An `overlay`, a bar beside it that says what the colours of the density mean, and above (if `headed`) the image's `name`
    and how many: `count`, or else the sum of the density, or else the number of points; each of the `classes` (name, count).
    """
    picture = overlay(image, density, stride, points, truth, labels=labels, **size)
    full = 0.0 if density is None else full_scale(density)
    text = text or text_size(max(picture.shape[1:]))
    if density is not None and full > 0:
        per_square = SQUARE**2 / stride**2
        above = float(torch.nan_to_num(_field(density)).max()) > 1.001 * full
        column = bar(picture.shape[1], _ramp(image, size.get("alpha", 0.85)), full * per_square, above, text)
        picture = _joined(picture, from_pil(column), 2)
    if count is None:
        count = float(density.sum()) if density is not None else None if points is None else len(points)
    several = labels is not None and len(classes) > 1
    marked = None if points is None or several else dots
    entries = [Entry(name)] if name else []
    entries += [Entry("count", number(count), marked, PREDICTED)] if count is not None else []
    for k, (kind, some) in enumerate(classes):
        entries.append(Entry(kind, number(some), dots if several and points is not None else None, class_colour(k)))
    entries += [Entry("truth", number(len(truth)), rings, TRUTH)] if truth is not None else []
    return _joined(from_pil(headline(picture.shape[2], entries, text)), picture, 1) if headed and entries else picture


def _joined(first: Tensor, second: Tensor, along: int) -> Tensor:
    """Two pictures [3, h, w], one below (`along` 1) or right of (2) the other, on white where one is shorter."""
    high, wide = (max(first.shape[k], second.shape[k]) for k in (1, 2))
    short = [(0, 0, 0, high - p.shape[1]) if along == 2 else (0, wide - p.shape[2]) for p in (first, second)]
    return torch.cat([F.pad(p, by, value=255) for p, by in zip((first, second), short)], along)


def stamped(picture: Tensor, count: float) -> Tensor:
    """The picture uint8 [3, h, w] with the count in its upper left corner, for frames that keep their size."""
    made = to_pil(picture)
    text = int(np.clip(min(made.size) * 0.045, 11, 40))
    font, words, pad = ImageFont.load_default(text), f"count {number(count)}", round(text * 0.5)
    box = Image.new("RGBA", (round(font.getlength(words)) + 2 * pad, round(text * 1.3) + pad), (0, 0, 0, 0))
    draw = ImageDraw.Draw(box)
    draw.rounded_rectangle((0, 0, box.width - 1, box.height - 1), radius=text * 0.35, fill=(*OUTLINE, 200))
    draw.text((pad, box.height / 2), words, fill=PAPER, font=font, anchor="lm")
    made.paste(box, (round(text * 0.4), round(text * 0.4)), box)
    return from_pil(made)


def factor(size: tuple[int, int], max_side: int | None = LARGEST, min_side: int | None = READABLE) -> float:
    """How many times larger than its image (H, W) a picture is: a whole number where the longer side is below `min_side`.

    >>> factor((200, 256)), factor((768, 1024)), factor((3000, 4000)), factor((200, 256), max_side=600)
    (3.0, 1.0, 0.4, 2.0)
    """
    longest = max(size)
    if max_side is not None and longest >= max_side:
        return max_side / longest
    if min_side is None or not longest:
        return 1.0
    times = min(-(-min_side // longest), MOST_TIMES)
    return float(max(1, times if max_side is None else min(times, max_side // longest)))


def panel(images: Sequence[Tensor], titles: Sequence[str], *, height: int | None = None) -> Tensor:
    """Pictures uint8 [3, h, w] side by side at one height (that of the lowest, or `height`), each under its title."""
    if not images or len(images) != len(titles):
        raise DataError(
            f"a panel needs one title for each of its pictures; got {len(images)} pictures, {len(titles)} titles"
        )
    tall = height or min(i.shape[-2] for i in images)
    tiles = [_resized(i, (tall, max(1, round(i.shape[-1] * tall / i.shape[-2])))) for i in images]
    text = title_size(tall)
    top, gap = round(text * 1.9), max(2, round(tall * 0.012))
    total = sum(t.shape[1] for t in tiles) + gap * (len(tiles) - 1)
    sheet = Image.new("RGB", (total, tall + top), PAPER)
    draw = ImageDraw.Draw(sheet)
    left = 0
    for tile, title in zip(tiles, titles):
        sheet.paste(_pil(tile), (left, top))
        font = ImageFont.load_default(text)
        shown = fitted(title, font, tile.shape[1])
        draw.text((left + tile.shape[1] / 2, top / 2), shown, fill=INK, font=font, anchor="mm")
        left += tile.shape[1] + gap
    return from_pil(sheet)


def title_size(height: int) -> int:
    """The size of letters over pictures of this height in a panel."""
    return max(11, round(height * 0.045))


def save_png(image: Tensor, path: str | Path) -> Path:
    """Write uint8 [3, h, w] as a PNG; the file appears whole or not at all."""
    picture = _pil(_resized(image, (image.shape[-2], image.shape[-1])))
    write_atomic(Path(path), lambda file: picture.save(file, format="PNG"))
    return Path(path)


def number(count: float) -> str:
    """A count for people: one decimal below a hundred, thousands apart.

    >>> number(3), number(3.14159), number(1234.5), number(float("nan"))
    ('3', '3.1', '1,234', 'nan')
    """
    whole = float(count).is_integer() or abs(count) >= 100
    return f"{count:,.0f}" if whole else f"{count:.1f}"


def _tint(photo: Picture, density: Tensor, stride: float, alpha: float) -> Picture:
    """Blend a colour map over the photo, opacity growing with the density."""
    level = levels(density)
    if not level.any():
        return photo
    h, w = photo.shape[:2]
    shape = max(1, round(level.shape[0] * stride)), max(1, round(level.shape[1] * stride))
    wide = F.interpolate(level[None, None], size=shape, mode="bilinear", align_corners=False)[0, 0, :h, :w]
    wide = F.pad(wide[None, None], (0, w - wide.shape[1], 0, h - wide.shape[0]), mode="replicate")[0, 0]
    return _blended(photo, wide, alpha)


def _blended(photo: Picture, level: Tensor, alpha: float) -> Picture:
    """The colours of levels [h, w] over the photo, which turns grey under them, so that they mean density alone."""
    colours, shade = coloured(level)
    grey = photo @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    muted = 0.35 * photo + 0.65 * grey[..., None]
    opacity = np.float32(alpha) * shade[..., None]
    tinted: Picture = muted + (colours - muted) * opacity
    return tinted


def levels(density: Tensor) -> Tensor:
    """A map [h, w] or [C, h, w] as [h, w], 1 where it is densest; zeros if it holds nothing."""
    field, full = _field(density), full_scale(density)
    return field / max(full, 1e-12) if full > 0 else torch.zeros_like(field)


def full_scale(density: Tensor) -> float:
    """The objects in a cell that has the last colour; 0 where the map holds nothing."""
    field = _field(density)
    peak = float(field.max()) if field.numel() else 0.0
    if peak <= 0:
        return 0.0
    # the brightest cells may lie far above the rest: saturate the top percent of those that hold something
    return float(np.quantile(field[field > 0.02 * peak].numpy(), 0.99))


def _field(density: Tensor) -> Tensor:
    """A map [h, w] or [C, h, w] as [h, w], nothing below zero or not finite."""
    field = density.detach().float().cpu()
    return torch.nan_to_num(field.sum(0) if field.ndim == 3 else field, nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)


def _ramp(image: Tensor, alpha: float) -> Picture:
    """The colours [n, 1, 3] of densities from none to full scale, over the mean grey of the image."""
    grey = float(image[..., ::8, ::8].float().mean())
    ground = np.full((RAMP, 1, 3), grey, dtype=np.float32)
    return _blended(ground, torch.linspace(0, 1, RAMP)[:, None], alpha)


def coloured(level: Tensor) -> tuple[Picture, NDArray[np.float32]]:
    """Colours [h, w, 3] of levels [h, w], and their shade from 0 to 1, by which opacity grows."""
    # the root lifts scattered objects, which a crowd elsewhere in the picture would else leave dark
    shade: NDArray[np.float32] = level.clamp(0, 1).sqrt().numpy()
    return _turbo()[(shade**1.5 * 255).astype(np.uint8)], shade


@functools.cache
def _turbo() -> Picture:
    """The 256 colours of the Turbo colour map, [256, 3]."""
    nodes = np.frombuffer(_TURBO, np.uint8).reshape(-1, 3)
    every = np.arange(0, 256, 5)
    return np.stack([np.interp(np.arange(256), every, nodes[:, c]) for c in range(3)], 1).astype(np.float32)


def _resized(image: Tensor, size: tuple[int, int]) -> Picture:
    """uint8 [1 or 3, H, W] -> float [h, w, 3] at `size`."""
    if image.dtype != torch.uint8:
        raise DataError(f"an image to draw is uint8 (0 to 255); got {image.dtype}")
    image = image.detach().expand(3, -1, -1)
    height, width = image.shape[-2:]
    if (height, width) == size:
        return image.cpu().permute(1, 2, 0).numpy().astype(np.float32)
    # As `reducing_gap` does: means over whole squares first, which leaves three pixels for one; by rows, for large images.
    factor = max(1, int(min(height / size[0], width / size[1]) / 3))
    rows = factor * max(1, _BAND // (factor * max(1, width)))
    bands = [to_pil(image[:, top : top + rows]).reduce(factor) for top in range(0, height, rows)]
    small = Image.new("RGB", (bands[0].width, sum(b.height for b in bands)))
    top = 0
    for band in bands:
        small.paste(band, (0, top))
        top += band.height
    box = (0, 0, width / factor, height / factor)
    made = small.resize((size[1], size[0]), Image.Resampling.LANCZOS, box=box)
    return np.asarray(made).astype(np.float32)


def _pil(picture: Picture) -> Image.Image:
    return Image.fromarray((picture + 0.5).clip(0, 255).astype(np.uint8))


def to_pil(image: Tensor) -> Image.Image:
    """uint8 [3, h, w] as a Pillow image."""
    return Image.fromarray(image.cpu().permute(1, 2, 0).contiguous().numpy())


def from_pil(picture: Image.Image) -> Tensor:
    """A Pillow image as uint8 [3, h, w]."""
    return torch.from_numpy(np.asarray(picture).transpose(2, 0, 1).copy())
