"""Search over segments whose codes are in inverted lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.parallel import map_points
from autojacobin.core.vectors import as_floats
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers import Hasher, PartitionedAutoencoder
from autojacobin.index.calibration import Calibration, Calibrator
from autojacobin.index.searching import measure_of
from autojacobin.index.segment import Segment
from autojacobin.search.arguments import as_count
from autojacobin.search.euclidean import nearest_candidates
from autojacobin.search.kernels.selection import merge_topk
from autojacobin.search.kmeans import Centres
from autojacobin.search.lists import AllowedCodes, ListQueries, list_queries

__all__ = [
    "QUERIES_AT_ONCE", "as_probes", "choose_in_lists", "default_probes", "nearest_in_lists", "nearest_in_segment",
    "prepared_for_lists", "probe_counts", "real_distances", "search_lists",
]  # fmt: skip

_SHARE_PROBED = 32
_FEWEST_PROBES = 8
QUERIES_AT_ONCE = 2**13
_DEEPEST = 5_000  # candidates; if more are needed, more lists are cheaper
# Costs in nanoseconds of a core, roughly; only their ratio matters.
_PER_CODE_BYTE, _PER_VECTOR_BYTE, _PER_LIST = 0.08, 0.25, 60.0

Ids = npt.NDArray[np.int64]


def default_probes(n_lists: int) -> int:
    """How many lists are scanned unless the user says so."""
    return min(n_lists, max(_FEWEST_PROBES, n_lists // _SHARE_PROBED))


def as_probes(probes: SupportsIndex | str | None, hasher: Hasher) -> int | None:
    """Give the number of lists to scan; None if the codes are in no lists."""
    if not isinstance(hasher, PartitionedAutoencoder):
        if probes is not None:
            raise DataError(
                f"probes are for an index with lists, got probes={probes!r} for codes of {type(hasher).__name__}; "
                "leave it out, or make the index with partitions"
            )
        return None
    n_lists = len(hasher.centres_)
    if probes is None:
        return default_probes(n_lists)
    if isinstance(probes, str):
        if probes != "all":
            raise DataTypeError(f"probes must be a number of lists or 'all', got {probes!r}")
        return n_lists
    return as_count("probes", probes, n_lists, "the number of lists")


def probe_counts(n_lists: int) -> list[int]:
    """Numbers of lists to try for a wanted recall, ascending."""
    return [*(1 << power for power in range(n_lists.bit_length()) if 1 << power < n_lists), n_lists]


def _cost(hasher: PartitionedAutoencoder, n: int, probes: int, candidates: int, bytes_per_vector: int) -> float:
    """Estimate the time of a query, of which only the order matters."""
    scanned = n * probes / len(hasher.centres_)
    scan = scanned * hasher.n_bits / 8 * _PER_CODE_BYTE + probes * _PER_LIST
    return scan + candidates * bytes_per_vector * _PER_VECTOR_BYTE


def nearest_in_lists(
    hasher: PartitionedAutoencoder, queries: npt.NDArray[Any], segments: Sequence[Segment], k: int, probes: int
) -> tuple[npt.NDArray[np.float32], Ids]:
    """Distances and ids of the ``k`` nearest codes in the probed lists; infinity and -1 where there are fewer."""
    if len(queries) > QUERIES_AT_ONCE:
        blocks = [queries[start : start + QUERIES_AT_ONCE] for start in range(0, len(queries), QUERIES_AT_ONCE)]
        parts = [nearest_in_lists(hasher, block, segments, k, probes) for block in blocks]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    prepared = prepared_for_lists(hasher, queries, probes)
    return real_distances(prepared, *merge_topk([nearest_in_segment(hasher, prepared, s, k) for s in segments], k))


def nearest_in_segment(
    hasher: PartitionedAutoencoder, prepared: ListQueries, segment: Segment, k: int
) -> tuple[npt.NDArray[np.int32], Ids]:
    """Whole distances and ids of the ``k`` nearest codes in the lists of a segment; -1 where there are fewer."""
    distances, positions = segment.lists(hasher).nearest(prepared, k, _allowed(segment, hasher))
    ids = np.full(positions.shape, -1, dtype=np.int64)
    there = positions >= 0
    ids[there] = segment.ids_at(positions[there])
    return distances, ids


def real_distances(
    prepared: ListQueries, distances: npt.NDArray[np.int32], ids: Ids
) -> tuple[npt.NDArray[np.float32], Ids]:
    """Give real distances for whole ones, and infinity where there is no id."""
    real = prepared.real(distances)
    real[ids < 0] = np.inf
    return real, ids


def search_lists(
    hasher: PartitionedAutoencoder,
    queries: npt.NDArray[Any],
    segments: Sequence[Segment],
    k: int,
    candidates: int | None,
    probes: int,
) -> tuple[npt.NDArray[Any], Ids]:
    """Distances and ids of the ``k`` nearest codes, or of the nearest vectors among the candidates if they are given.

    Queries whose lists hold fewer than ``k`` codes are searched for in all lists.
    """
    distances: npt.NDArray[Any]
    distances, ids = nearest_in_lists(hasher, queries, segments, candidates or k, probes)
    if candidates is not None:
        distances, ids = nearest_candidates(queries, ids, measure_of(segments), k)
    short = np.flatnonzero(ids[:, -1] < 0)
    n_lists = len(hasher.centres_)
    if len(short) and probes < n_lists:
        distances[short], ids[short] = search_lists(hasher, queries[short], segments, k, candidates, n_lists)
    return distances, ids


def choose_in_lists(
    calibrator: Calibrator,
    hasher: PartitionedAutoencoder,
    segments: Sequence[Segment],
    k: int,
    recall: float,
    distance: str,
) -> Calibration:
    """Choose probes and candidates together: of the pairs that reach the recall, the one that costs least."""
    n = sum(segment.n_live for segment in segments)
    bytes_per_vector = segments[0].vectors.dtype.itemsize * hasher.n_features_in_
    best: tuple[float, Calibration] | None = None
    for probes in probe_counts(len(hasher.centres_)):

        def nearest_codes(queries: Any, number: int, probes: int = probes) -> tuple[Any, Any]:
            return nearest_in_lists(hasher, as_floats(queries), segments, number, probes)

        deepest = None if probes == len(hasher.centres_) else _DEEPEST
        found = calibrator.choose(segments, k, recall, distance, nearest_codes, probes, deepest)
        if found is None:
            continue
        cost = _cost(hasher, n, probes, found.candidates, bytes_per_vector)
        if best is not None and cost >= best[0]:
            break
        best = cost, found
    assert best is not None  # all lists hold all codes
    return best[1]


def prepared_for_lists(hasher: PartitionedAutoencoder, queries: npt.NDArray[Any], probes: int) -> ListQueries:
    """Prepare queries, which are floats, for a search in their nearest lists."""
    centres = _centres_of(hasher)
    numbers, squared = centres.nearest(queries - hasher.mean_, probes)
    weights = np.concatenate(list(map_points(lambda rows: hasher.query_weights(queries[rows]), queries, 256)))
    return list_queries(weights, numbers, squared + np.float32(hasher.offset_), hasher.offset_grid)


def _centres_of(hasher: PartitionedAutoencoder) -> Centres:
    """The centres as the search needs them, kept with the hasher."""
    kept = hasher.__dict__.get("_centres")
    if kept is None or kept.points is not hasher.centres_:
        kept = hasher.__dict__["_centres"] = Centres(hasher.centres_)
    centres: Centres = kept
    return centres


def _allowed(segment: Segment, hasher: PartitionedAutoencoder) -> AllowedCodes | None:
    """The codes of a segment that were not removed, kept until more are."""
    if not segment.n_dead:
        return None
    kept = segment.derived.get("allowed")
    if kept is None or kept[0] is not segment.dead:
        kept = segment.derived["allowed"] = segment.dead, segment.lists(hasher).allow(~segment.dead)
    allowed: AllowedCodes = kept[1]
    return allowed
