"""Whole folders or nothing: what is made in one is seen when all of it is there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autojacobin.core.files import _sync_folder
from autojacobin.errors import StorageError

__all__ = ["whole_folder"]


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder that becomes ``path`` when the block ends, and is gone if it ends in an error."""
    target = path.absolute()
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        what = "a folder with something in it" if target.is_dir() else "a file"
        raise StorageError(f"cannot make {path}: it is {what}, expected a new path or an empty folder; give another")
    if not target.parent.is_dir():
        raise StorageError(f"cannot make {path}: the folder {path.parent} does not exist; make it first")
    # a folder within the temporary one, because the latter may be read by its owner alone
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".", suffix=".part") as place:
        folder = Path(place) / target.name
        folder.mkdir()
        yield folder
        if target.is_dir():
            target.rmdir()
        os.rename(folder, target)
    _sync_folder(target.parent)
