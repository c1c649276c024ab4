"""Long commands that can be stopped: by Ctrl-C or by a polite kill, with a sentence instead of a traceback."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

__all__ = ["stoppable"]


class _Stopped(BaseException):
    """Raised where a signal found the program, so that temporary files are cleared away on the way out."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def stoppable(comfort: str) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the block in one sentence with ``comfort``, and the exit code that shells expect."""
    in_charge = threading.current_thread() is threading.main_thread()  # no other thread may set handlers
    kept = {}
    try:
        if in_charge:
            kept = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
        yield
    except (KeyboardInterrupt, _Stopped) as stopped:
        typer.echo(f"autojacobin: stopped; {comfort}", err=True)
        raise typer.Exit(128 + getattr(stopped, "number", signal.SIGINT)) from None
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    raise _Stopped(number)
