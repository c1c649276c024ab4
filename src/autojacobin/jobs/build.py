"""Jobs that encode many files, or build an index of them, chunk by chunk; an interrupted job continues."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

from autojacobin.codes import Codes
from autojacobin.core.files import as_path, clear_os_errors, write_atomically
from autojacobin.core.lock import LOCK_NAME, WriterLock
from autojacobin.core.parallel import Progress
from autojacobin.core.vectors import check_size
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, StorageError
from autojacobin.hashers import Hasher, check_fitted, load
from autojacobin.index.changes import adopt_segments, encoded_parts
from autojacobin.index.folder import Folder
from autojacobin.index.manifest import Manifest, SegmentRecord
from autojacobin.index.segment import ROWS_PER_BLOCK, Part, open_segment, write_segments
from autojacobin.index.state import NewIds, State
from autojacobin.jobs.inputs import ROWS_PER_CHUNK, Chunk, Patterns, open_piece, survey
from autojacobin.jobs.workers import Workers
from autojacobin.search.distances import METRICS

_JOB_NAME = "JOB.json"
_ADVICE = "what was computed is kept; make room or fix the access, and begin again"

Records = tuple[SegmentRecord, ...]


def build_index(
    patterns: Patterns,
    hasher: Hasher,
    path: str | os.PathLike[str],
    workers: Workers,
    *,
    keep_vectors: bool = True,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    progress: Progress | None = None,
) -> int:
    """Build an index of the vectors in many files, which ``Index.open`` then opens, and give their number.

    A vector's id is its row number over all files in the order of their paths. After an interruption, the same call
    continues.

    Parameters
    ----------
    patterns : path, pattern, or several of them
        Files in any format of :func:`~autojacobin.datasets.open_vectors`, local or at addresses of fsspec.
    hasher : Hasher
        A fitted hasher.
    path : path
        A new folder on a path that every worker sees.
    workers : Workers
        From :func:`connect`.
    keep_vectors : bool
        Whether to keep the vectors themselves, which re-ranking needs.
    rows_per_chunk : int
        Vectors per task and per segment, rounded up to whole blocks of 65,536.
    progress : callable, optional
        Called as ``progress("building", done, total)`` with numbers of tasks.
    """
    target = os.path.abspath(as_path(path))
    chunks = _plan(patterns, hasher, rows_per_chunk)
    n = sum(chunk.rows for chunk in chunks)
    job = JobFolder(Path(f"{target}.building"))
    if _is_finished(target, job):
        return n
    folder = Folder(target)
    with folder.locked(), job.locked(hasher, vectors=bool(keep_vectors)):
        folder.check_vacant("add to it with Index.add")  # another job may have made it just before the lock was taken
        done = {chunk: records for chunk in chunks if (records := _finished_segments(job, chunk, hasher)) is not None}
        missing = [chunk for chunk in chunks if chunk not in done]
        settings = (str(job.model), str(job.path), bool(keep_vectors))
        calls = [(chunk, *settings, str(job.record_path(chunk))) for chunk in missing]
        for number, records in workers.each("building", _write_chunk, calls, progress, len(done)):
            done[missing[number]] = records
        records = tuple(record for chunk in chunks for record in done[chunk])
        adopt_segments(folder, job.path, records, hasher, bool(keep_vectors))
        shutil.rmtree(job.path, ignore_errors=True)
    return n


def encode_files(
    patterns: Patterns,
    hasher: Hasher,
    folder: str | os.PathLike[str],
    workers: Workers,
    *,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    progress: Progress | None = None,
) -> list[Path]:
    """Encode the vectors in many files into files of codes, which ``Codes.load`` reads, and give their paths in order.

    The parameters are those of :func:`build_index`. ``folder`` is a new one on a path that every worker sees. After an
    interruption, or with more files, the same call continues. ``codes-FIRST.npz`` begins with the code of row FIRST.
    """
    job = JobFolder(as_path(folder))
    chunks = _plan(patterns, hasher, rows_per_chunk)
    with job.locked(hasher):
        paths = {chunk: job.path / f"codes-{chunk.first_id:015d}.npz" for chunk in chunks}
        missing = [chunk for chunk in chunks if job.record(chunk) is None or not paths[chunk].exists()]
        calls = [(chunk, str(job.model), str(paths[chunk]), str(job.record_path(chunk))) for chunk in missing]
        for _ in workers.each("encoding", _encode_chunk, calls, progress, len(chunks) - len(calls)):
            pass
        for stray in set(job.path.glob("codes-*.npz")).difference(paths.values()):
            stray.unlink()  # from an earlier run over more files or with other chunks
    return list(paths.values())


class JobFolder:
    """The folder of a job, on a path that every worker sees: its settings, its model and a record of each chunk."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.model = self.path

    @contextmanager
    def locked(self, hasher: Hasher, **settings: Any) -> Iterator[None]:
        """Make the folder, or continue in it, and keep other processes out of it within the block."""
        lock = WriterLock(self.path)
        try:
            with clear_os_errors(f"write to {self.path}", _ADVICE):
                if not self.path.parent.is_dir():
                    raise StorageError(f"cannot make {self.path}: the folder {self.path.parent} does not exist")
                self.path.mkdir(exist_ok=True)
                lock.acquire()
                model = hasher.to_bytes()
                digest = xxhash.xxh64_hexdigest(model)
                self.model = self.path / f"hasher-{digest}.safetensors"
                self._check_settings({"model": digest} | settings)
                if not self.model.exists():
                    write_atomically(self.model, model)
            yield
        finally:
            lock.release()

    def record_path(self, chunk: Chunk) -> Path:
        """Path of the record that is written when a chunk is finished."""
        return self.path / f"chunk-{chunk.first_id:015d}.json"

    def record(self, chunk: Chunk) -> dict[str, Any] | None:
        """The record of a chunk if it was finished before, from the same rows of the same files."""
        record = _read_record(self.record_path(chunk))
        return record if record is not None and record.get("chunk") == chunk.digest else None

    def files(self) -> set[str]:
        """Names of all segment files in the records."""
        records = [_read_record(path) for path in self.path.glob("chunk-*.json")]
        segments = [segment for record in records if record for segment in record.get("segments", ())]
        return {file["name"] for segment in segments for file in segment["files"].values()}

    def _check_settings(self, settings: dict[str, Any]) -> None:
        """Write the settings of a new job, or raise a StorageError if the folder holds anything else than this job."""
        path = self.path / _JOB_NAME
        if path.exists():
            found = _read_record(path)
            different = [name for name in settings if found is None or found.get(name) != settings[name]]
            if different:
                other = " and ".join(different)
                raise StorageError(f"{self.path} holds another job, with other {other}; delete it, or give another")
            return
        foreign = sorted(name for name in os.listdir(self.path) if name != LOCK_NAME and not name.startswith("."))
        if foreign:
            raise StorageError(f"{self.path} holds {foreign[0]}, which is no part of a job; give another path")
        _write_record(path, settings)


