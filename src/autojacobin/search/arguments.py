"""Checks of the arguments of searches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace
from autojacobin.core.counts import as_count as as_count
from autojacobin.errors import DataError, DataTypeError


def check_codes(queries: Any, base: Any) -> None:
    """Check that both are codes of one length."""
    for name, codes in (("queries", queries), ("base", base)):
        if not isinstance(codes, Codes):
            raise DataTypeError(f"{name} must be Codes, got {type(codes).__name__}; use hasher.encode(X)")
    if queries.n_bits != base.n_bits:
        raise DataError(
            f"queries and base must have codes of one length, got {queries.n_bits} and {base.n_bits} bits; "
            "encode both with the same hasher"
        )


def as_k(k: SupportsIndex, most: int, among: str) -> int:
    """Give ``k`` as an int from 1 to ``most``, the number of codes or vectors in ``among``."""
    if most < 1:
        raise DataError(f"there is nothing to find: {among} is empty; add to it first")
    return as_count("k", k, most, f"the size of {among}")


def as_subset(subset: npt.ArrayLike, n: int) -> npt.NDArray[np.int64]:
    """Give rows, named by numbers or by a mask, as numbers in ascending order."""
    rows = np.asarray(subset)
    if rows.dtype == np.bool_:
        if rows.shape != (n,):
            raise DataError(f"a subset given as a mask must have shape ({n},), got {rows.shape}")
        return np.flatnonzero(rows).astype(np.int64)
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
        raise DataTypeError(f"subset must be a list of row numbers or a mask, got {rows.dtype} of shape {rows.shape}")
    unique = np.unique(rows.astype(np.int64))
    if len(unique) and not (unique[0] >= 0 and unique[-1] < n):
        wrong = unique[0] if unique[0] < 0 else unique[-1]
        raise DataError(f"subset must name rows from 0 to {n - 1}, got {wrong}")
    return unique


def search_rows(
    base: Codes, k: SupportsIndex, subset: npt.ArrayLike | None, search: Callable[[Codes, int], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Give what ``search`` finds for a checked ``k`` in the base, or in a subset of it."""
    if subset is None:
        return search(base, as_k(k, len(base), "the base"))
    rows = as_subset(subset, len(base))
    distances, found = search(base[rows], as_k(k, len(rows), "the subset"))
    return distances, namespace(found).asarray(rows)[found]


def default_candidates(k: int) -> int:
    """How many of the nearest codes are re-ranked by default in a search for ``k`` neighbours."""
    return max(10 * k, 100)


def as_candidates(candidates: SupportsIndex | None, k: int) -> int:
    """Give how many of the nearest codes are re-ranked: at least ``k``."""
    number = default_candidates(k) if candidates is None else as_count("candidates", candidates)
    if number < k:
        raise DataError(f"candidates must be at least k = {k}, got {number}; ask for more of them or a smaller k")
    return number
