"""What an index holds at one instant, read by ids: vectors, codes, names and payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.parallel import slices
from autojacobin.errors import DataError, IdExistsError, UnknownIdError
from autojacobin.hashers import Hasher, OwnCodes
from autojacobin.hashers.list_hasher import ListHasher
from autojacobin.index.manifest import Manifest
from autojacobin.index.metric import EUCLIDEAN, Metric
from autojacobin.index.names import as_ids, as_names, as_new_ids, as_new_names, from_names, id_kind
from autojacobin.index.payload import concatenate, empty_like, schema_from_text
from autojacobin.index.segment import ROWS_PER_BLOCK, Part, Segment

Ids = npt.NDArray[np.int64]
Segments = tuple[Segment, ...]


@dataclass(frozen=True)
class State:
    """What an index holds at one instant. A change replaces it by another one, in one assignment."""

    hasher: Hasher
    keep_vectors: bool
    segments: Segments = ()
    next_id: int = 0
    manifest: Manifest | None = None
    partitions: int | str | None = None
    id_kind: str | None = None
    metric: Metric = EUCLIDEAN
    knowledge: Any = None  # what the index knows about itself (``knowledge.py``), if it has learned
    n_changed: int = 0  # vectors that were added or removed since
    columns: str | None = None  # of the last vectors, if all were removed, as the manifest has them
    device: Any = None  # a copy of codes and vectors on a GPU, if searches run there
    kept: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)  # what searches derive

    @property
    def schema(self) -> Any:
        """The columns of the payload, or None if there are none."""
        found = next((segment.payload.table.schema for segment in self.segments if segment.payload is not None), None)
        return schema_from_text(self.columns) if found is None and self.columns is not None else found

    @cached_property
    def n_live(self) -> int:
        """Number of vectors."""
        return sum(segment.n_live for segment in self.segments)

    @property
    def n_lists(self) -> int:
        """Number of lists; 0 if the codes are in none."""
        return len(self.hasher.centres_) if isinstance(self.hasher, ListHasher) else 0

    @cached_property
    def query_width(self) -> int:
        """Width of queries that are plain matrices; 0 if they are codes, or have names of features to compare."""
        if isinstance(self.hasher, OwnCodes) or hasattr(self.hasher, "feature_names_in_"):
            return 0
        return self.metric.width(int(self.hasher.n_features_in_))

    def as_ids(self, ids: Any) -> NewIds:
        """Read ids of the kind that this index has; they need not be in it, nor unique."""
        if self.id_kind in (None, "integer"):
            return NewIds("integer", as_ids(ids))
        return NewIds(self.id_kind, names=as_names(ids, self.id_kind))

    def numbers(self, ids: Any, done: str) -> Ids:
        """Numbers of the vectors with these ids; the error if one is not here says what cannot be ``done`` with it."""
        given = self.as_ids(ids)
        numbers = given.found(self)
        if numbers.min(initial=0) < 0:
            wrong = given.shown(int(np.argmin(numbers)))
            raise UnknownIdError(f"only ids in the index can be {done}, got {wrong}, which is not; leave it out")
        return numbers

    def shown_ids(self, numbers: Ids) -> npt.NDArray[Any]:
        """Give numbers of vectors as the ids that the user knows; None for -1 where ids are names."""
        if self.id_kind in (None, "integer"):
            return numbers
        there, ids = numbers >= 0, np.full(numbers.shape, None, dtype=object)
        ids[there] = from_names(names_of(self.segments, numbers[there]), str(self.id_kind))
        return ids

    def vectors(self, numbers: Ids) -> npt.NDArray[Any]:
        """Vectors as they were added."""
        if not self.keep_vectors:
            raise DataError("this index keeps no vectors to give back; build it with its vectors")
        if not self.segments:
            return self.metric.original(np.empty((0, self.hasher.n_features_in_), dtype=np.float32))
        return self.metric.original(fetch(self.segments, numbers))

    def queries(self, numbers: Ids, distance: str | None) -> npt.NDArray[Any]:
        """Stored vectors as queries. Codes that were made elsewhere are packed, or real values for ``asymmetric``."""
        hasher = self.hasher
        if not isinstance(hasher, OwnCodes):
            return self.vectors(numbers)
        codes = codes_at(self.segments, numbers, int(hasher.n_bits))
        return codes.to_signs().astype(np.float32) if distance == "asymmetric" else codes.to_packed(hasher.bitorder)


class NewIds(NamedTuple):
    """Ids of vectors that are added: their kind, and numbers or names. Without either, the index gives the ids."""

    kind: str
    numbers: npt.NDArray[np.int64] | None = None
    names: list[bytes] | None = None

    @classmethod
    def read(cls, ids: Any) -> NewIds:
        """Read what the user gives."""
        kind = "integer" if ids is None else id_kind(ids)
        if kind == "integer":
            return cls(kind, None if ids is None else as_new_ids(ids))
        return cls(kind, names=as_new_names(ids, kind))

    @property
    def number(self) -> int | None:
        """Number of ids, or None if the index gives them."""
        given = self.numbers if self.names is None else self.names
        return None if given is None else len(given)

    def found(self, state: State) -> Ids:
        """Numbers of the vectors that have these ids; -1 for ids that are not in the state."""
        numbers = np.full(self.number or 0, -1, dtype=np.int64)
        for segment in state.segments:
            places, positions = self.find(segment)
            numbers[places] = segment.ids_at(positions)
        return numbers

    def find(self, segment: Segment) -> tuple[Ids, Ids]:
        """Which of these ids live in a segment, as places among them, and at which positions."""
        if self.names is not None:
            return segment.find_names(self.names)
        return segment.find(np.empty(0, dtype=np.int64) if self.numbers is None else self.numbers)

    def shown(self, place: int) -> str:
        """An id for a message."""
        if self.names is None:
            assert self.numbers is not None
            return str(self.numbers[place])
        return f"{from_names([self.names[place]], self.kind)[0]!r:.100}"

    def check_new(self, state: State) -> None:
        """Check that no vector of the index has one of these ids."""
        if self.number is None or state.id_kind != self.kind:
            return
        there = np.flatnonzero(self.found(state) >= 0)
        if len(there):
            raise IdExistsError(
                f"ids that are added must be new, got {self.shown(there[0])}, which is in the index already; replace "
                "it by upsert (--upsert), or leave it out"
            )

    def check_number(self, n: int) -> None:
        """Check that there is an id for each of ``n`` vectors, unless the index gives the ids."""
        if self.number not in (None, n):
            raise wrong_length("an id", self.number, str(n))

    def check_kind(self, state: State) -> None:
        """Check that the index has ids of this kind, or none yet."""
        if state.id_kind in (None, self.kind):
            return
        given = "none" if self.numbers is None and self.names is None else f"ids of the kind {self.kind}"
        raise DataError(
            f"all ids of an index are of one kind, which its first vectors decide: here {state.id_kind}, got {given}; "
            f"give every vector an id of the kind {state.id_kind}"
        )


def wrong_length(what: str, n: int, n_vectors: str) -> DataError:
    """Return the error for ids or rows of a payload that are not as many as the vectors."""
    several = "ids" if what == "an id" else "rows"
    return DataError(f"there must be {what} for every vector, got {n} {several} for {n_vectors} vectors; give one each")


def fetch(segments: Sequence[Segment], ids: Ids) -> npt.NDArray[Any]:
    """Vectors of some ids, all of which are in the segments, in the order of the ids."""
    dtypes = {segment.vectors.dtype for segment in segments}
    vectors = np.empty((len(ids), segments[0].vectors.shape[1]), dtype=np.result_type(*dtypes))
    for segment in segments:
        rows, positions = segment.find(ids)
        vectors[rows] = segment.vectors_at(positions)
    return vectors


def live_ids(segments: Sequence[Segment]) -> Ids:
    """All ids in the segments, ascending."""
    return ids_at(segments, [segment.live_positions() for segment in segments])


def ids_at(segments: Sequence[Segment], positions: Sequence[Ids]) -> Ids:
    """Ids at ascending positions of each segment, ascending."""
    parts = [segment.ids_at(some) for segment, some in zip(segments, positions, strict=True)]
    ids = np.concatenate([np.empty(0, dtype=np.int64), *parts])
    return np.sort(ids) if len(segments) > 1 else ids


def codes_at(segments: Sequence[Segment], ids: Ids, n_bits: int) -> Codes:
    """Codes of some ids, all of which are in the segments, in the order of the ids."""
    packed = np.empty((len(ids), -(-n_bits // 8)), dtype=np.uint8)
    for segment in segments:
        rows, positions = segment.find(ids)
        packed[rows] = segment.tiles.take(positions).packed
    return Codes(packed, n_bits)


def in_id_order(segments: Sequence[Segment]) -> Iterator[Part]:
    """Everything in the segments, in blocks in ascending order of id."""
    ids = live_ids(segments)
    n_bits = segments[0].tiles.n_bits
    for rows in slices(len(ids), ROWS_PER_BLOCK):
        block = ids[rows]
        yield Part(
            block,
            codes_at(segments, block, n_bits),
            None if segments[0].vectors is None else fetch(segments, block),
            names_of(segments, block) if "names" in segments[0].arrays else None,
            payload_of(segments, block),
        )


def names_of(segments: Sequence[Segment], ids: Ids) -> list[bytes]:
    """Names of some ids, all of which are in the segments, in the order of the ids."""
    if len(segments) == 1 and segments[0].first_id is not None:
        return segments[0].names.at(ids - segments[0].first_id)
    names = [b""] * len(ids)
    for segment in segments:
        places, positions = segment.find(ids)
        for place, name in zip(places.tolist(), segment.names.at(positions), strict=True):
            names[place] = name
    return names


def payload_of(segments: Sequence[Segment], ids: Ids) -> Any:
    """Columns of some ids in the order of the ids, nulls for -1 and in segments without; None if no segment has any."""
    schema = next((segment.payload.table.schema for segment in segments if segment.payload is not None), None)
    if schema is None:
        return None
    tables, places = [empty_like(schema, 1)], np.zeros(len(ids), dtype=np.int64)
    row = 1
    for segment in segments:
        found, positions = segment.find(ids)
        if segment.payload is not None and len(found):
            tables.append(segment.payload.table.take(positions))
            places[found] = np.arange(row, row + len(found))
            row += len(found)
    return concatenate(tables).take(places)


def drawn(segments: Sequence[Segment], size: int, seed: int) -> Ids:
    """Ids of ``size`` random vectors, in ascending order."""
    edges = np.cumsum([0, *(segment.n_live for segment in segments)])
    numbers = np.sort(np.random.default_rng(seed).choice(int(edges[-1]), size, replace=False, shuffle=False))
    parts = []
    for segment, first, last in zip(segments, edges[:-1], edges[1:], strict=True):
        here = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, last)] - first
        parts.append(segment.ids_at(segment.live_positions()[here] if segment.n_dead else here))
    return np.sort(np.concatenate(parts))
