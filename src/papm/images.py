"""Reading image files: any common format becomes uint8 [3, H, W], RGB, upright.

Rules for what is not plain 8-bit RGB
- EXIF rotation is applied, in `image_size` too. It is read without decoding the pixels.
- Alpha (also a transparent palette colour) is composited on black: transparent areas of orthomosaics are "nothing there".
- 16-bit grey is scaled by 255/65535, other integer depths a TIFF declares (12 bit, ...) by 255/(2^bits - 1).
- 32-bit integers and floats have no fixed range: 0…255 is kept (floats within 0…1 are taken as fractions of white),
  anything wider is stretched from its minimum to its maximum; NaN becomes black.
- Of several frames the first is read. A TIFF whose first says that it is a preview, as in a camera's raw file, is refused.

A file that is cut off is refused in every format, and so is a PNG with a wrong checksum. The others have none, apart from TIFF
compressed with deflate: bytes that changed inside the pixels of a JPEG, WebP, BMP or another TIFF are mostly not noticed.

Input is bounded: an image of more than `max_pixels()` pixels is refused from its header, before anything is decoded.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.rgb import exif_orientation, image_pixels, is_preview, stored_values
from papm.text import megapixels

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".tif", ".tiff", ".webp"})
# Of photographs and drawings in formats that are not read: phones, cameras, the web, microscopes and scanners.
UNREAD_SUFFIXES = frozenset(
    {".heic", ".heif", ".hif", ".gif", ".avif", ".svg", ".psd", ".jp2", ".j2k", ".jpx", ".jxl", ".jxr", ".ico", ".tga"}
    | {".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".pef", ".srw", ".pgm", ".ppm", ".exr"}
    | {".czi", ".lif", ".nd2", ".oib", ".oif", ".vsi", ".svs", ".ndpi", ".dcm"}
)
MAX_PIXELS = 500_000_000  # 1.5 GB decoded; PAPM_MAX_PIXELS in the environment overrides it

KINDS = ("JPEG", "PNG", "BMP", "TIFF", "WebP")
_FORMATS = tuple(kind.upper() for kind in KINDS)  # nothing else of Pillow's decoders is reachable from a file
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257  # TIFF tags


def max_pixels() -> int:
    """The largest image that is read, in pixels: PAPM_MAX_PIXELS, or MAX_PIXELS."""
    text = os.environ.get("PAPM_MAX_PIXELS", "").strip()
    if not text:
        return MAX_PIXELS
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"PAPM_MAX_PIXELS is '{text}'; write a whole number of pixels, such as {MAX_PIXELS}")
    return int(text)


def read_image(path: str | Path, white: int | None = None) -> Tensor:
    """Pixels of an image file: uint8 [3, H, W], RGB, upright. A file that cannot be decoded raises DataError.

    `white` is the value of white in 16-bit grey where the file does not say it (4095: a camera of 12 bits).
    """
    with _file(path) as im:
        return image_pixels(im, white)


def read_values(path: str | Path) -> np.ndarray[Any, np.dtype[Any]]:
    """The values in an image file as they are stored, [H, W] or [H, W, C], upright: what a mask says of each pixel."""
    with _file(path) as im:
        return stored_values(im)


def decode_image(stream: BinaryIO, name: str = "image", limit: int | None = None) -> Tensor:
    """The same from an open binary stream (an upload, a member of an archive); `name` is used in messages.

    `limit` pixels, where given, take the place of `max_pixels()`.
    """
    with _opened(stream, name, limit) as im:
        return image_pixels(im)


def image_size(path: str | Path) -> tuple[int, int]:
    """(H, W) of the upright image, from the header alone."""
    with _file(path) as im:
        width, height = im.size
        if im.format == "TIFF":  # whose im.size some releases of Pillow give upright already
            tags = getattr(im, "tag_v2", {})
            width, height = int(tags[_TIFF_WIDTH]), int(tags[_TIFF_HEIGHT])
        return (width, height) if exif_orientation(im) >= 5 else (height, width)


def orientation(path: str | Path) -> int:
    """The EXIF orientation that an image file declares, 1 to 8; 1 where it declares none or cannot be read."""
    try:
        with _file(path) as im:
            return exif_orientation(im)
    except DataError:  # what is wrong with an image is told where it is read
        return 1


def frames(path: str | Path) -> int:
    """The number of pictures of one size in a file, of which the first is read; a thumbnail beside it does not count."""
    try:
        with _file(path) as im:
            count, size = int(getattr(im, "n_frames", 1)), im.size
            if count > 1:
                im.seek(1)
            return count if im.size == size else 1
    except Exception:  # what is wrong with the first picture is told where it is read, and nobody wants the others
        return 1


def resize_image(image: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 [3, H, W] at another size (H, W): bicubic, and antialiased when it shrinks.

    >>> resize_image(torch.full((3, 8, 6), 7, dtype=torch.uint8), (4, 3)).unique().tolist()
    [7]
    """
    if tuple(image.shape[1:]) == tuple(size):
        return image
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    made = picture.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(made)).permute(2, 0, 1).contiguous()


