"""How an index learns what it knows about itself.

Some stored vectors serve as queries. Their true neighbours, and a very wide search for their nearest codes, give a
table: the share of the true neighbours that a search finds, for seven numbers of neighbours (the *levels*), some
thresholds for lists, and many numbers of candidates. Then some plans that follow from it are carried out, as any search
is, and where they find less than the table says, it is corrected.

A Poisson regression predicts how many of the k nearest vectors are in the list of rank i, whose centre has the squared
distance dᵢ². A query scans the lists whose log λᵢ is at or above a threshold: few if it is easy, many if it is hard.

    log λᵢ = w₀ + w₁ log(dᵢ² / d₀²) + w₂ log(1 + i) + w₃ log(d₆₄² / d₀²)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin._native import kernels
from autojacobin.core.parallel import run_tasks
from autojacobin.core.vectors import as_floats
from autojacobin.hashers.list_hasher import ListHasher
from autojacobin.index.execution import list_search, measure_of, nearest_by_products, search_codes
from autojacobin.index.knowledge import EXACT_UP_TO, Floats, Ids, Knowledge
from autojacobin.index.plan import cheapest
from autojacobin.index.segment import Segment
from autojacobin.index.state import State, drawn, fetch
from autojacobin.search.euclidean import nearest_candidates
from autojacobin.search.kernels.coarse_quantiser import cells_to_look_at
from autojacobin.search.probing import Probing, log_expected

LEVELS = (10, 20, 50, 100, 200, 500, 1_000)
"""Numbers of neighbours that are learned. A search for another number takes the next larger one."""

CHANGED_SHARE = 0.1

# What is learned, and how long that may take.
_MOST_QUERIES = 1_000
_PRODUCTS = 2**35  # of numbers, to find true neighbours: about a second of two cores
_MOST_PRODUCTS = 2**37  # where fewer would leave less than one neighbour for each query
_CODES_SCANNED = 2**27  # of lists, by all queries
_DEPTH = 2**11  # nearest codes of each query; then eight times as many of every fourth query
_DEEPER, _FEWER, _PASSES = 8, 4, 3
_NEAR_LEVELS = 4  # are learned from all queries, the others from every fourth
_GROWTH = 1.1  # from one number of candidates in the table to the next
_SHARES_IN_LISTS = (
    0.5, 0.6, 0.7, 0.76, 0.82, 0.87, 0.9, 0.92, 0.935, 0.95, 0.96, 0.97, 0.975, 0.98, 0.985, 0.99, 0.9945, 0.997,
    0.9985, 1.0,
)  # fmt: skip
"""Thresholds: these shares of the true neighbours are in the lists that they choose."""
_ENOUGH = 0.995  # recall; if it is reached, there is no third pass
_RANKS_FITTED = 256
_NEWTON_STEPS = 5
_DEVIATIONS = 1.645  # the lower bounds of recalls hold for 95 samples in 100
_MISSED = 3  # neighbours, of one more query that each bound counts
_SHARE_LIKE = 0.995  # of the queries, whose nearest neighbours are as near as is usual
_ALL_CELLS = 2**30  # more than there are, where a search looks at all of them
_TRIED = (0.9, 0.95, 0.99)  # recalls, by searches as any other
_LARGEST_GAP = 0.003  # between the recall of such a search and that of the table
_ROUNDING = 1e-6  # of logarithms, by which compiled code may differ
_ROOM_FOR_LISTS = 1.25  # beyond the most that such a query scans
_ROOM = 1.05  # beyond the farthest nearest neighbour of a query that the index learned from


def is_outdated(state: State) -> bool:
    """Return whether a state should learn: it has not, or a tenth of its vectors has changed since."""
    if not state.keep_vectors or state.n_live <= EXACT_UP_TO:
        return False
    known = state.knowledge
    return known is None or state.n_changed > CHANGED_SHARE * known.n


def learn_again(state: State, queries: npt.NDArray[Any] | None = None) -> State:
    """Learn for the default distance, from these queries or from those that the state learned from before."""
    if queries is None and state.knowledge is not None:
        queries = state.knowledge.own_queries
    return replace(state, knowledge=learn(state, state.hasher.distances[0], queries), n_changed=0)


class _Level(NamedTuple):
    """A number of neighbours, every how many of the queries it is learned from, and the neighbours of these.

    ``truth`` has vectors in order of their distance. The first ``counts`` of them are among the ``k`` nearest, and
    stand for ``totals`` vectors, about ``k``.
    """

    k: int
    every: int
    truth: Ids
    counts: Ids
    totals: Floats

    @property
    def true(self) -> npt.NDArray[np.bool_]:
        """Which vectors of ``truth`` are among the ``k`` nearest."""
        return np.arange(self.truth.shape[1]) < self.counts[:, np.newaxis]


def learn(state: State, distance: str, queries: npt.NDArray[Any] | None = None) -> Knowledge:
    """Learn from stored vectors, always the same ones, or from the user's own queries."""
    own, asked = np.full(0 if queries is None else len(queries), -1, dtype=np.int64), queries
    if asked is None:
        own = drawn(state.segments, min(state.n_live, _MOST_QUERIES), seed=0)
        asked = state.metric.stored_as_queries(fetch(state.segments, own))
    scanned = (_Lists if isinstance(state.hasher, ListHasher) else _AllCodes)(state, distance, asked)
    depth, every = min(_DEPTH, state.n_live), 1
    found = scanned.nearest(asked, min(depth + 1, state.n_live))  # one more: a query may find itself
    far, levels = _levels(state.segments, asked, own, found)
    scanned.fit(levels)
    middle = asked.mean(axis=0, dtype=np.float64).astype(np.float32)
    gaps = asked - middle
    central = np.quantile(np.einsum("ij,ij->i", gaps, gaps), [1 - _SHARE_LIKE, 0.0]) / [1.0, _ROOM**2]
    sections: list[tuple[Ids, Any, Any]] = []
    for number in range(_PASSES):
        if number:
            depth, every = min(_DEEPER * depth, state.n_live), _FEWER * every
            found = scanned.nearest(asked[::every], min(depth + 1, state.n_live))
        covered = sections[-1][0][-1] if sections else 0
        grid = np.unique(np.geomspace(covered + 1, depth, math.ceil(math.log(depth) / math.log(_GROWTH))).astype(int))
        nearness = {step: _nearness(found, own, levels, step, every) for step in {level.every for level in levels}}
        tasks = [
            (nearness[level.every], first[:: max(1, level.every // every)],
             *(numbers[:: max(1, every // level.every)] for numbers in (level.counts, level.totals)), grid,
             scanned.thresholds.shape[1])
            for level, first in scanned.firsts(found, every, levels)
        ]  # fmt: skip
        seen, at_least = np.array(run_tasks(_recalls, tasks), dtype=np.float32).swapaxes(0, 1)
        sections.append((grid, seen, at_least))
        shown = at_least[0, -1, -1] >= _ENOUGH
        if depth == state.n_live or (shown and number > 0):
            break
    grid, seen, at_least = (np.concatenate(parts, axis=-1) for parts in zip(*sections, strict=True))
    known = Knowledge(
        state.n_live, len(asked), np.array([level.k for level in levels]), grid, seen, at_least,
        scanned.weights, scanned.thresholds, scanned.lists, scanned.codes, scanned.most, far, middle, central,
        np.empty((0, asked.shape[1]), np.float32) if queries is None else asked.astype(np.float32),
    )  # fmt: skip
    return _corrected(known, state, distance, asked, own, levels) if isinstance(scanned, _Lists) else known


def _corrected(
    known: Knowledge, state: State, distance: str, queries: npt.NDArray[Any], own: Ids, levels: Sequence[_Level]
) -> Knowledge:
    """Carry out plans for lists, and where these miss more neighbours than they should, multiply all misses of a level.

    Without lists, all codes are compared, as they were to learn.
    """
    seen, at_least = known.seen.copy(), known.at_least.copy()
    for place, level in enumerate(levels):
        asked, mine = queries[:: level.every], own[:: level.every, np.newaxis]
        true = np.where(level.true, level.truth, -1)
        for recall in _TRIED:
            plan = cheapest(state, replace(known, seen=seen, at_least=at_least), level.k, recall, distance)
            if plan is None or plan.candidates is None or plan.candidates > _DEPTH:
                break  # what codes find beyond that depth is in no truth
            # one more of each: a stored vector finds itself
            plan = replace(plan, k=min(level.k + 1, state.n_live), candidates=min(plan.candidates + 1, state.n_live))
            numbers = plan.run(state, asked)[1]
            numbers[numbers == mine] = -1
            found = sum(len(np.intersect1d(one, two[two >= 0])) for one, two in zip(numbers, true, strict=True))
            missed, expected = 1 - found / level.totals.sum(), 1 - plan.seen
            if missed > max(expected + _LARGEST_GAP, 1 - plan.at_least):
                more = missed / max(expected, _LARGEST_GAP)
                seen[place], at_least[place] = (1 - more * (1 - table[place]) for table in (seen, at_least))
    return replace(known, seen=seen, at_least=at_least)


class _AllCodes:
    """What every search scans if there are no lists."""

    def __init__(self, state: State, distance: str, queries: Any) -> None:  # noqa: ARG002
        self.state, self.distance = state, distance

    def fit(self, levels: Sequence[_Level]) -> None:
        """Learn what is scanned for each level."""
        n = len(levels)
        self.weights, self.thresholds = np.zeros((n, 4)), np.full((n, 1), -np.inf)
        self.lists, self.most = np.zeros((n, 1)), np.zeros((n, 1))
        self.codes = np.full((n, 1), float(self.state.n_live))

    def nearest(self, queries: Any, depth: int) -> Ids:
        """Numbers of the nearest codes of some queries."""
        return search_codes(self.state, queries, self.distance, depth, None)[1]

    def firsts(self, found: Ids, every: int, levels: Sequence[_Level]) -> Iterator[tuple[_Level, Any]]:  # noqa: ARG002
        """Each level, and the first threshold that scans each of the codes that were found for some queries."""
        return zip(levels, itertools.repeat(np.zeros(found.shape, dtype=np.uint8)), strict=False)


class _Lists(_AllCodes):
    """The lists, how many neighbours the regression expects in each, and thresholds for that."""

    def __init__(self, state: State, distance: str, queries: Any) -> None:
        hasher = state.hasher
        assert isinstance(hasher, ListHasher)
        self.state, self.distance, self.hasher = state, distance, hasher
        self.sizes = np.sum([np.diff(segment.lists(hasher).bounds) for segment in state.segments], axis=0)
        self.lists_of = [segment.lists(hasher).labels() for segment in state.segments]
        n_lists = len(self.sizes)
        most = min(n_lists, max(1, _CODES_SCANNED * n_lists // (len(queries) * state.n_live)))
        self.probing = Probing(most, np.zeros((1, 4)), np.array([-math.inf]))  # a rule: searches by rules are learned
        self.numbers, self.squared = list_search(state).chosen_lists(queries, self.probing)
        self.ranks_of_cells = hasher.search_centres().ranks_of_cells(queries, self.numbers)

    def fit(self, levels: Sequence[_Level]) -> None:
        """Fit the regression and choose the thresholds."""
        within = np.cumsum(np.where(self.numbers >= 0, self.sizes[self.numbers], 0), axis=1)
        few, most = slice(None, None, _FEWER), self.numbers.shape[1]
        features = np.stack([log_expected(self.squared[few, :_RANKS_FITTED], unit) for unit in np.eye(4)], axis=2)
        self.expected, self.looked_at, weights, tables = [], [], np.zeros(4), []
        for level in levels:
            ranks, true = self._ranks(level.truth, level.every), level.true
            fitted = slice(None, None, _FEWER // level.every)
            weights = _fitted(features, np.where(true, ranks, -1)[fitted], weights)
            whole = weights - np.array([math.log(level.counts.mean() / level.k), 0.0, 0.0, 0.0])  # some stand for more
            expected = log_expected(self.squared, whole)
            of_truth = np.take_along_axis(expected[:: level.every], np.maximum(ranks, 0), axis=1)
            falling = -np.sort(-np.where(ranks >= 0, of_truth, -np.inf)[true])
            last = np.ceil(np.array(_SHARES_IN_LISTS) * falling.size).astype(int) - 1
            thresholds = np.maximum(falling[last], expected[np.isfinite(expected)].min()) - _ROUNDING
            # expectations fall with the rank, so that those above a threshold come first
            scanned = np.array([(expected[few] >= threshold).sum(axis=1).clip(1) for threshold in thresholds])
            codes = [np.take_along_axis(within[few], n[:, np.newaxis] - 1, axis=1).mean() for n in scanned]
            farthest = np.minimum(most, np.ceil(_ROOM_FOR_LISTS * scanned.max(axis=1)))
            tables.append((whole, thresholds, scanned.mean(axis=1), farthest, np.array(codes)))
            self.expected.append(expected)
            self.looked_at.append([cells_to_look_at(len(self.sizes), int(n)) or _ALL_CELLS for n in farthest])
        columns = (np.array(table) for table in zip(*tables, strict=True))
        self.weights, self.thresholds, self.lists, self.most, self.codes = columns

    def nearest(self, queries: Any, depth: int) -> Ids:
        """Numbers of the nearest codes in the nearest lists."""
        return search_codes(self.state, queries, self.distance, depth, None, self.probing)[1]

    def firsts(self, found: Ids, every: int, levels: Sequence[_Level]) -> Iterator[tuple[_Level, Any]]:
        """Each level, and the first threshold that scans the list of each of the codes."""
        labels, numbers = self._labels(found), self.numbers[::every]
        of_levels = zip(levels, self.expected, self.thresholds, self.looked_at, strict=True)
        for level, expected, thresholds, looked_at in of_levels:
            by_list = np.full((len(numbers), len(self.hasher.centres_) + 1), len(thresholds), dtype=np.uint8)
            first = np.maximum(
                np.searchsorted(-thresholds, -expected[::every]),
                np.searchsorted(looked_at, self.ranks_of_cells[::every], side="right"),
            ).astype(np.uint8)
            np.put_along_axis(by_list, numbers.astype(np.int64), first, axis=1)  # -1: the last, for no list
            yield level, np.min([np.take_along_axis(by_list, some, axis=1) for some in labels], axis=0)

    def _ranks(self, ids: Ids, every: int) -> Ids:
        """Rank of the list of each vector among those of its query, of its nearest one; -1 if it is farther."""
        labels, ranks = self._labels(ids), np.empty(ids.shape, dtype=np.int64)
        places = np.empty(len(self.hasher.centres_) + 1, dtype=np.int64)
        for row, numbers in enumerate(self.numbers[::every]):
            places[:] = len(numbers)
            places[numbers] = np.arange(len(numbers))
            ranks[row] = places[labels[:, row]].min(axis=0)
        ranks[ranks == self.numbers.shape[1]] = -1
        return ranks

    def _labels(self, ids: Ids) -> npt.NDArray[np.int32]:
        """Lists of some vectors, one after another for each copy."""
        labels = np.zeros((self.hasher.copies, ids.size), dtype=np.int32)
        for segment, lists in zip(self.state.segments, self.lists_of, strict=True):
            places, positions = segment.find(ids.ravel())
            labels[:, places] = lists[:, positions]
        return labels.reshape(-1, *ids.shape)


def _levels(
    segments: Sequence[Segment], queries: npt.NDArray[Any], own: Ids, found: Ids
) -> tuple[Floats, list[_Level]]:
    """How far the first neighbours are, and the levels with their true neighbours.

    Of many vectors, those that were ``found`` by their codes are compared with the queries, and a sample of all. If the
    sample is a tenth of the vectors, a neighbour in it that was not found stands for ten.
    """
    n, size = sum(segment.n_live for segment in segments), queries.size
    rows = min(n, max(_PRODUCTS // size, min(-(-n // LEVELS[0]), _MOST_PRODUCTS // size), LEVELS[0] + 1))
    looked_at, share = drawn(segments, rows, seed=1), rows / n
    far, levels = np.zeros(2), []
    for every, ks in ((1, LEVELS[:_NEAR_LEVELS]), (_FEWER, LEVELS[_NEAR_LEVELS:])):
        expected = ks[-1] * share
        wanted = min(rows, math.ceil(expected + 4 * math.sqrt(expected * (1 - share))) + 1)
        candidates = nearest_by_products(queries[::every], segments, looked_at, wanted)[1]
        if rows < n:
            codes = found[::every].copy()
            for row, sampled in zip(codes, candidates, strict=True):
                row[np.isin(row, sampled)] = -1
            candidates = np.concatenate([candidates, codes], axis=1)
        candidates[candidates == own[::every, np.newaxis]] = -1
        most = min(ks[-1], candidates.shape[1] - 1)
        distances, truth = nearest_candidates(as_floats(queries[::every]), candidates, measure_of(segments), most)
        stands_for = np.ones(truth.shape)
        if rows < n:
            for row, ids, codes in zip(stands_for, truth, found[::every], strict=True):
                row[~np.isin(ids, codes)] = 1 / share
        totals = np.cumsum(stands_for, axis=1)
        if every == 1:
            far = np.quantile(distances[:, 0], [_SHARE_LIKE, 1.0])
        for k in ks:
            if k <= most:
                counts = (totals < k).sum(axis=1) + 1
                levels.append(_Level(k, every, truth, counts, totals[np.arange(len(truth)), counts - 1]))
    return far * [1.0, _ROOM], levels


def _fitted(features: Floats, ranks: Ids, start: Floats) -> Floats:
    """Weights of the Poisson regression for neighbours in lists of these ranks, by Newton's method."""
    n_ranks = features.shape[1]
    rows, columns = np.nonzero((ranks >= 0) & (ranks < n_ranks))
    counts = np.bincount(rows * n_ranks + ranks[rows, columns], minlength=len(features) * n_ranks)
    known = np.isfinite(features).all(axis=2).ravel()
    X, y = features.reshape(-1, features.shape[2])[known], counts[known].astype(np.float64)
    weights = start.copy() if start.any() else np.array([math.log(max(y.mean(), 1e-9)), 0.0, 0.0, 0.0])
    ridge = 1e-6 * len(y) * np.eye(len(weights))
    for _ in range(_NEWTON_STEPS if start.any() else 2 * _NEWTON_STEPS):
        expected = np.exp(np.clip(X @ weights, -30, 10))
        step = np.linalg.solve((X * expected[:, np.newaxis]).T @ X + ridge, X.T @ (y - expected))
        weights = weights + step * min(1.0, 2.0 / max(1e-9, float(np.abs(step).max())))
    return np.array([weights[0], min(weights[1], 0.0), min(weights[2], 0.0), weights[3]])


def _nearness(found: Ids, own: Ids, levels: Sequence[_Level], step: int, every: int) -> npt.NDArray[np.int32]:
    """How many vectors are nearer to its query than each code that was found; -1 if it does not count.

    ``found`` is of every ``every``-th query, and the result of those that levels with this ``step`` learn from too.
    """
    rows = max(step, every)
    truth = [level.truth for level in levels if level.every == step][-1][:: rows // step]
    codes = found[:: rows // every]
    order = np.argsort(truth, axis=1)
    places = np.empty(codes.shape, dtype=np.int32)
    for q, (ids, place) in enumerate(zip(np.take_along_axis(truth, order, axis=1), order, strict=True)):
        at = np.minimum(np.searchsorted(ids, codes[q]), len(ids) - 1)
        places[q] = np.where(ids[at] == codes[q], place[at], len(ids))
    places[(codes < 0) | (codes == own[::rows, np.newaxis])] = -1
    return places


def _recalls(
    nearness: Any, first: Any, counts: Ids, totals: Floats, grid: Ids, n_thresholds: int
) -> tuple[Floats, Floats]:
    """Recall and its lower bound for each threshold and number of candidates; of :class:`_Level`, counts and totals.

    The bound counts one more query that misses some, so that a sample without a miss does not promise certainty.
    """
    given = tuple(np.ascontiguousarray(array) for array in (nearness, first, counts, totals, grid))
    arguments: Any = (*given, n_thresholds)
    hits, squares, products = kernels.sum_hits(*arguments)
    n, mean = len(first), totals.mean()
    found = max(0.0, mean - _MISSED)
    recall = (hits + found) / ((n + 1) * mean)
    squares, products = squares + found**2, products + found * mean
    variance = (squares - 2 * recall * products + recall**2 * ((totals**2).sum() + mean**2)) / ((n + 1) * mean**2)
    return hits / (n * mean), recall - _DEVIATIONS * np.sqrt(np.maximum(0.0, variance) / n)
