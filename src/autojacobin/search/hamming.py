"""Exact Hamming search."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace
from autojacobin.search._arguments import checked_codes, checked_k, checked_subset
from autojacobin.search._gpu import gpu_hamming_topk
from autojacobin.search._topk import NO_PLANES, tiled_topk
from autojacobin.search.tiles import code_words, tiles_of

__all__ = ["hamming_topk"]

# The kernels keep a distance in 15 bits; nobody has codes as long as that, but they should still be found.
_LONGEST = 2**15 - 1
_DISTANCES_PER_BLOCK = 2**22


def hamming_topk(
    queries: Codes, base: Codes, k: SupportsIndex, *, subset: npt.ArrayLike | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Find the ``k`` codes of ``base`` nearest to each query in Hamming distance, exactly.

    Parameters
    ----------
    queries, base : Codes
        Codes of the same length. If those of the base are on a GPU, the search runs there and the answer is in CuPy
        arrays.
    k : int
        Neighbours a query, from 1 to ``len(base)``, or to the size of the subset.
    subset : array of int or mask, optional
        Rows of ``base`` to search among; the others do not count.

    Returns
    -------
    distances, ids : arrays of shape (len(queries), k)
        In order of distance; equal distances in order of id.

    Examples
    --------
    >>> from autojacobin import Codes
    >>> from autojacobin.search import hamming_topk
    >>> base = Codes.from_bits([[0, 0, 0], [1, 1, 1], [0, 1, 1]])
    >>> hamming_topk(Codes.from_bits([[0, 1, 0]]), base, k=2)
    (array([[1, 1]], dtype=int32), array([[0, 2]]))
    """
    checked_codes(queries, base)
    if subset is not None:
        rows = checked_subset(subset, len(base))
        distances, places = hamming_topk(queries, base[rows], checked_k(k, len(rows), "the subset"))
        return distances, namespace(places).asarray(rows)[places]
    wanted = checked_k(k, len(base), "the base")
    if not len(queries):
        return np.empty((0, wanted), dtype=np.int32), np.empty((0, wanted), dtype=np.int64)
    if namespace(base.packed) is not np:
        return gpu_hamming_topk(queries, base, wanted)
    if base.n_bits > _LONGEST:
        return _by_sorting(code_words(queries), code_words(base), wanted)
    return tiled_topk(code_words(queries), NO_PLANES, tiles_of(base), wanted, n_levels=base.n_bits + 1)


def _by_sorting(queries: Any, base: Any, k: int) -> tuple[Any, Any]:
    """Plain search for codes that are too long for the kernels."""
    distances = np.empty((len(queries), k), dtype=np.int32)
    ids = np.empty((len(queries), k), dtype=np.int64)
    block = max(1, _DISTANCES_PER_BLOCK // base.size)
    for start in range(0, len(queries), block):
        rows = slice(start, start + block)
        found = np.bitwise_count(queries[rows, None, :] ^ base[None]).sum(axis=2, dtype=np.int32)
        ids[rows] = np.argsort(found, axis=1, kind="stable")[:, :k]
        distances[rows] = np.take_along_axis(found, ids[rows], axis=1)
    return distances, ids
