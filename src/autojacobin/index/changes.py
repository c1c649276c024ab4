"""How add, remove and compact change the state of an index, and how a state is read from a folder and written to it.

Vectors that come in are checked, cut into blocks and encoded, in bounded memory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import to_host
from autojacobin.core.parallel import Progress, map_points
from autojacobin.core.vectors import as_matrix
from autojacobin.errors import AutoJacobinError, DataError, FormatError, StorageError
from autojacobin.hashers import Hasher, PartitionedHasher
from autojacobin.hashers.base import as_vectors, for_index
from autojacobin.hashers.learning import non_empty
from autojacobin.hashers.persistence import read_model
from autojacobin.index.calibration import is_outdated, learn_again
from autojacobin.index.folder import Folder, clear_os_errors
from autojacobin.index.knowledge import Knowledge
from autojacobin.index.manifest import MANIFEST_NAME, ArrayFile, Manifest, SegmentRecord, damaged, new_name
from autojacobin.index.metric import EUCLIDEAN, Metric
from autojacobin.index.names import LARGEST_ID
from autojacobin.index.payload import matching, schema_as_text, widened, write_payload
from autojacobin.index.segment import ROWS_PER_BLOCK, Part, Segment, check_ids, most_rows, open_segment, write_segments
from autojacobin.index.state import NewIds, Segments, State, in_id_order, wrong_length

_log = logging.getLogger("autojacobin.index")

_ROWS_PER_TASK = 2**12  # so that the memory of the threads stays small

Ids = npt.NDArray[np.int64]


def add_parts(state: State, folder: Folder | None, parts: Iterator[Part], new_ids: NewIds) -> State:
    """Write parts as new segments; vectors of the same ids or names in old segments become dead."""
    new = tuple(write_segments(parts, folder, state.hasher))
    n = sum(segment.n for segment in new)
    kept = _without(state.segments, [new_ids.find(segment) for segment in state.segments], folder)
    ids = new_ids.numbers
    next_id = state.next_id + n if ids is None else max(state.next_id, int(ids.max()) + 1)
    n_changed = state.n_changed + n
    return replace(state, segments=kept + new, next_id=next_id, n_changed=n_changed, id_kind=new_ids.kind)


def remove_ids(state: State, folder: Folder | None, wanted: Any, *, missing_ok: bool = False) -> State:
    """Mark the vectors with these ids as dead; all of them must be in the state, unless ``missing_ok``."""
    ids = np.unique(state.as_ids(wanted).found(state) if missing_ok else state.numbers(wanted, "removed"))
    ids = ids[ids >= 0]
    if not len(ids):
        return state
    kept = _without(state.segments, [segment.find(ids) for segment in state.segments], folder)
    columns = state.columns
    if not kept:
        with suppress(AutoJacobinError):  # of damaged columns, which may be removed
            columns = None if state.schema is None else schema_as_text(state.schema)
    return replace(state, segments=kept, n_changed=state.n_changed + len(ids), columns=columns)


def stored_parts(state: State, numbers: Ids, names: Sequence[bytes] | None, payload: Any) -> Iterator[Part]:
    """Codes and vectors of some numbers as they are stored, to be written again with another payload."""
    new = numbers if names is None else state.next_id + np.arange(len(numbers))
    for segment in state.segments:
        places, positions = segment.find(numbers)
        if len(places):
            yield Part(
                new[places],
                segment.tiles.take(positions),
                segment.vectors_at(positions) if state.keep_vectors else None,
                None if names is None else [names[place] for place in places.tolist()],
                payload.take(places),
            )


def with_columns(state: State, folder: Folder | None, table: Any) -> State:
    """The state with the columns of a table; those that are new are null in all stored vectors."""
    if state.schema is None or set(table.column_names) <= set(state.schema.names):
        return state
    schema = widened(state.schema, table)
    segments = [
        segment
        if segment.payload is None
        else replace(segment, payload=write_payload(folder, matching(segment.payload.table, schema), segment.label))
        for segment in state.segments
    ]
    return replace(state, segments=tuple(segments))


def compact_segments(state: State, folder: Folder | None) -> State:
    """Rewrite all live vectors in as few segments as possible, after a check that they are intact."""
    limit = most_rows(state.hasher)
    by_dtype: dict[Any, list[Segment]] = {}
    for segment in state.segments:
        by_dtype.setdefault(None if segment.vectors is None else segment.vectors.dtype.str, []).append(segment)
    fewest = sum(-(-sum(segment.n_live for segment in group) // limit) for group in by_dtype.values())
    if len(state.segments) <= fewest and not any(segment.n_dead for segment in state.segments):
        return state
    for segment in state.segments:
        segment.verify()
    new = [s for group in by_dtype.values() for s in write_segments(in_id_order(group), folder, state.hasher)]
    return replace(state, segments=tuple(new))


def _without(segments: Segments, found: list[tuple[Any, Any]], folder: Folder | None) -> Segments:
    """Segments with some positions marked as dead; those of which nothing is left are dropped."""
    pairs = zip(segments, found, strict=True)
    return tuple(
        segment.without(positions, folder) for segment, (_, positions) in pairs if len(positions) < segment.n_live
    )


def encoded_parts(
    state: State, vectors: Any, new_ids: NewIds, payload: Any = None, progress: Progress | None = None
) -> Iterator[Part]:
    """Encode vectors for a state, block by block. Where no ids are given, they count up from the next free one."""
    hasher, metric, first_id = state.hasher, state.metric, state.next_id
    _, ids, names = new_ids
    name, row, n = type(hasher).__name__, 0, 0
    n_given = next((len(given) for given in (ids, names, payload) if given is not None), None)
    what = "a row of the payload" if ids is None and names is None else "an id"
    if not isinstance(vectors, Iterator):
        n = check_vectors(hasher, vectors, metric)
        if n_given is not None and n != n_given:
            raise wrong_length(what, n_given, str(n))
    for block in _blocks(vectors, name, metric):
        codes = encoded_block(hasher, block)
        end = row + len(codes)
        if n_given is not None and end > n_given:
            raise wrong_length(what, n_given, f"{end} or more")
        if ids is None and first_id + end - 1 > LARGEST_ID:
            raise DataError(f"there are no ids after {LARGEST_ID}, the largest in use; give ids of your own")
        chosen = np.arange(first_id + row, first_id + end) if ids is None else ids[row:end]
        yield Part(
            chosen,
            codes,
            _storable(to_host(as_matrix(block, name))) if state.keep_vectors else None,
            None if names is None else names[row:end],
            None if payload is None else payload[row:end],
        )
        row = end
        if progress is not None:
            progress("encoded", row, n)
    if not row:
        raise DataError("there are no vectors to add, got an iterator without a block; expected at least one matrix")
    if n_given is not None and row != n_given:
        raise wrong_length(what, n_given, str(row))


def check_vectors(hasher: Hasher, vectors: Any, metric: Metric) -> int:
    """Check that a matrix has as many columns as the hasher takes, and give its number of rows."""
    if metric == EUCLIDEAN:
        return len(as_vectors(hasher, vectors))
    matrix = as_matrix(vectors, type(hasher).__name__)
    as_vectors(hasher, metric.prepare(matrix[:1]))
    return len(matrix)


def check_rows(vectors: Any, metric: Metric) -> None:
    """Check every number of a matrix before a training, which takes long, so that a wrong vector is named at once."""
    for _ in _blocks(vectors, "Index", metric):
        pass


def _blocks(vectors: Any, name: str, metric: Metric) -> Iterator[Any]:
    row = 0
    for matrix in non_empty(vectors) if isinstance(vectors, Iterator) else (vectors,):
        # a data frame stays one, so that the hasher can compare the names of its columns
        rows = matrix.iloc if hasattr(matrix, "iloc") else as_matrix(matrix, name)
        for start in range(0, len(matrix), ROWS_PER_BLOCK):
            yield metric.prepare(rows[start : start + ROWS_PER_BLOCK], row + start)
        row += len(matrix)


def encoded_block(hasher: Hasher, block: Any, kept: Codes | None = None) -> Codes:
    """Encode a block on all cores, or where the hasher computes; a PartitionedHasher adds lists to codes to keep."""

    def encode(rows: slice) -> Codes:
        if kept is not None and isinstance(hasher, PartitionedHasher):
            return hasher.with_lists(kept[rows], block[rows])
        return hasher.encode(block[rows])

    if getattr(hasher, "device", "cpu") != "cpu":
        return encode(slice(None))
    return Codes.concatenate(map_points(encode, block, _ROWS_PER_TASK))


def _storable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Vectors as they are, but for what other machines would not read: booleans, long doubles, big-endian numbers."""
    if array.dtype.kind == "b":
        return array.view(np.uint8)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


