"""The tasks of a job, and what runs them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autojacobin.core.parallel import Progress

__all__ = ["Executor", "Task", "dask_setup"]


@dataclass(frozen=True)
class Task:
    """A call of a function that may run twice with the same result.

    The function is importable by name, so that any process can find it. The arguments are small, such as paths and
    numbers; large values are shared once (:meth:`Executor.share`). ``about`` is what the task works on, for messages.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    about: str


class Executor(Protocol):
    """Runs tasks. A class with these three methods can run them in another way."""

    def share(self, value: Any) -> Any:
        """Make a value available to all tasks, and return what represents it in the arguments of a task."""

    def each(self, stage: str, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task, as they finish."""

    def merged(
        self,
        stage: str,
        tasks: Sequence[Task],
        merge: Callable[[Sequence[Any], int], Any],
        k: int,
        progress: Progress | None = None,
    ) -> Any:
        """Merge the results of all tasks with ``merge(results, k)``, a few at a time, in any grouping."""


def dask_setup(_: Any) -> None:
    """Ignore Ctrl-C in a worker; a terminal sends it to every process, and the client handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
