"""A name for the pixels of an image source, the same in every process: what the cache on disk calls its files."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from papm.data.resize import ResizedImage
from papm.errors import DataError


def source_key(source: object, size: tuple[int, int]) -> str | None:
    """A name for the pixels of a source at a size; None when only its address tells a function from another."""
    found = _facts(source)
    if found is None:
        return None
    return hashlib.sha256(json.dumps([1, found, size]).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _facts(source: object) -> Any:
    """What pixels depend on, in plain types; None when that cannot be said."""
    if isinstance(source, Path):
        try:
            stat = source.stat()
        except OSError as error:
            raise DataError(f"{source}: cannot read this image ({error.strerror})") from None
        return ["file", os.path.abspath(source), stat.st_size, stat.st_mtime_ns]  # noqa: PTH100 (links stay links)
    if isinstance(source, ResizedImage):
        inner = _facts(source.source)
        return None if inner is None else ["resized", inner, source.size]
    if isinstance(source, functools.partial):
        parts = [_facts(v) for v in (source.func, *source.args, *source.keywords.values())]
        return None if None in parts else ["call", parts, list(source.keywords)]
    name = getattr(source, "__qualname__", None)
    if callable(source) and isinstance(name, str):
        if "<" in name:
            return None
        found = ["function", getattr(source, "__module__", ""), name]
        if (whose := getattr(source, "__self__", None)) is None:
            return found
        inner = _facts(whose)  # of a method: the object that it draws
        return None if inner is None else [*found, inner]
    with np.printoptions(threshold=sys.maxsize):
        words = repr(source)
    # An address says nothing, and neither does what is left out of a large tensor.
    return None if " at 0x" in words or "..." in words else ["value", words]
