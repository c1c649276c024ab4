"""What a cluster does to a part of the data: pure functions of paths, so that any executor can run them anywhere.

A chunk is a run of rows of the whole, in one file or over several. Chunks begin where a single machine's blocks do: the
rounding of a matrix product depends on how many rows it has, so the codes are the same to the last bit only if the
products are.
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
from autojacobin.core.vectors import as_floats
from autojacobin.errors import DataError, StorageError
from autojacobin.hashers import Hasher, load
from autojacobin.index.changes import encoded_parts
from autojacobin.index.files import Files
from autojacobin.index.manifest import SegmentRecord
from autojacobin.index.searching import fetch, measure_of, nearest
from autojacobin.index.segment import ROWS_PER_BLOCK, Part, Segment, most_rows, open_segment, write_segments
from autojacobin.index.storage import FolderStore
from autojacobin.jobs.inputs import Inputs, Piece, naming, opened
from autojacobin.search.arguments import checked_count
from autojacobin.search.euclidean import measure_fetched
from autojacobin.search.kernels.selection import merge_topk
from autojacobin.search.queries import Queries
from autojacobin.search.truth import LARGEST_EXPONENT, exact_squared_distances, ground_truth

__all__ = [
    "ROWS_PER_CHUNK", "Answers", "Chunk", "SegmentFiles", "cut_into_chunks", "encode_chunk", "measure_chunk",
    "search_chunk", "truth_chunk", "write_chunk",
]  # fmt: skip

ROWS_PER_CHUNK = 2**20
_PAIRS_AT_ONCE = 2**16

Answers = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Distances and ids, a row a query, in order of distance and then of id."""


