"""Plans: how a search is carried out on a state of an index.

``make_plan`` reads from what the index knows about itself (``knowledge.py``) how much effort the arguments of a search
take. Nothing else chooses candidates or lists. The same arguments on the same state give the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import adopt, to_host
from autojacobin.core.vectors import LARGEST, as_floats, as_matrix
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers import Hasher, OwnCodes, PartitionedAutoencoder
from autojacobin.hashers.base import as_vectors
from autojacobin.hashers.list_hasher import ListHasher
from autojacobin.index.execution import Found, search_codes, search_vectors
from autojacobin.index.filters import Allowed
from autojacobin.index.knowledge import EXACT_UP_TO, Knowledge
from autojacobin.index.state import State
from autojacobin.search.arguments import as_candidates, as_count
from autojacobin.search.distances import as_distance
from autojacobin.search.probing import Probing, Wider

DEFAULT_RECALL = 0.95
"""The recall of a search that names neither a recall nor candidates nor probes."""
_LARGEST_RECALL = 0.999

# What parts of a search cost, in nanoseconds of a core, roughly. Only their ratios matter, and only to the speed.
_PER_CODE_BYTE, _PER_LIST = 0.06, 120.0
_PER_CANDIDATE, _PER_CANDIDATE_BYTE = 60.0, 0.15  # the first for each code of the vector
_PER_COMPARED_BYTE = 0.25  # where all vectors are compared
_SHARE_PROBED, _FEWEST_PROBES = 32, 8
_WIDER = 4  # times the candidates, for a query that is unlike those that the index learned from
_WIDEST = 64  # times the candidates, for one that is unlike all of them
_MOST_LISTS = 2**11  # that such a query scans; of ten million vectors, they have .99 of its neighbours
_NEAR_MIDDLE = 0.25  # of the smallest squared distance to the middle; there, codes of residuals tell too little
_SHARE_BY_CODES = 0.25  # of all vectors; where more would be candidates, all are compared without codes
_WIDER_LISTS = 5  # how many thresholds further an unlike query goes; the last one is for the most unlike
_MISSES_PLANNED = 0.96  # of those asked for: queries are a little less like stored vectors than these are
_MOST_NUMBERS_BY_BLAS = 2**13  # so few are summed up in the calling thread


@dataclass(frozen=True, eq=False)
class Plan:
    """How a search is carried out.

    Attributes
    ----------
    k : int
        Neighbours of each query; all vectors if there are fewer than were asked for.
    distance : str
        How codes are compared.
    rerank : bool
        Whether the distances are those of the vectors.
    candidates : int or None
        How many of the nearest codes to re-rank; all vectors are compared without a look at codes if ``compares_all``.
    compares_all : bool
        Whether all vectors are compared.
    recall : float or None
        The recall that was asked for, or the default; 1 if all vectors are compared.
    seen, at_least : float
        Recall that the index saw when it learned, and its lower confidence bound (95 %); NaN without a recall.
    n_queries : int
        Number of queries it learned from.
    probing : Probing or None
        Which lists a query scans, for an index with lists.
    lists, codes : float
        How many lists and codes a query scans, on average, as far as that is known.
    wider : Wider or None
        How queries are searched that are unlike those that the index learned from.
    """

    k: int
    distance: str
    rerank: bool
    candidates: int | None = None
    compares_all: bool = False
    recall: float | None = None
    seen: float = math.nan
    at_least: float = math.nan
    n_queries: int = 0
    probing: Probing | None = None
    lists: float = 0.0
    codes: float = 0.0
    wider: Wider | None = field(default=None, repr=False)

    def run(self, state: State, queries: npt.NDArray[Any], allowed: Allowed | None = None) -> Found:
        """Distances and numbers of the nearest vectors; NaN and -1 where a filter leaves fewer than ``k``."""
        n = state.n_live if allowed is None else allowed.n
        k = min(self.k, n)
        if not k:
            return _padded((np.empty((len(queries), 0)), np.empty((len(queries), 0), dtype=np.int64)), self.k)
        if self.compares_all:
            found = search_vectors(state, queries, k, allowed)
        else:
            candidates = None if self.candidates is None else min(self.candidates, n)
            wider = self.wider if allowed is None else None
            found = search_codes(state, queries, self.distance, k, candidates, self.probing, allowed, wider)
        return found if k == self.k else _padded(found, self.k)


def _padded(found: Found, k: int) -> Found:
    """Fill up to ``k`` columns with NaN and -1."""
    distances, numbers = found
    missing = ((0, 0), (0, k - distances.shape[1]))
    floats = distances.astype(np.float64, copy=False)
    return np.pad(floats, missing, constant_values=np.nan), np.pad(numbers, missing, constant_values=-1)


def make_plan(
    state: State,
    know: Callable[[str], Knowledge],
    k: SupportsIndex,
    candidates: SupportsIndex | None = None,
    recall: float | None = None,
    distance: str | None = None,
    rerank: bool | None = None,
    probes: SupportsIndex | str | None = None,
    n_allowed: int | None = None,
) -> Plan:
    """Make the plan for the arguments of :meth:`Index.search`; ``know(distance)`` is called if a recall is wanted."""
    if not state.n_live:
        raise DataError("there is nothing to find: the index is empty; add to it first")
    asked_k = as_count("k", k)
    wanted = min(asked_k, state.n_live)  # so that no k costs more than all vectors
    probing = _fixed_probing(probes, state)
    distance = as_distance(distance, state.hasher.distances)
    if rerank is not None and not isinstance(rerank, bool | np.bool_):
        raise DataTypeError(f"rerank must be True, False or None, got {rerank!r:.60}")
    if rerank is None:
        rerank = state.keep_vectors or candidates is not None or recall is not None
    if rerank and not state.keep_vectors:
        raise DataError("this index keeps no vectors to re-rank by; pass rerank=False (--no-rerank), or keep vectors")
    if not rerank and candidates is not None:
        raise DataError(f"candidates are for re-ranking, got {candidates!r} with rerank=False; leave out either")
    if recall is not None and (candidates is not None or not rerank):
        other = "rerank=False" if candidates is None else f"candidates={candidates!r}"
        raise DataError(f"recall chooses how many candidates to re-rank, got {other} besides; leave out either")
    if recall is not None and probes is not None:
        raise DataError(f"recall chooses how many lists to scan, got probes={probes!r} besides; leave out either")
    n = state.n_live if n_allowed is None else n_allowed
    if not rerank or candidates is not None or probes is not None:
        number = as_candidates(candidates, asked_k) if rerank else None
        if probing is not None and n_allowed:  # more lists, so that as many allowed codes are in them
            probing = Probing(min(state.n_lists, math.ceil(probing.most * state.n_live / n_allowed)))
        return Plan(wanted, distance, rerank, number, probing=probing)
    asked = DEFAULT_RECALL if recall is None else as_recall(recall)
    everything = Plan(wanted, distance, True, n, True, 1.0, 1.0, 1.0)
    if asked == 1 or n <= EXACT_UP_TO:
        return everything
    return cheapest(state, know(distance), wanted, asked, distance, n_allowed) or everything


def cheapest(
    state: State, known: Knowledge, k: int, recall: float, distance: str, n_allowed: int | None = None
) -> Plan | None:
    """The plan that reaches a recall at the least cost; None if none is known to, or to compare all costs less."""
    # With a filter, each query finds its own level. The candidates of an unfiltered search are enough, because a larger
    # level needs fewer candidates for each neighbour.
    level = known.level(k)
    if level is None:
        return None
    planned = recall if known.own_queries is not None else 1 - _MISSES_PLANNED * (1 - recall)
    recalls = known.at_least[level]
    if not (recalls >= planned).any():
        recalls = known.seen[level]  # the sample was too small to be sure
    numbers = np.array([_candidates_for(planned, known.candidates, row) for row in recalls])
    n = state.n_live if n_allowed is None else n_allowed
    share = n / state.n_live
    beyond = min(int(np.searchsorted(known.levels, k / share)), len(known.levels) - 1)  # of a random filter
    bytes_per_vector = state.segments[0].vectors.dtype.itemsize * state.hasher.n_features_in_
    hasher = state.hasher
    n_bits, copies = (hasher.n_code_bits, hasher.copies) if isinstance(hasher, ListHasher) else (hasher.n_bits, 1)
    costs = (
        known.codes[beyond] * n_bits / 8 * _PER_CODE_BYTE
        + known.lists[beyond] * _PER_LIST
        + numbers * (copies * _PER_CANDIDATE + bytes_per_vector * _PER_CANDIDATE_BYTE)
    )
    t = int(np.argmin(costs))
    if not costs[t] < n * bytes_per_vector * _PER_COMPARED_BYTE:  # infinite if no number of candidates is enough
        return None
    number = max(k, math.ceil(numbers[t]))
    seen, at_least = (
        float(np.interp(number, known.candidates, table[level, t])) for table in (known.seen, known.at_least)
    )
    probing = farther = None
    if isinstance(state.hasher, ListHasher):
        last = level + 1 if n_allowed is None else len(known.levels)

        def above(threshold: int, most: int, last: int = level + 1) -> Probing:
            return Probing(most, known.weights[level:last], known.thresholds[level:last, threshold], k)

        probing = above(t, int(known.most[last - 1, t]), last)
        lowest = known.thresholds.shape[1] - 1
        far = min(t + _WIDER_LISTS, lowest - 1)
        farther = above(far, int(known.most[level, far])), above(lowest, min(state.n_lists, _MOST_LISTS))
    some, many = (
        times * number if times * number < _SHARE_BY_CODES * state.n_live else 0 for times in (_WIDER, _WIDEST)
    )
    near_middle = _NEAR_MIDDLE if isinstance(hasher, PartitionedAutoencoder) else 1.0
    central = np.append(known.central, near_middle * known.central[-1])
    wider = Wider(known.middle, known.far, central, (some, many), farther)
    return Plan(
        k, distance, True, number, False, recall, seen, at_least, known.n_queries, probing,
        float(known.lists[beyond, t]), float(known.codes[beyond, t]), wider,
    )  # fmt: skip


def _candidates_for(recall: float, candidates: npt.NDArray[np.int64], recalls: npt.NDArray[np.float32]) -> float:
    """How many candidates reach a recall, between two numbers of the table; infinite if none does."""
    if not (recalls >= recall).any():
        return math.inf
    last = int((recalls >= recall).argmax())
    pair = slice(max(0, last - 1), last + 1)
    return float(np.interp(recall, recalls[pair], candidates[pair]))


def _fixed_probing(probes: SupportsIndex | str | None, state: State) -> Probing | None:
    """The same number of lists for every query; None if the codes are in no lists."""
    n_lists = state.n_lists
    if not n_lists and probes is not None:
        raise DataError(f"probes are for an index with lists, got probes={probes!r} for one without; leave it out")
    if not n_lists:
        return None
    if probes is None:
        return Probing(min(n_lists, max(_FEWEST_PROBES, n_lists // _SHARE_PROBED)))
    if isinstance(probes, str):
        if probes != "all":
            raise DataTypeError(f"probes must be a number of lists or 'all', got {probes!r}")
        return Probing(n_lists)
    return Probing(as_count("probes", probes, n_lists, "the number of lists"))


def packed(vectors: Any, hasher: Hasher) -> Any:
    """Codes as the bytes that an index of codes takes; anything else as it is."""
    if not isinstance(vectors, Codes) or not isinstance(hasher, OwnCodes):
        return vectors
    if vectors.n_bits != hasher.n_bits:
        raise DataError(f"this index has codes of {hasher.n_bits} bits, got codes of {vectors.n_bits}; pass others")
    return vectors.to_packed(bitorder=hasher.bitorder)


def checked_queries(state: State, queries: Any) -> tuple[Any, npt.NDArray[Any]]:
    """Queries, and as the metric prepares them, after a check; one vector becomes a matrix with one row."""
    if _is_ready(state, queries):
        return queries, state.metric.ready_queries(queries)
    if isinstance(queries, int | np.integer):
        raise DataTypeError(f"the queries come first and then k, got {queries} first; swap the two arguments")
    queries = packed(queries, state.hasher)
    listed = isinstance(queries, list | tuple) and len(queries) > 0 and np.isscalar(queries[0])
    if listed or getattr(queries, "ndim", None) == 1:
        queries = (adopt(queries) if hasattr(queries, "reshape") else np.asarray(queries)).reshape(1, -1)
    rows, width = as_matrix(queries, "an index", "queries").shape
    if not rows:
        raise DataError("queries must have at least one vector, got none; pass one or more")
    expected = state.metric.width(int(state.hasher.n_features_in_))
    own = isinstance(state.hasher, OwnCodes)
    if width != expected and not own:
        raise DataError(f"queries have {width} features, but the vectors of this index have {expected}; pass others")
    prepared = state.metric.queries(queries)
    as_vectors(state.hasher, prepared)  # compares the names of features
    matrix = to_host(as_matrix(prepared, "an index", "queries"))
    # for any other layout, and for read-only numbers, kernels would be compiled again
    return queries, np.require(matrix if own else as_floats(matrix, argument="queries"), requirements=("C", "W"))


def _is_ready(state: State, queries: Any) -> bool:
    """Return whether queries are a matrix that needs no conversion, with finite numbers of a usual size."""
    return (
        type(queries) is np.ndarray
        and queries.dtype == np.float32
        and queries.ndim == 2
        and queries.shape[1] == state.query_width
        and queries.flags.carray  # contiguous and writable
        and bool(0 < _sum_of_squares(queries) <= LARGEST)  # not if there is a NaN
    )


def _sum_of_squares(queries: npt.NDArray[np.float32]) -> Any:
    """Sum of the squares of all numbers. BLAS would use threads for many, which keep their cores busy for 20 ms."""
    few = queries.size <= _MOST_NUMBERS_BY_BLAS
    return np.vdot(queries, queries) if few else np.einsum("ij,ij->", queries, queries)


def as_recall(recall: float) -> float:
    """Give a wanted recall as a float."""
    wanted = f"recall must be a number above 0 and at most {_LARGEST_RECALL}, such as 0.95, or 1 for an exact search"
    if not isinstance(recall, Real) or isinstance(recall, bool | np.bool_):
        raise DataTypeError(f"{wanted}, got {recall!r}")
    if not 0 < float(recall) <= _LARGEST_RECALL and float(recall) != 1:
        raise DataError(f"{wanted}, got {recall!r}")
    return float(recall)
