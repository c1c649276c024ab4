"""Exact search by the spherical Hamming distance.

A bit of Spherical Hashing is 1 where a vector lies inside a sphere. Two vectors inside the same sphere have more in
common than two outside of it, so d(a, b) = |a xor b| / |a and b|. Codes that share no one are divided by 1 / n_bits,
which places them behind all others. The order is that of the Jaccard distance |a xor b| / |a or b|.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace
from autojacobin.core.parallel import slices
from autojacobin.errors import DataError
from autojacobin.search.arguments import check_codes, search_rows
from autojacobin.search.queries import Levels, Queries
from autojacobin.search.tiles import code_words, tiles_of

_LONGEST = 2_048  # the table of levels has a row and a column for each number of bits
_PAIRS_PER_BLOCK = 2**26


def spherical_queries(codes: Codes) -> Queries:
    """Prepare codes as queries: whole numbers are ranks of distances."""
    levels = _levels(codes.n_bits)
    return Queries(np.array(code_words(codes)), len(levels.values), levels=levels)


def spherical_topk(
    queries: Codes, base: Codes, k: SupportsIndex, *, subset: npt.ArrayLike | None = None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Find the ``k`` codes of ``base`` nearest to each query in spherical Hamming distance, exactly.

    The distance is the number of bits that differ, divided by the number of ones that both codes have. It is made for
    codes of :class:`~autojacobin.SphericalHashing`.

    Parameters
    ----------
    queries, base : Codes
        Codes of the same length, at most 2,048 bits. If those of the base are on a GPU, the search runs there and the
        result is in CuPy arrays.
    k : int
        Neighbours of each query, from 1 to ``len(base)``, or to the size of the subset.
    subset : array of int or mask, optional
        Rows of ``base`` to search among; the others do not count.

    Returns
    -------
    distances, ids : arrays of shape (len(queries), k)
        In order of distance; equal distances in order of id. Codes that share no one have ``n_bits`` times their
        Hamming distance, which is more than any other code has.

    Examples
    --------
    >>> from autojacobin import Codes
    >>> from autojacobin.search import spherical_topk
    >>> base = Codes.from_bits([[0, 0, 1], [1, 1, 1], [0, 1, 0]])
    >>> spherical_topk(Codes.from_bits([[1, 1, 0]]), base, k=3)
    (array([[0.5, 1. , 9. ]], dtype=float32), array([[1, 2, 0]]))
    """
    check_codes(queries, base)

    def search(codes: Codes, wanted: int) -> tuple[Any, Any]:
        if namespace(codes.packed) is not np:
            return _topk_by_products(queries, codes, wanted)
        prepared = spherical_queries(queries)
        whole, ids = tiles_of(codes).nearest(prepared, wanted)
        return prepared.real(whole), ids

    return search_rows(base, k, subset, search)


@lru_cache(maxsize=8)
def _levels(n_bits: int) -> Levels:
    """Give all distances between codes of ``n_bits`` bits, and the rank of each by the two counts it depends on.

    Equal fractions have equal quotients in floating point, and fractions of numbers as small as these have different
    ones if they differ.
    """
    if n_bits > _LONGEST:
        raise DataError(
            f"a search by the spherical distance takes codes of at most {_LONGEST:,} bits, got {n_bits:,}; use shorter "
            "codes, or the Hamming distance"
        )
    differing, shared = np.meshgrid(np.arange(n_bits + 1), np.arange(n_bits + 1), indexing="ij")
    possible = differing + shared <= n_bits
    quotients = np.where(shared, differing / np.maximum(shared, 1), differing * n_bits)
    values, ranks = np.unique(quotients[possible], return_inverse=True)
    table = np.zeros(quotients.shape, dtype=np.float32)
    table[possible] = ranks
    return Levels(table, values.astype(np.float32))


def _topk_by_products(queries: Codes, base: Codes, k: int) -> tuple[Any, Any]:
    """Search on a GPU: a matrix product counts the ones that queries and codes share."""
    xp = namespace(base.packed)
    levels = _levels(base.n_bits)
    table, values = xp.asarray(levels.table), xp.asarray(levels.values)
    bits, asked = (
        xp.unpackbits(xp.asarray(codes.packed).ravel(), bitorder="little").reshape(len(codes), -1).astype(xp.float32)
        for codes in (base, queries)
    )
    ones = bits.sum(axis=1)
    distances, ids = xp.empty((len(asked), k), dtype=xp.float32), xp.empty((len(asked), k), dtype=xp.int64)
    for rows in slices(len(asked), max(1, _PAIRS_PER_BLOCK // len(base))):
        shared = asked[rows] @ bits.T
        differing = asked[rows].sum(axis=1, keepdims=True) + ones - 2 * shared
        ranks = table[differing.astype(xp.int32), shared.astype(xp.int32)]
        ids[rows] = xp.argsort(ranks, axis=1, kind="stable")[:, :k]
        distances[rows] = values[xp.take_along_axis(ranks, ids[rows], axis=1).astype(xp.int32)]
    return distances, ids
