"""Work over points on every core, with the BLAS library held to one thread meanwhile.

On thousands of small matrices the threads of a BLAS library cost more than they bring (15 times more, with
two threads and 128×128 eigenproblems), while the points themselves are independent and share out well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from autojacobin._arrays import namespace

__all__ = ["map_points", "usable_cores"]

T = TypeVar("T")


def map_points(work: Callable[[slice], T], array: Any, per_task: int) -> Iterator[T]:
    """Give ``work(rows)`` for slices of ``per_task`` rows of ``array``, in order, whoever finishes first.

    The slices do not depend on the number of cores, so neither does a sum over the results. On a GPU the
    slices run one after another: the device is what works in parallel there.
    """
    tasks = [slice(start, min(start + per_task, len(array))) for start in range(0, len(array), per_task)]
    cores = min(usable_cores(), len(tasks))
    if namespace(array) is not np or cores <= 1:
        yield from map(work, tasks)
        return
    with _controller().limit(limits=1, user_api="blas"), ThreadPoolExecutor(cores) as pool:
        yield from pool.map(work, tasks)


def usable_cores() -> int:
    """Count the cores that the scheduler lets this process run on, or that ``OMP_NUM_THREADS`` grants it."""
    try:
        available = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        available = os.cpu_count() or 1
    granted = os.environ.get("OMP_NUM_THREADS", "")
    return min(available, int(granted)) if granted.isdigit() and int(granted) > 0 else available


@cache
def _controller() -> ThreadpoolController:
    # finding the loaded libraries takes milliseconds, too long for every step of a training
    return ThreadpoolController()
