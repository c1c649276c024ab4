"""Encode and build over more data than one machine holds, chunk by chunk; an interrupted job goes on where it stopped.

What is written is what a single machine would write that has all files one below the other, to the last bit, whatever
runs the tasks and on however many workers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash
from sklearn.utils.validation import check_is_fitted

from autojacobin.core.files import write_atomically
from autojacobin.datasets.formats.source import as_path
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, StorageError
from autojacobin.hashers import Hasher
from autojacobin.index.files import Files, clear_os_errors
from autojacobin.index.folder import IndexFolder
from autojacobin.index.lock import WriterLock
from autojacobin.index.manifest import Manifest, SegmentRecord
from autojacobin.index.segment import open_segment
from autojacobin.jobs.chunks import ROWS_PER_CHUNK, Chunk, cut_into_chunks, encode_chunk, write_chunk
from autojacobin.jobs.executor import Executor, Progress, Task
from autojacobin.jobs.inputs import Inputs, Patterns, survey

__all__ = ["JobFolder", "build_index", "encode_files", "read_record", "write_record"]

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


Records = tuple[SegmentRecord, ...]


def build_index(
    patterns: Patterns,
    hasher: Hasher,
    path: str | os.PathLike[str],
    executor: Executor,
    *,
    keep_vectors: bool = True,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    progress: Progress | None = None,
) -> int:
    """Build an index of the vectors in many files, which ``Index.open`` then opens.

    A vector's id is its row number over all files in the order of their paths. Segments are written beside the index,
    into ``PATH.building``, and become an index in one step when the last is there: until then there is none. The same
    call after an interruption does what is missing.

    Parameters
    ----------
    patterns : path, pattern, or several of them
        Files in any format of :func:`~autojacobin.datasets.open_vectors`, here or at addresses of fsspec.
    hasher : Hasher
        A fitted hasher.
    path : path
        A new folder on a path that every worker sees.
    executor : Executor
        Where the work is done.
    keep_vectors : bool
        Whether to keep the vectors themselves, which re-ranking needs.
    rows_per_chunk : int
        Vectors a task, and a segment; rounded up to whole blocks of 65,536.
    progress : callable, optional
        Called as ``progress("building", done, total)`` with numbers of tasks.

    Returns
    -------
    n : int
        Number of vectors in the index.
    """
    home = IndexFolder(os.path.abspath(as_path(path)))
    inputs, chunks = _planned(patterns, hasher, rows_per_chunk)
    job = JobFolder(Path(f"{home.path}.building"))
    if _is_finished(home, job):
        return inputs.rows
    try:
        home.prepare()
        with job.held(hasher, vectors=bool(keep_vectors)):
            done = {chunk: records for chunk in chunks if (records := _done_records(job, chunk, hasher)) is not None}
            missing = [chunk for chunk in chunks if chunk not in done]
            where = (str(job.model), str(job.path), bool(keep_vectors))
            tasks = [
                Task(_write_and_record, (chunk, *where, str(job.record_of(chunk))), str(chunk)) for chunk in missing
            ]
            for number, records in executor.each("building", tasks, _counting_on(progress, len(done))):
                done[missing[number]] = records
            _commit(home, job, hasher, bool(keep_vectors), inputs.rows, [r for chunk in chunks for r in done[chunk]])
            job.clear_away()
    finally:
        home.release()
    return inputs.rows


def encode_files(
    patterns: Patterns,
    hasher: Hasher,
    folder: str | os.PathLike[str],
    executor: Executor,
    *,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    progress: Progress | None = None,
) -> list[Path]:
    """Encode the vectors in many files into files of codes, which ``Codes.load`` reads.

    Parameters
    ----------
    patterns, hasher, executor, rows_per_chunk, progress
        As in :func:`build_index`.
    folder : path
        A new folder on a path that every worker sees. The same call after an interruption, or with more files, does
        what is missing.

    Returns
    -------
    paths : list of Path
        Files of codes, in order: ``codes-FIRST.npz`` begins with the code of row FIRST.
    """
    job = JobFolder(as_path(folder))
    _, chunks = _planned(patterns, hasher, rows_per_chunk)
    with job.held(hasher):
        paths = {chunk: job.path / f"codes-{chunk.first_id:015d}.npz" for chunk in chunks}
        missing = [chunk for chunk in chunks if job.done(chunk) is None or not paths[chunk].exists()]
        tasks = [
            Task(_save_and_record, (chunk, str(job.model), str(paths[chunk]), str(job.record_of(chunk))), str(chunk))
            for chunk in missing
        ]
        for _ in executor.each("encoding", tasks, _counting_on(progress, len(chunks) - len(tasks))):
            pass
        for stray in set(job.path.glob("codes-*.npz")).difference(paths.values()):
            stray.unlink()  # of an earlier run over more files or with other chunks
    return list(paths.values())


def _planned(patterns: Patterns, hasher: Any, rows_per_chunk: int) -> tuple[Inputs, list[Chunk]]:
    if not isinstance(hasher, Hasher):
        raise DataTypeError(f"hasher must be a fitted hasher, got {type(hasher).__name__}; pass for example an ITQ")
    check_is_fitted(hasher)
    hasher._refuse_changes_after_fit()
    inputs = survey(patterns)
    if inputs.width != hasher.n_features_in_:
        raise DataError(
            f"{inputs.files[0]} holds vectors of dimension {inputs.width}, but the {type(hasher).__name__} was "
            f"fitted on {hasher.n_features_in_}; give vectors of the kind it was fitted on"
        )
    return inputs, cut_into_chunks(inputs, rows_per_chunk)


def _save_and_record(chunk: Chunk, model: str, path: str, record: str) -> None:
    encode_chunk(chunk, model).save(path)
    write_record(Path(record), {"chunk": chunk.digest})


def _counting_on(progress: Progress | None, done: int) -> Progress | None:
    """Progress that counts what an earlier run did."""
    if progress is None:
        return None
    return lambda stage, now, total: progress(stage, done + now, done + total)


def _write_and_record(chunk: Chunk, model: str, folder: str, keep_vectors: bool, record: str) -> Records:
    records = write_chunk(chunk, model, folder, keep_vectors)
    write_record(Path(record), {"chunk": chunk.digest, "segments": [asdict(segment) for segment in records]})
    return records


def _done_records(job: JobFolder, chunk: Chunk, hasher: Hasher) -> Records | None:
    """Segments of a chunk that an earlier run finished, unless their files are no longer as they were."""
    record = job.done(chunk)
    if record is None:
        return None
    segments = tuple(SegmentRecord.from_json(segment) for segment in record["segments"])
    try:
        for segment in segments:
            keeps = "vectors" in segment.files
            open_segment(Files(job.path), segment, int(hasher.n_bits), int(hasher.n_features_in_), keeps)
    except (AutoJacobinError, OSError, ValueError):
        return None
    return segments


def _is_finished(home: IndexFolder, job: JobFolder) -> bool:
    """Whether an earlier run came as far as the index and did not come to clear its work away."""
    if home.store.read_manifest() is None:
        return False
    named = home.newest(Manifest.names)
    records = [read_record(path) for path in sorted(job.path.glob("chunk-*.json"))] if job.path.is_dir() else []
    staged = [file["name"] for record in records if record for s in record["segments"] for file in s["files"].values()]
    if named.isdisjoint(staged):  # names are never used twice, so one in common is proof
        raise StorageError(f"{home.path} holds an index already; give another path, or add to it with Index.add")
    job.clear_away()
    return True


def _commit(
    home: IndexFolder, job: JobFolder, hasher: Hasher, keep_vectors: bool, n: int, segments: Sequence[SegmentRecord]
) -> None:
    """Make the segments an index.

    Until the work is cleared away they have their names there too, so that no crash loses one.
    """

    def write() -> Manifest:
        with clear_os_errors(home.path, "write to"):
            for segment in segments:
                for file in segment.files.values():
                    _put(job.path / file.name, home.path / file.name)
        written = home.write_hasher(hasher)
        manifest = Manifest(
            1, int(hasher.n_bits), int(hasher.n_features_in_), keep_vectors, n, written, tuple(segments)
        )  # fmt: skip
        home.read_segments(manifest)
        return manifest

    home.write_whole(write)


def _put(source: Path, target: Path) -> None:
    if not source.exists():
        raise StorageError(
            f"a worker wrote {source}, which cannot be found from here; give the index a path that every worker sees"
        )
    with suppress(OSError):
        os.link(source, target)
        return
    os.replace(source, target)  # on file systems without links; what a crash here loses is done again
