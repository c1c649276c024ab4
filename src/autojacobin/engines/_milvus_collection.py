"""The collection that codes live in: how it is made, and what is said of one that was made otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from autojacobin.errors import DataError, StorageError

__all__ = [
    "INDEXES",
    "LISTS",
    "checked_features",
    "checked_name",
    "create",
    "refuse_other_index",
    "refuse_other_layout",
]

INDEXES = ("BIN_FLAT", "BIN_IVF_FLAT")
LISTS = 128  # of BIN_IVF_FLAT, which is Milvus's own default
_MOST_FEATURES = 32_768


def checked_name(name: Any) -> str:
    """Give the name of a collection if Milvus can take it."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise DataError(
            f"collection must be a name of at most 255 letters, digits and underscores, the first not a digit, "
            f"got {name!r}; choose another"
        )
    return name


def checked_features(n_features: int | None) -> None:
    """Check that Milvus can keep vectors of this width."""
    if n_features is not None and not 2 <= n_features <= _MOST_FEATURES:
        raise DataError(
            f"n_features must be from 2 to {_MOST_FEATURES:,}, the widths that Milvus keeps, got {n_features}; "
            "leave it out to keep codes alone"
        )


def create(call: Callable[..., Any], client: Any, n_bits: int, n_features: int | None, index: str) -> None:
    """Make a collection; ``call(method, ...)`` calls a method of the client on it."""
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    indexes = client.prepare_index_params()
    schema.add_field("id", DataType.INT64, is_primary=True)
    description = f"{n_bits} bits, least significant first in a byte"
    schema.add_field("code", DataType.BINARY_VECTOR, dim=_whole_bytes(n_bits), description=description)
    lists = {"nlist": LISTS} if index == "BIN_IVF_FLAT" else {}
    indexes.add_index("code", index_name="code", index_type=index, metric_type="HAMMING", params=lists)
    if n_features is not None:
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=n_features)
        indexes.add_index("vector", index_name="vector", index_type="FLAT", metric_type="L2")
    call("create_collection", schema=schema, consistency_level="Strong")
    try:
        call("create_index", indexes, sync=False)  # an empty collection has no index to wait for
    except StorageError:
        call("drop_collection")
        raise


def refuse_other_layout(name: str, description: dict[str, Any], n_bits: int, n_features: int | None) -> None:
    """Raise a DataError if a collection has other fields than codes of this length and such vectors need."""
    fields = {field["name"]: field for field in description["fields"]}
    found = {name: (field["type"].name, field["params"].get("dim")) for name, field in fields.items()}
    expected: dict[str, tuple[str, int | None]] = {
        "id": ("INT64", None),
        "code": ("BINARY_VECTOR", _whole_bytes(n_bits)),
    }
    if n_features is not None:
        expected["vector"] = ("FLOAT_VECTOR", n_features)
    said = re.match(r"(\d+) bits", fields.get("code", {}).get("description", ""))
    if found != expected or (said and int(said[1]) != n_bits):
        raise DataError(
            f"the collection {name!r} has another layout, got {_in_words(found)}"
            f"{f' for codes of {said[1]} bits' if said else ''}, expected {_in_words(expected)} for codes of {n_bits} "
            "bits; open it with the n_bits and n_features it has, or choose another name"
        )


def refuse_other_index(name: str, made: dict[str, Any], index: str | None) -> None:
    """Raise a DataError if a collection has another index on its codes than was asked for, or than can be used."""
    kind, metric = made.get("index_type"), made.get("metric_type")
    if kind not in INDEXES or metric != "HAMMING" or (index is not None and kind != index):
        raise DataError(
            f"the collection {name!r} has another index on its codes, got {kind} with {metric}, expected "
            f"{index or ' or '.join(INDEXES)} with HAMMING; leave index out, or choose another name"
        )


def _whole_bytes(n_bits: int) -> int:
    return -(-n_bits // 8) * 8


def _in_words(fields: dict[str, tuple[str, int | None]]) -> str:
    return ", ".join(f"{name} {kind}" + (f"({dim})" if dim else "") for name, (kind, dim) in fields.items())
