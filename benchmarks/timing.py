"""Timing for the benchmarks: tasks take turns, so that noise of the machine affects all of them alike.

Results are written to files from which ``tables.py`` makes the tables of the documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

_NOT_SETTINGS = ("data", "json", "plot", "scratch")  # paths of this machine


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


def write_results(path: Any, results: Any, options: argparse.Namespace, versions: dict[str, str] | None = None) -> None:
    """Write results with what they depend on."""
    settings = {name: value for name, value in vars(options).items() if name not in _NOT_SETTINGS}
    content = {
        "measured": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "settings": settings,
        "versions": versions or {},
        "results": results,
    }
    Path(path).write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
