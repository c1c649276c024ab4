"""All formats of vector files, found by their name, by the ending of a file, or by its first bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from autojacobin.datasets.formats import containers, flat, text
from autojacobin.datasets.formats.flat import ReadLayout
from autojacobin.datasets.formats.source import Source
from autojacobin.datasets.formats.vectors import Reader
from autojacobin.errors import DataError, FormatError

GZIP_MAGIC = b"\x1f\x8b\x08"


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes
    ----------
    name, extensions : str, tuple of str
        Its name, and the endings of its files.
    open : callable
        Opens a file as ``open(source, part)``.
    write : callable
        Writes one ``Matrix`` to a stream, or in a format of named matrices a dict of them.
    dtype : dtype, optional
        Type of the numbers, if the format has only one.
    layout : callable, optional
        Finds where the numbers are, in a format that stores them as they are in memory.
    default_part : str
        Name of a matrix whose writer gives none; empty in a format of one matrix without a name.
    many : bool
        Whether more than one matrix can be written.
    """

    name: str
    extensions: tuple[str, ...]
    open: Callable[[Source, str | None], Reader]
    write: Callable[[BinaryIO, Any], None]
    dtype: np.dtype[Any] | None = None
    layout: ReadLayout | None = None
    default_part: str = ""
    many: bool = False


def _flat(name: str, write: Callable[[BinaryIO, Any], None], layout: Any, dtype: str | None = None) -> Format:
    kind = None if dtype is None else np.dtype(dtype)
    read_layout = layout if kind is None else partial(layout, dtype=kind)
    return Format(
        name, (f".{name}",), lambda source, _: flat.open_flat(source, name, read_layout), write, kind, read_layout
    )


def _text(name: str, extensions: tuple[str, ...], separator: str) -> Format:
    write = partial(text.write_text, separator=separator)
    return Format(name, extensions, lambda source, _: text.open_text(source, name), write)


_ALL = (
    _flat("fvecs", flat.write_vecs, flat.vecs_layout, "<f4"),
    _flat("bvecs", flat.write_vecs, flat.vecs_layout, "u1"),
    _flat("ivecs", flat.write_vecs, flat.vecs_layout, "<i4"),
    _flat("fbin", flat.write_bigann, flat.bigann_layout, "<f4"),
    _flat("u8bin", flat.write_bigann, flat.bigann_layout, "u1"),
    _flat("i8bin", flat.write_bigann, flat.bigann_layout, "i1"),
    _flat("ibin", flat.write_bigann, flat.bigann_layout, "<i4"),
    _flat("npy", flat.write_npy, flat.npy_layout),
    Format("npz", (".npz",), containers.open_npz, containers.write_npz, default_part="vectors", many=True),
    Format(
        "hdf5", (".hdf5", ".h5", ".hdf"), containers.open_hdf5, containers.write_hdf5, default_part="train", many=True
    ),
    Format("parquet", (".parquet", ".pq"), containers.open_parquet, containers.write_parquet, default_part="vector"),
    _text("csv", (".csv",), ","),
    _text("tsv", (".tsv",), "\t"),
    _text("text", (".txt", ".dat", ".vec"), " "),
)
FORMATS = {format.name: format for format in _ALL}
_BY_EXTENSION = {extension: format for format in FORMATS.values() for extension in format.extensions}
EXPECTED = (  # for messages about files whose format is not known
    f"expected a name that ends in one of {', '.join(_BY_EXTENSION)}, and .gz after any but .npz, HDF5 and Parquet, "
    f"or format= with one of {', '.join(FORMATS)}"
)


def named(format: Any) -> Format:
    """Give the format that the caller names."""
    if not isinstance(format, str) or format.lower() not in FORMATS:
        raise DataError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    return FORMATS[format.lower()]


def by_name(path: Path) -> tuple[Format | None, bool]:
    """Give the format of the ending of a name, if it is known, and whether the file is packed by gzip."""
    packed = path.suffix.lower() == ".gz"
    return _BY_EXTENSION.get((Path(path.stem) if packed else path).suffix.lower()), packed


def by_content(source: Source) -> Format:
    """Give the format that a file begins with."""
    if source.head(len(flat.NPY_MAGIC)) == flat.NPY_MAGIC:
        return FORMATS["npy"]
    if source.head(4) == b"PK\x03\x04":
        return FORMATS["npz"]
    if source.head(4) == containers.PARQUET_MAGIC:
        return FORMATS["parquet"]
    if any(source.content[at : at + 8].tobytes() == containers.HDF5_MAGIC for at in containers.HDF5_OFFSETS):
        return FORMATS["hdf5"]
    raise FormatError(f"{source.path} is in no known format, got {source.head(8)!r} at byte 0; {EXPECTED}")
