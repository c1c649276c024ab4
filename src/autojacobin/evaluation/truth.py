"""Ground truth: exact Euclidean neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError
from autojacobin.hashers._vectors import as_floats, as_matrix, float_blocks
from autojacobin.search._arguments import checked_k

__all__ = ["ground_truth"]

_DISTANCES_PER_BLOCK = 2**23


def ground_truth(base: Any, queries: Any, k: int) -> npt.NDArray[np.int64]:
    """Ids of the ``k`` rows of ``base`` nearest to each query in Euclidean distance, equal distances by lower id.

    Distances are computed in float64 from a matrix product, after the mean of the base is taken off both sides, so
    that large norms do not cancel. For vectors of whole numbers, such as SIFT, they are therefore exact up
    to the rounding of that mean, and what lies within rounding of the k-th distance is measured again by differences.

    Returns
    -------
    ids : array of int64, shape (n_queries, k)
    """
    base, queries = as_matrix(base, "ground_truth"), as_matrix(queries, "ground_truth")
    if base.shape[1] != queries.shape[1]:
        raise DataError(
            f"base and queries must be matrices of one width, got shapes {base.shape} and {queries.shape}; "
            "pass vectors of the same kind, a vector a row"
        )
    k = checked_k(k, len(base), "the base")
    for matrix in (base, queries):
        row = 0
        for block in float_blocks(matrix):
            row += len(as_floats(block, row))  # which refuses NaN and Inf, and says where they are
    mean = base.mean(axis=0, dtype=np.float64)
    centred = base - mean
    norms = (centred * centred).sum(axis=1)
    slack = 1e-9 * max(float(norms.max()), np.finfo(np.float64).tiny)
    ids = np.empty((len(queries), k), dtype=np.int64)
    block = max(1, _DISTANCES_PER_BLOCK // len(base))
    for start in range(0, len(queries), block):
        rough = norms - 2 * ((queries[start : start + block] - mean) @ centred.T)
        edge = np.partition(rough, k - 1, axis=1)[:, k - 1]
        for row, (near, bound) in enumerate(zip(rough, edge + slack, strict=True), start):
            candidates = np.flatnonzero(near <= bound)
            gaps = base[candidates].astype(np.float64) - queries[row].astype(np.float64)
            exact = (gaps * gaps).sum(axis=1)
            ids[row] = candidates[np.argsort(exact, kind="stable")[:k]]
    return ids