@dataclass(frozen=True)
class Chunk:
    """Rows that are in ``pieces``, the first of which has the id ``first_id``; to be read as numbers of ``dtype``.

    ``digest`` is another one if anything of this is, or if a file was changed: what was made of the same chunk before
    is good still.
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
    """A segment of an index on a path that all workers see, and what it takes to open it."""

    folder: str
    record: SegmentRecord
    n_bits: int
    n_features: int
    keep_vectors: bool

    def open(self) -> Segment:
        """Map the segment."""
        try:
            return open_segment(Files(Path(self.folder)), self.record, self.n_bits, self.n_features, self.keep_vectors)
        except FileNotFoundError as error:
            raise StorageError(
                f"{error.filename} cannot be found from here: the index was changed meanwhile, or is not on a path "
                "that every worker sees; search again, or put it on a shared one"
            ) from error


def cut_into_chunks(inputs: Inputs, rows: int = ROWS_PER_CHUNK) -> list[Chunk]:
    """Cut the rows of all files into chunks of ``rows`` each, rounded up to whole blocks of 65,536."""
    step = -(-checked_count("rows", rows) // ROWS_PER_BLOCK) * ROWS_PER_BLOCK
    stamps = {file.path: file.stamp for file in inputs.files}
    chunks = []
    for start in range(0, inputs.rows, step):
        pieces = inputs.pieces(start, start + step)
        content = [start, inputs.dtype.str, *((*astuple(piece), stamps[piece.path]) for piece in pieces)]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        chunks.append(Chunk(pieces, start, inputs.dtype.str, digest))
    return chunks


def encode_chunk(chunk: Chunk, model: str) -> Codes:
    """Codes of a chunk by the hasher at the path ``model``."""
    return Codes.concatenate(part.codes for part in _parts(chunk, model, keep_vectors=False))


def write_chunk(chunk: Chunk, model: str, folder: str, keep_vectors: bool) -> tuple[SegmentRecord, ...]:
    """Write the segments of an index that a chunk makes, under names that were never used, and give their records."""
    limit = most_rows(int(_hasher(model).n_bits))
    target = FolderStore(Path(folder))
    segments = write_segments(_parts(chunk, model, keep_vectors), target, limit)
    target.files.sync_folder()
    return tuple(segment.record for segment in segments)


def search_chunk(segment: SegmentFiles, queries: Queries, k: int) -> Answers:
    """Nearest codes in one segment, or all of them if they are fewer than ``k``."""
    opened_segment = segment.open()
    return nearest(queries, (opened_segment,), min(k, opened_segment.n_live))


def measure_chunk(
    segment: SegmentFiles, queries: npt.NDArray[Any], pairs: npt.NDArray[np.int64], dtype: str | None
) -> npt.NDArray[np.float64]:
    """Squared Euclidean distances of pairs (number of a query, id that lives in the segment), for re-ranking.

    ``dtype`` is the type to compare in where the segments of the index have several.
    """
    here = (segment.open(),)
    converted = partial(measure_fetched, lambda ids: fetch(here, ids).astype(dtype))
    measure = measure_of(here) if dtype is None else converted
    squared = np.empty((len(pairs), 1))
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        block = slice(start, start + _PAIRS_AT_ONCE)
        measure(queries[pairs[block, 0]], pairs[block, 1:], squared[block])
    return squared[:, 0]


def truth_chunk(chunk: Chunk, queries: npt.NDArray[Any], k: int) -> Answers:
    """Squared Euclidean distances and ids of the nearest vectors of a chunk, or of all if they are fewer than ``k``."""
    answers, first_id = [], chunk.first_id
    for piece in chunk.pieces:
        with naming(piece), opened(piece) as (read, first):
            vectors = read(slice(piece.start - first, piece.stop - first)).astype(chunk.dtype, copy=False)
            rows = ground_truth(vectors, queries, min(k, len(vectors)))
            distances = [_exactly(vectors[near], query) for near, query in zip(rows, queries, strict=True)]
        answers.append((np.stack(distances), rows + first_id))
        first_id += len(vectors)
    return merge_topk(answers, k)


def _parts(chunk: Chunk, model: str, keep_vectors: bool) -> Iterator[Part]:
    try:
        yield from encoded_parts(_hasher(model), _blocks(chunk), None, chunk.first_id, keep_vectors)
    except StorageError:
        raise
    except DataError as error:
        _name_the_culprit(chunk)
        raise type(error)(f"in the {chunk.rows} vectors of {chunk}: {error}") from error


def _name_the_culprit(chunk: Chunk) -> None:
    """Raise an error that names the file and the row of a NaN or Inf, if that is what is wrong."""
    for piece in chunk.pieces:
        with naming(piece), opened(piece) as (read, first):
            for start in range(piece.start, piece.stop, ROWS_PER_BLOCK):
                as_floats(read(slice(start - first, min(piece.stop, start + ROWS_PER_BLOCK) - first)), start)


def _blocks(chunk: Chunk) -> Iterator[npt.NDArray[Any]]:
    """Blocks of 65,536 rows, the last one shorter, whatever files these are in."""
    kept: list[npt.NDArray[Any]] = []
    missing = ROWS_PER_BLOCK
    for piece in chunk.pieces:
        with opened(piece) as (read, first):
            at = piece.start
            while at < piece.stop:
                rows = read(slice(at - first, min(piece.stop, at + missing) - first))
                kept.append(rows.astype(chunk.dtype, copy=False))
                at, missing = at + len(rows), missing - len(rows)
                if not missing:
                    yield kept[0] if len(kept) == 1 else np.concatenate(kept)
                    kept, missing = [], ROWS_PER_BLOCK
    if kept:
        yield np.concatenate(kept)


def _exactly(points: npt.NDArray[Any], query: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Squared distances in the numbers by which ``ground_truth`` compares, so that chunks can be compared too."""
    if points.dtype.kind == "f" or query.dtype.kind == "f":
        # Numbers beyond are divided by a power of two, which would be another one for each chunk.
        largest = max(float(np.abs(points).max(initial=0.0)), float(np.abs(query).max(initial=0.0)))
        if abs(int(np.frexp(largest)[1])) > LARGEST_EXPONENT:
            raise DataError(
                f"ground truth over chunks takes numbers whose squares float64 holds, got {largest:.3g}; "
                f"divide base and queries by {largest:.3g}"
            )
    return exact_squared_distances(points, query)


@lru_cache(maxsize=4)
def _hasher(model: str) -> Hasher:
    # a worker has many chunks and few models; the path of a model has its checksum in it, so it never changes
    return load(model)
