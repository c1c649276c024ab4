"""The table that codes live in: how it is made and opened, and what is said where that fails."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from autojacobin.core.addresses import redacted_address, redacted_message, safe_cause
from autojacobin.errors import DataError, DataTypeError, MissingExtraError, StorageError

__all__ = ["checked_name", "checked_uri", "fixed_lists", "open_table", "told"]

_ADDRESS = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s/?#@]*@)?(?:\[[0-9A-Fa-f:.]+\]|[\w.~%-]*)(?::[0-9]{0,5})?(?:[/?#]|$)"
)
_LONGEST_LIST = 2**31 - 1
_LONGEST_REASON = 300


def checked_uri(uri: Any) -> str:
    """Give the folder or the address in object storage as text."""
    try:
        address = os.fspath(uri)
    except TypeError:
        address = None
    if not isinstance(address, str) or not address:
        given = "nothing" if address == "" else type(uri).__name__
        raise DataTypeError(
            f"uri must be a path or text, got {given}; pass a folder, or an address such as s3://bucket"
        )
    if "://" in address and not _ADDRESS.match(address):  # of which LanceDB would make a folder with this name
        raise DataError(
            f"uri is no address, got {redacted_address(address)!r}; write special characters of a user name and a "
            "password percent-encoded, or pass keys as storage_options"
        )
    return address


def checked_name(name: Any) -> str:
    """Give the name of a table if LanceDB can take it."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or name in (".", ".."):
        raise DataError(f"table must be a name of letters, digits, '_', '-' and '.', got {name!r}; choose another")
    return name


def open_table(
    uri: str, name: str, n_bits: int, n_features: int | None, storage_options: Mapping[str, str] | None
) -> Any:
    """Open the table, or make it; a DataError if it has other columns than codes and vectors like these need."""
    try:
        import lancedb
    except ImportError as error:
        raise MissingExtraError(error.name or "lancedb", "lancedb", "LanceDB") from None
    expected = _schema(n_bits, n_features)
    options = _checked_options(storage_options)
    with told(uri, name, "open", options):
        home = lancedb.connect(
            uri,
            read_consistency_interval=timedelta(0),  # every read looks for a newer version, as others may write
            storage_options=options,
        )
        try:
            table = home.open_table(name)
        except (ValueError, FileNotFoundError) as error:
            if "not found" not in str(error):
                raise
            table = home.create_table(name, schema=expected, exist_ok=True)
        found = table.schema
    _refuse_other_layout(name, found, expected)
    return table


def fixed_lists(matrix: Any) -> Any:
    """Rows of a matrix as an Arrow array of lists of one length, not copied."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


@contextmanager
def told(uri: str, name: str, doing: str, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn an error of LanceDB within the block into one of ours that says what was being done."""
    import pyarrow as pa

    keys = tuple((options or {}).values())
    try:
        yield
    except (RuntimeError, ValueError, OSError, OverflowError, pa.ArrowException) as error:
        # what follows is the place in LanceDB's own source
        reason = re.split(r", (?:location: )?/", (str(error).splitlines() or [""])[0])[0] or type(error).__name__
        reason = redacted_message(reason, uri, secrets=keys)
        reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"
        raise StorageError(
            f"LanceDB at {redacted_address(uri)} failed to {doing} the table {name!r}, got: {reason}; "
            f"{_mend(reason.lower())}"
        ) from safe_cause(error, uri, secrets=keys)


def _checked_options(options: Any) -> dict[str, str] | None:
    if options is None:
        return None
    if not isinstance(options, Mapping) or not all(isinstance(part, str) for pair in options.items() for part in pair):
        raise DataTypeError(  # and not what they are, for keys are among them
            "storage_options must be a mapping of text to text, such as {'region': 'eu-west-1'}, got "
            f"{'other keys or values' if isinstance(options, Mapping) else type(options).__name__}"
        )
    return dict(options)


def _schema(n_bits: int, n_features: int | None) -> Any:
    import pyarrow as pa

    for name, number, most in (("n_bits", n_bits, 8 * _LONGEST_LIST), ("n_features", n_features or 1, _LONGEST_LIST)):
        if number > most:
            raise DataError(f"{name} must be at most {most}, the longest that a table of LanceDB keeps, got {number}")
    columns = {"id": pa.int64(), "code": pa.list_(pa.uint8(), -(-n_bits // 8))}
    if n_features is not None:
        columns["vector"] = pa.list_(pa.float32(), n_features)
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(fields, metadata={"n_bits": str(n_bits), "bit_order": "least significant first in a byte"})


def _refuse_other_layout(name: str, found: Any, expected: Any) -> None:
    wanted = expected.metadata[b"n_bits"]
    said = (found.metadata or {}).get(b"n_bits", wanted)
    if {field.name: field.type for field in found} != {field.name: field.type for field in expected} or said != wanted:
        raise DataError(
            f"the table {name!r} has another layout, got {_in_words(found)} for codes of "
            f"{said.decode(errors='replace')} bits, expected {_in_words(expected)} for codes of {wanted.decode()}; "
            "open it with the n_bits and n_features it has, or choose another name"
        )


def _in_words(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _mend(reason: str) -> str:
    if any(sign in reason for sign in ("permission", "denied", "read-only", "not permitted")):
        return "allow reading and writing there, or give another place"
    if "conflict" in reason:
        return "others write to the table at the same time: try again"
    if "space" in reason:
        return "make room, or give another place"
    return "check the address, and that the table is whole"
