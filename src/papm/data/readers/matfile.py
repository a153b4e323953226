"""MATLAB files, read by scipy only after a look at their structure.

`scipy.io.loadmat` trusts the lengths and type codes it finds: a damaged or hostile file can crash the interpreter, and a
compressed one can grow without bound. So the elements are walked here first, and only the wanted variables, decompressed
within a limit and found well formed, are handed on.

The format ("MAT-File Format", MathWorks): a 128-byte header, then elements of an 8-byte tag (type, bytes) and data padded to
8; a matrix element holds flags, dimensions, name, and numbers, cells or struct fields that are elements again.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papm.data.readers.faults import MAX_ANNOTATION_BYTES, read_bytes
from papm.errors import DataError

_HEADER = 128
_INT8, _UINT8, _INT32, _UINT32, _MATRIX, _COMPRESSED, _UTF8 = 1, 2, 5, 6, 14, 15, 16
_ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}  # numeric type codes
_CELL, _STRUCT, _CHAR, _NUMERIC = 1, 2, 4, range(6, 16)  # array classes
_COMPLEX = 0x0800
_MAX_DEPTH = 10
_MAX_DIMENSIONS = 32  # scipy's


def load_mat(path: Path, *names: str, expected: str) -> dict[str, Any]:
    """The named variables of a MATLAB 5 to 7.2 file; a missing one or a damaged file raises DataError, saying `expected`."""
    import scipy.io

    data = read_bytes(path)
    if data[:15] == b"MATLAB 7.3 MAT-" or data[:8] == b"\x89HDF\r\n\x1a\n":
        raise DataError(f"{path}: a MATLAB 7.3 (HDF5) file, expected {expected}; save it again with -v7")
    try:
        order = _byte_order(data)
        parts = {name: part for name, part in _variables(data, order) if name in names}
        content = scipy.io.loadmat(io.BytesIO(data[:_HEADER] + b"".join(parts.values())))
    except Exception as e:  # ours are ValueError; what scipy raises on a file that passed is not documented
        detail = str(e).strip().partition("\n")[0] or type(e).__name__
        raise DataError(f"{path}: damaged or not a MATLAB file ({detail}); expected {expected}") from e
    for name in names:
        if name not in content:
            raise DataError(f"{path}: has no variable '{name}'; expected {expected}")
    return {name: content[name] for name in names}


def _byte_order(data: bytes) -> str:
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if len(data) < _HEADER or order is None:
        raise ValueError("no MATLAB 5 header")
    return order


def _variables(data: bytes, order: str) -> Iterator[tuple[str, bytes]]:
    """Name and well-formed, uncompressed element of each variable of a supported class."""
    position = _HEADER
    while position + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, position)
        body = data[position + 8 : position + 8 + size]
        if len(body) < size:
            raise ValueError("the file ends inside a variable")
        position += 8 + size
        element = _inflate(body) if kind == _COMPRESSED else data[position - 8 - size : position]
        walker = _Walker(element, order)
        kind, start, end, _ = walker.tag(0, len(element))
        if kind != _MATRIX or end == start:
            continue
        name, supported = walker.name(start, end)
        if supported:
            walker.matrix(start, end, depth=0)
            yield name, element[:end]
    if position != len(data) and data[position:].strip(b"\0"):
        raise ValueError("the file ends inside a tag")


def _inflate(body: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    out = decompressor.decompress(body, MAX_ANNOTATION_BYTES)
    if not decompressor.eof:
        raise ValueError("the compressed data is cut short, or larger than the limit")
    return out


@dataclass(frozen=True)
class _Walker:
    """Steps through the elements of one variable; ValueError at the first length or type that cannot be."""

    data: bytes
    order: str

    def tag(self, position: int, limit: int) -> tuple[int, int, int, int]:
        """(type, start, end, next) of the element at a position."""
        if position + 8 > limit:
            raise ValueError("an element is missing")
        kind, size = struct.unpack_from(f"{self.order}II", self.data, position)
        if kind >> 16:  # a small element: type and size in the first four bytes, data in the other four
            kind, size, start, following = kind & 0xFFFF, kind >> 16, position + 4, position + 8
            if size > 4:
                raise ValueError("a small element of more than four bytes")
        else:
            start = position + 8
            following = start + size + (-size % 8 if kind != _MATRIX else 0)
        end = start + size
        if end > limit:
            raise ValueError("an element is longer than what holds it")
        return kind, start, end, min(following, limit)

    def integers(self, position: int, limit: int, kind: int) -> tuple[tuple[int, ...], int]:
        found, start, end, following = self.tag(position, limit)
        if found != kind or (end - start) % 4:
            raise ValueError("an element is not of the type it should be")
        letter = "i" if kind == _INT32 else "I"
        return struct.unpack_from(f"{self.order}{(end - start) // 4}{letter}", self.data, start), following

    def head(self, start: int, limit: int) -> tuple[int, bool, int, bytes, int]:
        """(class, is complex, number of items, name, next) of a matrix element's content."""
        flags, position = self.integers(start, limit, _UINT32)
        dimensions, position = self.integers(position, limit, _INT32)
        if len(flags) != 2 or not 2 <= len(dimensions) <= _MAX_DIMENSIONS or min(dimensions) < 0:
            raise ValueError("impossible dimensions")
        kind, name, end, position = self.tag(position, limit)
        if kind not in (_INT8, _UINT8, _UTF8):
            raise ValueError("a name is not text")
        return flags[0] & 0xFF, bool(flags[0] & _COMPLEX), math.prod(dimensions), self.data[name:end], position

    def name(self, start: int, limit: int) -> tuple[str, bool]:
        """A variable's name and whether it is of a class read here (objects, functions and sparse matrices are not)."""
        flags, _ = self.integers(start, limit, _UINT32)
        if not flags or not ((flags[0] & 0xFF) in (_CELL, _STRUCT, _CHAR) or (flags[0] & 0xFF) in _NUMERIC):
            return "", False
        return self.head(start, limit)[3].decode("latin-1"), True

    def matrix(self, start: int, limit: int, depth: int) -> None:
        """Check the content of a matrix element, and all it holds."""
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        kind, is_complex, count, _, position = self.head(start, limit)
        if kind in (_CELL, _STRUCT):
            fields = 1
            if kind == _STRUCT:
                lengths, position = self.integers(position, limit, _INT32)
                found, begin, end, position = self.tag(position, limit)
                if found != _INT8 or len(lengths) != 1 or not 0 < lengths[0] <= 64 or (end - begin) % lengths[0]:
                    raise ValueError("impossible field names")
                fields = (end - begin) // lengths[0]
            for _ in range(count * fields):
                found, begin, end, position = self.tag(position, limit)
                if found != _MATRIX:
                    raise ValueError("a cell or field is not an array")
                if end > begin:
                    self.matrix(begin, end, depth + 1)
            return
        if kind != _CHAR and kind not in _NUMERIC:
            raise ValueError(f"an array of the unsupported class {kind}")
        for _ in range(2 if is_complex else 1):
            found, begin, end, position = self.tag(position, limit)
            if kind == _CHAR and found in (_UTF8, 17, 18):
                continue
            if found not in _ITEM_BYTES or (kind != _CHAR and end - begin != count * _ITEM_BYTES[found]):
                raise ValueError("an array does not have as many numbers as it should")