def _plan(patterns: Patterns, hasher: Any, rows_per_chunk: int) -> list[Chunk]:
    if not isinstance(hasher, Hasher):
        raise DataTypeError(f"hasher must be a fitted hasher, got {type(hasher).__name__}; pass for example an ITQ")
    check_fitted(hasher)
    if hasher.metric_ not in (None, METRICS[0]):
        raise DataError(f"a job builds Euclidean indexes, got a model for {hasher.metric_}; use `index build`")
    inputs = survey(patterns)
    if inputs.width != hasher.n_features_in_:
        raise DataError(
            f"{inputs.files[0]} holds vectors of dimension {inputs.width}, but the {type(hasher).__name__} was "
            f"fitted on {hasher.n_features_in_}; give vectors of the kind it was fitted on"
        )
    return inputs.chunks(rows_per_chunk)


def _is_finished(path: str, job: JobFolder) -> bool:
    """Whether an earlier run finished the index; what it left in the folder of the job is deleted."""
    folder = Folder(path)
    if folder.read_manifest() is None:
        return False
    # names are unique, so a common one proves that this job made the index
    if folder.newest(Manifest.names).isdisjoint(job.files()):
        raise StorageError(f"{path} holds an index already; give another path, or add to it with Index.add")
    shutil.rmtree(job.path, ignore_errors=True)
    return True


def _finished_segments(job: JobFolder, chunk: Chunk, hasher: Hasher) -> Records | None:
    """Segments of a chunk that an earlier run wrote, or None if there are none or their files have changed."""
    record = job.record(chunk)
    if record is None:
        return None
    segments = tuple(SegmentRecord.from_json(segment) for segment in record["segments"])
    try:
        for segment in segments:
            keeps = "vectors" in segment.files
            open_segment(Folder(job.path), segment, int(hasher.n_bits), int(hasher.n_features_in_), keeps)
    except (AutoJacobinError, OSError, ValueError):
        return None
    return segments


# Tasks


def _write_chunk(chunk: Chunk, model: str, folder: str, keep_vectors: bool, record: str) -> Records:
    """Write the segments of a chunk to files with new names, and return their records."""
    target = Folder(folder)
    segments = write_segments(_parts(chunk, model, keep_vectors), target, loaded(model))
    records = tuple(segment.record for segment in segments)
    with clear_os_errors(f"write to {folder}", _ADVICE):
        target.sync_names()
        _write_record(Path(record), {"chunk": chunk.digest, "segments": [asdict(segment) for segment in records]})
    return records


def _encode_chunk(chunk: Chunk, model: str, path: str, record: str) -> None:
    """Encode a chunk with the hasher at the path ``model``."""
    codes = Codes.concatenate(part.codes for part in _parts(chunk, model, keep_vectors=False))
    with clear_os_errors(f"write {path}", _ADVICE):
        codes.save(path, overwrite=True)
        _write_record(Path(record), {"chunk": chunk.digest})


def _parts(chunk: Chunk, model: str, keep_vectors: bool) -> Iterator[Part]:
    try:
        state = State(loaded(model), keep_vectors, next_id=chunk.first_id)
        yield from encoded_parts(state, chunk.blocks(), NewIds("integer"))
    except StorageError:
        raise
    except DataError as error:
        _check_numbers(chunk)
        raise type(error)(f"in the {chunk.rows} vectors of {chunk}: {error}") from error


def _check_numbers(chunk: Chunk) -> None:
    """Raise a DataError that names the file and the row of a number that cannot be stored, if there is one."""
    for piece in chunk.pieces:
        with open_piece(piece) as read:
            for start in range(piece.start, piece.stop, ROWS_PER_BLOCK):
                check_size(read(slice(start, min(piece.stop, start + ROWS_PER_BLOCK))), start)


@lru_cache(maxsize=4)
def loaded(model: str) -> Hasher:
    """Load a hasher once in each process. No two have the same path, so a kept one never goes stale."""
    return load(model)


# Records


def _write_record(path: Path, record: dict[str, Any]) -> None:
    content = json.dumps(record, indent=1).encode()
    write_atomically(path, xxhash.xxh64_hexdigest(content).encode() + b"\n" + content)


def _read_record(path: Path) -> dict[str, Any] | None:
    """Read a record; None if it does not exist or is damaged."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if digest != xxhash.xxh64_hexdigest(content).encode():
        return None
    return json.loads(content)
