"""Timing for the benchmarks: tasks take turns, so that noise of the machine affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def fastest(
    tasks: dict[str, Callable[[], Any]], rounds: int, before: Callable[[], Any] = lambda: None
) -> dict[str, float]:
    """Shortest time of each task in seconds; ``before`` is called before each run and not timed."""
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            before()
            start = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
