"""What the metrics take: anything that NumPy makes numbers of, or tensors, which come to the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Array = NDArray[np.float64]
Values = ArrayLike | Tensor


def as_array(values: Values) -> Array:
    """float64 of any shape."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)
