"""The file layer of an index: the only place here that knows where the library keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autojacobin.index import storage
from autojacobin.index.files import Files
from autojacobin.index.repair import Repair, repair

__all__ = ["Files", "Repair", "file_layer", "repair"]


@contextmanager
def file_layer(make: Callable[[Path], Files]) -> Iterator[None]:
    """Let indexes that are made or opened meanwhile do their work through ``make(path)``."""
    before, storage.Files = storage.Files, make
    try:
        yield
    finally:
        storage.Files = before
