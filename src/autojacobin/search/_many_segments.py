"""Several segments that answer as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin._arrays import adopt, to_host
from autojacobin.codes import Codes
from autojacobin.hashers import Hasher
from autojacobin.search._segment import ROWS_PER_BLOCK, Part, Segment
from autojacobin.search._selection import put_together
from autojacobin.search._topk import NO_PLANES, tiled_topk
from autojacobin.search.asymmetric import asymmetric_topk, quantise
from autojacobin.search.hamming import hamming_topk
from autojacobin.search.tiles import code_words

__all__ = ["Queries", "asymmetric_queries", "codes_at", "fetch", "hamming_queries", "in_id_order", "nearest"]

_MOST_LEVELS = 2**15  # the kernels keep a distance in 15 bits
_ANSWERS_AT_ONCE = 8

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Queries:
    """Queries as the kernels take them; ``scales`` turns whole distances into real ones, a factor a query."""

    words: npt.NDArray[np.uint64]
    planes: npt.NDArray[np.uint64]
    n_levels: int
    scales: npt.NDArray[np.float64] | None = None


# Codes too long for the kernels are searched by the functions for plain codes, which know what to do then.
Search = Callable[[Codes, int], tuple[Any, Any]]


def hamming_queries(hasher: Hasher, vectors: Any) -> Queries | Search:
    """Codes of the queries."""
    codes = hasher.encode(vectors)
    if codes.n_bits >= _MOST_LEVELS:
        return partial(hamming_topk, codes)
    return Queries(code_words(codes), NO_PLANES, codes.n_bits + 1)


def asymmetric_queries(hasher: Hasher, vectors: Any) -> Queries | Search:
    """Projections of the queries, quantised."""
    projections = to_host(adopt(hasher.project(vectors)))
    quantised = quantise(projections)
    if quantised.n_levels > _MOST_LEVELS:
        return partial(asymmetric_topk, projections)
    return Queries(quantised.words, quantised.planes, quantised.n_levels, quantised.scales)


def nearest(queries: Queries | Search, segments: Sequence[Segment], k: int) -> tuple[npt.NDArray[Any], Ids]:
    """Distances and ids of the ``k`` nearest of all that lives; equal distances in order of id."""
    answers: list[tuple[Any, Any]] = []
    for segment in segments:
        distances, positions = _nearest_here(queries, segment, min(k, segment.n_live))
        answers.append((distances, segment.ids_at(positions)))
        if len(answers) == _ANSWERS_AT_ONCE:
            answers = [put_together(answers, k)]
    distances, ids = put_together(answers, k)
    if isinstance(queries, Queries) and queries.scales is not None:
        # Within a query the scale is one number, so that the order of whole distances is that of the real ones.
        distances = (distances * queries.scales[:, np.newaxis]).astype(np.float32)
    return distances, ids


def _nearest_here(queries: Queries | Search, segment: Segment, k: int) -> tuple[Any, Any]:
    if isinstance(queries, Queries):
        return tiled_topk(queries.words, queries.planes, segment.tiles, k, n_levels=queries.n_levels, dead=segment.dead)
    live = segment.live_positions()
    distances, places = queries(segment.tiles.take(live), k)
    return distances, live[places]


def fetch(segments: Sequence[Segment], ids: Ids) -> npt.NDArray[Any]:
    """Vectors of some ids, all of which live, in the order of the ids."""
    dtypes = {segment.vectors.dtype for segment in segments}
    vectors = np.empty((len(ids), segments[0].vectors.shape[1]), dtype=np.result_type(*dtypes))
    for segment in segments:
        places, positions = segment.find(ids)
        vectors[places] = segment.vectors_at(positions)
    return vectors


def codes_at(segments: Sequence[Segment], ids: Ids, n_bits: int) -> Codes:
    """Codes of some ids, all of which live, in the order of the ids."""
    packed = np.empty((len(ids), -(-n_bits // 8)), dtype=np.uint8)
    for segment in segments:
        places, positions = segment.find(ids)
        packed[places] = segment.tiles.take(positions).packed
    return Codes(packed, n_bits)


def in_id_order(segments: Sequence[Segment]) -> Iterator[Part]:
    """All that lives in the segments, in blocks in ascending order of id."""
    ids = np.concatenate([segment.ids_at(segment.live_positions()) for segment in segments])
    ids.sort()
    n_bits = segments[0].tiles.n_bits
    for start in range(0, len(ids), ROWS_PER_BLOCK):
        block = ids[start : start + ROWS_PER_BLOCK]
        yield Part(
            block, codes_at(segments, block, n_bits), None if segments[0].vectors is None else fetch(segments, block)
        )
