"""The folder of a job that takes hours: what it is, its model, and which of its chunks are done.

A chunk is done when a record of it is there. The record is renamed into place after everything that it speaks of has
reached the disk, and has a checksum; so an interrupted job goes on with the chunks that have no record, and a chunk
that two workers did is done by whichever came last.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from autojacobin.core.files import write_atomically
from autojacobin.errors import StorageError
from autojacobin.hashers import Hasher
from autojacobin.index.files import clear_os_errors
from autojacobin.index.lock import WriterLock
from autojacobin.jobs.chunks import Chunk

__all__ = ["JobFolder", "read_record", "write_record"]

_JOB_NAME = "JOB.json"


class JobFolder:
    """A folder on a path that every worker sees."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.model = self.path

    @contextmanager
    def held(self, hasher: Hasher, **settings: Any) -> Iterator[None]:
        """Make the folder or go on in it, with no other process at the same job meanwhile."""
        lock = WriterLock(self.path)
        with clear_os_errors(self.path, "write to"):
            if not self.path.parent.is_dir():
                raise StorageError(f"cannot make {self.path}: the folder {self.path.parent} does not exist")
            self.path.mkdir(exist_ok=True)
            lock.acquire()
            try:
                model = _saved(hasher)
                self.model = self.path / f"hasher-{xxhash.xxh64_hexdigest(model)}.safetensors"
                self._claim({"model": xxhash.xxh64_hexdigest(model)} | settings)
                if not self.model.exists():
                    write_atomically(self.model, model)
            except BaseException:
                lock.release()
                raise
        try:
            yield
        finally:
            lock.release()

    def record_of(self, chunk: Chunk) -> Path:
        """Where the record of a chunk is, once it is done."""
        return self.path / f"chunk-{chunk.first_id:015d}.json"

    def done(self, chunk: Chunk) -> dict[str, Any] | None:
        """Give the record of a chunk if it was done before, from the same rows of the same files."""
        record = read_record(self.record_of(chunk))
        return record if record is not None and record.get("chunk") == chunk.digest else None

    def clear_away(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _claim(self, identity: dict[str, Any]) -> None:
        path = self.path / _JOB_NAME
        if path.exists():
            found = read_record(path)
            different = [name for name in identity if found is None or found.get(name) != identity[name]]
            if different:
                raise StorageError(
                    f"{self.path} holds the beginning of another job, with other {' and '.join(different)}; delete it "
                    "to begin anew, or give another path"
                )
            return
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name != "LOCK")
        others = [name for name in others if not name.startswith(".")]
        if others:
            raise StorageError(
                f"cannot work in {self.path}: it holds {others[0]}, which is no part of a job, expected an empty "
                "folder or a new path; give another path"
            )
        write_record(path, identity)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record, whole or not at all."""
    content = json.dumps(record, indent=1).encode()
    write_atomically(path, xxhash.xxh64_hexdigest(content).encode() + b"\n" + content)


def read_record(path: Path) -> dict[str, Any] | None:
    """Give a record, or nothing if it is not there or not whole."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if digest != xxhash.xxh64_hexdigest(content).encode():
        return None
    record: dict[str, Any] = json.loads(content)
    return record


def _saved(hasher: Hasher) -> bytes:
    with tempfile.TemporaryDirectory() as elsewhere:
        copy = Path(elsewhere) / "hasher.safetensors"
        hasher.save(copy)
        return copy.read_bytes()
