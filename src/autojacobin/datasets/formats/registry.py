"""All formats, found by their name, by the ending of a file, or by its first bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from autojacobin.datasets.formats import hdf5, npy, parquet, text, vecs
from autojacobin.datasets.formats.source import Source
from autojacobin.datasets.formats.vectors import Reader
from autojacobin.datasets.formats.writing import Matrix
from autojacobin.errors import DataError, FormatError

__all__ = [
    "EXPECTED", "FORMATS", "GZIP_MAGIC", "Container", "Flat", "Format", "by_content", "by_name", "check_packable",
    "named",
]  # fmt: skip

GZIP_MAGIC = b"\x1f\x8b\x08"


@dataclass(frozen=True)
class Format:
    """A format: its name, the endings of its files, and the type of the numbers if the format has only one."""

    name: str
    extensions: tuple[str, ...]
    dtype: np.dtype[Any] | None


@dataclass(frozen=True)
class Flat(Format):
    """A format whose files hold one matrix; ``counts`` if the number of rows is written before them."""

    open: Callable[[Source], Reader]
    write: Callable[[BinaryIO, Matrix], None]
    counts: bool


@dataclass(frozen=True)
class Container(Format):
    """A format whose files hold named matrices; ``many`` if more than one can be written."""

    open: Callable[[Source, str | None], Reader]
    write: Callable[[BinaryIO, dict[str, Matrix]], None]
    default_part: str
    many: bool


def _vecs(name: str, dtype: str) -> Flat:
    kind = np.dtype(dtype)
    return Flat(name, (f".{name}",), kind, partial(vecs.open_vecs, dtype=kind, name=name), vecs.write_vecs, False)


def _bigann(name: str, dtype: str) -> Flat:
    kind = np.dtype(dtype)
    opened = partial(vecs.open_bigann, dtype=kind, name=name)
    return Flat(name, (f".{name}",), kind, opened, vecs.write_bigann, True)


def _text(name: str, extensions: tuple[str, ...], separator: str) -> Flat:
    opened, written = partial(text.open_text, name=name), partial(text.write_text, separator=separator)
    return Flat(name, extensions, None, opened, written, False)


_ALL: tuple[Flat | Container, ...] = (
    _vecs("fvecs", "<f4"),
    _vecs("bvecs", "u1"),
    _vecs("ivecs", "<i4"),
    _bigann("fbin", "<f4"),
    _bigann("u8bin", "u1"),
    _bigann("i8bin", "i1"),
    _bigann("ibin", "<i4"),
    Flat("npy", (".npy",), None, npy.open_npy, npy.write_npy, True),
    Container("npz", (".npz",), None, npy.open_npz, npy.write_npz, "vectors", many=True),
    Container("hdf5", (".hdf5", ".h5", ".hdf"), None, hdf5.open_hdf5, hdf5.write_hdf5, "train", many=True),
    Container("parquet", (".parquet", ".pq"), None, parquet.open_parquet, parquet.write_parquet, "vector", many=False),
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


def named(format: Any) -> Flat | Container:
    """Give the format that the caller names."""
    if not isinstance(format, str) or format.lower() not in FORMATS:
        raise DataError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    return FORMATS[format.lower()]


def by_name(path: Path) -> tuple[Flat | Container | None, bool]:
    """Give the format of the ending of a name, if it is known, and whether the file is packed by gzip."""
    packed = path.suffix.lower() == ".gz"
    return _BY_EXTENSION.get((Path(path.stem) if packed else path).suffix.lower()), packed


def by_content(source: Source) -> Flat | Container:
    """Give the format that a file begins with."""
    if source.head(len(npy.MAGIC)) == npy.MAGIC:
        return FORMATS["npy"]
    if source.head(4) == b"PK\x03\x04":
        return FORMATS["npz"]
    if source.head(4) == parquet.MAGIC:
        return FORMATS["parquet"]
    if any(source.content[at : at + 8].tobytes() == hdf5.MAGIC for at in hdf5.MAGIC_OFFSETS):
        return FORMATS["hdf5"]
    raise FormatError(f"{source.path} is in no known format, got {source.head(8)!r} at byte 0; {EXPECTED}")


def check_packable(path: Path, format: Flat | Container) -> Flat:
    """Raise an error if the format is a container, which is never packed by gzip; otherwise return the format."""
    if isinstance(format, Flat):
        return format
    raise FormatError(f"{path} is {format.name} packed by gzip, which is read only unpacked; run gunzip on it first")
