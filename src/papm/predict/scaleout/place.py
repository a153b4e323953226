"""Folders and images wherever they are: on a disk, or in an object store that fsspec knows (`s3://bucket/photos`)."""

from __future__ import annotations

import glob
import io
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor

from papm.errors import ConfigError, DataError, WriteError
from papm.files import write_atomic
from papm.images import (
    decode_image,
    find_images,
    find_unread,
    is_image_name,
    is_unread_name,
    max_pixels,
    passed_over,
    read_image,
    without_copies,
)
from papm.predict.video import is_video_name

log = logging.getLogger(__name__)

BYTES_A_PIXEL = 16  # no image file is larger: 32-bit floats in four channels, not compressed


def is_url(address: str) -> bool:
    """
    >>> is_url("s3://bucket/a.jpg"), is_url("photos/a.jpg")
    (True, False)
    """
    return "://" in address


def file_system(address: str) -> tuple[Any, str]:
    """What fsspec reads an address with, and the path that it has there; an address with a password in it is refused.

    Addresses are written into manifests, results and logs, where a password does not belong.
    """
    before, at, _ = address.partition("://")[2].partition("/")[0].rpartition("@")
    if at and ":" in before:
        raise ConfigError(
            "an address with a password in it would stand in the results: give it to the store in another way "
            "(a variable or a file that fsspec's driver reads)"
        )
    try:
        fs, path = url_to_fs(address)
    except (ValueError, ImportError) as error:  # a protocol that nobody knows, or whose package is not installed
        raise ConfigError(f"{address}: cannot be opened ({error})") from None
    return fs, path


class Place:
    """A folder of small files, each written whole or not at all."""

    def __init__(self, address: str | os.PathLike[str]) -> None:
        self.address = os.fspath(address)
        self.fs, path = file_system(self.address)
        self.root = path.rstrip("/") or "/"
        self.local = isinstance(self.fs, LocalFileSystem)
        if self.local:  # the same for every process, whatever folder it works in
            self.address = self.root = str(Path(self.root).absolute())

    def __str__(self) -> str:
        return self.address

    def path(self, name: str) -> str:
        """Of a file, for `self.fs`."""
        return f"{self.root}/{name}"

    def names(self, folder: str = ".") -> list[str]:
        """The files that are there, or in a folder of it; none where there is no such folder."""
        path = self.root if folder == "." else self.path(folder)
        try:
            self.fs.invalidate_cache(path)
            return sorted(str(p).rstrip("/").rpartition("/")[2] for p in self.fs.ls(path, detail=False))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """All of a file."""
        return bytes(self.fs.cat_file(self.path(name)))

    def write(self, name: str, content: bytes) -> None:
        """A whole file in place of what is there: renamed on a disk, and one upload elsewhere."""
        if self.local:
            write_atomic(Path(self.path(name)), lambda stream: stream.write(content))
            return
        try:
            self.fs.pipe_file(self.path(name), content)
        except Exception as error:  # every store has its own
            raise WriteError(f"{self.address}/{name}: cannot be written ({_first_line(error)})") from None


def list_images(patterns: Iterable[str]) -> list[str]:
    """The images that files, folders and patterns such as `photos/**/*.jpg` name, each once, sorted."""
    found: set[str] = set()
    unread: set[Path] = set()
    for pattern in patterns:
        matching, other = _matching(pattern)
        if not matching:
            more = passed_over(other) or "write ** for sub-folders ('photos/**/*.jpg')"
            raise DataError(f"{pattern}: there are no images here; {more}")
        found.update(matching)
        unread.update(other)
    if unread and (said := passed_over(without_copies(unread, map(Path, found)))):
        log.warning("%s", said)
    return sorted(found)


def _matching(pattern: str) -> tuple[list[str], list[Path]]:
    """The images that are named, and files beside them that are images by their names in formats that are not read."""
    fs, path = file_system(pattern)
    if is_video_name(path):
        raise DataError(f"{pattern}: a video; leave --engine ray out to count in it")
    if isinstance(fs, LocalFileSystem):
        return _on_disk(Path(path))
    try:
        if glob.has_magic(path):
            names, unread = _sorted_out(fs.glob(path))
        elif fs.isdir(path):
            names, unread = _sorted_out(fs.ls(path, detail=False))
        else:
            names, unread = [path] if fs.exists(path) else [], []
    except Exception as error:  # every store has its own
        raise DataError(f"{pattern}: cannot be listed ({_first_line(error)})") from None
    addresses = [[str(fs.unstrip_protocol(name)) for name in part] for part in (names, unread)]
    return addresses[0], [Path(address) for address in addresses[1]]


def _on_disk(path: Path) -> tuple[list[str], list[Path]]:
    """Quicker than fsspec, which looks at every file."""
    if path.is_dir():
        return [str(p) for p in find_images(path)], find_unread(path)
    if path.exists() or path.is_symlink():
        return [str(path)], []
    # Not Path.glob: it has no quick way past the files that do not match
    names, unread = _sorted_out(glob.iglob(str(path), recursive=True))  # noqa: PTH207
    return [str(Path(name)) for name in names], [Path(name) for name in unread]


def _sorted_out(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of some files the images, and those in formats that are not read."""
    images, unread = list[str](), list[str]()
    for path in paths:
        name = Path(path).name
        if is_image_name(name):
            images.append(path)
        elif is_unread_name(name):
            unread.append(path)
    return images, unread


def read_pixels(address: str) -> Tensor:
    """The image at an address, uint8 [3, H, W]; DataError where there is none that can be read."""
    if not is_url(address):
        return read_image(address)
    fs, path = file_system(address)
    try:
        size = fs.size(path)
        if size is not None and size > BYTES_A_PIXEL * max_pixels():
            raise DataError(f"{address}: {size / 1e9:.1f} GB, more than an image of {max_pixels() / 1e6:g} megapixels")
        content = fs.cat_file(path)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{address}: no such image file") from None
    except Exception as error:  # every store has its own
        raise DataError(f"{address}: cannot open this image ({_first_line(error)})") from None
    return decode_image(io.BytesIO(content), address)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200] or type(error).__name__
