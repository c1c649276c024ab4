"""How a search of an index is carried out: filter, lists, candidates and re-ranking."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import to_host
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError
from autojacobin.hashers.lists import ListHasher
from autojacobin.index.calibration import Calibration, Calibrator, as_recall, default_target
from autojacobin.index.changes import State
from autojacobin.index.filters import Mask, restricted, widened
from autojacobin.index.partitions import QueriesInLists, as_probes, choose_in_lists, search_lists
from autojacobin.index.searching import nearest, nearest_vectors, nearest_without_codes
from autojacobin.search.arguments import as_candidates, as_k
from autojacobin.search.distances import DISTANCES, as_distance

__all__ = ["How", "Searcher", "check_vectors_kept"]


class How(NamedTuple):
    """How to search: the checked arguments of ``Index.search``.

    ``learned_k`` is the number of neighbours for which the candidates are chosen, if there is a ``recall``.
    """

    k: int
    distance: str
    rerank: bool
    candidates: SupportsIndex | None
    recall: float | None
    probes: SupportsIndex | str | None
    learned_k: int

    @classmethod
    def checked(
        cls,
        state: State,
        k: SupportsIndex,
        distance: str | None,
        rerank: bool | None,
        candidates: SupportsIndex | None,
        recall: float | None,
        probes: SupportsIndex | str | None,
    ) -> How:
        """Check the arguments, and fill in what was not given."""
        wanted = as_k(k, state.n_live, "the index")
        as_probes(probes, state.hasher)
        distance = as_distance(distance, state.hasher.distances)
        if rerank is None:
            rerank = state.keep_vectors or candidates is not None or recall is not None
        if rerank:
            check_vectors_kept(state)
        elif candidates is not None:
            raise DataError(f"candidates are for re-ranking, got {candidates!r} with rerank=False; leave out either")
        if recall is not None and (candidates is not None or not rerank):
            other = "rerank=False" if candidates is None else f"candidates={candidates!r}"
            raise DataError(f"recall chooses how many candidates to re-rank, got {other} besides; leave out either")
        if recall is not None and probes is not None:
            raise DataError(f"recall chooses how many lists to scan, got probes={probes!r} besides; leave out either")
        recall = None if recall is None else as_recall(recall)
        learned_k = wanted
        if rerank and candidates is None and recall is None and probes is None:
            learned_k, recall = default_target(wanted, state.n_live)
        return cls(wanted, distance, rerank, candidates, recall, probes, learned_k)


@dataclass(frozen=True)
class Searcher:
    """Searches a state. The calibrator learns how many candidates a wanted recall needs, and keeps the numbers."""

    state: State
    calibrator: Calibrator

    def nearest(
        self, queries: Any, how: How, among: Any = None, allowed: list[Mask] | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Distances and numbers of the nearest vectors that a filter allows; NaN and -1 where there are too few."""
        state = self.state
        view, k, candidates, probes = state, how.k, how.candidates, how.probes
        if among is not None or allowed is not None:
            if isinstance(state.hasher, ListHasher):
                for segment in state.segments:
                    segment.lists(state.hasher)  # kept with the whole segment
            view = restricted(state, among, allowed)
            k = min(how.k, view.n_live)
        if not k:
            return _padded(np.empty((len(queries), 0)), np.empty((len(queries), 0), dtype=np.int64), how.k)
        lists = as_probes(probes, state.hasher)
        if how.recall is not None and self.compares_all(view, how.learned_k, how.recall, len(queries)):
            distances, numbers = self._nearest_of_all(queries, view, how.distance, k)
            return (distances, numbers) if k == how.k else _padded(distances, numbers, how.k)
        if how.recall is not None and view is state:
            chosen = self.chosen(how.learned_k, how.recall, how.distance)
            candidates, lists = chosen.candidates, chosen.probes
        elif how.recall is not None or (view is not state and probes is None and lists is not None):
            candidates, lists = self._chosen_for(view, how, lists)
        number = min(as_candidates(candidates, k), view.n_live) if how.rerank else k
        if isinstance(state.hasher, ListHasher) and lists is not None:
            asked = QueriesInLists.of(state.hasher, queries, how.distance)
            found = search_lists(state.hasher, asked, view.segments, k, number if how.rerank else None, lists)
        else:
            floats = as_floats(to_host(as_matrix(queries, "an index", "queries")), argument="queries")
            prepared = DISTANCES[how.distance].queries(state.hasher, queries)
            if how.rerank:
                found = nearest_vectors(floats, prepared, view.segments, number, k)
            else:
                found = nearest(prepared, view.segments, number)
        return found if k == how.k else _padded(*found, how.k)

    def _nearest_of_all(
        self, queries: Any, view: State, distance: str, k: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Compare queries with all vectors. They are prepared as for codes, so that the same queries are refused."""
        floats = as_floats(to_host(as_matrix(queries, "an index", "queries")), argument="queries")
        if isinstance(self.state.hasher, ListHasher):
            self.state.hasher.prepare(queries, distance)
        else:
            DISTANCES[distance].queries(self.state.hasher, queries)
        return nearest_without_codes(floats, view.segments, k)

    def _chosen_for(self, view: State, how: How, lists: int | None) -> tuple[SupportsIndex | None, int | None]:
        """Candidates and probes for a search with a filter.

        The k nearest of a share of the vectors are among the k / share nearest of all, if the filter does not depend on
        the vectors. So the candidates for k / share neighbours are learned, and multiplied by the share.
        """
        state = self.state
        everything = view.n_live, self._all_lists()
        k = widened(how.learned_k, state, view)
        if how.recall is None:  # more lists are scanned, so that as many allowed codes are in them
            assert lists is not None
            share = view.n_live / state.n_live
            most = everything[1] or lists
            return how.candidates, most if k is None else min(most, math.ceil(lists / share))
        if k is None or how.recall == 1:
            return everything
        chosen = self.chosen(k, how.recall, how.distance)
        expected = chosen.candidates * view.n_live / state.n_live
        return max(how.k, math.ceil(expected + 3 * math.sqrt(expected))), chosen.probes

    def _all_lists(self) -> int | None:
        return as_probes("all", self.state.hasher) if isinstance(self.state.hasher, ListHasher) else None

    def compares_all(self, view: State, k: int, recall: float, n_queries: int) -> bool:
        """Return whether queries are to be compared with all vectors of a view."""
        return recall == 1 or self.affords_all(view, k, n_queries)

    def affords_all(self, view: State, k: int, n_queries: int) -> bool:
        """Return whether to compare queries with all vectors of a view takes little time, and count them as such."""
        return self.calibrator.affords(k, n_queries, n_queries * view.n_live * self.state.hasher.n_features_in_)

    def chosen(self, k: int, recall: float, distance: str, n_queries: int | None = None) -> Calibration:
        """Candidates, and lists if the index has any, that a wanted recall needs.

        If the number of queries is given, these may be all, as in :meth:`nearest`.
        """
        state, segments = self.state, self.state.segments
        if recall == 1 or (n_queries is not None and self.compares_all(state, k, recall, n_queries)):
            return Calibration(k, 1.0, distance, state.n_live, 1.0, 1.0, 0, self._all_lists())
        if isinstance(state.hasher, ListHasher):
            return choose_in_lists(self.calibrator, state.hasher, segments, k, recall, distance, state.metric)

        def nearest_codes(queries: Any, number: int) -> tuple[Any, Any]:
            return nearest(DISTANCES[distance].queries(state.hasher, queries), segments, number)

        chosen = self.calibrator.choose(segments, k, recall, distance, nearest_codes, metric=state.metric)
        assert chosen is not None  # all candidates are enough
        return chosen


def _padded(
    distances: npt.NDArray[Any], numbers: npt.NDArray[np.int64], k: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Fill up to ``k`` columns with NaN and -1."""
    missing = ((0, 0), (0, k - distances.shape[1]))
    floats = distances.astype(np.float64, copy=False)
    return np.pad(floats, missing, constant_values=np.nan), np.pad(numbers, missing, constant_values=-1)


def check_vectors_kept(state: State) -> None:
    """Raise a DataError if an index has no vectors to re-rank by."""
    if not state.keep_vectors:
        raise DataError(
            "this index keeps no vectors to re-rank by; pass rerank=False, or build it with keep_vectors=True"
        )
