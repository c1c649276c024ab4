"""Search an index in every way that has compiled code of its own, so that no request waits for the compiler.

Kernels are compiled for the types of their arrays, never for a value of k. But k, the candidates and the number of
queries decide which kernels run:

- With 32 queries or more, tiles are turned into slices.
- With 64 queries per core or more, a re-ranked search collects its candidates. With 256 per core or more, each core
  scans the whole base and guesses its own radii.
- With more than 512 queries, their codes are concatenated from parts, and the result is writable, which is another
  type to the compiler.
- When a block of candidates has 2^18 numbers or more, float32 estimates come before the exact distances.
- An index of bytes measures whole numbers with another kernel than other numbers.
- Learning a recall has kernels of its own. Some of them run only if the base has more than one block, and its queries
  have the dtype of the index.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from autojacobin.core.parallel import usable_cores
from autojacobin.index.index import Index
from autojacobin.search.distances import DistanceName

__all__ = ["kind_of", "warm_up"]

_DISTANCES: tuple[DistanceName, ...] = ("hamming", "asymmetric")
_SLICED = 32
_COLLECTED_PER_CORE = 64
_IN_ONE_PART = 512
_ESTIMATED_NUMBERS = 2**18
_DEFAULT_CANDIDATES = 100
_COMPARISONS = 2**30  # of codes in one search, which take some tenths of a second
_ROWS_TO_LEARN_FROM, _NUMBERS_TO_LEARN_FROM = 10_000, 2**23  # more than one block of the exact search


def kind_of(index: Index) -> Hashable:
    """Give what decides which kernels an index needs. This searches once by each distance; the index has vectors."""
    figures = index.info()
    found = [index.search(_queries(index, 1), 1, distance=distance, rerank=False)[1] for distance in _DISTANCES]
    dtype = index.vectors(found[0][0]).dtype.str if figures["vectors_kept"] else None
    return figures["bits"], figures["features"], dtype, figures["segments"] > 1, figures["vectors"].bit_length()


def warm_up(index: Index, *, max_queries: int) -> None:
    """Search an index, which must not be empty, in every way that has kernels of its own.

    Parameters
    ----------
    index : Index
        What will be asked.
    max_queries : int
        Most vectors that are searched for in one call.
    """
    kept = index.info()["vectors_kept"]
    for n_queries in _numbers_of_queries(len(index), max_queries):
        for distance in _DISTANCES:
            index.search(_queries(index, n_queries), 1, distance=distance, rerank=False)
            if kept:
                index.search(_queries(index, n_queries), 1, distance=distance)
    if kept:
        _warm_up_measures(index)
        _warm_up_recall(index)


def _numbers_of_queries(n_vectors: int, max_queries: int) -> list[int]:
    """Give one number of queries for each set of kernels; few of them for a large index, where many take minutes."""
    collected = _COLLECTED_PER_CORE * usable_cores()
    most = min(max_queries, max(collected, _COMPARISONS // n_vectors))
    return sorted({1, *(n for n in (_SLICED, collected, _IN_ONE_PART) if n < most), most})


def _warm_up_measures(index: Index) -> None:
    """Re-rank enough candidates for estimates, and search for a query of the dtype of the index."""
    width = int(index.hasher.n_features_in_)
    candidates = min(len(index), max(_DEFAULT_CANDIDATES, -(-_ESTIMATED_NUMBERS // (_SLICED * width))))
    needed = -(-_ESTIMATED_NUMBERS // (candidates * width))
    n_queries = max(_SLICED, min(needed, _COLLECTED_PER_CORE * usable_cores() - 1))
    _, ids = index.search(_queries(index, n_queries), 1, candidates=candidates)
    index.search(index.vectors(ids[0]), 1)


def _warm_up_recall(index: Index) -> None:
    """Learn a recall on a small index of the same kind, because learning on the index itself may take minutes."""
    dtype, width = index.vectors(index.search(_queries(index, 1), 1)[1][0]).dtype, int(index.hasher.n_features_in_)
    rows = max(2, min(_ROWS_TO_LEARN_FROM, _NUMBERS_TO_LEARN_FROM // width))
    small = Index(index.hasher)
    small.add(np.random.default_rng(0).integers(0, 100, size=(rows, width)).astype(dtype))
    small.calibrated(1, 0.5)


def _queries(index: Index, n: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.full((n, int(index.hasher.n_features_in_)), 0.5, dtype=np.float32)
