"""How many candidates a wanted recall takes in each index, learned once and aside from the searches.

Learning takes seconds, because exact neighbours are looked for. So it happens in a thread of its own, while other
requests go on; whoever waits too long for it is told to ask again, and finds it done.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from autojacobin.index.index import Index
from autojacobin.service.background import BackgroundThread
from autojacobin.service.problems import Problem, busy
from autojacobin.service.shelf import ServedIndex

__all__ = ["Recalls"]

_MOST_LEARNED = 16  # values of k, each of which is learned by itself
_LARGEST_RECALL = 0.999  # that the library takes
_CHANGED_SHARE = 0.1  # as the library has it
_PROBES = 64

Question = tuple[int, float, str]


@dataclass
class _Learned:
    """Candidates for each question, and the version of the index that they were learned on."""

    index: Index
    n_vectors: int
    candidates: dict[Question, int] = field(default_factory=dict)
    ks: set[int] = field(default_factory=set)


class Recalls:
    """What was learned about every index that was asked with a recall."""

    def __init__(self) -> None:
        self._learned: dict[str, _Learned] = {}
        self._thread = BackgroundThread("autojacobin-recalls")

    def close(self) -> None:
        """Begin nothing more; who waits for something to be learned is told to ask again."""
        self._thread.close()

    async def candidates(self, served: ServedIndex, k: int, recall: float, distance: str, seconds: float) -> int:
        """Give the candidates that a recall takes, learned now if they were not before."""
        # In steps of a thousandth, upwards, so that nobody can fill the memory with recalls that differ by a hair.
        question = (k, math.ceil(round(1000 * recall, 6)) / 1000 if recall <= _LARGEST_RECALL else recall, distance)
        known = self._known(served)
        if question in known.candidates:
            return known.candidates[question]
        if len(known.ks | {k}) > _MOST_LEARNED:
            detail = f"recall is learned for at most {_MOST_LEARNED} values of k, got one more, {k}; "
            raise Problem(400, "invalid-request", detail + "ask with candidates instead")
        known.ks.add(k)
        learning = self._thread.run(self._learn, known, question)
        done, _ = await asyncio.wait((learning,), timeout=seconds)
        if learning.cancelled():
            raise busy("the service is stopping and learns nothing new; ask again when it is back")
        if not done:
            learning.add_done_callback(_forget_error)
            raise busy(f"how to reach a recall of {recall:g} is still being learned; ask again after Retry-After")
        return learning.result()

    def _known(self, served: ServedIndex) -> _Learned:
        index = served.index
        known = self._learned.get(served.name)
        if known is None or (known.index is not index and not _much_the_same(known, index)):
            known = _Learned(index, len(index))
            self._learned[served.name] = known
        known.index = index
        return known

    def _learn(self, known: _Learned, question: Question) -> int:
        if question not in known.candidates:  # another request may have asked the same meanwhile
            k, recall, distance = question
            kind = cast(Literal["hamming", "asymmetric"], distance)
            try:
                known.candidates[question] = known.index.calibrated(k, recall, distance=kind).candidates
            except BaseException:
                if not any(learned[0] == k for learned in known.candidates):
                    known.ks.discard(k)
                raise
        return known.candidates[question]


def _much_the_same(known: _Learned, index: Index) -> bool:
    """Whether a new version has the same hasher and about as many vectors."""
    before, now = known.index.hasher, index.hasher
    if (before.n_features_in_, before.n_bits) != (now.n_features_in_, now.n_bits):
        return False
    if abs(len(index) - known.n_vectors) > _CHANGED_SHARE * known.n_vectors:
        return False
    probes = np.random.default_rng(0).normal(size=(_PROBES, now.n_features_in_)).astype(np.float32)
    return bool(before.encode(probes) == now.encode(probes))


def _forget_error(learning: asyncio.Future[Any]) -> None:
    learning.cancelled() or learning.exception()
