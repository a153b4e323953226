"""Whether a PNG is whole, by the checksums that it carries itself; independent of Pillow and of papm."""

from __future__ import annotations

import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def damaged(data: bytes) -> bool:
    """Whether a chunk fails its checksum, or the file ends before its last chunk, IEND.

    A file that does not begin as a PNG is none, and so not a damaged one. What follows IEND belongs to no picture.
    """
    if not data.startswith(SIGNATURE):
        return False
    place = len(SIGNATURE)
    while place + 8 <= len(data):
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        if kind == b"IEND":
            return False
        end = place + 8 + length
        if zlib.crc32(data[place + 4 : end]) != int.from_bytes(data[end : end + 4], "big") or len(data) < end + 4:
            return True
        place = end + 4
    return True
