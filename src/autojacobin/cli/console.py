"""What commands print: a progress bar, and at the end a sentence or a table for people, or JSON for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from rich import progress as bars
from rich.console import Console, RenderableType

from autojacobin.core.parallel import Progress
from autojacobin.core.progress import from_time_to_time, on_compilation

_WIDTH_OF_FILES = 120  # of tables in a file or a pipe


@dataclass
class Output:
    """What the options of the program ask for: ``--quiet``, ``--json`` and ``--debug``."""

    quiet: bool = False
    as_json: bool = False
    debug: bool = False


output = Output()


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Progress]:
    """Give a callback ``progress(stage, done, total)`` as the library takes it, for one bar that names the stage.

    The bar goes to the standard error, so that the output of a command can be piped. If that is not a terminal, plain
    lines are printed instead: one when a stage begins, and one every 30 seconds. A ``total`` of 0 means that
    it is unknown. With ``--quiet`` and ``--json`` nothing is shown.
    """
    shown = console or Console(stderr=True)

    def say(line: str) -> None:
        if not (output.quiet or output.as_json):
            shown.print(line, markup=False, highlight=False, soft_wrap=True)

    with on_compilation(say):
        if output.quiet or output.as_json:
            yield lambda *_: None
        elif shown.is_terminal:
            name = bars.TextColumn("{task.description}", markup=False)
            columns = (bars.BarColumn(), bars.TaskProgressColumn(), bars.TimeRemainingColumn(), name)
            with bars.Progress(*columns, console=shown, transient=True) as bar:
                task = bar.add_task("working", total=None)
                yield lambda stage, done, total: bar.update(
                    task, description=stage, completed=done, total=total or None
                )
        else:
            start, line, stages = time.perf_counter(), "working", {"working"}

            def progress(stage: str, done: int, total: int) -> None:
                nonlocal line
                line = f"{stage}: {100 * done // total} %" if total else stage
                if stage not in stages:
                    stages.add(stage)
                    say(line if done else f"{stage} …")

            with from_time_to_time(lambda: say(f"{line}, {time.perf_counter() - start:.0f} s")):
                yield progress


def report_blocks(blocks: Iterable[Any], total: int, progress: Progress, stage: str) -> Iterator[Any]:
    """Pass blocks of rows on, and report each as done when the next one is requested."""
    done = 0
    progress(stage, done, total)
    for block in blocks:
        yield block
        done += len(block)
        progress(stage, done, total)


def print_sentence(sentence: str, facts: Mapping[str, Any]) -> None:
    """Print the sentence, or with ``--json`` the facts in it."""
    if output.as_json:
        print_json(facts)
    elif not output.quiet:
        typer.echo(sentence)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print one name and value per line."""
    if output.as_json:
        print_json(facts)
        return
    width = max(13, *(len(name) + 1 for name in facts)) + 1
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}{as_text(value)}")


def print_json(facts: Any) -> None:
    """Print plain values, also those of NumPy, as JSON."""
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False, default=plain, allow_nan=False))


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


def plain(value: Any) -> Any:
    """Give the text or number that an Enum, a path or a number of NumPy stands for."""
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value.item()
