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
from typer.core import TyperGroup

from autojacobin.core.addresses import redacted_message
from autojacobin.errors import AutoJacobinError

_GIVEN = "autojacobin.arguments"
_UsageError: Any = typer.BadParameter.__mro__[1]  # typer takes it from click, or from a copy of click

_OPTIONS = {
    "expected part= to name": "expected PATH::PART to name",
    "(format=...)": "(--format)",
    "or format= with": "or --format with",
    "pass rerank=False": "give --no-rerank",
    "build it with keep_vectors=True": "build it without --no-vectors",
    "export index.codes(index.ids), whose rows are in the order of index.ids": "build an index with integers as ids",
    "give the path of a file that hasher.save wrote": "make one with: autojacobin train",
    "make one with Index.create": "make one with: autojacobin index build",
    "or ask with `id in index`": "or look it up with: autojacobin index get INDEX ID",
    "give one with index.add(vectors, payload=...)": "give one with: autojacobin index add --payload FILE",
    "give one with index.add(…, payload=…)": "give one with: autojacobin index add --payload FILE",
    "replace it with index.upsert": "replace it with --upsert",
    "such as BinaryAutoencoder": "such as --method binary-autoencoder",
    "; use n_bits=": "; use --bits ",
    'use device="cpu" instead': "use --device cpu instead",
}
_tracebacks_shown = False


def show_tracebacks() -> None:
    """Print the traceback of an error, for ``--debug``."""
    global _tracebacks_shown
    _tracebacks_shown = True


@contextmanager
def report_failures() -> Iterator[None]:
    """End the process with a sentence and the exit code 1 if the block raises; print warnings as sentences."""
    global _tracebacks_shown
    _tracebacks_shown = False
    try:
        with warnings.catch_warnings(), stoppable("nothing is left half-written"):
            warnings.showwarning = _print_warning
            yield
    except typer.Exit as end:  # after a signal
        sys.exit(end.exit_code)
    except Exception as error:
        text = "".join(traceback.format_exception(error)) if _tracebacks_shown else f"autojacobin: {_sentence(error)}"
        typer.echo(_without_secrets(text).rstrip("\n"), err=True)
        sys.exit(1)


class Group(TyperGroup):
    """Commands that report wrong use without the passwords in addresses among their arguments."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments of the program."""
        given = list(args)  # parsing removes them from the list
        with _usage_without_secrets(given):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_GIVEN] = given
        return context

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of the command, and run it."""
        with _usage_without_secrets(ctx.meta[_GIVEN]):
            return super().invoke(ctx)


@contextmanager
def _usage_without_secrets(arguments: list[str]) -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        error.message = redacted_message(_in_plain_words(error), *arguments)
        raise


def _in_plain_words(error: Any) -> str:
    """Give the message of wrong use; those of pydantic, which newer versions of typer pass on, with the value given."""
    message, cause = str(error.message), error.__cause__
    if not message.startswith("Input should be") or not hasattr(cause, "errors"):
        return message
    return f"it must be{message.removeprefix('Input should be')}, got {cause.errors()[0]['input']!r}"


def _without_secrets(text: str) -> str:
    return redacted_message(text, *sys.argv[1:])


def _sentence(error: Exception) -> str:
    if isinstance(error, AutoJacobinError):
        return _in_commands(str(error))
    if isinstance(error, OSError) and error.strerror and error.filename:
        name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        return f"{name}: {error.strerror.lower()}; look at the path and its permissions"
    if isinstance(error, OSError) and error.strerror:  # of a stream or a temporary file without a name
        return f"reading or writing failed: {error.strerror.lower()}; make room, or look at what is at the other end"
    if isinstance(error, OSError):
        return str(error)
    if isinstance(error, MemoryError):
        return (
            f"there is not enough memory ({error or 'no details'}); if codes are long, give fewer --bits, and "
            "otherwise fewer vectors, for example by --sample"
        )
    what = " ".join(str(error).split()) or "no details"
    return f"this should not have happened, got {type(error).__name__}: {what}; --debug shows where, please report it"


def _in_commands(sentence: str) -> str:
    """Replace arguments of functions, which the library names, by the options of the commands."""
    for argument, option in _OPTIONS.items():
        sentence = sentence.replace(argument, option)
    return sentence


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