# States in folders


def learned(state: State, queries: Any = None) -> State:
    """The state with what it learns about itself, from its vectors or from queries of the user."""
    try:
        return learn_again(state, queries)
    except FormatError as error:  # a search that needs the damaged vectors will say so
        _log.warning("the index did not learn about itself: %s", error)
        return state


def commit_change(folder: Folder, state: State, new: State) -> State:
    """Make a new state that of the index in a folder, and give it."""
    assert state.manifest is not None
    hasher, knowledge = state.manifest.hasher, state.manifest.knowledge
    if new.hasher is not state.hasher:
        hasher = _write_hasher(folder, new.hasher)
    if new.knowledge is not state.knowledge:
        knowledge = _write_knowledge(folder, new.knowledge)
    manifest = _manifest(new, state.manifest.generation + 1, hasher, knowledge)
    folder.commit(manifest)
    return replace(new, manifest=manifest)


def write_state(state: State, folder: Folder, parts: Iterator[Part]) -> State:
    """Write a whole state and more parts into a folder whose lock is held, and return the state as it is there."""
    new = state

    def write() -> Manifest:
        nonlocal new
        before = folder.manifest()
        hasher, knowledge = _write_hasher(folder, state.hasher), _write_knowledge(folder, state.knowledge)
        copies = tuple(segment.copied_to(folder) for segment in state.segments)
        new = replace(state, segments=copies + tuple(write_segments(parts, folder, state.hasher)))
        return _manifest(new, 1 if before is None else before.generation + 1, hasher, knowledge)

    manifest = folder.write_whole(write)  # which makes the segments of the new state
    return replace(new, manifest=manifest)


