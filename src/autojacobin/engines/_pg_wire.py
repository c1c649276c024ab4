"""PostgreSQL's binary formats, written and read for many rows at once.

All rows of a table of codes have the same length, so that a block of them is one structured array, and its bytes are
what COPY sends. Numbers are big-endian. A ``bit(n)`` is its length and then its bits, the first of them the most
significant of its byte, where ours is the least significant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.engines._contract import Floats, Ids

__all__ = ["BitArray", "FloatArray", "IdArray", "bit_array", "codes_from", "copied_rows", "float_array", "id_array"]

_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER = b"\xff\xff"
_FLOAT4 = 700
_EVERY_BYTE = np.arange(256, dtype=np.uint8)[:, np.newaxis]
_TURNED = np.packbits(np.unpackbits(_EVERY_BYTE, axis=1, bitorder="little"), axis=1)[:, 0]


class BitArray(bytes):
    """A value of type ``bit(n)[]`` as it is sent."""

    type_number = 1561


class FloatArray(bytes):
    """A value of type ``real[]`` as it is sent."""

    type_number = 1021


class IdArray(bytes):
    """A value of type ``bigint[]`` as it is sent."""

    type_number = 1016


def copied_rows(ids: Ids, codes: Codes, vectors: Floats | None, vector_type: str) -> bytes:
    """Give what COPY (FORMAT binary) takes for the columns id, code and, if there are vectors, vector."""
    columns: list[tuple[Any, ...]] = [("columns", ">i2"), ("id size", ">i4"), ("id", ">i8"), ("code size", ">i4")]
    columns.append(("code", _bits(codes.n_bits)))
    if vectors is not None:
        columns += [("vector size", ">i4"), ("vector", _vector(vectors.shape[1], vector_type))]
    rows = np.zeros(len(ids), dtype=columns)
    rows["columns"] = 2 if vectors is None else 3
    rows["id size"], rows["id"] = 8, ids
    rows["code size"] = rows.dtype["code"].itemsize
    _fill_bits(rows["code"], codes)
    if vectors is not None:
        rows["vector size"] = rows.dtype["vector"].itemsize
        _fill_vectors(rows["vector"], vectors)
    return _COPY_HEADER + rows.tobytes() + _COPY_TRAILER


def bit_array(codes: Codes) -> BitArray:
    """Give codes as a value of type ``bit(n)[]``."""
    items = np.zeros(len(codes), dtype=[("size", ">i4"), ("code", _bits(codes.n_bits))])
    items["size"] = items.dtype["code"].itemsize
    _fill_bits(items["code"], codes)
    return BitArray(_array_header(1560, len(items)).tobytes() + items.tobytes())


def float_array(vectors: Floats) -> FloatArray:
    """Give vectors as one value of type ``real[]``, one after the other."""
    items = np.zeros(vectors.size, dtype=[("size", ">i4"), ("value", ">f4")])
    items["size"], items["value"] = 4, vectors.ravel()
    return FloatArray(_array_header(_FLOAT4, vectors.size).tobytes() + items.tobytes())


def id_array(ids: Ids) -> IdArray:
    """Give ids as a value of type ``bigint[]``."""
    items = np.zeros(len(ids), dtype=[("size", ">i4"), ("value", ">i8")])
    items["size"], items["value"] = 8, ids
    return IdArray(_array_header(20, len(ids)).tobytes() + items.tobytes())


def codes_from(values: list[bytes], n_bits: int) -> Codes:
    """Codes from values of type ``bit(n)`` as they are received."""
    received = np.frombuffer(b"".join(values), dtype=_bits(n_bits))
    return Codes(_TURNED[received["bits"]], n_bits)


def _bits(n_bits: int) -> np.dtype[Any]:
    return np.dtype([("length", ">i4"), ("bits", np.uint8, (-(-n_bits // 8),))])


def _fill_bits(column: npt.NDArray[Any], codes: Codes) -> None:
    column["length"] = codes.n_bits
    column["bits"] = _TURNED[codes.packed]


def _vector(n_features: int, vector_type: str) -> np.dtype[Any]:
    if vector_type == "real[]":
        item = [("size", ">i4"), ("value", ">f4")]
        return np.dtype([("header", ">i4", (5,)), ("items", item, (n_features,))])
    value = ">f2" if vector_type == "halfvec" else ">f4"
    return np.dtype([("length", ">i2"), ("unused", ">i2"), ("values", value, (n_features,))])


def _fill_vectors(column: npt.NDArray[Any], vectors: Floats) -> None:
    names = column.dtype.names or ()
    if "header" in names:
        column["header"] = _array_header(_FLOAT4, vectors.shape[1])
        column["items"]["size"], column["items"]["value"] = 4, vectors
    else:
        column["length"], column["values"] = vectors.shape[1], vectors


def _array_header(type_number: int, length: int) -> npt.NDArray[Any]:
    """One dimension, no nulls, the type of the items, how many there are, counted from 1."""
    return np.array([1, 0, type_number, length, 1], dtype=">i4")
