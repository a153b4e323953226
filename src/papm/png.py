"""The chunks of a PNG file: their checksums, and what they say about the picture without decoding it.

Pillow's decoder looks at no checksum of the pixels (IDAT), and its `getexif` decodes the whole picture to reach what may stand
after it.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import IO

from PIL import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TELLING = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")  # EXIF, its older form in text, XMP
_LONGEST = 1 << 20  # bytes of such a chunk; EXIF has 64 kB at most, a longer text is none of it
_MOST = 1_000_000  # chunks: 8 GB of pixels as libpng writes them
_BLOCK = 1 << 20


def verify(stream: IO[bytes]) -> None:
    """Raise OSError for a file that is cut off, or has a chunk whose checksum (CRC-32) is wrong; what follows IEND is not
    looked at."""
    for name, length in _chunks(stream):
        crc, left = zlib.crc32(name), length
        while left and (block := stream.read(min(left, _BLOCK))):
            crc, left = zlib.crc32(block, crc), left - len(block)
        stored = stream.read(4)
        if left or len(stored) < 4:
            raise OSError("the PNG file is cut off")
        if crc != int.from_bytes(stored, "big"):
            raise OSError(f"wrong checksum in the {name.decode('ascii', 'replace')} chunk of the PNG file")


def about(stream: IO[bytes]) -> Image.Image:
    """A picture of one pixel with the EXIF and the texts of the file, whether they stand before its pixels or after."""
    parts = [_SIGNATURE, _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))]
    parts += [
        _chunk(name, stream.read(length)) for name, length in _chunks(stream) if name in _TELLING and length <= _LONGEST
    ]
    return Image.open(io.BytesIO(b"".join([*parts, _chunk(b"IDAT", b"")])), formats=("PNG",))


def _chunks(stream: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Name and length of each chunk up to IEND, the stream at the beginning of its data."""
    start = len(_SIGNATURE)
    for _ in range(_MOST):
        stream.seek(start)
        head = stream.read(8)
        if len(head) < 8:
            raise OSError("the PNG file is cut off")
        length, name = struct.unpack(">I4s", head)
        yield name, length
        if name == b"IEND":
            return
        start += length + 12
    raise OSError(f"more than {_MOST:,} chunks in the PNG file")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I4s", len(data), name) + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))
