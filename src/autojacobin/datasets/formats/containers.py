"""Files of named matrices: npz of NumPy, HDF5 with h5py, and Parquet with pyarrow."""

from __future__ import annotations

import itertools
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.datasets.formats.flat import HEAD_BYTES, npy_header, npy_layout
from autojacobin.datasets.formats.matrices import Matrix, Vectors, chosen_part
from autojacobin.datasets.formats.source import Source, clear_foreign_errors, damaged, spooled
from autojacobin.errors import DataError, FormatError, import_extra

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
PARQUET_MAGIC = b"PAR1"
_DEFLATE, _SHUFFLE, _CHECKSUM, _LZF = 1, 2, 3, 32000  # filters of HDF5
_BYTES_PER_READ = 2**20
_LARGEST_RATIO = 1032  # deflate cannot shrink data more than this; a header that claims more is forged
_LARGEST_PARQUET_RATIO = 100_000  # columns of zeros and ones reach a third of it
_LARGEST_PARQUET = 2**28  # bytes of vectors that any file may claim to hold


def open_npz(source: Source, part: str | None) -> Vectors:
    """Copy one array of the archive to a temporary file, and map it."""
    with clear_foreign_errors(source.path, "npz"), zipfile.ZipFile(source.path) as archive:
        layouts, matrices = {}, {}
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            with archive.open(info) as member:
                try:
                    layout = npy_layout(member.read(HEAD_BYTES), info.file_size)
                except ValueError:
                    continue  # not a matrix of numbers
            label = info.filename.removesuffix(".npy")
            layouts[label], matrices[label] = layout, f"{layout.dtype}, {layout.rows} × {layout.width}"
        chosen = chosen_part(source, part, matrices, "array")
        with archive.open(f"{chosen}.npy") as member:
            content = spooled(iter(lambda: member.read(_BYTES_PER_READ), b""), f"unpack {source.path}")
        return Vectors(source.path, "npz", layouts[chosen].view(content))


