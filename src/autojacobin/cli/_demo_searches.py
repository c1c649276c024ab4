"""The index of the demo, and what each way to search it finds, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin import AutoJacoBin
from autojacobin.cli._progress import Tell
from autojacobin.evaluation import ground_truth, recall_curve
from autojacobin.index.index import Index
from autojacobin.reproduction.settings import cut

if TYPE_CHECKING:
    from autojacobin.datasets import VectorSet
    from autojacobin.reproduction import Settings

__all__ = ["Row", "Searched", "build_index", "try_searches"]

_K, _CANDIDATES, _WANTED = 10, 100, 0.95
_ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """One way to search: how many codes it re-ranks, if any, its recall, and queries a second."""

    name: str
    candidates: int | None
    recall: float
    rate: float


@dataclass(frozen=True)
class Searched:
    """What was found for the ``k`` nearest, a row a way."""

    k: int
    rows: list[Row]


def build_index(data: VectorSet, settings: Settings, folder: Path, tell: Tell) -> Index:
    """Train on the points of the report, and keep the model and the index of the whole base in ``folder``.

    An index that an earlier demo left there is replaced in one step.
    """
    hasher = AutoJacoBin(settings.bits[0], random_state=0, progress=tell).fit(cut(data, settings).train)
    hasher.save(folder / "model.safetensors")
    tell("index", 0, 0)
    in_memory = Index(hasher)
    in_memory.add(data.base)
    in_memory.save(folder / "index")
    index = Index.open(folder / "index")
    index.verify()
    return index


def try_searches(index: Index, data: VectorSet, tell: Tell) -> Searched:
    """Search by codes alone, with re-ranking, and for a recall that is wanted; beside the exact distances."""
    queries, k = np.asarray(data.queries), min(_K, len(index))
    candidates = min(max(_CANDIDATES, k), len(index))
    tell("searches", 0, 0)
    exact, truth = _timed(lambda: ground_truth(data.base, queries, k))
    rows = [Row("exact distances, no codes", None, 1.0, len(queries) / exact)]

    def row(name: str, number: int | None, **how: Any) -> None:
        seconds, (_, ids) = _timed(lambda: index.search(queries, k, **how))
        rows.append(Row(name, number, float(recall_curve(ids, truth, k, k)[-1]), len(queries) / seconds))

    row("Hamming", None, rerank=False)
    row("asymmetric", None, distance="asymmetric", rerank=False)
    row("Hamming, re-ranked", candidates, candidates=candidates)
    row("asymmetric, re-ranked", candidates, distance="asymmetric", candidates=candidates)
    chosen = index.calibrated(k, _WANTED, distance="asymmetric").candidates
    row(f"asymmetric, recall={_WANTED} asked for", chosen, distance="asymmetric", recall=_WANTED)
    return Searched(k, rows)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the best of several rounds, the first of which may have to compile, and what came of the last."""
    seconds: list[float] = []
    outcome: npt.NDArray[Any] | tuple[Any, Any] | None = None
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        outcome = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), outcome