def find_images(folder: str | Path, recursive: bool = False) -> list[Path]:
    """Image files of a folder in natural order (IMG_2 before IMG_10); hidden files, such as macOS's `._x.jpg`, are not.

    >>> find_images(Path(__file__).parent)
    []
    """
    return _named(Path(folder), is_image_name, recursive)


def find_unread(folder: str | Path) -> list[Path]:
    """Files of a folder that are images by their names, in formats that are not read; not those with a copy that is."""
    found = _named(Path(folder), is_unread_name)
    return without_copies(found, _fitting(Path(folder), is_image_name)) if found else []


def without_copies(unread: Iterable[Path], read: Iterable[Path]) -> list[Path]:
    """The files without an image of the same name beside them, as a phone's HEIC has its JPEG and a camera's RAW too.

    >>> without_copies([Path("a/1.HEIC"), Path("a/2.HEIC"), Path("b/1.CR2")], [Path("a/1.jpg")])
    [PosixPath('a/2.HEIC'), PosixPath('b/1.CR2')]
    """
    copies = {p.with_suffix("") for p in read}
    return [p for p in unread if p.with_suffix("") not in copies]


def passed_over(files: Iterable[Path]) -> str:
    """What is said of images whose format is not read; nothing where there are none.

    >>> passed_over([Path("a.HEIC"), Path("b.heic"), Path("c.gif")])
    '3 files were passed over, as their format is not read: .heic (2), .gif (1); save them as JPEG or PNG'
    >>> passed_over([])
    ''
    """
    kinds = Counter(p.suffix.lower() for p in files)
    if not kinds:
        return ""
    what, them, its = ("file was", "it", "its") if kinds.total() == 1 else ("files were", "them", "their")
    listed = ", ".join(f"{suffix} ({number})" for suffix, number in kinds.most_common())
    return f"{kinds.total():,} {what} passed over, as {its} format is not read: {listed}; save {them} as JPEG or PNG"


def is_image_name(name: str) -> bool:
    """Whether a file of that name should be an image.

    >>> is_image_name("IMG_1.JPG"), is_image_name("._IMG_1.jpg"), is_image_name("IMG_1.txt")
    (True, False, False)
    """
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES


def is_unread_name(name: str) -> bool:
    """Whether a file of that name should be an image in a format that is not read.

    >>> is_unread_name("IMG_1.HEIC"), is_unread_name("IMG_1.jpg")
    (True, False)
    """
    return not name.startswith(".") and Path(name).suffix.lower() in UNREAD_SUFFIXES


