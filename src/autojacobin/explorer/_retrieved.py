"""What one method retrieves at one length, and which of it a page could ever show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.evaluation.ranks import ranks_in_list
from autojacobin.hashers import Hasher
from autojacobin.search import asymmetric_topk, hamming_topk, rerank

__all__ = ["DISTANCES", "Retrieved", "ranks_of", "retrieve"]

DISTANCES = ("hamming", "asymmetric")


@dataclass(frozen=True, eq=False)
class Retrieved:
    """What a fitted method retrieves.

    Attributes
    ----------
    ids : dict of distance to array of shape (n_wall, depth)
        The points in order of the distance of their codes, for the queries on the wall.
    found : dict of distance to array of shape (k, n_stops)
        Over all queries: how often the j-th true neighbour was among so many candidates.
    codes, query_codes : Codes
        Of the base, and of the queries on the wall.
    projections : array of shape (n_wall, n_bits)
        Of the queries on the wall; their sizes are the weights of the asymmetric distance.
    """

    ids: dict[str, npt.NDArray[np.int64]]
    found: dict[str, npt.NDArray[np.int64]]
    codes: Codes
    query_codes: Codes
    projections: npt.NDArray[Any]

    def ever_shown(self, queries: Any, base: Any, stops: list[int], k: int) -> list[npt.NDArray[np.int64]]:
        """Ids that are among the k nearest of the candidates for one of the stops at least, for each query."""
        shown: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(len(queries))]
        for ids in self.ids.values():
            _, nearest = rerank(queries, ids, base, ids.shape[1])
            for number, row in enumerate(nearest):
                ranks = ranks_of(row, ids[number])
                shown[number] += [row[ranks <= stop][:k] for stop in stops]
        return [np.unique(np.concatenate(pieces)) for pieces in shown]


def retrieve(
    hasher: Hasher,
    base: Any,
    queries: Any,
    truth: npt.NDArray[np.int64],
    wall: npt.NDArray[np.int64],
    stops: list[int],
) -> Retrieved:
    """Encode with a fitted hasher, search by both distances, and count what was found after each stop."""
    codes, query_codes, projections = hasher.encode(base), hasher.encode(queries), hasher.project(queries)
    answers = {
        "hamming": hamming_topk(query_codes, codes, stops[-1])[1],
        "asymmetric": asymmetric_topk(projections, codes, stops[-1])[1],
    }
    found = {}
    for distance, ids in answers.items():
        before = ranks_in_list(ids, truth, truth.shape[1]).before
        found[distance] = np.stack([(before < stop).sum(axis=0) for stop in stops], axis=1)
    kept = {distance: ids[wall] for distance, ids in answers.items()}
    return Retrieved(kept, found, codes, query_codes[wall], projections[wall])


def ranks_of(ids: npt.NDArray[np.int64], answer: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Places of ``ids`` in an answer, from 1 on; 0 where one is not in it.

    >>> import numpy as np
    >>> ranks_of(np.array([5, 8, 6]), np.array([6, 7, 5]))
    array([3, 0, 1])
    """
    order = np.argsort(answer)
    places = np.minimum(np.searchsorted(answer, ids, sorter=order), len(answer) - 1)
    return np.where(answer[order[places]] == ids, order[places] + 1, 0)
