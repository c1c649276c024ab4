"""What commands print: progress bars, and at the end a sentence or a table for people, or JSON for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from rich import progress as bars
from rich.console import Console, RenderableType
from rich.text import Text

from autojacobin.core.parallel import Progress
from autojacobin.core.progress import from_time_to_time, on_compilation

_WIDTH_OF_FILES = 120  # of tables in a file or a pipe


class _RateColumn(bars.ProgressColumn):
    """Points, steps or bytes per second."""

    def render(self, task: bars.Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{_shorten(speed)}/s", style="progress.data.speed")


def _shorten(number: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.1f}{letter}"
    return f"{number:.1f}"


def progress_bar(console: Console | None = None, *, quiet: bool = False) -> AbstractContextManager[Progress]:
    """Give a callback ``progress(stage, done, total)`` as the library takes it. Each stage has a bar of its own.

    The bars go to the standard error, so that the output of a command can be piped. If that is not a terminal, plain
    lines are printed instead: one when a stage begins, and one every 30 seconds. A ``total`` of 0 means that
    it is unknown. With ``quiet`` nothing is shown.
    """
    return _progress(console or Console(stderr=True), quiet, _bar_per_stage, "{stage}: {percent} %")


def single_bar(console: Console | None = None, *, quiet: bool = False) -> AbstractContextManager[Progress]:
    """Give a callback as :func:`progress_bar` does, with one bar for all stages, which names the current one."""
    return _progress(console or Console(stderr=True), quiet, _one_bar, "{percent:3d} %  {stage}")


def _progress(
    console: Console, quiet: bool, bar: Callable[[Console], AbstractContextManager[Progress]], line: str
) -> AbstractContextManager[Progress]:
    if quiet:
        return _silence()
    return bar(console) if console.is_terminal else _lines(console, line)


@contextmanager
def _silence() -> Iterator[Progress]:
    with on_compilation(lambda *_: None):
        yield lambda *_: None


@contextmanager
def _lines(console: Console, layout: str) -> Iterator[Progress]:
    start, stages = time.perf_counter(), {"working"}
    line = "working"

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal line
        line = layout.format(stage=stage, percent=100 * done // total) if total else stage
        if stage not in stages:
            stages.add(stage)
            _say(console, line if done else f"{stage} …")

    with (
        on_compilation(lambda line: _say(console, line)),
        from_time_to_time(lambda: _say(console, f"{line}, {time.perf_counter() - start:.0f} s")),
    ):
        yield progress


@contextmanager
def _bar_per_stage(console: Console) -> Iterator[Progress]:
    bar, share, left = bars.BarColumn(), bars.TaskProgressColumn(), bars.TimeRemainingColumn()
    with _bars(console, _description(), bar, share, _RateColumn(), left) as shown:
        before = shown.add_task("working", total=None)
        tasks: dict[str, bars.TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            shown.update(before, visible=False)
            if stage not in tasks:
                tasks[stage] = shown.add_task(stage, total=total or None)
            shown.update(tasks[stage], completed=done, total=total or None)

        yield progress


@contextmanager
def _one_bar(console: Console) -> Iterator[Progress]:
    bar, share, left = bars.BarColumn(), bars.TaskProgressColumn(), bars.TimeRemainingColumn()
    with _bars(console, bar, share, left, _description()) as shown:
        task = shown.add_task("working", total=None)

        def progress(stage: str, done: int, total: int) -> None:
            shown.update(task, description=stage, completed=done, total=total or None)

        yield progress


@contextmanager
def _bars(console: Console, *columns: bars.ProgressColumn) -> Iterator[bars.Progress]:
    with (
        bars.Progress(*columns, console=console, transient=True) as shown,
        on_compilation(lambda line: _say(console, line)),
    ):
        yield shown


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _description() -> bars.TextColumn:
    return bars.TextColumn("{task.description}", markup=False)


def count_of(n: int, one: str, many: str = "") -> str:
    """Give "1 vector", "1,000 vectors", "1 query", "2 queries"."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def report_blocks(blocks: Iterable[Any], total: int, progress: Progress, stage: str) -> Iterator[Any]:
    """Pass blocks of rows on, and report each as done when the next one is requested."""
    done = 0
    progress(stage, done, total)
    for block in blocks:
        yield block
        done += len(block)
        progress(stage, done, total)


def print_sentence(sentence: str, facts: Mapping[str, Any], *, quiet: bool, as_json: bool) -> None:
    """Print the sentence, or with ``as_json`` the facts in it."""
    if as_json:
        print_json(facts)
    elif not quiet:
        typer.echo(sentence)


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one name and value per line."""
    if as_json:
        print_json(facts)
        return
    width = max(13, *(len(name) + 1 for name in facts)) + 1
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}{as_text(value)}")


def print_json(facts: Any) -> None:
    """Print plain values, also those of NumPy, as JSON."""
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False, default=_plain, allow_nan=False))


def print_table(table: RenderableType) -> None:
    """Print a table, as wide as the terminal allows."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    console.print(table)


def as_text(value: Any) -> str:
    """Format a value for people."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={part}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value.item()
