"""The folder of an index: the only place here that knows where the library keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autojacobin.index import index
from autojacobin.index.folder import Folder
from autojacobin.index.repair import Repair, repair

__all__ = ["Folder", "Repair", "folders_by", "repair"]


@contextmanager
def folders_by(make: Callable[[Path], Folder]) -> Iterator[None]:
    """Let indexes that are made or opened meanwhile do their work through ``make(path)``."""
    before, index.Folder = index.Folder, make
    try:
        yield
    finally:
        index.Folder = before
