"""Ask an index everything once that is compiled for itself, before the first request has to wait for the compiler.

Kernels are compiled for types of arrays, never for a value of k. But k, the candidates and the number of queries decide
which kernels run. Seen on indexes of every dtype, these are the edges:

- from 32 queries on, tiles are turned into slices;
- from 64 queries a core on, the candidates of a re-ranked search are collected; from 256 a core on, each core scans
  the whole base and guesses its radii there;
- above 512 queries, their codes come in several parts, whose union is another type to the compiler;
- from 2^18 numbers on, those of all the candidates of a block, float32 estimates come before the exact distances;
- whole numbers are measured otherwise than others in an index of bytes;
- a recall is learned with kernels of its own, some of them for a base of more than one block, and with queries of the
  dtype of the index.
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
_COMPARISONS = 2**30  # of codes, in one search: some tenths of a second
_STAND_IN_ROWS, _STAND_IN_NUMBERS = 10_000, 2**23  # more than a block of the search for true neighbours


def kind_of(index: Index) -> Hashable:
    """What decides which kernels an index needs, found with one query by each distance; it must not be empty."""
    figures = index.info()
    found = [index.search(_queries(index, 1), 1, distance=distance, rerank=False)[1] for distance in _DISTANCES]
    dtype = index.vectors(found[0][0]).dtype.str if figures["vectors_kept"] else None
    return figures["bits"], figures["features"], dtype, figures["segments"] > 1, figures["vectors"].bit_length()


def warm_up(index: Index, *, max_queries: int) -> None:
    """Search an index that is not empty in each way that has kernels of its own.

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
    """Numbers beyond each edge; of a large index those alone that take no minutes."""
    collected = _COLLECTED_PER_CORE * usable_cores()
    most = min(max_queries, max(collected, _COMPARISONS // n_vectors))
    return sorted({1, *(n for n in (_SLICED, collected, _IN_ONE_PART) if n < most), most})


def _warm_up_measures(index: Index) -> None:
    """Re-rank so many that they are estimated first, and for a query of the dtype of the index."""
    width = int(index.hasher.n_features_in_)
    candidates = min(len(index), max(_DEFAULT_CANDIDATES, -(-_ESTIMATED_NUMBERS // (_SLICED * width))))
    needed = -(-_ESTIMATED_NUMBERS // (candidates * width))
    n_queries = max(_SLICED, min(needed, _COLLECTED_PER_CORE * usable_cores() - 1))
    _, ids = index.search(_queries(index, n_queries), 1, candidates=candidates)
    index.search(index.vectors(ids[0]), 1)


def _warm_up_recall(index: Index) -> None:
    """Learn a recall on a small index of the same kind: on the index itself it may take minutes."""
    dtype, width = index.vectors(index.search(_queries(index, 1), 1)[1][0]).dtype, int(index.hasher.n_features_in_)
    rows = max(2, min(_STAND_IN_ROWS, _STAND_IN_NUMBERS // width))
    stand_in = Index(index.hasher)
    stand_in.add(np.random.default_rng(0).integers(0, 100, size=(rows, width)).astype(dtype))
    stand_in.calibrated(1, 0.5)


def _queries(index: Index, n: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.full((n, int(index.hasher.n_features_in_)), 0.5, dtype=np.float32)
