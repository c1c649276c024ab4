"""Which lists a query scans, and which queries are searched wider."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.search.centres import NO_RULE
from autojacobin.search.kernels.coarse_quantiser import write_expected


@dataclass(frozen=True, eq=False)
class Probing:
    """Which lists a query scans: the ``most`` nearest, or those of them in which enough neighbours are expected.

    ``weights`` has w0 to w3 of the expected number of neighbours (``kernels/coarse_quantiser.py``) for each level. A
    list is scanned if the logarithm of this number is at least the entry of ``thresholds``. With a filter, each query
    takes the first level at which it expects k + 2√k allowed neighbours: where k are expected, half of the queries have
    fewer.
    """

    most: int
    weights: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    thresholds: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    k: int = 1

    @cached_property
    def rule(self) -> npt.NDArray[np.float64]:
        """Weights, threshold and wanted neighbours of each level as the kernels take them."""
        if self.weights is None or self.thresholds is None:
            return NO_RULE
        wanted = np.full(len(self.weights), self.k + 2 * math.sqrt(self.k))
        return np.column_stack([self.weights, self.thresholds, wanted])


@dataclass(frozen=True, eq=False)
class Wider:
    """Which queries are unlike those that an index learned from, and how they are searched again.

    Its level is 1 or 2 if the nearest neighbour that was found is farther than ``far[0]`` or ``far[1]``, and at least
    1, 2 or 3 if the squared distance to the ``middle`` is below ``central[0]``, ``central[1]`` or ``central[2]``. At
    levels 1 and 2 the query is searched again, in lists that are chosen by ``probings``, with more ``candidates``. At
    level 3 all vectors are compared, as they are if the number of candidates is 0.
    """

    middle: npt.NDArray[np.float32]
    far: npt.NDArray[np.float64]
    central: npt.NDArray[np.float64]
    candidates: tuple[int, int]
    probings: tuple[Probing, Probing] | None  # None if the codes are in no lists

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """All of this as the kernel for lists takes it."""
        assert self.probings is not None
        rules, most = zip(*((probing.rule, probing.most) for probing in self.probings), strict=True)
        return self.middle, self.far, self.central, rules, most, self.candidates


NOT_WIDER = Wider(np.empty(0, np.float32), np.full(2, np.inf), np.full(3, -1.0), (0, 0), (Probing(0), Probing(0)))


def log_expected(squared: npt.NDArray[np.float32], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Logarithms of the numbers of neighbours that are expected in lists; -inf where there is none."""
    expected = np.empty(squared.shape)
    write_expected(np.ascontiguousarray(squared), weights, expected)
    return expected
