"""HDF5 files, with h5py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.datasets.formats.source import DEFLATE_RATIO, Source, clear_foreign_errors, damaged, import_extra
from autojacobin.datasets.formats.vectors import LazyReader, Reader, chosen_part, rows_per_block, steps
from autojacobin.datasets.formats.writing import Matrix
from autojacobin.errors import DataError, FormatError

__all__ = ["MAGIC", "MAGIC_OFFSETS", "open_hdf5", "write_hdf5"]

MAGIC = b"\x89HDF\r\n\x1a\n"
MAGIC_OFFSETS = (0, 512, 1024, 2048)  # MATLAB puts 512 bytes of its own before it
_LARGEST_CHUNK = 2**30
_LARGEST_BLOCK = 2**28


def open_hdf5(source: Source, part: str | None, name: str = "HDF5") -> Reader:
    """Open one dataset: mapped if it is stored in one piece, and read slice by slice otherwise."""
    if not any(source.content[at : at + 8].tobytes() == MAGIC for at in MAGIC_OFFSETS):
        raise damaged(source.path, name, f"{source.head(8)!r} at byte 0, expected {MAGIC!r}")
    h5py = import_extra("h5py", "reading HDF5")
    with clear_foreign_errors(source.path, name):
        file = h5py.File(source.path, "r")
        try:
            matrices = {}

            def note(label: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.ndim == 2 and item.dtype.kind in "biuf":
                    matrices[label] = f"{item.dtype}, {item.shape[0]} × {item.shape[1]}"

            file.visititems(note)  # it follows no link out of the file
            wanted = part.strip("/") if isinstance(part, str) else part
            return _opened(source, file, chosen_part(source, wanted, matrices, "dataset"), name)
        except BaseException:
            file.close()
            raise


def write_hdf5(stream: BinaryIO, parts: dict[str, Matrix]) -> None:
    """Write datasets in one piece each, so that they can be mapped."""
    h5py = import_extra("h5py", "writing HDF5")
    counted = {label: matrix.counted() for label, matrix in parts.items()}
    try:
        with h5py.File(stream.name, "w") as file:
            for label, matrix in counted.items():
                _write_dataset(file, label, matrix)
    except RuntimeError as error:  # HDF5 raises it when the disk is full
        raise OSError(str(error)) from error


def _write_dataset(file: Any, label: str, matrix: Matrix) -> None:
    try:
        dataset = file.create_dataset(label, shape=(matrix.rows, matrix.width), dtype=matrix.dtype)
    except (ValueError, TypeError) as error:
        raise DataError(f"HDF5 takes no dataset called {label!r} here: {error}; give another name") from error
    row = 0
    for block in matrix.blocks():
        dataset[row : row + len(block)] = block
        row += len(block)


def _opened(source: Source, file: Any, label: str, name: str) -> Reader:
    dataset = file[label]
    n, width = (int(length) for length in dataset.shape)
    if min(n, width) < 1:
        raise FormatError(f"{source.path} holds no vectors in {label!r}, got shape {(n, width)}; write it again")
    if dataset.external or dataset.is_virtual:
        raise FormatError(f"{source.path} keeps the data of {label!r} in other files; copy them into one with h5repack")
    dtype, size = dataset.dtype, n * width * dataset.dtype.itemsize
    offset = dataset.id.get_offset()
    # some numbers must be converted by HDF5, such as integers that use only some bits of their bytes
    as_in_memory = dataset.id.get_type().equal(import_extra("h5py", "reading HDF5").h5t.py_create(dtype))
    if offset is not None and dataset.id.get_storage_size() == size and as_in_memory and dtype.kind != "b":
        if offset + size > len(source):
            what = f"{label!r} of {size} bytes from byte {offset} on in a file of {len(source)} bytes"
            raise damaged(source.path, name, f"{what}: the file was cut off")
        file.close()
        return Reader(source.content[offset : offset + size].view(dtype).reshape(n, width))
    chunk = int(np.prod([int(length) for length in dataset.chunks or (0,)], dtype=object)) * dtype.itemsize
    if size > DEFLATE_RATIO * len(source) or chunk > min(_LARGEST_CHUNK, DEFLATE_RATIO * len(source)):
        what = f"{label!r} of {size} bytes in chunks of {chunk} in a file of {len(source)} bytes"
        raise damaged(source.path, name, f"{what}, more than it can hold")
    return _HDF5Reader(source, file, dataset, name)


class _HDF5Reader(LazyReader):
    """Reads slices of a dataset that is stored in chunks."""

    def __init__(self, source: Source, file: Any, dataset: Any, name: str) -> None:
        super().__init__(source.path, (int(dataset.shape[0]), int(dataset.shape[1])), dataset.dtype)
        self._file, self._dataset, self._name = file, dataset, name

    def _stream(self) -> Iterator[npt.NDArray[Any]]:
        # in whole chunks: a chunk that is part of two blocks would be unpacked twice
        most = max(1, _LARGEST_BLOCK // (self.shape[1] * self.dtype.itemsize))
        chunk = min(int(self._dataset.chunks[0]), most) if self._dataset.chunks else 1
        step = max(chunk, rows_per_block(self.shape[1], self.dtype) // chunk * chunk)
        return (self._read(*span) for span in steps(self.shape[0], step))

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        with clear_foreign_errors(self.path, self._name):
            return np.asarray(self._dataset[start:stop])

    def close(self) -> None:
        with self._lock:
            self._file.close()
