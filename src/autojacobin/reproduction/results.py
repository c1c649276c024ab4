"""Outcomes of all trials of a run, by what was tried, averaged over seeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.datasets import VectorSet
from autojacobin.evaluation import OverSeeds, mean_and_error, over_seeds, paired_test
from autojacobin.reproduction.settings import Settings
from autojacobin.reproduction.trials import Cell, Outcome

__all__ = ["Results", "counted", "surely_better"]

Parameters = tuple[tuple[str, float], ...]


@dataclass
class Results:
    """What a run knows: the data, the settings, the truth, the outcomes, the parameters chosen for the variants."""

    data: VectorSet
    settings: Settings
    truth: npt.NDArray[np.int64]
    outcomes: dict[Cell, Outcome] = field(default_factory=dict)
    chosen: dict[str, dict[str, float]] = field(default_factory=dict)
    _levels: dict[Any, tuple[str, list[str]]] = field(default_factory=dict, repr=False)

    @property
    def seeds_in_words(self) -> str:
        """What numbers of the compared methods are."""
        n = self.settings.seeds
        return "seed 0" if n == 1 else f"mean ± deviation of {n} seeds"

    @property
    def averaged_over(self) -> str:
        """What curves are means over."""
        n, seeds = len(self.data.queries), self.settings.seeds
        return f"{counted(n, 'query', 'queries')}, {'seed 0' if seeds == 1 else f'{seeds} seeds'}"

    def of(self, method: str, bits: int, parameters: Parameters = ()) -> list[Outcome]:
        """Outcomes of a method at a length, a seed each."""
        found = {
            cell.seed: outcome
            for cell, outcome in self.outcomes.items()
            if (cell.method, cell.bits, cell.parameters) == (method, bits, parameters)
        }
        return [found[seed] for seed in sorted(found)]

    def m_recall(self, method: str, bits: int, k: int, parameters: Parameters = ()) -> OverSeeds:
        """m-Recall: mean and spread over the seeds."""
        return over_seeds([float(outcome.m_recall(k).mean()) for outcome in self.of(method, bits, parameters)])

    def curve(self, method: str, bits: int, k: int, parameters: Parameters = ()) -> npt.NDArray[np.float64]:
        """Recall@i, mean over queries and seeds."""
        curves = [outcome.recall_curve(k) for outcome in self.of(method, bits, parameters)]
        mean: npt.NDArray[np.float64] = np.mean(curves, axis=0)
        return mean

    def level_with_best(self, methods: Iterable[str], bits: int, k: int) -> tuple[str, list[str]]:
        """Best method by m-Recall, and those that are not behind it beyond the noise.

        A method is level with the best if they differ by no more than their seeds do, or if a paired test over the
        queries finds no difference (at 5 %). A single query shows none.
        """
        names = tuple(methods)
        if (names, bits, k) not in self._levels:
            means = {name: self.m_recall(name, bits, k) for name in names}
            best = max(names, key=lambda name: means[name].mean)
            values = {name: np.mean([o.m_recall(k) for o in self.of(name, bits)], axis=0) for name in names}
            level = []
            for name in names:
                spread = np.hypot(means[best].spread or 0.0, means[name].spread or 0.0)
                near = means[best].mean - means[name].mean <= spread
                if name != best and (near or not surely_better(values[best], values[name])):
                    level.append(name)
            self._levels[names, bits, k] = best, level
        return self._levels[names, bits, k]

    def records(self) -> list[dict[str, Any]]:
        """One record for each trial, as JSON takes it."""
        listed = []
        for cell, outcome in self.outcomes.items():
            means = {k: mean_and_error(outcome.m_recall(k)) for k in self.settings.ks}
            listed.append(
                {
                    "method": cell.method,
                    "bits": cell.bits,
                    "seed": cell.seed,
                    "parameters": dict(cell.parameters),
                    "m_recall": {str(k): mean for k, (mean, _) in means.items()},
                    "standard_error": {str(k): error for k, (_, error) in means.items()},
                    "seconds": outcome.seconds,
                    "warned": list(outcome.warned),
                }
            )
        return listed


def counted(n: int, one: str, many: str = "") -> str:
    """Give "1 seed", "1,000 seeds", "1 query", "2 queries"."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def surely_better(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> bool:
    """Whether a paired test over the queries finds a better than b, at 5 %."""
    return len(a) > 1 and paired_test(a, b).verdict() == "a better"
