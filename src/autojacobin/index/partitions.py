"""Search over segments whose codes are in inverted lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import to_host
from autojacobin.core.parallel import run_tasks, usable_cores
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers import Hasher
from autojacobin.hashers.lists import ListHasher
from autojacobin.index.calibration import Calibration, Calibrator
from autojacobin.index.metrics import EUCLIDEAN, Metric
from autojacobin.index.searching import measure_of
from autojacobin.index.segment import Segment
from autojacobin.search.arguments import as_count
from autojacobin.search.distances import DISTANCES
from autojacobin.search.euclidean import order_block
from autojacobin.search.kernels.selection import merge_topk
from autojacobin.search.lists import AllowedCodes, ListQueries, usable_lists

__all__ = [
    "QueriesInLists", "as_probes", "choose_in_lists", "default_probes", "nearest_in_lists", "nearest_in_segment",
    "prepared_for_lists", "probe_counts", "search_lists",
]  # fmt: skip

_SHARE_PROBED = 32
_FEWEST_PROBES = 8
_FEWEST_PER_BLOCK, _MOST_PER_BLOCK = 8, 64  # queries
_FEWEST_SORTED, _MOST_SORTED = 512, 2**13  # queries, which are sorted by their nearest lists
_MOST_PROBES = 2**22  # of the queries that are sorted together
_DEEPEST = 5_000  # candidates; if more are needed, more lists are cheaper
# Costs in nanoseconds of a core, roughly; only their ratio matters.
_PER_CODE_BYTE, _PER_VECTOR_BYTE, _PER_LIST = 0.08, 0.25, 60.0

Ids = npt.NDArray[np.int64]
Rows = slice | npt.NDArray[np.int64]


class QueriesInLists(NamedTuple):
    """Queries of a search in lists.

    Attributes
    ----------
    vectors : array of floats, shape (n_queries, n_features)
    prepared : Any
        What the hasher prepared for them, by rows.
    dtype : type
        Type of the distances of codes.
    """

    vectors: npt.NDArray[Any]
    prepared: Any
    dtype: Any

    @classmethod
    def of(cls, hasher: ListHasher, queries: Any, distance: str) -> QueriesInLists:
        """Prepare a matrix of vectors as queries."""
        floats = as_floats(to_host(as_matrix(queries, "an index", "queries")), argument="queries")
        return cls(floats, hasher.prepare(queries, distance), DISTANCES[distance].dtype)

    def take(self, rows: Rows) -> QueriesInLists:
        """Some of the queries."""
        return QueriesInLists(self.vectors[rows], self.prepared[rows], self.dtype)


def default_probes(n_lists: int) -> int:
    """Default number of lists to scan."""
    return min(n_lists, max(_FEWEST_PROBES, n_lists // _SHARE_PROBED))


def as_probes(probes: SupportsIndex | str | None, hasher: Hasher) -> int | None:
    """Give the number of lists to scan; None if the codes are in no lists."""
    if not isinstance(hasher, ListHasher):
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
    """Numbers of lists to try for a wanted recall, ascending: 1, 2, 4, 6, 8, 12, 16, 24, …, all."""
    powers = [1 << power for power in range(n_lists.bit_length())]
    counts = sorted({count for power in powers for count in (power, power + power // 2) if count < n_lists})
    return [*(count for count in counts if count != 3), n_lists]


def _cost(hasher: ListHasher, n: int, probes: int, candidates: int, bytes_per_vector: int) -> float:
    """Estimate the time of a query, of which only the order matters."""
    scanned = n * probes / len(hasher.centres_)
    scan = scanned * hasher.n_bits / 8 * _PER_CODE_BYTE + probes * _PER_LIST
    return scan + candidates * bytes_per_vector * _PER_VECTOR_BYTE


def nearest_in_lists(
    hasher: ListHasher, queries: QueriesInLists, segments: Sequence[Segment], k: int, probes: int
) -> tuple[npt.NDArray[Any], Ids]:
    """Distances and ids of the ``k`` nearest codes in the probed lists.

    Where there are fewer, ids are -1, and distances are infinite, or the largest of their type.
    """
    shape = len(queries.vectors), k
    distances, ids = np.empty(shape, dtype=queries.dtype), np.empty(shape, dtype=np.int64)

    def keep(rows: Rows, prepared: ListQueries, whole: npt.NDArray[np.int32], found: Ids) -> None:
        distances[rows], ids[rows] = prepared.real(whole), found

    _search_blocks(hasher, queries, segments, k, probes, keep, ordered=True)
    return distances, ids


def search_lists(
    hasher: ListHasher,
    queries: QueriesInLists,
    segments: Sequence[Segment],
    k: int,
    candidates: int | None,
    probes: int,
) -> tuple[npt.NDArray[Any], Ids]:
    """Distances and ids of the ``k`` nearest codes, or of the nearest vectors among the candidates if they are given.

    Queries whose lists hold fewer than ``k`` codes are searched for in all lists. Candidates are re-ranked by the
    thread that found them.
    """
    distances: npt.NDArray[Any]
    if candidates is None:
        distances, ids = nearest_in_lists(hasher, queries, segments, k, probes)
    else:
        shape = len(queries.vectors), k
        distances, ids = np.empty(shape), np.empty(shape, dtype=np.int64)
        measure = measure_of(segments)

        def rerank(rows: Rows, _: ListQueries, __: npt.NDArray[np.int32], found: Ids) -> None:
            nearest = np.empty((len(found), k)), np.empty((len(found), k), dtype=np.int64)
            order_block(queries.vectors[rows], found, measure, *nearest)
            distances[rows], ids[rows] = nearest

        _search_blocks(hasher, queries, segments, candidates, probes, rerank, ordered=False)
    short = np.flatnonzero(ids[:, -1] < 0)
    n_lists = len(hasher.centres_)
    if len(short) and probes < n_lists:
        distances[short], ids[short] = search_lists(hasher, queries.take(short), segments, k, candidates, n_lists)
    return distances, ids


def _search_blocks(
    hasher: ListHasher,
    queries: QueriesInLists,
    segments: Sequence[Segment],
    k: int,
    probes: int,
    use: Callable[[Rows, ListQueries, npt.NDArray[np.int32], Ids], None],
    *,
    ordered: bool,
) -> None:
    """Find the ``k`` nearest codes of blocks of queries, and call ``use(rows, prepared, integer distances, ids)``.

    After the first step, one thread does all steps for a block, so that intermediate results stay in its cache. If
    there are many queries, a block has queries whose nearest lists are close to each other, so that the lists that one
    query has read are still in the cache for the next.
    """
    usable, vectors = _usable(hasher, segments), queries.vectors

    def search(rows: Rows, numbers: npt.NDArray[np.int32], squared: npt.NDArray[np.float32]) -> None:
        prepared = hasher.list_queries(queries.prepared[rows], numbers, squared)
        results = [nearest_in_segment(hasher, prepared, segment, k, ordered=ordered) for segment in segments]
        use(rows, prepared, *merge_topk(results, k))

    def search_alone(rows: slice) -> None:
        search(rows, *_nearest_lists(hasher, vectors[rows], probes, usable))

    if len(vectors) <= _FEWEST_PER_BLOCK:
        search_alone(slice(0, len(vectors)))
        return
    per_turn = min(max(_MOST_PROBES // probes, _FEWEST_SORTED), _MOST_SORTED)
    for start in range(0, len(vectors), per_turn):
        some = slice(start, min(start + per_turn, len(vectors)))
        blocks = _blocks(some.start, some.stop)
        if some.stop - start < _FEWEST_SORTED:
            run_tasks(search_alone, [(block,) for block in blocks])
            continue
        numbers = np.empty((some.stop - start, probes), dtype=np.int32)
        squared = np.empty(numbers.shape, dtype=np.float32)

        def find_lists(block: slice, start: int = start, out: Any = (numbers, squared)) -> None:
            rows = slice(block.start - start, block.stop - start)
            out[0][rows], out[1][rows] = _nearest_lists(hasher, vectors[block], probes, usable)

        run_tasks(find_lists, [(block,) for block in blocks])
        order = np.argsort(hasher.search_centres().places[numbers[:, 0]], kind="stable")
        tasks = [order[block] for block in _blocks(0, len(order))]
        run_tasks(search, [(start + rows, numbers[rows], squared[rows]) for rows in tasks])


def _blocks(start: int, end: int) -> list[slice]:
    """Rows in blocks of a size that keeps all cores busy."""
    step = min(max(_FEWEST_PER_BLOCK, (end - start) // (2 * usable_cores())), _MOST_PER_BLOCK)
    return [slice(first, min(first + step, end)) for first in range(start, end, step)]


def choose_in_lists(
    calibrator: Calibrator,
    hasher: ListHasher,
    segments: Sequence[Segment],
    k: int,
    recall: float,
    distance: str,
    metric: Metric = EUCLIDEAN,
) -> Calibration:
    """Choose probes and candidates together: of the pairs that reach the recall, the one that costs least."""
    n = sum(segment.n_live for segment in segments)
    bytes_per_vector = segments[0].vectors.dtype.itemsize * hasher.n_features_in_
    best: tuple[float, Calibration] | None = None
    for probes in probe_counts(len(hasher.centres_)):

        def nearest_codes(queries: Any, number: int, probes: int = probes) -> tuple[Any, Any]:
            asked = QueriesInLists.of(hasher, queries, distance)
            return nearest_in_lists(hasher, asked, segments, number, probes)

        deepest = None if probes == len(hasher.centres_) else _DEEPEST
        found = calibrator.choose(segments, k, recall, distance, nearest_codes, probes, deepest, metric)
        if found is None:
            continue
        cost = _cost(hasher, n, probes, found.candidates, bytes_per_vector)
        if best is not None and cost >= best[0]:
            break
        best = cost, found
    assert best is not None  # all lists hold all codes
    return best[1]


def nearest_in_segment(
    hasher: ListHasher, prepared: ListQueries, segment: Segment, k: int, *, ordered: bool = True
) -> tuple[npt.NDArray[np.int32], Ids]:
    """Integer distances and ids of the ``k`` nearest codes in the lists of a segment; -1 where there are fewer."""
    distances, positions = segment.lists(hasher).nearest(prepared, k, _allowed(segment, hasher), ordered=ordered)
    missing = positions < 0
    if not missing.any():
        return distances, segment.ids_at(positions)
    ids = segment.ids_at(np.where(missing, 0, positions))
    ids[missing] = -1
    return distances, ids


def prepared_for_lists(
    hasher: ListHasher, queries: QueriesInLists, segments: Sequence[Segment], probes: int
) -> ListQueries:
    """Prepare queries for a search in the nearest of their lists that have codes."""
    nearest = _nearest_lists(hasher, queries.vectors, probes, _usable(hasher, segments))
    return hasher.list_queries(queries.prepared, *nearest)


def _usable(hasher: ListHasher, segments: Sequence[Segment]) -> npt.NDArray[np.bool_] | None:
    return usable_lists([(segment.lists(hasher), _allowed(segment, hasher)) for segment in segments])


def _nearest_lists(
    hasher: ListHasher, queries: npt.NDArray[Any], probes: int, usable: npt.NDArray[np.bool_] | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Numbers of the nearest lists of a few queries and the squared distances, found in the calling thread."""
    numbers = np.empty((len(queries), probes), dtype=np.int32)
    squared = np.empty((len(queries), probes), dtype=np.float32)
    floats = queries.astype(np.float32, copy=False)
    hasher.search_centres().write_nearest(floats, numbers, squared, usable, exact=False)
    return numbers, squared


def _allowed(segment: Segment, hasher: ListHasher) -> AllowedCodes | None:
    """The codes of a segment that were not removed, kept until more are."""
    if not segment.n_dead:
        return None
    kept = segment.derived.get("allowed")
    if kept is None or kept[0] is not segment.dead:
        kept = segment.derived["allowed"] = segment.dead, segment.lists(hasher).allow(~segment.dead)
    allowed: AllowedCodes = kept[1]
    return allowed