def read_state(folder: Folder, manifest: Manifest, *, check: bool = True) -> State:
    """Read a state from its files."""
    return State(
        read_hasher(folder, manifest), manifest.keep_vectors, read_segments(folder, manifest, check=check),
        manifest.next_id, manifest, manifest.partitions, manifest.id_kind, manifest.metric,
        _read_knowledge(folder, manifest), manifest.n_changed, manifest.columns,
    )  # fmt: skip


def read_hasher(folder: Folder, manifest: Manifest) -> Hasher:
    """Load the hasher of a state."""
    folder.read_checked(manifest.hasher)
    path = folder.path / manifest.hasher.name
    hasher = for_index(read_model(path))  # load hides that a writer has just deleted the file
    hasher.metric_, hasher.radius_ = manifest.metric.name, manifest.metric.radius
    if (hasher.n_bits, hasher.n_features_in_) != (manifest.n_bits, manifest.n_features):
        raise damaged(path, f"{hasher.n_bits} bits and {hasher.n_features_in_} features")
    return hasher


def read_segments(folder: Folder, manifest: Manifest, *, check: bool = True) -> Segments:
    """Map the segments of a state."""
    about = manifest.n_bits, manifest.n_features, manifest.keep_vectors, manifest.id_kind
    return tuple(open_segment(folder, record, *about, check=check) for record in manifest.segments)


def verify_state(folder: Folder, manifest: Manifest) -> None:
    """Read every byte of a state, compare it with its checksum, and compare the files with each other."""
    folder.read_checked(manifest.hasher)
    _read_knowledge(folder, manifest)
    segments = read_segments(folder, manifest)
    for segment in segments:
        segment.verify(folder)
    check_ids(segments, manifest.next_id, folder.path / MANIFEST_NAME)


def adopt_segments(
    folder: Folder, source: Path, records: Sequence[SegmentRecord], hasher: Hasher, keep_vectors: bool
) -> None:
    """Make an index of segments whose files are in ``source`` and whose ids count up from 0."""

    def write() -> Manifest:
        with clear_os_errors(folder.path, "write to"):
            for file in (file for record in records for file in record.files.values()):
                if not (source / file.name).exists():
                    raise StorageError(f"{source / file.name} cannot be found; give the index a path all workers see")
                try:
                    os.link(source / file.name, folder.path / file.name)  # no crash loses what is at the source too
                except OSError:  # a file system without links
                    os.replace(source / file.name, folder.path / file.name)
        about = int(hasher.n_bits), int(hasher.n_features_in_), keep_vectors, "integer"
        segments = tuple(open_segment(folder, record, *about) for record in records)
        state = State(hasher, keep_vectors, segments, sum(record.n for record in records), id_kind="integer")
        state = learn_again(state) if is_outdated(state) else state
        return _manifest(state, 1, _write_hasher(folder, hasher), _write_knowledge(folder, state.knowledge))

    folder.write_whole(write)


def _manifest(state: State, generation: int, hasher: ArrayFile, knowledge: ArrayFile | None) -> Manifest:
    return Manifest(
        generation, int(state.hasher.n_bits), int(state.hasher.n_features_in_), state.keep_vectors, state.next_id,
        hasher, tuple(segment.record for segment in state.segments), state.partitions, state.id_kind, state.metric,
        knowledge, state.n_changed, state.columns,
    )  # fmt: skip


def _write_hasher(folder: Folder, hasher: Hasher) -> ArrayFile:
    return folder.add_file(new_name("hasher"), hasher.to_bytes())


def _write_knowledge(folder: Folder, knowledge: Knowledge | None) -> ArrayFile | None:
    return None if knowledge is None else folder.add_file(new_name("knowledge"), knowledge.to_bytes())


def _read_knowledge(folder: Folder, manifest: Manifest) -> Knowledge | None:
    if manifest.knowledge is None:
        return None
    content = folder.read_checked(manifest.knowledge)
    try:
        return Knowledge.from_bytes(content)
    except ValueError as error:
        raise damaged(folder.path / manifest.knowledge.name, str(error)) from error
