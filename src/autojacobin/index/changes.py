"""The state of an index, and how add, remove and compact change it.

Vectors and ids that come in are checked, cut into blocks and encoded, in bounded memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import to_host
from autojacobin.core.parallel import map_points
from autojacobin.core.vectors import as_matrix
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers import Hasher, OwnCodes, PartitionedHasher
from autojacobin.hashers.base import as_vectors
from autojacobin.hashers.learning import non_empty
from autojacobin.index.contents import in_id_order, names_of
from autojacobin.index.manifest import LARGEST_ID, Manifest
from autojacobin.index.metrics import EUCLIDEAN, Metric
from autojacobin.index.names import as_names, from_names, id_kind
from autojacobin.index.segment import ROWS_PER_BLOCK, Part, Segment
from autojacobin.index.segment_writer import most_rows, write_segments
from autojacobin.index.storage import Store

__all__ = [
    "Change",
    "NewIds",
    "State",
    "add_parts",
    "as_ids",
    "as_new_ids",
    "check_rows",
    "check_vectors",
    "compact_segments",
    "encoded_block",
    "encoded_parts",
    "numbers_of",
    "remove_ids",
    "shown_ids",
    "stored_parts",
]  # fmt: skip

_ROWS_PER_TASK = 2**15

Ids = npt.NDArray[np.int64]
Segments = tuple[Segment, ...]


@dataclass(frozen=True)
class State:
    """What an index holds at one instant. A change replaces it by another one, in one assignment.

    ``knowledge`` is what the index knows about itself (``knowledge.py``), None if it has not learned, and ``n_changed``
    how many vectors were added or removed since. ``kept`` holds what searches derive from the state: it is not copied
    into the next one.
    """

    hasher: Hasher
    keep_vectors: bool
    segments: Segments = ()
    next_id: int = 0
    manifest: Manifest | None = None
    partitions: int | str | None = None
    id_kind: str | None = None
    metric: Metric = EUCLIDEAN
    knowledge: Any = None
    n_changed: int = 0
    kept: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def schema(self) -> Any:
        """The columns of the payload, or None if there are none."""
        return next((segment.payload.table.schema for segment in self.segments if segment.payload is not None), None)

    @cached_property
    def n_live(self) -> int:
        """Number of vectors."""
        return sum(segment.n_live for segment in self.segments)

    @cached_property
    def query_width(self) -> int:
        """Width of queries that are plain matrices; 0 if they are codes, or have names of features to compare."""
        if isinstance(self.hasher, OwnCodes) or hasattr(self.hasher, "feature_names_in_"):
            return 0
        return self.metric.width(int(self.hasher.n_features_in_))


class Change(NamedTuple):
    """The outcome of a change: the new segments, the next free id, and how many vectors were added or removed.

    ``hasher`` is set if all vectors were encoded again by a new hasher, ``id_kind`` if the first vectors decided it.
    The index learns about itself again if ``learns``, also if little has changed, from ``queries`` if there are any.
    """

    segments: Segments
    next_id: int
    n_changed: int
    hasher: Hasher | None = None
    id_kind: str | None = None
    learns: bool = False
    queries: Any = None

    def applied_to(self, state: State) -> State:
        """The state that the change makes."""
        return replace(
            state, segments=self.segments, next_id=self.next_id, hasher=self.hasher or state.hasher,
            id_kind=self.id_kind or state.id_kind, knowledge=None if self.hasher else state.knowledge,
            n_changed=state.n_changed + self.n_changed,
        )  # fmt: skip


def live_numbers(segments: Segments) -> dict[Any, int]:
    """Number of vectors in each segment, by what tells it from all others."""
    return {segment.label: segment.n_live for segment in segments}


def n_changed(before: dict[Any, int], after: dict[Any, int]) -> int:
    """Number of vectors that were added or removed between two states; vectors in new files count as both."""
    return sum(abs(before.get(label, 0) - after.get(label, 0)) for label in before.keys() | after.keys())


def add_parts(state: State, store: Store, parts: Iterator[Part], new_ids: NewIds) -> Change:
    """Write parts as new segments; vectors of the same ids or names in old segments become dead."""
    new = tuple(write_segments(parts, store, state.hasher))
    n = sum(segment.n for segment in new)
    kind, ids, names = new_ids
    if names is not None:
        kept = _without(state.segments, [segment.find_names(names) for segment in state.segments], store)
        return Change(kept + new, state.next_id + n, n, id_kind=kind)
    if ids is None:
        return Change(state.segments + new, state.next_id + n, n, id_kind=kind)
    kept = _without(state.segments, [segment.find(np.sort(ids)) for segment in state.segments], store)
    return Change(kept + new, max(state.next_id, int(ids.max()) + 1), n, id_kind=kind)


def remove_ids(state: State, store: Store, wanted: Any) -> Change | None:
    """Mark the vectors with these ids as dead; all of them must be in the state."""
    ids = np.unique(numbers_of(state, wanted, "removed"))
    if not len(ids):
        return None
    found = [segment.find(ids) for segment in state.segments]
    return Change(_without(state.segments, found, store), state.next_id, len(ids))


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


def compact_segments(state: State, store: Store) -> Change | None:
    """Rewrite all live vectors in as few segments as possible, after a check that they are intact."""
    limit = most_rows(state.hasher)
    by_dtype: dict[Any, list[Segment]] = {}
    for segment in state.segments:
        by_dtype.setdefault(None if segment.vectors is None else segment.vectors.dtype.str, []).append(segment)
    fewest = sum(-(-sum(segment.n_live for segment in group) // limit) for group in by_dtype.values())
    if len(state.segments) <= fewest and not any(segment.n_dead for segment in state.segments):
        return None
    for segment in state.segments:
        segment.verify()
    new = [s for group in by_dtype.values() for s in write_segments(in_id_order(group), store, state.hasher)]
    return Change(tuple(new), state.next_id, 0)


def numbers_of(state: State, ids: Any, done: str) -> Ids:
    """Numbers of the vectors with these ids, all of which must be in the state.

    ``done`` is the verb for the error message, such as "removed".
    """
    if state.id_kind in (None, "integer"):
        given = NewIds("integer", as_ids(ids))
    else:
        given = NewIds(state.id_kind, names=as_names(ids, state.id_kind))
    numbers = given.found(state)
    missing = np.flatnonzero(numbers < 0)
    if len(missing):
        raise DataError(
            f"only ids in the index can be {done}, got {given.shown(missing[0])}, which is not; leave it out"
        )
    return numbers


def shown_ids(state: State, numbers: Ids) -> npt.NDArray[Any]:
    """Give numbers of vectors as the ids that the user knows; None for -1 where ids are names."""
    if state.id_kind in (None, "integer"):
        return numbers
    flat = numbers.ravel()
    there = flat >= 0
    ids = np.full(len(flat), None, dtype=object)
    ids[there] = from_names(names_of(state.segments, flat[there]), str(state.id_kind))
    return ids.reshape(numbers.shape)


def _without(segments: Segments, found: list[tuple[Any, Any]], store: Store) -> Segments:
    """Segments with some positions marked as dead; those of which nothing is left are dropped."""
    pairs = zip(segments, found, strict=True)
    return tuple(
        segment.without(positions, store) for segment, (_, positions) in pairs if len(positions) < segment.n_live
    )


def as_ids(ids: Any) -> npt.NDArray[np.int64]:
    """Give ids as an array of int64, none negative."""
    try:
        array = np.atleast_1d(np.asarray(ids))
    except ValueError:
        raise DataTypeError(
            f"ids must be a list of integers, got {ids!r:.60}; give a list without lists in it"
        ) from None
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        text = array.dtype.kind in "OUS" and array.size
        shown = f"{array.flat[0]!r:.60}" if text else f"{array.dtype} of shape {array.shape}"
        fix = (
            "those of this index are integers, as `search` gives them"
            if text
            else "convert them with np.asarray(ids, dtype=np.int64)"
        )
        raise DataTypeError(f"ids must be a list of integers, got {shown}; {fix}")
    if array.size and (array.min() < 0 or array.max() > LARGEST_ID):
        wrong = array.min() if array.min() < 0 else array.max()
        raise DataError(
            f"ids must be integers from 0 to 2^63 - 1, got {wrong}; give other numbers, or make a new index with "
            f"strings such as '{wrong}' as ids"
        )
    return array.astype(np.int64)


class NewIds(NamedTuple):
    """Ids of vectors that are added: their kind, and numbers or names; neither if the index counts."""

    kind: str
    numbers: npt.NDArray[np.int64] | None = None
    names: list[bytes] | None = None

    @classmethod
    def read(cls, ids: Any) -> NewIds:
        """Read what the user gives."""
        kind = "integer" if ids is None else id_kind(ids)
        if kind == "integer":
            return cls(kind, None if ids is None else as_new_ids(ids))
        names = as_names(ids, kind)
        if len(set(names)) < len(names):
            name, _ = Counter(names).most_common(1)[0]
            raise _not_unique(repr(from_names([name], kind)[0]))
        return cls(kind, names=names)

    @property
    def number(self) -> int | None:
        """How many there are; None if the index counts."""
        given = self.numbers if self.names is None else self.names
        return None if given is None else len(given)

    def found(self, state: State) -> Ids:
        """Numbers of the vectors that have these ids; -1 for ids that are not in the state."""
        numbers = np.full(self.number or 0, -1, dtype=np.int64)
        for segment in state.segments:
            if self.names is not None:
                places, positions = segment.find_names(self.names)
            else:
                assert self.numbers is not None
                places, positions = segment.find(self.numbers)
            numbers[places] = segment.ids_at(positions)
        return numbers

    def shown(self, place: int) -> str:
        """An id for a message."""
        if self.names is None:
            assert self.numbers is not None
            return str(self.numbers[place])
        return repr(from_names([self.names[place]], self.kind)[0])

    def check_new(self, state: State) -> None:
        """Check that no vector of the index has one of these ids."""
        if self.number is None or state.id_kind != self.kind:
            return
        there = np.flatnonzero(self.found(state) >= 0)
        if len(there):
            raise DataError(
                f"ids that are added must be new, got {self.shown(there[0])}, which is in the index already; replace "
                "it by upsert (--upsert), or leave it out"
            )

    def check_number(self, n: int) -> None:
        """Check that there is an id for each of ``n`` vectors, unless the index counts."""
        if self.number not in (None, n):
            raise _wrong_length("an id", self.number, str(n))

    def check_kind(self, state: State) -> None:
        """Check that the index has ids of this kind, or none yet."""
        if state.id_kind in (None, self.kind):
            return
        given = "none" if self.numbers is None and self.names is None else f"ids of the kind {self.kind}"
        raise DataError(
            f"all ids of an index are of one kind, which its first vectors decide: here {state.id_kind}, got {given}; "
            f"give every vector an id of the kind {state.id_kind}"
        )


def as_new_ids(ids: Any) -> npt.NDArray[np.int64]:
    """Give ids as an array of int64, each once."""
    array = as_ids(ids)
    ordered = np.sort(array)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise _not_unique(str(twice[0]))
    return array


def _not_unique(id: str) -> DataError:
    return DataError(f"ids must be unique, got {id} more than once; give every vector an id of its own")


def encoded_parts(
    hasher: Hasher,
    vectors: Any,
    ids: npt.NDArray[np.int64] | None,
    first_id: int,
    keep_vectors: bool,
    names: Sequence[bytes] | None = None,
    payload: Any = None,
    metric: Metric = EUCLIDEAN,
) -> Iterator[Part]:
    """Walk over vectors in blocks: their ids, which count up from ``first_id`` if none are given, codes, themselves."""
    name, row = type(hasher).__name__, 0
    n_given = next((len(given) for given in (ids, names, payload) if given is not None), None)
    what = "a row of the payload" if ids is None and names is None else "an id"
    if not isinstance(vectors, Iterator):
        n = check_vectors(hasher, vectors, metric)
        if n_given is not None and n != n_given:
            raise _wrong_length(what, n_given, str(n))
    for block, codes in _encoded(hasher, _blocks(vectors, name, metric)):
        end = row + len(codes)
        if n_given is not None and end > n_given:
            raise _wrong_length(what, n_given, f"{end} or more")
        if ids is None and first_id + end - 1 > LARGEST_ID:
            raise DataError(f"there are no ids after {LARGEST_ID}, the largest in use; give ids of your own")
        chosen = np.arange(first_id + row, first_id + end) if ids is None else ids[row:end]
        yield Part(
            chosen,
            codes,
            _storable(to_host(as_matrix(block, name))) if keep_vectors else None,
            None if names is None else names[row:end],
            None if payload is None else payload[row:end],
        )
        row = end
    if n_given is not None and row != n_given:
        raise _wrong_length(what, n_given, str(row))


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


def _encoded(hasher: Hasher, blocks: Iterator[Any]) -> Iterator[tuple[Any, Codes]]:
    """Each block with its codes."""
    empty = True
    for block in blocks:
        yield block, encoded_block(hasher, block)
        empty = False
    if empty:
        raise DataError("there are no vectors to add, got an iterator without a block; expected at least one matrix")


def encoded_block(hasher: Hasher, block: Any, kept: Codes | None = None) -> Codes:
    """Encode a block of vectors on all cores, or where the hasher computes.

    ``kept`` are codes of the hasher that a PartitionedHasher wraps, so that it only has to find the lists.
    """

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


def _wrong_length(what: str, n: int, n_vectors: str) -> DataError:
    several = "ids" if what == "an id" else "rows"
    return DataError(f"there must be {what} for every vector, got {n} {several} for {n_vectors} vectors; give one each")
