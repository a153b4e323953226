"""NumPy files, read without what could run code or take more memory than the file has bytes."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from papm.data.readers.faults import read_bytes
from papm.errors import DataError

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def load_npy(path: Path, *, expected: str, kinds: str = "fiu") -> NDArray[Any]:
    """The array of numbers of a .npy file; anything else raises DataError, saying `expected`.

    `kinds` of numbers as NumPy calls them: f, i, u, and b for true and false.
    """
    data = read_bytes(path)
    stream = io.BytesIO(data)
    try:
        shape, by_column, dtype = _HEADERS[npy.read_magic(stream)](stream)
        start = stream.tell()
        if dtype.kind not in kinds or math.prod(shape) * dtype.itemsize != len(data) - start:
            raise ValueError(f"{'×'.join(map(str, shape))} of {dtype} in {len(data) - start} bytes")
        return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if by_column else "C")
    except Exception as e:  # a header is Python text: what is raised on a damaged one is not documented
        detail = str(e).strip().partition("\n")[0][:120] or type(e).__name__
        raise DataError(f"{path}: damaged or not a NumPy file of numbers ({detail}); expected {expected}") from e
