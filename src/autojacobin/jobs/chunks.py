"""Functions over one chunk of the data, or one segment of an index, that any process can run.

A chunk is a run of consecutive rows, in one file or over several. Chunks begin where the blocks of a single machine do:
the rounding of a matrix product depends on its number of rows, so equal codes need equal blocks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.vectors import check_size
from autojacobin.errors import DataError, StorageError
from autojacobin.hashers import Hasher, load
from autojacobin.index.changes import encoded_parts
from autojacobin.index.execution import measure_of, nearest_codes, search_chosen
from autojacobin.index.folder import Folder
from autojacobin.index.manifest import SegmentRecord
from autojacobin.index.segment import ROWS_PER_BLOCK, Part, Segment, open_segment
from autojacobin.index.segment_writer import write_segments
from autojacobin.index.state import NewIds, State, fetch
from autojacobin.jobs.inputs import Inputs, Piece, naming_file, open_piece
from autojacobin.search.arguments import as_count
from autojacobin.search.euclidean import measure_fetched
from autojacobin.search.kernels.selection import merge_topk
from autojacobin.search.prepared_search import Chosen
from autojacobin.search.queries import Queries
from autojacobin.search.truth import LARGEST_EXPONENT, exact_squared_distances, ground_truth

ROWS_PER_CHUNK = 2**20
_PAIRS_AT_ONCE = 2**16

Neighbours = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Distances and ids, one row per query, sorted by distance and then by id."""


