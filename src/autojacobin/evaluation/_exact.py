"""Squared distances without error where whole numbers allow it, and in float64 elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError

__all__ = ["LARGEST_WHOLE", "nearest_exactly", "refuse_huge_integers"]

LARGEST_WHOLE = 2**52
_USUAL_EXPONENTS = 400  # squares of numbers up to 2^±400 neither overflow nor vanish in float64


def nearest_exactly(base: Any, ids: npt.NDArray[np.int64], query: Any, k: int) -> npt.NDArray[np.int64]:
    """Places in ``ids``, which ascend, of the ``k`` nearest to ``query``; equal distances by the lower id."""
    order = np.argsort(_squared_distances(np.ascontiguousarray(base[ids]), query), kind="stable")[:k]
    return order.astype(np.int64)


def _squared_distances(points: Any, query: Any) -> Any:
    if points.dtype.kind in "biu" and query.dtype.kind in "biu":
        whole = points.astype(np.int64) - query.astype(np.int64)
        if whole.shape[1] * int(np.abs(whole).max(initial=0)) ** 2 >= 2**63:
            whole = whole.astype(object)  # Python's integers have no end
        return (whole * whole).sum(axis=1)
    points, query = points.astype(np.float64), query.astype(np.float64)
    largest = max(float(np.abs(points).max(initial=0.0)), float(np.abs(query).max(initial=0.0)))
    exponent = int(np.frexp(largest)[1])
    if abs(exponent) > _USUAL_EXPONENTS:
        points, query = np.ldexp(points, -exponent), np.ldexp(query, -exponent)
    gaps = points - query
    return (gaps * gaps).sum(axis=1)


def refuse_huge_integers(block: Any) -> None:
    """Refuse whole numbers whose differences float64 does not hold."""
    if block.dtype.kind not in "iu" or block.dtype.itemsize < 8 or not block.size:
        return
    least, most = int(block.min()), int(block.max())
    if max(-least, most) > LARGEST_WHOLE:
        raise DataError(
            f"ground_truth takes whole numbers from -2^52 to 2^52, got {most if most > LARGEST_WHOLE else least}; "
            "subtract a constant from base and queries, or scale both down"
        )
