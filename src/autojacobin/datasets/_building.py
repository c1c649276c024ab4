"""Arrays of a set that are written in pieces, and read as memory maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.datasets._formats.npy import map_npy
from autojacobin.errors import AutoJacobinError, FormatError

__all__ = ["GrowingArray", "copy_rows", "map_arrays"]

_BYTES_PER_COPY = 2**24


class GrowingArray:
    """An ``.npy`` file that rows are appended to; it can be read once it is closed."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.row_shape = row_shape
        self.rows = 0
        self._stream = path.open("wb")
        self._write_header()

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Write more rows."""
        self._stream.write(np.ascontiguousarray(rows, dtype=self.dtype).data)
        self.rows += len(rows)

    def close(self) -> None:
        """Write the number of rows into the header."""
        if not self._stream.closed:
            self._stream.seek(0)
            self._write_header()
            self._stream.close()

    def __enter__(self) -> GrowingArray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_header(self) -> None:
        # NumPy leaves room in the header for the first axis to grow to any length
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.rows, *self.row_shape),
        }
        np.lib.format.write_array_header_1_0(self._stream, header)


def copy_rows(source: npt.NDArray[Any], path: Path, rows: slice) -> None:
    """Write some rows of a memory map as an array of their own, some megabytes at a time."""
    row_bytes = max(1, source.dtype.itemsize * int(np.prod(source.shape[1:])))
    step = max(1, _BYTES_PER_COPY // row_bytes)
    with GrowingArray(path, source.dtype, source.shape[1:]) as target:
        for start in range(rows.start, rows.stop, step):
            target.append(source[start : min(start + step, rows.stop)])


def map_arrays(folder: Path, record: str) -> dict[str, npt.NDArray[Any]]:
    """Map the arrays ``NAME.npy`` of a folder; the JSON file ``record`` in it has under ``rows`` what there must be."""
    try:
        rows = json.loads((folder / record).read_text(encoding="utf-8"))["rows"]
        arrays: dict[str, npt.NDArray[Any]] = {name: map_npy(folder / f"{name}.npy") for name in rows}
        wrong = [name for name, array in arrays.items() if len(array) != rows[name]]
    except (AutoJacobinError, OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder) from error
    if wrong:
        raise _damaged(folder)
    return arrays


def _damaged(folder: Path) -> FormatError:
    return FormatError(
        f"the set in {folder} is damaged: files are missing or are not what was written; remove this folder, "
        "and it is built again"
    )
