"""A progress bar for every command that takes long: what is being done, how far, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["progress_bar", "single_bar"]


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """Lend a callback ``progress(stage, done, total)`` as the library takes it; each stage gets a bar of its own.

    The bars go to the standard error, so that what a command prints can be piped on. Where that is no terminal, a
    stage is one plain line when it begins. A ``total`` of 0 is one that nobody knows.
    """
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
                if not console.is_terminal:
                    console.print(f"{stage} …", markup=False, highlight=False, soft_wrap=True)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield tell


@contextmanager
def single_bar(console: Console | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """Lend a callback as :func:`progress_bar` does, with one bar over the whole, which says what is being done."""
    console = console or Console(stderr=True)
    told_last = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), told_last)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=None)
        told = ""

        def tell(stage: str, done: int, total: int) -> None:
            nonlocal told
            bars.update(task, description=stage, completed=done, total=total or None)
            if stage != told and not console.is_terminal:
                share = f"{100 * done // total:3d} %  " if total else ""
                console.print(f"{share}{stage}", markup=False, highlight=False, soft_wrap=True)
            told = stage

        yield tell