@dataclass(frozen=True)
class Chunk:
    """The rows in ``pieces``, converted to ``dtype``, with ids from ``first_id`` on.

    ``digest`` differs if any of these does, or if a file has changed. So results of the same digest can be kept.
    """

    pieces: tuple[Piece, ...]
    first_id: int
    dtype: str
    digest: str

    @property
    def rows(self) -> int:
        """Number of vectors."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    def __str__(self) -> str:
        first, last = self.pieces[0], self.pieces[-1]
        return str(first) if len(self.pieces) == 1 else f"{first} to {last}"


@dataclass(frozen=True)
class SegmentFiles:
    """A segment of an index on a path that every worker sees, and what is needed to open it.

    ``hasher`` is the name of the hasher's file in the folder.
    """

    folder: str
    record: SegmentRecord
    n_bits: int
    n_features: int
    keep_vectors: bool
    id_kind: str | None
    hasher: str

    def __str__(self) -> str:
        return self.folder

    def open(self) -> Segment:
        """Map the segment."""
        about = self.n_bits, self.n_features, self.keep_vectors, self.id_kind
        try:
            return open_segment(Folder(self.folder), self.record, *about)
        except FileNotFoundError as error:
            raise StorageError(
                f"{error.filename} cannot be found from here: the index was changed meanwhile, or is not on a path "
                "that every worker sees; search again, or put it on a shared path"
            ) from error


def cut_into_chunks(inputs: Inputs, rows: int = ROWS_PER_CHUNK) -> list[Chunk]:
    """Cut the rows of all files into chunks of ``rows`` each, rounded up to whole blocks of 65,536."""
    step = -(-as_count("rows", rows) // ROWS_PER_BLOCK) * ROWS_PER_BLOCK
    stamps = {file.path: file.stamp for file in inputs.files}
    chunks = []
    for start in range(0, inputs.rows, step):
        pieces = inputs.pieces(start, start + step)
        content = [start, inputs.dtype.str, *((*astuple(piece), stamps[piece.path]) for piece in pieces)]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        chunks.append(Chunk(pieces, start, inputs.dtype.str, digest))
    return chunks


def encode_chunk(chunk: Chunk, model: str) -> Codes:
    """Encode a chunk with the hasher at the path ``model``."""
    return Codes.concatenate(part.codes for part in _parts(chunk, model, keep_vectors=False))


def write_chunk(chunk: Chunk, model: str, folder: str, keep_vectors: bool) -> tuple[SegmentRecord, ...]:
    """Write the segments of a chunk to files with new names, and return their records."""
    target = Folder(folder)
    segments = write_segments(_parts(chunk, model, keep_vectors), target, _hasher(model))
    target.sync_names()
    return tuple(segment.record for segment in segments)


def search_chunk(
    segment: SegmentFiles, asked: Queries | tuple[npt.NDArray[Any], Chosen, Queries | None], k: int
) -> Neighbours:
    """The ``k`` nearest codes in one segment, or all of them if there are fewer.

    Or those in chosen lists, and -1 where there are fewer: then ``asked`` holds the queries, their lists, and the
    queries as ``prepared_for_lists`` gives them.
    """
    found = segment.open()
    if not isinstance(asked, tuple):
        return nearest_codes(asked, (found,), min(k, found.n_live))
    hasher = _hasher(str(Path(segment.folder) / segment.hasher))
    queries, chosen, prepared = asked
    return search_chosen(State(hasher, segment.keep_vectors, (found,)), queries, k, chosen, prepared)


def measure_chunk(
    segment: SegmentFiles, queries: npt.NDArray[Any], pairs: npt.NDArray[np.int64], dtype: str | None
) -> npt.NDArray[np.float64]:
    """Squared Euclidean distances of pairs (number of a query, id in the segment), for re-ranking.

    ``dtype`` is the common type of the vectors where the segments of the index have different ones.
    """
    here = (segment.open(),)
    converted = partial(measure_fetched, lambda ids: fetch(here, ids).astype(dtype))
    measure = measure_of(here) if dtype is None else converted
    squared = np.empty((len(pairs), 1))
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        block = slice(start, start + _PAIRS_AT_ONCE)
        measure(queries[pairs[block, 0]], pairs[block, 1:], squared[block])
    return squared[:, 0]


def truth_chunk(chunk: Chunk, queries: npt.NDArray[Any], k: int) -> Neighbours:
    """Squared distances and ids of the ``k`` nearest vectors in a chunk, or of all of them if there are fewer."""
    neighbours, first_id = [], chunk.first_id
    for piece in chunk.pieces:
        with naming_file(piece), open_piece(piece) as read:
            vectors = read(slice(piece.start, piece.stop)).astype(chunk.dtype, copy=False)
            rows = ground_truth(vectors, queries, min(k, len(vectors)))
            distances = [_squared_distances(vectors[near], query) for near, query in zip(rows, queries, strict=True)]
        neighbours.append((np.stack(distances), rows + first_id))
        first_id += len(vectors)
    return merge_topk(neighbours, k)


def _parts(chunk: Chunk, model: str, keep_vectors: bool) -> Iterator[Part]:
    try:
        state = State(_hasher(model), keep_vectors, next_id=chunk.first_id)
        yield from encoded_parts(state, _blocks(chunk), NewIds("integer"))
    except StorageError:
        raise
    except DataError as error:
        _check_numbers(chunk)
        raise type(error)(f"in the {chunk.rows} vectors of {chunk}: {error}") from error


def _check_numbers(chunk: Chunk) -> None:
    """Raise a DataError that names the file and the row of a number that cannot be stored, if there is one."""
    for piece in chunk.pieces:
        with naming_file(piece), open_piece(piece) as read:
            for start in range(piece.start, piece.stop, ROWS_PER_BLOCK):
                check_size(read(slice(start, min(piece.stop, start + ROWS_PER_BLOCK))), start)


def _blocks(chunk: Chunk) -> Iterator[npt.NDArray[Any]]:
    """Blocks of 65,536 rows, the last one shorter, across the borders of files."""
    kept: list[npt.NDArray[Any]] = []
    missing = ROWS_PER_BLOCK
    for piece in chunk.pieces:
        with open_piece(piece) as read:
            start = piece.start
            while start < piece.stop:
                rows = read(slice(start, min(piece.stop, start + missing)))
                kept.append(rows.astype(chunk.dtype, copy=False))
                start, missing = start + len(rows), missing - len(rows)
                if not missing:
                    yield kept[0] if len(kept) == 1 else np.concatenate(kept)
                    kept, missing = [], ROWS_PER_BLOCK
    if kept:
        yield np.concatenate(kept)


def _squared_distances(points: npt.NDArray[Any], query: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Squared distances exactly as ``ground_truth`` compares them, so that chunks can be merged by them."""
    if points.dtype.kind == "f" or query.dtype.kind == "f":
        # ground_truth divides larger numbers by a power of two, which would differ between chunks.
        largest = max(float(np.abs(points).max(initial=0.0)), float(np.abs(query).max(initial=0.0)))
        if abs(int(np.frexp(largest)[1])) > LARGEST_EXPONENT:
            raise DataError(
                f"ground truth over chunks takes numbers whose squares float64 holds, got {largest:.3g}; "
                f"divide base and queries by {largest:.3g}"
            )
    return exact_squared_distances(points, query)


@lru_cache(maxsize=4)
def _hasher(model: str) -> Hasher:
    # no two models have the same path, so a cached one never goes stale
    return load(model)
