"""Work over points on all cores, while the BLAS library is limited to one thread.

On thousands of small matrices the threads of a BLAS library cost more than they gain: 15 times as much, with two
threads and 128×128 eigenproblems. The points themselves are independent and are easily divided among the cores.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from autojacobin.core.arrays import namespace
from autojacobin.core.counts import typed_number

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # called as progress(stage, done, total)

_blas_lock = threading.Lock()
_limits: list[Any] = []  # of BLAS libraries, while they are limited to one thread


def map_points(work: Callable[[slice], T], array: Any, per_task: int) -> Iterator[T]:
    """Give ``work(rows)`` for slices of ``per_task`` rows of ``array``, in order.

    The slices do not depend on the number of cores, so neither does a sum over the results. On a GPU the
    slices run one after another: there the device itself works in parallel.
    """
    tasks = slices(len(array), per_task)
    cores = min(usable_cores(), len(tasks))
    if namespace(array) is not np or cores <= 1:
        yield from map(work, tasks)
        return
    with one_blas_thread(), ThreadPoolExecutor(cores) as pool:
        yield from pool.map(work, tasks)


def slices(n: int, size: int) -> list[slice]:
    """Cut n rows into slices of ``size`` rows, of which the last may be shorter."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def run_tasks(work: Callable[..., T], tasks: Sequence[tuple[Any, ...]]) -> list[T]:
    """Give ``work(*task)`` for every task, in order, on all cores; for kernels that release the GIL.

    The calling thread works too. Otherwise it would wait, and to wake it up takes as long as a search for one query.
    """
    cores = min(usable_cores(), len(tasks))
    results: list[Any] = [None] * len(tasks)
    numbers = itertools.count()  # a next() on it is atomic

    def drain() -> None:
        while (number := next(numbers)) < len(tasks):
            results[number] = work(*tasks[number])

    helpers = [_pool().submit(drain) for _ in range(cores - 1)]
    try:
        drain()
    finally:
        for helper in helpers:
            if not helper.cancel():  # a helper that has not begun has nothing to do, and may wait for this thread
                helper.result()
    return results


def usable_cores() -> int:
    """Count the cores that the scheduler lets this process run on, or that ``OMP_NUM_THREADS`` grants it."""
    try:
        available = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        available = os.cpu_count() or 1
    granted = os.environ.get("OMP_NUM_THREADS", "")
    return min(available, typed_number(granted) or available)


@cache
def _pool() -> ThreadPoolExecutor:
    # kept, because it takes as long to start threads as to search for one query
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="autojacobin")


def _renew_after_fork() -> None:
    """Forget threads, which do not survive a fork, and a lock and a limit that another of them may have held."""
    global _blas_lock
    _blas_lock = threading.Lock()
    _pool.cache_clear()
    if _limits:
        _restore_limits()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, unless it is limited already.

    Used around a whole training: after a product on several threads, the threads of OpenBLAS keep their cores busy with
    waiting for some 20 ms, and the work over points needs these cores. The number of threads belongs to the process, so
    only the thread that sets it restores it.
    """
    with _blas_lock:
        first = not _limits
        if first:
            _set_limit()
    try:
        yield
    finally:
        if first:
            with _blas_lock:
                _restore_limits()


@cache
def scipy_linalg() -> Any:
    """Load SciPy's linear algebra. It has a BLAS library of its own, to which a limit that is set applies as well.

    To be called before work is given to other threads: loading takes time, and changes the limits of all.
    """
    import scipy.linalg

    with _blas_lock:
        _controller.cache_clear()  # which does not know this library
        if _limits:
            _set_limit()
    return scipy.linalg


def _set_limit() -> None:
    _let_this_thread_set_limits()
    _limits.append(_controller().limit(limits=1, user_api="blas"))


def _restore_limits() -> None:
    _let_this_thread_set_limits()
    while _limits:
        _limits.pop().restore_original_limits()
    _let_this_thread_set_limits()  # and then any other, which the caller may have


def _let_this_thread_set_limits() -> None:
    """Make threadpoolctl obey this thread: from 3.8 on, it ignores all but the first thread that has set a limit."""
    for library in _controller().lib_controllers:
        getattr(library, "clear_controlling_thread", lambda **_: None)(force=True)


@cache
def _controller() -> ThreadpoolController:
    # finding the loaded libraries takes milliseconds, too long for every step of a training
    return ThreadpoolController()
