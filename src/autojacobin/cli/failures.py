"""What ends a command early: errors, warnings and signals are reported in one sentence; --debug shows tracebacks."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from autojacobin.cli.console import output
from autojacobin.core.addresses import redacted_message
from autojacobin.errors import AutoJacobinError

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
    """Let SIGINT and SIGTERM end the block with a sentence and the usual exit code; ``state`` says what is left."""
    in_charge = threading.current_thread() is threading.main_thread()  # no other thread may set handlers
    kept = {}
    try:
        if in_charge:
            kept = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
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
