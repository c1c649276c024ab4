"""Where the tasks of a job run: in this process, or on a cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Executor", "InProcess", "Progress", "Task", "dask_setup"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Task:
    """A call of a pure function; the same task may run twice, and then does the same.

    Attributes
    ----------
    function : callable
        Importable by name, so that any process can find it.
    arguments : tuple
        Small things: paths and numbers. What is large is shared once (:meth:`Executor.share`).
    about : str
        What the task works on, for messages: the path of a file.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    about: str


class Executor(Protocol):
    """Runs tasks somewhere. Another way to run them is another class with these three methods."""

    def share(self, value: Any) -> Any:
        """Put a value where every task can have it, and give what stands for it among a task's arguments."""

    def each(self, stage: str, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[tuple[int, Any]]:
        """Give the number and the answer of each task, as they finish."""

    def merged(
        self,
        stage: str,
        tasks: Sequence[Task],
        merge: Callable[[Sequence[Any], int], Any],
        k: int,
        progress: Progress | None = None,
    ) -> Any:
        """Give the answers of all tasks put together by ``merge(answers, k)``, a few at a time, in any grouping."""


class InProcess:
    """Runs tasks here, one after another."""

    def share(self, value: Any) -> Any:
        """Give the value itself."""
        return value

    def each(self, stage: str, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[tuple[int, Any]]:
        """Give the number and the answer of each task."""
        for number, task in enumerate(tasks):
            yield number, task.function(*task.arguments)
            if progress is not None:
                progress(stage, number + 1, len(tasks))

    def merged(
        self,
        stage: str,
        tasks: Sequence[Task],
        merge: Callable[[Sequence[Any], int], Any],
        k: int,
        progress: Progress | None = None,
    ) -> Any:
        """Give the answers of all tasks put together."""
        together: list[Any] = []
        for _, answer in self.each(stage, tasks, progress):
            together = [merge([*together, answer], k)]
        return together[0]


def dask_setup(_: Any) -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that waits for the answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
