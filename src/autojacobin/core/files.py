"""Whole files or nothing: a reader never sees half of one, not even after a crash."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_writer", "write_atomically"]


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Put ``content`` at ``path`` so that the path holds either the old file or all of the new one."""
    with atomic_writer(path) as stream:
        stream.write(content)


@contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a stream whose content is at ``path`` when the block ends, and nowhere if it ends in an error.

    The bytes go to a temporary file in the same folder (its path is the stream's ``name``), reach the disk, and are
    then renamed over the target, which POSIX makes atomic. The folder is synced too, or the rename itself could be
    lost.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist; make it first")
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
    os.close(descriptor)  # opened again by its path, which libraries that write files by themselves ask for
    try:
        with open(temporary, "r+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, _usual_mode())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _usual_mode() -> int:
    # mkstemp makes files that only their owner reads; a saved model should follow the user's umask.
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # Windows cannot open a folder, and its rename is durable by itself
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
