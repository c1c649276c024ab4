"""Vectors in files: all formats, and how to open and write them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from autojacobin.core.files import as_path, atomic_writer, check_not_special, clear_os_errors
from autojacobin.datasets.formats import containers, flat, text
from autojacobin.datasets.formats.flat import ReadLayout
from autojacobin.datasets.formats.matrices import Matrix, Vectors, outgoing
from autojacobin.datasets.formats.source import Source, open_source, unpacked
from autojacobin.errors import DataError, DataTypeError, FormatError

_GZIP_MAGIC = b"\x1f\x8b\x08"
_MAGIC = {"npy": flat.NPY_MAGIC, "npz": b"PK\x03\x04", "parquet": containers.PARQUET_MAGIC}


@dataclass(frozen=True)
class Format:
    """A format of files."""

    name: str
    extensions: tuple[str, ...]
    open: Callable[[Source, str | None], Vectors]  # called as open(source, part)
    write: Callable[[BinaryIO, Any], None]  # one matrix, or in a format of named matrices a dict of them
    dtype: np.dtype[Any] | None = None  # of the numbers, if the format has only one
    layout: ReadLayout | None = None  # in a format that stores numbers as they are in memory
    default_part: str = ""  # name of a matrix whose writer gives none; empty in a format of one matrix
    many: bool = False  # whether more than one matrix can be written


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
_EXPECTED = (  # for messages about files whose format is not known
    f"expected a name that ends in one of {', '.join(_BY_EXTENSION)}, and .gz after any but .npz, HDF5 and Parquet, "
    f"or the name of its format, one of {', '.join(FORMATS)}"
)


def open_vectors(path: str | os.PathLike[str], *, part: str | None = None, format: str | None = None) -> Vectors:
    """Open a file of vectors; it is mapped, not read, so that a file of a hundred gigabytes opens at once.

    Parameters
    ----------
    path : path
        A file whose format is known by its ending, or else by its first bytes (npy, npz, HDF5, Parquet, gzip).
    part : str, optional
        What to open of a file with several matrices: an array of an npz, a dataset of an HDF5 file, a column of a
        Parquet file. By default the only one, or ``train``.
    format : str, optional
        Name of the format, if the path does not show it: ``fvecs``, ``bvecs``, ``ivecs``, ``fbin``, ``u8bin``,
        ``i8bin``, ``ibin``, ``npy``, ``npz``, ``hdf5``, ``parquet``, ``csv``, ``tsv`` or ``text``.

    Returns
    -------
    vectors : Vectors
        Gives rows, slices and blocks, and can be passed wherever the library takes an array.

    Raises
    ------
    FormatError
        If the file is damaged or in another format; the message says where, if that is known.
    StorageError
        If there is no such file, or it cannot be read.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from autojacobin.datasets import open_vectors, write_vectors
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_vectors(f"{folder.name}/base.fvecs", np.eye(3, 4))
    >>> with open_vectors(f"{folder.name}/base.fvecs") as vectors:
    ...     vectors.shape, vectors.dtype, vectors[1:]
    ((3, 4), dtype('float32'), array([[0., 1., 0., 0.], [0., 0., 1., 0.]], dtype=float32))
    >>> folder.cleanup()
    """
    target = as_path(path)
    chosen, packed = by_name(target)
    chosen = _named(format) if format is not None else chosen
    source = open_source(target)
    if packed or (chosen is None and source.head(3) == _GZIP_MAGIC):
        source = unpacked(source)
        chosen = chosen or _by_content(source)
        if chosen.default_part:
            raise FormatError(
                f"{target} is {chosen.name} packed by gzip, which is read only unpacked; run gunzip on it first"
            )
    found = chosen or _by_content(source)
    if part is not None and not found.default_part:
        raise DataError(f"a {found.name} file is one matrix without parts, got part={part!r}; leave part out")
    if part is not None and not isinstance(part, str):
        raise DataTypeError(f"part must be the name of a matrix in the file, got {part!r}; pass text")
    return found.open(source, part)


def write_vectors(
    path: str | os.PathLike[str], vectors: Any, *, part: str | None = None, format: str | None = None
) -> None:
    """Write vectors to a file atomically.

    Parameters
    ----------
    path : path
        Path of the file; its ending is the format, as in :func:`open_vectors`, but never .gz. An existing file is
        replaced.
    vectors : matrix, Vectors, iterator of matrices, or mapping
        One vector per row; an iterator of blocks passes through in bounded memory. Floats may be rounded to the shorter
        floats of a format. Any other number that does not fit is refused, with its row. For npz and HDF5 also a mapping
        of names to matrices, for example ``{"train": ..., "test": ..., "neighbors": ..., "distances": ...}``.
    part : str, optional
        Name of the matrix in a file that names them; ``vectors`` in npz, ``train`` in HDF5, ``vector`` in Parquet by
        default.
    format : str, optional
        Name of the format, if the path does not show it.

    Raises
    ------
    DataError
        If something cannot be written in this format; nothing is changed.
    StorageError
        If the folder is not there, cannot be written to, or is full; nothing is changed.
    """
    target = as_path(path)
    chosen, packed = by_name(target)
    chosen = _named(format) if format is not None else chosen
    if chosen is None:
        raise DataError(f"the format of {target} is not known, {_EXPECTED}")
    with clear_os_errors(f"write {target}", "nothing was changed; fix the cause, and try again"):
        check_not_special(target, "write", "a file or nothing")  # a rename would replace it by a plain file
        if packed:
            raise DataError(f"files are written unpacked, got {target}; leave .gz out, and run gzip on the file")
        if chosen.default_part:
            content: Any = _parts(chosen, vectors, part)
        elif part is not None or isinstance(vectors, Mapping):
            raise DataError(f"a {chosen.name} file is one matrix without parts; use npz or hdf5 for several")
        else:
            content = outgoing(vectors, chosen.dtype)
        with atomic_writer(target) as stream:
            chosen.write(stream, content)


def _parts(format: Format, vectors: Any, part: str | None) -> dict[str, Matrix]:
    if isinstance(vectors, Mapping):
        if part is not None:
            raise DataError(f"part= goes with one matrix, got a mapping with {len(vectors)}; leave part out")
        if not format.many or not vectors:
            raise DataError(f"a {format.name} file is written from one matrix or more, got a mapping of {len(vectors)}")
        parts = dict(vectors)
    else:
        parts = {format.default_part if part is None else part: vectors}
    for name in parts:
        if not isinstance(name, str) or not name.isprintable() or not name.strip("./ ") or name != name.strip("/"):
            raise DataError(f"a part needs a name, printable text without outer slashes, got {name!r}; give another")
    return {name: outgoing(matrix, format.dtype) for name, matrix in parts.items()}


def _named(format: Any) -> Format:
    """Give the format that the caller names."""
    if not isinstance(format, str) or format.lower() not in FORMATS:
        raise DataError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    return FORMATS[format.lower()]


def by_name(path: Path) -> tuple[Format | None, bool]:
    """Give the format of the ending of a name, if it is known, and whether the file is packed by gzip."""
    packed = path.suffix.lower() == ".gz"
    return _BY_EXTENSION.get((Path(path.stem) if packed else path).suffix.lower()), packed


def _by_content(source: Source) -> Format:
    """Give the format that a file begins with."""
    for name, magic in _MAGIC.items():
        if source.head(len(magic)) == magic:
            return FORMATS[name]
    if containers.hdf5_head(source):
        return FORMATS["hdf5"]
    raise FormatError(f"{source.path} is in no known format, got {source.head(8)!r} at byte 0; {_EXPECTED}")
