"""Ids: integers, or names, which are strings or UUIDs.

Inside, every vector has an integer. Where ids are names, that is a number which counts up and is never used again. The
segments then store the name of each number in the order of positions, with a sorted table of hashes to find a name by.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from autojacobin.errors import DataError, DataTypeError

ID_KINDS = ("integer", "string", "uuid")
LARGEST_ID = 2**63 - 1
UUID_BYTES = 16


def id_kind(ids: Any) -> str:
    """Which kind of ids these are: one of ``ID_KINDS``. Only the first one is looked at."""
    if isinstance(ids, str | uuid.UUID):
        return "uuid" if isinstance(ids, uuid.UUID) else "string"
    if isinstance(ids, Iterator):  # reading the first one would consume it
        raise DataTypeError(f"ids must be a list or an array, got an iterator ({type(ids).__name__}); use list(ids)")
    if hasattr(ids, "dtype") and getattr(ids.dtype, "kind", "O") in "iu":
        return "integer"
    first = next(iter(_listed(ids)), None)
    if isinstance(first, uuid.UUID):
        return "uuid"
    return "string" if isinstance(first, str) else "integer"


def as_ids(ids: Any) -> npt.NDArray[np.int64]:
    """Give ids as an array of int64, none negative."""
    try:
        array = np.atleast_1d(np.asarray(ids))
    except ValueError:
        raise DataTypeError(f"ids must be a list of integers, without lists in it, got {ids!r:.60}") from None
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        text = array.dtype.kind in "OUS" and array.size
        shown = f"{array.flat[0]!r:.60}" if text else f"{array.dtype} of shape {array.shape}"
        raise DataTypeError(f"ids must be a list of integers, got {shown}; give them as `search` does")
    if array.size and (array.min() < 0 or array.max() > LARGEST_ID):
        wrong = array.min() if array.min() < 0 else array.max()
        raise DataError(f"ids must be integers from 0 to 2^63 - 1, got {wrong}; give others, or strings in a new index")
    return array.astype(np.int64)


def as_new_ids(ids: Any) -> npt.NDArray[np.int64]:
    """Give ids as an array of int64, each once."""
    array = as_ids(ids)
    ordered = np.sort(array)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise _not_unique(twice[0])
    return array


def as_uuid(text: str) -> uuid.UUID:
    """Read a UUID, or raise a ValueError, also for digits that only Python takes, such as ９ and _."""
    found = uuid.UUID(text)
    if found.hex != re.sub("urn:|uuid:|[{}-]", "", text.lower()):
        raise ValueError(f"{text!r} is not a UUID")
    return found


def as_new_names(ids: Any, kind: str) -> list[bytes]:
    """Give ids of one kind as bytes, each once."""
    names = as_names(ids, kind)
    if len(set(names)) < len(names):
        name, _ = Counter(names).most_common(1)[0]
        raise _not_unique(repr(from_names([name], kind)[0]))
    return names


def _not_unique(id: object) -> DataError:
    return DataError(f"ids must be unique, got {id} more than once; give every vector an id of its own")


def as_names(ids: Any, kind: str) -> list[bytes]:
    """Give ids of one kind as bytes, as they are stored."""
    found = _listed(ids)
    wanted: type = uuid.UUID if kind == "uuid" else str
    if not all(issubclass(one, wanted) for one in set(map(type, found))):
        place, id = next((place, id) for place, id in enumerate(found) if not isinstance(id, wanted))
        expected = "UUIDs (uuid.UUID)" if kind == "uuid" else "strings"
        given = f"{id!r:.60} of type {type(id).__name__} at place {place}"
        raise DataTypeError(f"the ids of this index are {expected}, got {given}")
    if kind == "uuid":
        return [id.bytes for id in found]
    try:
        names = list(map(str.encode, found))  # numpy's strings are str too
    except UnicodeEncodeError as error:
        raise DataError(f"ids must be valid Unicode text, got {error.object!r:.60}; remove lone surrogates") from error
    if b"" in names:
        raise DataError(f"ids must not be empty, got an empty string at place {names.index(b'')}; give it a name")
    return names


def _listed(ids: Any) -> list[Any]:
    """Ids as a list; a single id becomes a list of one."""
    single = isinstance(ids, str | uuid.UUID) or not isinstance(ids, Iterable) or getattr(ids, "shape", None) == ()
    return [ids] if single else list(ids)


def from_names(names: Sequence[bytes], kind: str) -> npt.NDArray[np.object_]:
    """Give stored names as the user knows them."""
    found = np.empty(len(names), dtype=object)
    found[:] = [uuid.UUID(bytes=name) if kind == "uuid" else name.decode() for name in names]
    return found


class NameTable(NamedTuple):
    """The names of the positions of a segment: all of them, one after another, and hashes to find a name by."""

    text: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]  # where each name ends in the text
    hashes: npt.NDArray[np.uint64]  # of the names, ascending
    places: npt.NDArray[np.uint32]  # the position of the name with each hash

    @classmethod
    def of(cls, names: Sequence[bytes]) -> NameTable:
        """Make the table of some names."""
        hashes = _hashes(names)
        places = np.argsort(hashes).astype(np.uint32)
        ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))
        return cls(np.frombuffer(b"".join(names), dtype=np.uint8), ends, hashes[places], places)

    def at(self, positions: npt.NDArray[Any]) -> list[bytes]:
        """Names of some positions."""
        # bytes are sliced faster than a memory map, but have to be read as a whole
        text: Any = self.text.tobytes() if len(positions) > len(self.ends) // 16 else self.text.data
        ends = self.ends[positions].tolist()
        starts = np.where(positions > 0, self.ends[positions - 1], 0).tolist()
        return [bytes(text[start:end]) for start, end in zip(starts, ends, strict=True)]

    def find(self, names: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Which of ``names`` are here, as places in ``names``, and at which positions."""
        wanted = _hashes(names)
        first = np.searchsorted(self.hashes, wanted, side="left")
        counts = np.searchsorted(self.hashes, wanted, side="right") - first  # above 1 where hashes are equal by chance
        numbers = np.repeat(np.arange(len(names)), counts)
        before = np.cumsum(counts) - counts
        positions = self.places[np.arange(len(numbers)) + np.repeat(first - before, counts)].astype(np.int64)
        pairs = zip(self.at(positions), numbers.tolist(), strict=True)
        same = np.fromiter((name == names[number] for name, number in pairs), bool, len(numbers))
        return numbers[same], positions[same]

    def problem(self, kind: str) -> str | None:
        """What is wrong with the text of the names, if anything: all of it belongs to names of one kind."""
        if len(self.text) != self.ends[-1]:
            return f"{len(self.text)} bytes of names that end at {self.ends[-1]}"
        if kind == "uuid":
            whole = np.array_equal(self.ends, np.arange(1, len(self.ends) + 1) * UUID_BYTES)
            return None if whole else "names that are not UUIDs"
        try:
            str(self.text.data, "utf-8")
        except UnicodeDecodeError:
            return "names that are not UTF-8"
        starts = self.text[self.ends[:-1]]
        return "names that end within a character" if bool((starts & 0xC0 == 0x80).any()) else None


def repeated_name(tables: Sequence[tuple[NameTable, Any]]) -> bytes | None:
    """Give a name that lives more than once, if any; each table comes with those of its hashes that live."""
    living = [(table, table.hashes[live], table.places[live]) for table, live in tables]
    together = np.sort(np.concatenate([np.empty(0, dtype=np.uint64), *(hashes for _, hashes, _ in living)]))
    equal = together[1:][together[1:] == together[:-1]]
    seen: set[bytes] = set()
    for table, hashes, places in living:  # only names with equal hashes are read
        for name in table.at(places[np.isin(hashes, equal)].astype(np.int64)):
            if name in seen:
                return name
            seen.add(name)
    return None


def _hashes(names: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    return np.fromiter(map(xxhash.xxh64_intdigest, names), np.uint64, len(names))
