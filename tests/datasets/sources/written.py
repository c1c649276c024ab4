"""Arrays as the bytes of the files that the sets come in."""

import struct

import numpy as np


def vecs(array):
    """The bytes of .fvecs, .bvecs and .ivecs, packed row by row."""
    return b"".join(struct.pack("<i", len(row)) + row.tobytes() for row in array)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def rows_of(array):
    return {row.tobytes() for row in np.ascontiguousarray(array)}
