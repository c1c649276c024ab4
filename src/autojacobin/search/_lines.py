"""Arrays that begin where a line of the cache does.

NumPy aligns to 16 bytes, and a register of 64 bytes that lies across two lines is loaded from both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BYTES_PER_LINE", "empty_at_line"]

BYTES_PER_LINE = 64


def empty_at_line(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Give an array like ``np.empty`` whose first byte is the first of a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + BYTES_PER_LINE, dtype=np.uint8)
    start = -room.ctypes.data % BYTES_PER_LINE
    return room[start : start + size].view(dtype).reshape(shape)
