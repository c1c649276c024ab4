"""What ends a command early, told in one sentence: errors, warnings, signals; a traceback only where it is wanted."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from autojacobin.cli._stopping import stoppable
from autojacobin.core.addresses import redacted_message
from autojacobin.errors import AutoJacobinError

__all__ = ["Group", "told_in_sentences", "want_tracebacks"]

_GIVEN = "autojacobin.arguments"
_UsageError: Any = typer.BadParameter.__mro__[1]  # which typer has from click, or from a copy of it

_OPTIONS = {
    "expected part= to name": "expected PATH::PART to name",
    "(format=...)": "(--format)",
    "or format= with": "or --format with",
    "pass rerank=False": "give --no-rerank",
    "build it with keep_vectors=True": "build it without --no-vectors",
    "make one with Index.create": "make one with: autojacobin index build",
    'use device="cpu" instead': "use --device cpu instead",
}
_traceback_wanted = False


def want_tracebacks() -> None:
    """Let errors through as they are, for ``--debug``."""
    global _traceback_wanted
    _traceback_wanted = True


@contextmanager
def told_in_sentences() -> Iterator[None]:
    """End the process with the exit code 1 and a sentence where the block raises, and print warnings as sentences."""
    global _traceback_wanted
    _traceback_wanted = False
    try:
        with warnings.catch_warnings(), stoppable("nothing is left half-written"):
            warnings.showwarning = _print_warning
            yield
    except typer.Exit as end:  # of a signal, which finds the program anywhere
        sys.exit(end.exit_code)
    except Exception as error:
        told = "".join(traceback.format_exception(error)) if _traceback_wanted else f"autojacobin: {_sentence(error)}"
        typer.echo(_without_secrets(told).rstrip("\n"), err=True)
        sys.exit(1)


class Group(TyperGroup):
    """Commands whose wrong use is told without the passwords of addresses among their arguments."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read the arguments of the program."""
        given = list(args)  # which are taken out of it as they are read
        with _usage_without_secrets(given):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_GIVEN] = given
        return context

    def invoke(self, ctx: Any) -> Any:
        """Read the arguments of the command, and run it."""
        with _usage_without_secrets(ctx.meta[_GIVEN]):
            return super().invoke(ctx)


@contextmanager
def _usage_without_secrets(arguments: list[str]) -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        error.message = redacted_message(error.message, *arguments)
        raise


def _without_secrets(text: str) -> str:
    return redacted_message(text, *sys.argv[1:])


def _sentence(error: Exception) -> str:
    if isinstance(error, AutoJacobinError):
        return _in_commands(str(error))
    if isinstance(error, OSError) and error.strerror and error.filename:
        name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        return f"{name}: {error.strerror.lower()}; look at the path and its permissions"
    if isinstance(error, OSError) and error.strerror:  # of a stream or a temporary file, which have no name to tell
        return f"reading or writing failed: {error.strerror.lower()}; make room, or look at what is at the other end"
    if isinstance(error, OSError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"there is not enough memory ({error or 'no more is told'}); give fewer vectors, for example by --sample"
    what = " ".join(str(error).split()) or "no more is told"
    return f"this should not have happened, got {type(error).__name__}: {what}; --debug shows where, please report it"


def _in_commands(sentence: str) -> str:
    """Name options where the library, which does not know of them, names arguments of functions."""
    for argument, option in _OPTIONS.items():
        sentence = sentence.replace(argument, option)
    return sentence


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"autojacobin: note: {_without_secrets(' '.join(str(message).split()))}", err=True)
