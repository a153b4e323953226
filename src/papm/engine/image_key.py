"""The key of an image, which tells it from others: in used_images.csv, in a calibrated model, in the page of `papm serve`.

It is made of all bytes of the file. Parts of a file are not enough: without compression, as in a BMP, they are the same in all
images with a flat background. Decoding a file, which a run does anyway, takes longer.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from papm.structures import Sample

DIGITS = 16  # hexadecimal


def key(sample: Sample) -> str:
    """Of the image as published: of its file, or of the name, the size and the points of a drawn scene."""
    published = sample.published
    if published.file is not None:
        return file_key(published.file)
    drawn = f"{published.name} {published.size} {published.points.tolist()}"
    return content_key(drawn.encode(errors="surrogateescape"))


def file_key(path: Path) -> str:
    """The key of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:DIGITS]


def content_key(content: bytes) -> str:
    """The key of a file with this content.

    >>> content_key(b"")
    'e3b0c44298fc1c14'
    """
    return hashlib.sha256(content).hexdigest()[:DIGITS]
