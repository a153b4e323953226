"""Pictures of predictions: the density over the photo, the points on it, the count in a corner."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from papm.errors import DataError
from papm.files import write_atomic
from papm.marks import OUTLINE, PREDICTED, TRUTH, Colour, Picture, dots, rings

Corner = Literal["top left", "top right", "bottom left", "bottom right"]
Line = tuple[str, str, Callable[..., None] | None, Colour]  # word, figure, how its marks are drawn and in what colour

_BAND = 8_000_000  # pixels of a large image that are turned around at once
_LINE_HEIGHT = 1.3  # of the font's size
# Every fifth colour of Turbo (A. Mikhailov, Google, 2019, Apache-2.0); lines between them stay within 1/255 of all 256.
_TURBO = bytes.fromhex(
    "30123b36215f3b2f803f3e9c424bb54559cb4666dd4773eb4680f6458cfd4099ff38a5fb2fb2f427bee91fc9dd1ad4d018ddc21ae4b6"
    "22ebaa2ff19b3ff68a52fa7a65fd6979fe598bff4b9cfe40a9fb39b7f735c3f134d0ea34dbe236e5d938eecf3af5c53afaba39fdae35"
    "fea130fe932afc8423f9751df46617ef5811e84b0ce14109d83706ce2d04c32503b71d02a916019b0f018b09027a0403"
)


def overlay(
    image: Tensor,
    density: Tensor | None = None,
    stride: float = 1,
    points: Tensor | None = None,
    truth: Tensor | None = None,
    *,
    count: float | None = None,
    alpha: float = 0.85,
    max_side: int | None = 1600,
    label: bool = True,
    corner: Corner | None = None,
) -> Tensor:
    """Draw a prediction over its image uint8 [3, H, W] -> uint8 [3, h, w], the longer side at most `max_side`.

    `density` [h', w'] or [C, h', w'] colours the photo, opaque to `alpha` where it is densest and clear where it is empty;
    `points` [n, 2] are dots and the true ones, `truth` [m, 2], rings, both in pixels of `image` and sized to their spacing.
    A corner says how many, if `label`: `count`, or else the sum of the density, or else the number of points. It is the one
    in which that hides the fewest points, or `corner`.
    """
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise DataError(f"an image to draw on is [3, H, W]; got {list(image.shape)}")
    height, width = image.shape[-2:]
    scale = 1.0 if max_side is None else min(1.0, max_side / max(height, width))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    canvas = _resized(image, size)
    if density is not None:
        canvas = _tint(canvas, density, stride * scale, alpha)
    if truth is not None:
        rings(canvas, truth, scale, TRUTH)
    if points is not None:
        dots(canvas, points, scale, PREDICTED)
    if not label:
        return from_pil(_pil(canvas))
    if count is None:
        count = float(density.sum()) if density is not None else None if points is None else len(points)
    lines: list[Line] = []
    if count is not None:
        lines.append(("count", number(count), None if points is None else dots, PREDICTED))
    if truth is not None:
        lines.append(("truth", number(len(truth)), rings, TRUTH))
    marked = [p.detach().cpu() * scale for p in (points, truth) if p is not None and len(p)]
    return _label(canvas, lines, torch.cat(marked) if marked else torch.zeros(0, 2), corner)


def panel(images: Sequence[Tensor], titles: Sequence[str], *, height: int | None = None) -> Tensor:
    """Pictures uint8 [3, h, w] side by side at one height (that of the lowest, or `height`), each under its title."""
    if not images or len(images) != len(titles):
        raise DataError(
            f"a panel needs one title for each of its pictures; got {len(images)} pictures, {len(titles)} titles"
        )
    tall = height or min(i.shape[-2] for i in images)
    tiles = [_resized(i, (tall, max(1, round(i.shape[-1] * tall / i.shape[-2])))) for i in images]
    text = max(11, round(tall * 0.045))
    bar, gap = round(text * 1.9), max(2, round(tall * 0.012))
    total = sum(t.shape[1] for t in tiles) + gap * (len(tiles) - 1)
    sheet = Image.new("RGB", (total, tall + bar), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    left = 0
    for tile, title in zip(tiles, titles):
        sheet.paste(_pil(tile), (left, bar))
        font = ImageFont.load_default(text)
        shown = _fitted(title, font, tile.shape[1])
        draw.text((left + tile.shape[1] / 2, bar / 2), shown, fill=(24, 24, 28), font=font, anchor="mm")
        left += tile.shape[1] + gap
    return from_pil(sheet)


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
    colours, shade = coloured(wide)
    # grey under the colours, so that they mean density alone
    grey = photo @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    muted = 0.35 * photo + 0.65 * grey[..., None]
    opacity = np.float32(alpha) * shade[..., None]
    tinted: Picture = muted + (colours - muted) * opacity
    return tinted


def levels(density: Tensor) -> Tensor:
    """A map [h, w] or [C, h, w] as [h, w], 1 where it is densest; zeros if it holds nothing."""
    field = density.detach().float().cpu()
    field = torch.nan_to_num(field.sum(0) if field.ndim == 3 else field, nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)
    peak = float(field.max()) if field.numel() else 0.0
    if peak <= 0:
        return torch.zeros_like(field)
    # the brightest cells may lie far above the rest: saturate the top percent of those that hold something
    held = field[field > 0.02 * peak].numpy()
    return field / max(float(np.quantile(held, 0.99)), 1e-12)


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


def _label(canvas: Picture, lines: Sequence[Line], points: Tensor, where: Corner | None) -> Tensor:
    """The picture with a dark box in a corner, where it hides the fewest points [n, 2]: a line for each "mark word figure"."""
    picture = _pil(canvas)
    if not lines:
        return from_pil(picture)
    text = int(np.clip(min(canvas.shape[:2]) * 0.045, 11, 40))
    font = ImageFont.load_default(text)
    words = max(font.getlength(word) for word, _, _, _ in lines)
    figures = max(font.getlength(figure) for _, figure, _, _ in lines)
    pad, row, corner = round(text * 0.5), text * _LINE_HEIGHT, round(text * 0.4)
    left = pad + (text if any(mark for _, _, mark, _ in lines) else 0)
    size = round(left + words + text * 0.5 + figures + pad), round(len(lines) * row + pad)
    box = Image.new("RGBA", size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(box)
    draw.rounded_rectangle((0, 0, size[0] - 1, size[1] - 1), radius=text * 0.35, fill=(*OUTLINE, 200))
    for k, (word, figure, _, _) in enumerate(lines):
        middle = pad / 2 + (k + 0.5) * row
        draw.text((left, middle), word, fill=(200, 200, 205), font=font, anchor="lm")
        draw.text((size[0] - pad, middle), figure, fill=(255, 255, 255), font=font, anchor="rm")
    x, y = _free_corner(points, (picture.width, picture.height), size, corner, where)
    picture.paste(box, (x, y), box)
    canvas = np.asarray(picture).astype(np.float32)
    for k, (_, _, mark, colour) in enumerate(lines):
        if mark is not None:
            at = torch.tensor([[x + pad + text * 0.3, y + pad / 2 + (k + 0.5) * row]])
            mark(canvas, at, 1.0, colour, radius=text * (0.28 if mark is dots else 0.16))
    return from_pil(_pil(canvas))


def _free_corner(
    points: Tensor, whole: tuple[int, int], box: tuple[int, int], gap: int, where: Corner | None
) -> tuple[int, int]:
    """Where the upper left corner of a box (w, h) goes in a picture (w, h)."""
    (width, height), (w, h) = whole, box
    places: dict[Corner, tuple[int, int]] = {
        "top left": (gap, gap),
        "top right": (max(gap, width - gap - w), gap),
        "bottom left": (gap, max(gap, height - gap - h)),
        "bottom right": (max(gap, width - gap - w), max(gap, height - gap - h)),
    }
    if where is not None:
        return places[where]

    def hidden(place: tuple[int, int]) -> int:
        x, y = points[:, 0] - place[0], points[:, 1] - place[1]
        return int(((x > -gap) & (x < w + gap) & (y > -gap) & (y < h + gap)).sum())

    return min(places.values(), key=hidden)


def _fitted(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: float) -> str:
    """The text, cut with an ellipsis where it is wider than `width`."""
    if font.getlength(text) <= width:
        return text
    kept = text
    while kept and font.getlength(kept + "…") > width:
        kept = kept[:-1]
    return kept + "…"


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
