"""The table of searches: what each way to search an index finds, and how many queries it answers per second."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from autojacobin.core.counts import count_of
from autojacobin.core.parallel import Progress
from autojacobin.datasets import VectorSet
from autojacobin.evaluation import ground_truth, recall_curve
from autojacobin.index.index import Index
from autojacobin.paper.reproduction.report import Table

_K, _CANDIDATES, _RECALL = 10, 100, 0.95
_ROUNDS = 5


def search_table(indexes: Mapping[str, Index], data: VectorSet, progress: Progress | None = None) -> Table:
    """Search exactly, and in each index by codes alone, with re-ranking, and for a given recall.

    ``indexes`` are of the base of ``data``, by the names for the table. It has one row for each search: the candidates
    that are re-ranked, the recall, and the queries per second.
    """
    queries, k = np.asarray(data.queries), min(_K, len(data.base))
    candidates = min(max(_CANDIDATES, k), len(data.base))
    if progress is not None:
        progress("searches", 0, 0)
    truth = ground_truth(data.base, queries, k)
    tasks: list[tuple[str, int | None, float, Callable[[], Any]]] = [
        ("exact distances, no codes", None, 1.0, lambda: ground_truth(data.base, queries, k))
    ]

    def search(index: Index, name: str, number: int | None, **how: Any) -> float:
        task = partial(index.search, queries, k, **how)
        recall = float(recall_curve(task()[1], truth, k, k)[-1])  # the first call may have to compile
        tasks.append((name, number, recall, task))
        return recall

    for name, index in indexes.items():
        # Codes that are no signs are made for their default distance alone.
        distances = index.hasher.distances if index.hasher.codes_are_signs else index.hasher.distances[:1]
        recalls = [search(index, f"{name}, {one}", None, distance=one, rerank=False) for one in distances]
        for one in distances:
            search(index, f"{name}, {one}, re-ranked", candidates, distance=one, candidates=candidates)
        _, best = max(zip(recalls, distances, strict=True))  # by the recall of the codes alone
        chosen = index.plan(k, recall=_RECALL, distance=best).candidates
        search(index, f"{name}, {best}, recall={_RECALL}", chosen, distance=best, recall=_RECALL)
    seconds = fastest([task for *_, task in tasks], _ROUNDS)
    rows = [
        (name, "" if number is None else f"{number:,}", f"{recall:.3f}", f"{len(queries) / best:,.0f}")
        for (name, number, recall, _), best in zip(tasks, seconds, strict=True)
    ]
    lengths = sorted({index.hasher.n_bits for index in indexes.values()})
    return Table(
        "searches",
        f"Searches of an index of {data.name}",
        ("search", "candidates", f"recall@{k}", "queries per second"),
        tuple(rows),
        note=f"recall@{k}: the share of the {k} true neighbours among the {k} found, mean over "
        f"{count_of(len(queries), 'query', 'queries')}, which are searched at once. Codes have "
        f"{' or '.join(map(str, lengths))} bits. Candidates are the points with the nearest codes, which are re-ranked "
        "by their vectors; they are collected in any order, which is faster than finding the nearest codes in order, "
        f"so that re-ranking costs little or nothing here. With recall={_RECALL} the index chooses how many. Times are "
        f"those of this machine, the best of {_ROUNDS} rounds, in each of which all searches take their turn.",
    )


def fastest(tasks: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Best time of each task. They take turns, so that a machine that is busy for a while slows down all of them."""
    best = [math.inf] * len(tasks)
    for _ in range(rounds):
        for number, task in enumerate(tasks):
            start = time.perf_counter()
            task()
            best[number] = min(best[number], time.perf_counter() - start)
    return best