def write_npz(stream: BinaryIO, parts: dict[str, Matrix]) -> None:
    """Write arrays without compression."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for label, matrix in parts.items():
            counted = matrix.counted()
            # a ZipInfo without a time: the same vectors give the same file
            with archive.open(zipfile.ZipInfo(f"{label}.npy"), "w", force_zip64=True) as member:
                member.write(npy_header((counted.rows or 0, counted.width), counted.dtype))
                for block in counted.blocks():
                    member.write(block.data)


def open_hdf5(source: Source, part: str | None) -> Vectors:
    """Open one dataset: mapped if it is stored in one piece, and read slice by slice otherwise."""
    with clear_foreign_errors(source.path, "HDF5"):
        file = hdf5_file(source)
        try:
            matrices = {}

            def note(label: str, item: Any) -> None:
                if hasattr(item, "ndim") and item.ndim == 2 and item.dtype.kind in "biuf":
                    matrices[label] = f"{item.dtype}, {item.shape[0]} × {item.shape[1]}"

            file.visititems(note)  # it follows no link out of the file
            wanted = part and part.strip("/")
            return _opened_dataset(source, file, chosen_part(source, wanted, matrices, "dataset"))
        except BaseException:
            file.close()
            raise


def hdf5_file(source: Source) -> Any:
    """Open a file, unless it has a block of drivers: HDF5 reads as much as that claims, and few files have one."""
    h5py = import_extra("h5py", "data", "reading HDF5")
    head = hdf5_head(source)
    if head[8:9] in (b"\0", b"\1"):  # later versions have no such block
        width = head[13]
        if head[24 + 4 * head[8] + 3 * width :][:width] != width * b"\xff" or width > 8:
            raise damaged(source.path, "HDF5", "a block of drivers in its head")
    return h5py.File(source.path, "r")


def hdf5_head(source: Source) -> bytes:
    """Find where HDF5 begins, which MATLAB puts 512 bytes of its own before; empty if it is another file."""
    starts = (0, *(512 << doubled for doubled in range(50)))
    heads = (source.content[start : start + 64].tobytes() for start in starts)  # empty beyond the end
    return next((head for head in heads if head.startswith(_HDF5_MAGIC)), b"")


def _opened_dataset(source: Source, file: Any, label: str) -> Vectors:
    h5t, dataset = import_extra("h5py", "data", "reading HDF5").h5t, file[label]
    (n, width), dtype, offset = dataset.shape, dataset.dtype, dataset.id.get_offset()
    size = n * width * dtype.itemsize
    if min(n, width) < 1:
        raise FormatError(f"{source.path} holds no vectors in {label!r}, got shape {(n, width)}; write it again")
    if dataset.external or dataset.is_virtual:
        raise FormatError(f"{source.path} keeps the data of {label!r} in other files; copy them into one with h5repack")
    # HDF5 must convert some numbers, such as integers that use only some bits of their bytes
    as_in_memory = dataset.id.get_type().equal(h5t.py_create(dtype)) and dtype.kind != "b"
    if offset is not None and dataset.id.get_storage_size() == size and as_in_memory and offset + size <= len(source):
        file.close()
        return Vectors(source.path, "hdf5", source.content[offset : offset + size].view(dtype).reshape(n, width))
    chunk = int(np.prod(dataset.chunks or (0,), dtype=object)) * dtype.itemsize
    if max(size, chunk) > _LARGEST_RATIO * len(source):
        what = f"{label!r} of {size} bytes in chunks of {chunk} in a file of {len(source)} bytes"
        raise damaged(source.path, "HDF5", f"{what}, more than it can hold")
    return Vectors(source.path, "hdf5", _HDF5Rows(source, file, dataset))


class _HDF5Rows:
    """Reads slices of a dataset that is stored in chunks."""

    def __init__(self, source: Source, file: Any, dataset: Any) -> None:
        self.shape, self.dtype, self.close = dataset.shape, dataset.dtype, file.close
        self._path, self._dataset = source.path, dataset
        self._checked: set[tuple[int, int]] = set()
        self._chunk_bytes = int(np.prod(dataset.chunks or (0,), dtype=object)) * dataset.id.get_type().get_size()
        created = dataset.id.get_create_plist()
        self._filters = [created.get_filter(number) for number in range(created.get_nfilters())]
        for code, *_, name in self._filters:
            if code not in (_DEFLATE, _SHUFFLE, _CHECKSUM, _LZF):
                raise FormatError(
                    f"{source.path} is compressed by {name.decode(errors='replace')[:40]!r}, expected gzip or lzf; "
                    "copy it with h5repack -f GZIP=4"
                )
        if dataset.chunks and not self._filters:
            wrong = dataset.id.chunk_iter(lambda chunk: None if chunk.size == self._chunk_bytes else chunk)
            if wrong is not None:
                raise self._short(wrong.chunk_offset[0], wrong.size)

    def __getitem__(self, wanted: slice) -> npt.NDArray[Any]:
        # HDF5 need not fill in what was never written
        rows = np.zeros((wanted.stop - wanted.start, self.shape[1]), self.dtype)
        with clear_foreign_errors(self._path, "HDF5"):
            if self._filters:
                self._check_chunks(wanted.start, wanted.stop)
            self._dataset.read_direct(rows, wanted)
        return rows

    def _check_chunks(self, start: int, stop: int) -> None:
        """Refuse a chunk of fewer bytes than its rows have: HDF5 would give what lies behind it in memory, or crash."""
        height, width = self._dataset.chunks
        rows, columns = range(start // height * height, stop, height), range(0, self.shape[1], width)
        for place in itertools.product(rows, columns):
            if place in self._checked:
                continue
            try:
                skipped, content = self._dataset.id.read_direct_chunk(place)
            except RuntimeError:  # it was never written
                continue
            for number, (code, _, values, _) in reversed(list(enumerate(self._filters))):
                if skipped >> number & 1:
                    continue
                if code == _DEFLATE:
                    content = zlib.decompressobj().decompress(content, self._chunk_bytes + 4)
                elif code == _CHECKSUM:
                    content = content[:-4]
                elif code == _LZF:  # its buffer has the size that is stored with it
                    content = bytes(min((*values, 0, 0, 0)[2], self._chunk_bytes))
            if len(content) < self._chunk_bytes:
                raise self._short(place[0], len(content))
            self._checked.add(place)

    def _short(self, row: int, size: int) -> FormatError:
        return damaged(self._path, "HDF5", f"{size} bytes in the chunk at row {row}, expected {self._chunk_bytes}")


def write_hdf5(stream: BinaryIO, parts: dict[str, Matrix]) -> None:
    """Write datasets in one piece each, so that they can be mapped."""
    h5py = import_extra("h5py", "data", "writing HDF5")
    counted = {label: matrix.counted() for label, matrix in parts.items()}
    try:
        with h5py.File(stream.name, "w") as file:
            for label, matrix in counted.items():
                try:
                    dataset = file.create_dataset(label, shape=(matrix.rows, matrix.width), dtype=matrix.dtype)
                except (ValueError, TypeError) as error:
                    what = f"HDF5 takes no dataset called {label!r} here: {error}"
                    raise DataError(f"{what}; give another name") from error
                row = 0
                for block in matrix.blocks():
                    dataset[row : row + len(block)] = block
                    row += len(block)
    except RuntimeError as error:  # HDF5 raises it when the disk is full
        raise OSError(str(error)) from error


def open_parquet(source: Source, part: str | None) -> Vectors:
    """Open one column of vectors."""
    if source.head(4) != PARQUET_MAGIC or source.content[-4:].tobytes() != PARQUET_MAGIC:
        raise damaged(source.path, "Parquet", f"no {PARQUET_MAGIC!r} at its beginning and its end")
    parquet = import_extra("pyarrow.parquet", "data", "reading Parquet")
    with clear_foreign_errors(source.path, "Parquet"):
        file = parquet.ParquetFile(source.path, memory_map=True)
        try:
            columns = {
                field.name: f"{field.type}, {file.metadata.num_rows} rows"
                for field in file.schema_arrow
                if _number_type(field.type) is not None
            }
            rows = _ParquetRows(source, file, chosen_part(source, part, columns, "column"))
            return Vectors(source.path, "parquet", rows)
        except BaseException:
            file.close()
            raise


class _ParquetRows:
    """Reads row groups, and keeps the last one decoded."""

    def __init__(self, source: Source, file: Any, label: str) -> None:
        self._path, self._file, self._label, self.close = source.path, file, label, file.close
        groups = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        self._starts = [0, *itertools.accumulate(groups)]
        self._kept: tuple[int, npt.NDArray[Any]] = (-1, np.empty(0))
        n, dtype = self._starts[-1], np.dtype(_number_type(file.schema_arrow.field(label).type).to_pandas_dtype())
        if n < 1 or min(groups) < 0:
            raise FormatError(f"{source.path} holds no vectors, got {n} rows; write it again")
        # the metadata of columns is not used here: pyarrow 26 ends the process if it is wrong
        if n * dtype.itemsize > max(_LARGEST_PARQUET, _LARGEST_PARQUET_RATIO * len(source)):
            what = f"{n} rows in a file of {len(source)} bytes"
            raise damaged(source.path, "Parquet", f"{what}, more than it can hold")
        batches = file.iter_batches(batch_size=1, columns=[label], use_threads=False)
        first = next((_plain(batch.column(label)) for batch in batches if len(batch)), None)
        width = 0 if first is None or first.null_count else len(first.flatten())
        if width < 1:
            raise damaged(source.path, "Parquet", f"no number in row 0 of {label!r}, expected a vector")
        self.shape, self.dtype = (n, width), dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        parts = [np.empty((0, self.shape[1]), self.dtype)]
        for number, (first, end) in enumerate(itertools.pairwise(self._starts)):
            if first < rows.stop and rows.start < end:
                parts.append(self._group(number, end - first)[max(0, rows.start - first) : rows.stop - first])
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

    def _group(self, number: int, expected: int) -> npt.NDArray[Any]:
        if self._kept[0] != number:
            with clear_foreign_errors(self._path, "Parquet"):
                table = self._file.read_row_group(number, columns=[self._label], use_threads=False)
                parts = [self._decoded(chunk) for chunk in table.column(self._label).chunks]
            rows = np.concatenate([np.empty((0, self.shape[1]), self.dtype), *parts]).astype(self.dtype, copy=False)
            if len(rows) != expected:
                raise damaged(self._path, "Parquet", f"{len(rows)} rows in row group {number}, expected {expected}")
            self._kept = (number, rows)
        return self._kept[1]

    def _decoded(self, chunk: Any) -> npt.NDArray[Any]:
        lists, width = _plain(chunk), self.shape[1]
        numbers = lists.flatten()
        if set(lists.value_lengths().unique().to_pylist()) - {width} or numbers.null_count or lists.null_count:
            raise FormatError(
                f"{self._path} holds nulls, or lists of other lengths, in {self._label!r}, expected {width} numbers "
                "as in every row; fill in or leave out such rows, and write the file again"
            )
        return numbers.to_numpy(zero_copy_only=False).reshape(-1, width)


def _plain(array: Any) -> Any:
    return getattr(array, "storage", array)  # of an extension type


def _number_type(kind: Any) -> Any:
    """Type of the numbers in a list type, or None if it is no list of numbers."""
    types, kind = import_extra("pyarrow", "data", "reading Parquet").types, getattr(kind, "storage_type", kind)
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return None
    value = kind.value_type
    return value if types.is_integer(value) or types.is_floating(value) or types.is_boolean(value) else None


def write_parquet(stream: BinaryIO, parts: dict[str, Matrix]) -> None:
    """Write a column of fixed-size lists; each block of the matrix is a row group."""
    ((label, matrix),) = parts.items()
    arrow = import_extra("pyarrow", "data", "writing Parquet")
    parquet = import_extra("pyarrow.parquet", "data", "writing Parquet")
    schema = arrow.schema([(label, arrow.list_(arrow.from_numpy_dtype(matrix.dtype), matrix.width))])
    with parquet.ParquetWriter(stream, schema, use_dictionary=False) as writer:
        for block in matrix.blocks():
            numbers = arrow.array(block.ravel())
            lists = arrow.FixedSizeListArray.from_arrays(numbers, matrix.width)
            writer.write_table(arrow.Table.from_arrays([lists], schema=schema))
