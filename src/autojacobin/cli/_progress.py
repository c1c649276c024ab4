"""A progress bar for every command that takes long: what is being done, how far, how fast, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

__all__ = ["Tell", "progress_bar", "single_bar", "told_blocks"]

Tell = Callable[[str, int, int], None]


class _RateColumn(ProgressColumn):
    """How many a second: points, steps or bytes, whatever the stage counts."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{_shortened(speed)}/s", style="progress.data.speed")


def _shortened(number: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.1f}{letter}"
    return f"{number:.1f}"


@contextmanager
def progress_bar(console: Console | None = None, *, quiet: bool = False) -> Iterator[Tell]:
    """Lend a callback ``progress(stage, done, total)`` as the library takes it; each stage gets a bar of its own.

    The bars go to the standard error, so that what a command prints can be piped on. Where that is no terminal, a
    stage is one plain line when it begins. A ``total`` of 0 is one that nobody knows. With ``quiet`` nothing is shown.
    """
    console = console or Console(stderr=True, quiet=quiet)
    described = TextColumn("{task.description}", markup=False)
    columns = (described, BarColumn(), TaskProgressColumn(), _RateColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
                if not console.is_terminal:
                    console.print(f"{stage} …", markup=False, highlight=False, soft_wrap=True)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield tell


@contextmanager
def single_bar(console: Console | None = None, *, quiet: bool = False) -> Iterator[Tell]:
    """Lend a callback as :func:`progress_bar` does, with one bar over the whole, which says what is being done."""
    console = console or Console(stderr=True, quiet=quiet)
    told_last = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), told_last)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
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


def told_blocks(blocks: Iterable[Any], total: int, tell: Tell, stage: str) -> Iterator[Any]:
    """Hand blocks of rows on, and tell when the work on each is done, which is when the next is asked for."""
    done = 0
    tell(stage, done, total)
    for block in blocks:
        yield block
        done += len(block)
        tell(stage, done, total)
