"""PNG files: every damaged bit is noticed, and what they say about themselves is read without decoding them."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from papm import images
from papm.data.upright import as_stored
from papm.errors import DataError
from papm.images import decode_image, image_size, orientation, read_image
from papm.predict.pixels import pixels
from papm.rgb import image_pixels

NOISE = np.random.default_rng(0).integers(0, 255, (7, 9, 3), dtype=np.uint8)


def written(kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(NOISE).save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def exif(how: int) -> bytes:
    made = Image.Exif()
    made[274] = how
    return made.tobytes()


def with_chunk(data: bytes, extra: bytes, late: bool) -> bytes:
    """The file with one more chunk, before its pixels or after."""
    at = (data.index(b"IEND") if late else data.index(b"IDAT")) - 4
    return data[:at] + extra + data[at:]


@pytest.mark.parametrize("options", [{}, {"exif": exif(6)}], ids=["plain", "exif"])
def test_every_flipped_bit_and_every_missing_byte_is_refused(options: dict[str, object]) -> None:
    data = written(**options)
    assert decode_image(io.BytesIO(data)).shape[0] == 3
    for position in range(len(data)):
        with pytest.raises(DataError):
            decode_image(io.BytesIO(data[:position]))
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(DataError):
                decode_image(io.BytesIO(bytes(damaged)))


def test_what_follows_the_end_does_not_matter() -> None:
    assert torch.equal(decode_image(io.BytesIO(written() + b"more")), decode_image(io.BytesIO(written())))


def test_animations_and_pillow_images() -> None:
    frames = [Image.fromarray(NOISE), Image.fromarray(255 - NOISE)]
    moving = io.BytesIO()
    frames[0].save(moving, "PNG", save_all=True, append_images=frames[1:])
    assert np.array_equal(decode_image(moving).permute(1, 2, 0).numpy(), NOISE)
    with Image.open(io.BytesIO(written(exif=exif(6)))) as lazy:
        lazy.load()
        assert tuple(image_pixels(lazy).shape) == (3, 9, 7), "decoded by somebody else"
    damaged = bytearray(written())
    damaged[damaged.index(b"IDAT") + 20] ^= 4
    with Image.open(io.BytesIO(bytes(damaged))) as lazy, pytest.raises(DataError, match=r"checksum in the IDAT chunk"):
        pixels(lazy)


RAW = "\nexif\n{:8}\n{}\n"  # ImageMagick's form of EXIF in a text
XMP = '<x:xmpmeta><rdf:Description tiff:Orientation="{}"/></x:xmpmeta>'


@pytest.mark.parametrize("late", [False, True], ids=["before the pixels", "after them"])
@pytest.mark.parametrize("form", ["eXIf", "zTXt", "iTXt"])
@pytest.mark.parametrize("how", range(1, 9))
def test_the_orientation_may_stand_anywhere(tmp_path: Path, late: bool, form: str, how: int) -> None:
    body = exif(how)
    info = PngImagePlugin.PngInfo()
    if form == "zTXt":
        info.add_text("Raw profile type exif", RAW.format(len(body), body.hex()), zip=True)
    elif form == "iTXt":
        info.add_itxt("XML:com.adobe.xmp", XMP.format(how))
    extra = chunk(b"eXIf", body[6:]) if form == "eXIf" else chunk(*info.chunks[0][:2])
    path = tmp_path / "a.png"
    path.write_bytes(with_chunk(written(), extra, late))
    assert orientation(path) == how
    stored = torch.from_numpy(NOISE).permute(2, 0, 1)
    turned = read_image(path)
    assert image_size(path) == tuple(turned.shape[1:]) == ((9, 7) if how >= 5 else (7, 9))
    centres = torch.stack(torch.meshgrid(torch.arange(turned.shape[2]), torch.arange(turned.shape[1]), indexing="xy"))
    x, y = as_stored(centres.flatten(1).T + 0.5, path, image_size(path)).floor().long().unbind(-1)
    assert torch.equal(turned.flatten(1), stored[:, y, x]), "points and pixels are turned alike"


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tif", ".webp"])
def test_headers_are_read_without_decoding(tmp_path: Path, suffix: str, decoded: list[str]) -> None:
    path = tmp_path / f"a{suffix}"
    Image.fromarray(NOISE).save(path)
    decoded.clear()
    assert image_size(path) == (7, 9) and orientation(path) == 1 and images.frames(path) == 1
    assert decoded == []
    read_image(path)
    assert decoded != []


def test_the_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papm.png._MOST", 50)
    many = with_chunk(written(), chunk(b"tEXt", b"a\0b") * 60, late=True)
    with pytest.raises(DataError, match="more than 50 chunks"):
        decode_image(io.BytesIO(many))