def is_image(path: Path) -> bool:
    """Whether a file is an image in a format that is read, by its header: a scanner's .svs is a TIFF."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as stream, _own_limit(), Image.open(stream, formats=_FORMATS) as im:
            return not is_preview(im)
    except Exception:  # what a decoder raises on something else
        return False


def natural_key(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key that orders runs of digits by value.

    >>> sorted(["b10", "b9", "a2"], key=natural_key)
    ['a2', 'b9', 'b10']
    """
    parts = [p for p in re.split(r"([0-9]+)", text) if p]
    return [(0, int(p), "") if p[0] in "0123456789" else (1, 0, p.casefold()) for p in parts], text


# --- below: how it is done ---------------------------------------------------------------------------------------------


def _named(folder: Path, fits: Callable[[str], bool], recursive: bool = False) -> list[Path]:
    """Files of a folder whose names fit, in natural order."""
    return sorted(_fitting(folder, fits, recursive), key=lambda p: natural_key(p.relative_to(folder).as_posix()))


def _fitting(folder: Path, fits: Callable[[str], bool], recursive: bool = False) -> list[Path]:
    """The same in no order; a broken link is a missing image, not no image."""
    try:
        if recursive:
            return [p for p in folder.rglob("*") if fits(p.name) and (p.is_file() or p.is_symlink())]
        with os.scandir(folder) as found:  # knows files without a look at each of thousands
            return [folder / f.name for f in found if fits(f.name) and (f.is_file() or f.is_symlink())]
    except OSError as e:
        raise DataError(f"{folder}: cannot list this folder ({e.strerror or e})") from e


_lock = threading.Lock()
_users = 0
_saved_limit: int | None = None


@contextmanager
def _own_limit() -> Iterator[None]:
    """Switch off Pillow's global pixel limit (a warning at 89 MP, an error at 178 MP) while one of our reads runs.

    Counted, so that reads in several threads neither wait for each other nor restore it too early.
    """
    global _users, _saved_limit
    with _lock:
        if _users == 0:
            _saved_limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                Image.MAX_IMAGE_PIXELS = _saved_limit


@contextmanager
def _file(path: str | Path) -> Iterator[Image.Image]:
    """`_opened` of a file."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a pipe would wait for somebody to write to it
            raise DataError(f"{path}: a pipe or a device, not an image file")
        stream = path.open("rb")
    except FileNotFoundError as e:
        raise DataError(f"{path}: no such image file") from e
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        raise DataError(f"{path}: cannot open this image ({getattr(e, 'strerror', None) or e})") from e
    with stream, _opened(stream, str(path)) as im:
        yield im


@contextmanager
def _opened(stream: BinaryIO, name: str, own_limit: int | None = None) -> Iterator[Image.Image]:
    """The image behind a stream, its size checked; whatever a decoder raises inside becomes a DataError."""
    limit = max_pixels() if own_limit is None else own_limit
    how = "; raise it with the environment variable PAPM_MAX_PIXELS if the file is trusted" if own_limit is None else ""
    with _own_limit():
        try:
            with Image.open(stream, formats=_FORMATS) as im:
                pixels = im.width * im.height
                if pixels > limit:
                    raise DataError(
                        f"{name}: {im.width}×{im.height} is {megapixels(pixels)} megapixels, more than the limit of"
                        f" {limit / 1e6:g}{how}"
                    )
                if is_preview(im):
                    raise DataError(
                        f"{name}: begins with a small preview, as a camera's raw file; save it as JPEG or PNG"
                    )
                yield im
        except DataError:
            raise
        except UnidentifiedImageError as e:
            stream.seek(0)
            empty = "the file is empty (0 bytes), not an image"
            other = f"not a readable image ({', '.join(KINDS[:-1])} and {KINDS[-1]} are)"
            raise DataError(f"{name}: {other if stream.read(1) else empty}") from e
        except Exception as e:  # decoders raise OSError, SyntaxError, struct.error, KeyError, … on damaged files
            first = (str(e).strip().splitlines() or [type(e).__name__])[0]
            raise DataError(f"{name}: damaged or truncated image ({first})") from e
