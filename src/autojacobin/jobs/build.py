"""Encode and build over data that one machine does not hold, chunk by chunk, going on where an earlier run stopped.

What is written is what a single machine would write that has all files one below the other, to the last bit, whatever
runs the tasks and on however many workers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from autojacobin.datasets._formats.source import as_path
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, StorageError
from autojacobin.hashers import Hasher
from autojacobin.index.files import Files, clear_os_errors
from autojacobin.index.folder import Home
from autojacobin.index.manifest import Manifest, SegmentRecord
from autojacobin.index.segment import open_segment
from autojacobin.jobs.chunks import ROWS_PER_CHUNK, Chunk, cut_into_chunks, encode_chunk, write_chunk
from autojacobin.jobs.executor import Executor, Progress, Task
from autojacobin.jobs.folder import JobFolder, read_record, write_record
from autojacobin.jobs.inputs import Inputs, Patterns, survey

__all__ = ["build_index", "encode_files"]

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
    home = Home(os.path.abspath(as_path(path)))
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


def _is_finished(home: Home, job: JobFolder) -> bool:
    """Whether an earlier run came as far as the index and did not come to clear its work away."""
    if home.folder.read_manifest() is None:
        return False
    named = home.newest(Manifest.names)
    records = [read_record(path) for path in sorted(job.path.glob("chunk-*.json"))] if job.path.is_dir() else []
    staged = [file["name"] for record in records if record for s in record["segments"] for file in s["files"].values()]
    if named.isdisjoint(staged):  # names are never used twice, so one in common is proof
        raise StorageError(f"{home.path} holds an index already; give another path, or add to it with Index.add")
    job.clear_away()
    return True


def _commit(
    home: Home, job: JobFolder, hasher: Hasher, keep_vectors: bool, n: int, segments: Sequence[SegmentRecord]
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
