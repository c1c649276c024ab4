"""Ids that are names: strings or UUIDs.

Inside, every vector has a number that counts up and is never used again. An index with names stores the name of each
number in the segments, in the order of positions, with a sorted table of hashes by which a name is found.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from autojacobin.errors import DataError, DataTypeError

__all__ = ["ID_KINDS", "NameTable", "as_names", "from_names", "id_kind"]

ID_KINDS = ("integer", "string", "uuid")
_UUID_BYTES = 16


def id_kind(ids: Any) -> str:
    """Which kind of ids these are: one of ``ID_KINDS``. Only the first one is looked at."""
    if isinstance(ids, str | uuid.UUID):
        return "uuid" if isinstance(ids, uuid.UUID) else "string"
    if hasattr(ids, "dtype") and getattr(ids.dtype, "kind", "O") in "iu":
        return "integer"
    first = next(iter(ids), None) if hasattr(ids, "__iter__") else ids
    if isinstance(first, uuid.UUID):
        return "uuid"
    return "string" if isinstance(first, str) else "integer"


def as_names(ids: Any, kind: str) -> list[bytes]:
    """Give ids of one kind as bytes, as they are stored."""
    found: list[Any] = [ids] if isinstance(ids, str | uuid.UUID) else list(ids)
    wanted: type = uuid.UUID if kind == "uuid" else str
    for place, id in enumerate(found):
        if not isinstance(id, wanted):
            expected = "UUIDs (uuid.UUID)" if kind == "uuid" else "strings"
            raise DataTypeError(
                f"the ids of this index are {expected}, got {id!r:.60} of type {type(id).__name__} at place {place}; "
                "give ids of one kind"
            )
    if kind == "uuid":
        return [id.bytes for id in found]
    try:
        names = [str(id).encode() for id in found]  # numpy's strings are str too
    except UnicodeEncodeError as error:
        raise DataError(f"ids must be valid Unicode text, got {error.object!r:.60}; remove lone surrogates") from error
    if b"" in names:
        raise DataError(f"ids must not be empty, got an empty string at place {names.index(b'')}; give it a name")
    return names


def from_names(names: Sequence[bytes], kind: str) -> npt.NDArray[np.object_]:
    """Give stored names as the user knows them."""
    found = np.empty(len(names), dtype=object)
    found[:] = [uuid.UUID(bytes=name) if kind == "uuid" else name.decode() for name in names]
    return found


class NameTable(NamedTuple):
    """The names of the positions of a segment.

    Attributes
    ----------
    text : array of uint8
        All names, one after another.
    ends : array of int64, shape (n,)
        Where each ends.
    hashes, places : arrays of uint64 and uint32, shape (n,)
        The hashes of the names, ascending, and the position of each.
    """

    text: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    places: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, names: Sequence[bytes]) -> NameTable:
        """Make the table of some names."""
        hashes = _hashes(names)
        places = np.argsort(hashes, kind="stable").astype(np.uint32)
        ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))
        return cls(np.frombuffer(b"".join(names), dtype=np.uint8), ends, hashes[places], places)

    def at(self, positions: npt.NDArray[Any]) -> list[bytes]:
        """Names of some positions."""
        text = self.text.data
        ends = self.ends[positions].tolist()
        starts = np.where(positions > 0, self.ends[positions - 1], 0).tolist()
        return [bytes(text[start:end]) for start, end in zip(starts, ends, strict=True)]

    def find(self, names: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Which of ``names`` are here, as places in ``names``, and at which positions."""
        wanted = _hashes(names)
        first = np.searchsorted(self.hashes, wanted, side="left")
        last = np.searchsorted(self.hashes, wanted, side="right")
        found: list[tuple[int, int]] = []
        for number in np.flatnonzero(last > first).tolist():  # more than one only where hashes are equal by chance
            positions = self.places[first[number] : last[number]].astype(np.int64)
            same = [p for p, name in zip(positions.tolist(), self.at(positions), strict=True) if name == names[number]]
            found.extend((number, position) for position in same)
        pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]


def _hashes(names: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    return np.fromiter(map(xxhash.xxh64_intdigest, names), np.uint64, len(names))
