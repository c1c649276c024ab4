"""What commands print: a progress bar, sentences, tables or JSON, and in one sentence what ended a command early."""

import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import typer
from rich import progress as bars
from rich.console import Console
from rich.table import Table

from autojacobin.core.addresses import redacted_message
from autojacobin.core.parallel import Progress
from autojacobin.core.progress import from_time_to_time, on_compilation
from autojacobin.core.signals import stopping_signals
from autojacobin.errors import AutoJacobinError, StorageError

_WIDTH_OF_FILES = 120  # of tables in a file or a pipe


output = SimpleNamespace(quiet=False, as_json=False, debug=False)  # what the options of the program ask for


def check_standard_output() -> None:
    """Raise a StorageError if the standard output, where a result should go, is closed."""
    if sys.stdout is None:
        raise StorageError("cannot write -: the standard output is closed; open it, or give a file if there can be one")


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Progress]:
    """Give a callback ``progress(stage, done, total)`` as the library takes it, for one bar that names the stage.

    It goes to the standard error. If that is not a terminal, lines are printed instead: one when a stage begins, and
    one every 30 seconds. A ``total`` of 0 means that it is unknown. With ``--quiet`` and ``--json`` nothing is shown.
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
                yield lambda stage, done, n: bar.update(task, description=stage, completed=done, total=n or None)
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


def numbered(blocks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Give blocks of rows, each with the number of its first row."""
    row = 0
    for block in blocks:
        yield row, block
        row += len(block)


def report_blocks(blocks: Iterable[Any], total: int, progress: Progress, stage: str) -> Iterator[Any]:
    """Pass blocks of rows on, and report each as done when the next one is requested."""
    progress(stage, 0, total)
    for row, block in numbered(blocks):
        yield block
        progress(stage, row + len(block), total)


def print_sentence(sentence: str, facts: Mapping[str, Any]) -> None:
    """Print the sentence, or with ``--json`` the facts in it."""
    if output.as_json:
        print_json(facts)
    elif not output.quiet:
        typer.echo(sentence)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print one name and value per line."""
    check_standard_output()
    if output.as_json:
        print_json(facts)
        return
    width = max(13, *(len(name) + 1 for name in facts)) + 1
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}{as_text(value)}")


def print_json(facts: Any) -> None:
    """Print plain values, also those of NumPy, as JSON."""
    check_standard_output()
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False, default=plain, allow_nan=False))


def table_of(*titles: str) -> Table:
    """Make an empty table; all columns but the first are of numbers."""
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left", no_wrap=bool(number))
    return table


def print_table(table: Table) -> None:
    """Print a table, as wide as the terminal allows."""
    check_standard_output()
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    console.print(table)


def as_text(value: Any) -> str:
    """Format a value for people."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={part}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def plain(value: Any) -> Any:
    """Give the text or number that a path or a number of NumPy stands for."""
    return str(value) if isinstance(value, Path) else value.item()


_UsageError: Any = typer.BadParameter.__mro__[1]  # typer takes it from click, or from a copy of click


@contextmanager
def report_failures() -> Iterator[None]:
    """End the process with a sentence and the exit code 1 if the block raises; print warnings as sentences."""
    output.debug = False
    try:
        with warnings.catch_warnings(), stoppable("nothing is left half-written"):
            warnings.showwarning = _print_warning
            yield
    except typer.Exit as end:  # after a signal
        sys.exit(end.exit_code)
    except Exception as error:
        text = "".join(traceback.format_exception(error)) if output.debug else f"autojacobin: {_sentence(error)}"
        typer.echo(_without_secrets(text).rstrip("\n"), err=True)
        sys.exit(1)


@contextmanager
def clear_usage_errors() -> Iterator[None]:
    """Report wrong use in plain words, and without the passwords in addresses among the arguments."""
    try:
        yield
    except _UsageError as error:
        message, cause = str(error.message), error.__cause__
        if message.startswith("Input should be") and hasattr(cause, "errors"):  # newer versions of typer use pydantic
            message = f"it must be{message.removeprefix('Input should be')}, got {cause.errors()[0]['input']!r}"
        error.message = _without_secrets(message)
        raise


def wrong(option: str, what: str) -> typer.BadParameter:
    """Give the error for an option or argument that is used wrongly."""
    return typer.BadParameter(what, param_hint=f"'{option}'")


def _without_secrets(text: str) -> str:
    return redacted_message(text, *sys.argv[1:])


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, AutoJacobinError) and error.strerror:
        if error.filename:
            return f"{os.fsdecode(error.filename)}: {error.strerror.lower()}; look at the path and its permissions"
        return f"reading or writing failed: {error.strerror.lower()}; make room, or look at what is at the other end"
    if isinstance(error, AutoJacobinError | OSError):
        return str(error)
    if isinstance(error, MemoryError):
        return (
            f"there is not enough memory ({error or 'no details'}); if codes are long, give fewer --bits, and "
            "otherwise fewer vectors, for example by --sample"
        )
    what = " ".join(str(error).split()) or "no details"
    return f"this should not have happened, got {type(error).__name__}: {what}; --debug shows where, please report it"


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"autojacobin: note: {_without_secrets(' '.join(str(message).split()))}", err=True)


class _Stopped(BaseException):
    """Raised by a signal, so that temporary files are removed."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def stoppable(state: str) -> Iterator[None]:
    """Let a signal to stop end the block with a sentence and the usual exit code; ``state`` says what is left."""
    kept = {}
    try:
        kept = {number: signal.signal(number, _stop) for number in stopping_signals()}
        yield
    except (KeyboardInterrupt, _Stopped) as stopped:
        typer.echo(f"autojacobin: stopped; {state}", err=True)
        raise typer.Exit(128 + getattr(stopped, "number", signal.SIGINT)) from None
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def kept_in(folder: str | Path) -> str:
    """Say what :func:`stoppable` leaves of a job that continues."""
    return f"what was computed is kept in {folder}, and the same command continues from there"


def _stop(number: int, _: FrameType | None) -> None:
    raise _Stopped(number)
