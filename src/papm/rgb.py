"""Pictures that Pillow has opened, of any mode and orientation, as 8-bit RGB: the rules that `images` lists."""

from __future__ import annotations

from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from papm import png

_ORIENTATION = 274  # EXIF tag
_KIND, _SUB_IFDS = 254, 330  # TIFF tags
_BITS_PER_SAMPLE = 258  # TIFF tag
_BAND = 512  # rows
_ALPHA_MODES = ("RGBA", "RGBa", "LA", "La", "PA")
DARK = 64  # of 256 levels: where the brightest pixel lies below, three quarters of them say nothing
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def image_pixels(im: Image.Image, white: int | None = None) -> Tensor:
    """uint8 [3, H, W], RGB, upright, of an image that Pillow has opened or made; `white` as of `images.read_image`."""
    rgb = _to_rgb(im, white)
    if isinstance(rgb, np.ndarray):
        return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()
    # By rows: a copy of 100 megapixels in either layout is 300 MB, and Pillow holds 400 already.
    pixels = torch.empty(3, rgb.height, rgb.width, dtype=torch.uint8)
    for top in range(0, rgb.height, _BAND):
        band = rgb.crop((0, top, rgb.width, min(top + _BAND, rgb.height)))
        pixels[:, top : top + _BAND] = torch.from_numpy(np.array(band)).permute(2, 0, 1)
    return pixels


def stored_values(im: Image.Image) -> np.ndarray[Any, np.dtype[Any]]:
    """The values of pixels as they are stored, [H, W] or [H, W, C], upright: of 16 and 32 bits, of a palette the indices."""
    turn = None if im.format == "TIFF" else _TRANSPOSE.get(exif_orientation(im))
    if (stream := _unread_png(im)) is not None:
        png.verify(stream)
    im.load()
    return np.array(im if turn is None else im.transpose(turn))


def exif_orientation(im: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 where there is none.

    Decodes nothing: Pillow's own `getexif` of a PNG would, and leave an image that looks whole whatever went wrong.
    """
    stream = _unread_png(im)
    try:
        value = Image.Image.getexif(im if stream is None else png.about(stream)).get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF is no reason to refuse the pixels
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def is_preview(im: Image.Image) -> bool:
    """Whether a TIFF begins with a smaller copy of a picture that lies deeper in it: DNG, NEF and ARW do."""
    tags = getattr(im, "tag_v2", {}) if im.format == "TIFF" else {}
    kind = tags.get(_KIND)
    return isinstance(kind, int) and kind & 1 == 1 and _SUB_IFDS in tags


def _unread_png(im: Image.Image) -> IO[bytes] | None:
    """The file of a PNG whose pixels are not decoded yet."""
    return getattr(im, "fp", None) if im.format == "PNG" and getattr(im, "tile", None) else None


def _to_rgb(im: Image.Image, white: int | None) -> np.ndarray[Any, np.dtype[np.uint8]] | Image.Image:
    """Decode: an RGB image, or uint8 [H, W, 3]."""
    is_tiff = im.format == "TIFF"
    full_scale = white or _full_scale(im)
    turn = None if is_tiff else _TRANSPOSE.get(exif_orientation(im))
    if (stream := _unread_png(im)) is not None:
        png.verify(stream)
    im.load()  # a TIFF is turned upright by Pillow here
    out: Image.Image = im if turn is None else im.transpose(turn)
    if out.mode in ("I", "F") or out.mode.startswith("I;16"):
        grey = _grey8(np.asarray(out), full_scale)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if out.mode in _ALPHA_MODES or "transparency" in out.info:
        rgba = out.convert("RGBA")
        black = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
        out = Image.alpha_composite(black, rgba)
    return out if out.mode == "RGB" else out.convert("RGB")


def _full_scale(im: Image.Image) -> int | None:
    """The value of white in an integer image of more than 8 bits, or None when the format does not say."""
    if im.mode.startswith("I;16"):
        bits = im.tag_v2.get(_BITS_PER_SAMPLE, (16,)) if hasattr(im, "tag_v2") else (16,)
        return int((1 << int(bits[0])) - 1)
    if im.mode == "I" and im.format == "PNG":  # 16-bit grey in some releases of Pillow
        return 65535
    return None


def _grey8(a: np.ndarray[Any, Any], full_scale: int | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    v: np.ndarray[Any, Any] = a.astype(np.float32 if a.dtype.itemsize <= 2 else np.float64)
    if full_scale is not None:
        v = v * (255.0 / full_scale)
    else:
        good = np.isfinite(v)
        lo, hi = (float(v[good].min()), float(v[good].max())) if good.any() else (0.0, 0.0)
        v = np.nan_to_num(v, nan=0.0 if lo >= 0 else lo, posinf=hi, neginf=lo)
        if lo >= 0 and hi <= 1 and a.dtype.kind == "f":
            v = v * 255.0
        elif lo < 0 or hi > 255:
            v = (v - lo) * (255.0 / (hi - lo) if hi > lo else 0.0)
    out: np.ndarray[Any, np.dtype[np.uint8]] = np.clip(np.rint(v), 0, 255).astype(np.uint8)
    return out


def nearly_black(image: Tensor) -> bool:
    """Whether a picture uint8 [3, H, W] leaves most of its grey levels unused, as 12 bits of a camera in a 16-bit file do.

    A picture of one colour has nothing to stretch, and is not.

    >>> [nearly_black(torch.tensor([[row]], dtype=torch.uint8)) for row in ([3, 39], [3, 200], [3, 3])]
    [True, False, False]
    """
    return image.numel() > 0 and int(image.max()) < DARK and bool((image != image[:, :1, :1]).any())
