"""What is wrong with a file is told in one sentence that names the byte, the row or the line."""

import gzip
import io
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from autojacobin.datasets import open_vectors
from autojacobin.errors import AutoJacobinError, DataError, FormatError, MissingExtraError, StorageError
from tests.datasets.vector_files import foreign_file
from tests.waiting import SECONDS

ROW = struct.pack("<i3f", 3, 1, 2, 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.fvecs", b"", "is empty (0 bytes)"),
        ("a.fvecs", b"\1\0", "2 bytes, too few for the dimension of the first row"),
        ("a.fvecs", struct.pack("<if", -3, 1), "dimension -3 in its header, expected 1 to 1048576"),
        ("a.fvecs", bytes(64), "dimension 0 in its header"),
        ("a.bvecs", struct.pack("<i", 2**30), "dimension 1073741824 in its header"),
        ("a.fvecs", ROW[:-1], "15 bytes at the end, from byte 0 on, where a row has 16"),
        ("a.fvecs", 5 * ROW + ROW[:7], "7 bytes at the end, from byte 80 on, where a row has 16"),
        ("a.fvecs", 5 * ROW + struct.pack("<i3f", 4, 1, 2, 3) + ROW, "dimension 4 in row 5 at byte 80, expected 3"),
        ("a.fvecs", 3 * ROW + 9 * struct.pack("<i2f", 2, 1, 2), "12 bytes at the end, from byte 144 on"),
        ("a.fbin", b"\1\0\0", "3 bytes, too few for the header of 8"),
        ("a.fbin", struct.pack("<IIf", 0, 1, 1), "no vectors by its header at byte 0"),
        ("a.fbin", struct.pack("<IIf", 1, 0, 1), "dimension 0 in its header"),
        ("a.fbin", struct.pack("<II", 2**32 - 1, 2**32 - 1), "dimension 4294967295 in its header"),
        ("a.u8bin", struct.pack("<II5B", 3, 2, *range(5)), "13 bytes, expected 14 for the 3 × 2 numbers"),
        ("a.ibin", struct.pack("<II5i", 2, 2, *range(5)), "28 bytes, expected 24 for the 2 × 2 numbers"),
        ("a.npy", b"NUMPY, but not quite", "the magic string is not correct"),
        ("a.npy", b"\x93NUMPY\x07\x00" + bytes(60), "is not a npy file"),
        ("a.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", "is not a npy file"),
        ("a.npy", b"\x93NUMPY\x02\x00\x11\x27\0\0" + b"-" * 10_001, "is not a npy file"),
        ("a.npy", b"\x93NUMPY\x01\x00\x02\x00[}", "is not a npy file"),
        ("a.npz", b"PK\x03\x04 and nothing more", "is not a npz file"),
        ("a.hdf5", b"\x89HDF\r\n\x1a\n and nothing more", "is not a HDF5 file"),
        ("a.hdf5", b"anything else", "is not a HDF5 file"),
        ("a.parquet", b"PAR1 and nothing more", "no b'PAR1' at its beginning and its end"),
        ("a.parquet", b"PAR1" + b"\xff" * 8 + b"PAR1", "is not a Parquet file"),
        ("a.csv", b"a,b\n", "holds no line of numbers"),
        ("a.csv", b" \n\n", "holds no line of numbers"),
        ("a.csv", b"1,2\n3,x\n", "'x' in field 2 of line 2, expected 2 numbers"),
        ("a.csv", b"a,b\n1,2\n3,\n", "'' in field 2 of line 3"),
        ("a.csv", b"1,2\n3,1_0\n", "'1_0' in field 2 of line 2"),
        ("a.csv", b"1,2\n3,4,5\n6\n", "3 fields in line 2, expected 2"),
        ("a.csv", b",a,b\n0,5,6\n1,7,8\n", "has no name for the first column in line 1, its header"),
        ("a.csv", b'# R\n"","a","b"\r\n"1",5,6\r\n', "has no name for the first column in line 2, its header"),
        ("a.txt", b'"V1" "V2"\n"1" 5 6\n"2" 7 8\n', "seem to begin with the names of rows"),
        ("a.tsv", b"1\t2\n3\t\xff\n", "in field 2 of line 2"),
        ("a.tsv", b"1\t\t3\n\t2\t3\n", "'' in field 2 of line 1"),
        ("a.tsv", b"a\tb\tc\n1\t2\t3\n\t2\t3\n4\t5\t6\n", "'' in field 1 of line 3"),
        ("a.txt", b"1 2\r3 4\r5 6", "is not a text file"),
        ("a.dat", b"1 2\n3 0x4\n", "'0x4' in field 2 of line 2"),
        ("a.fvecs.gz", gzip.compress(4 * ROW, mtime=0)[:-9], "ended before the end-of-stream marker"),
        ("a.fvecs.gz", gzip.compress(4 * ROW, mtime=0)[:-8] + bytes(8), "CRC check failed"),
        ("a.fvecs.gz", ROW, "is not a gzip file"),
        ("a.fvecs.gz", gzip.compress(b"", mtime=0), "is empty when unpacked"),
        ("a.npz.gz", gzip.compress(b"PK\x03\x04", mtime=0), "npz packed by gzip, which is read only unpacked"),
        ("a.gz", gzip.compress(b"PK\x03\x04", mtime=0), "npz packed by gzip, which is read only unpacked"),
        ("a.what", b"what is this?", "is in no known format, got b'what is ' at byte 0"),
    ],
)
def test_the_place_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError) as error:
        list(open_vectors(tmp_path / name))
    _is_one_sentence(error.value, tmp_path / name)
    assert message in str(error.value)


@pytest.mark.parametrize(("n", "wrong"), [(1000, slice(777, 778)), (50_000, slice(20_000, None))])
def test_wrong_dimensions_are_found_in_any_row_of_a_short_file_and_in_a_part_of_a_long_one(tmp_path, n, wrong):
    rows = np.frombuffer(n * ROW, dtype="<i4").reshape(n, 4).copy()
    rows[wrong, 0] = 9
    (tmp_path / "a.fvecs").write_bytes(rows.tobytes())
    with pytest.raises(FormatError, match=r"dimension 9 in row \d+ at byte \d+, expected 3 as in row 0"):
        open_vectors(tmp_path / "a.fvecs")


@pytest.mark.parametrize("block", [7, 64, 1000])
def test_lines_without_an_end_are_refused(tmp_path, monkeypatch, block):
    monkeypatch.setattr("autojacobin.datasets.formats.text._LONGEST_LINE", 50)
    monkeypatch.setattr("autojacobin.datasets.formats.text._BYTES_PER_BLOCK", block)
    path, short = tmp_path / "a.csv", b"1,2\n"
    path.write_bytes(b"x,y\n" + 30 * short + b"\n")
    assert open_vectors(path).shape == (30, 2)
    path.write_bytes(30 * short + b"1," + b"2" * 2000)
    with pytest.raises(FormatError, match="more than 50 bytes without the end of a line"):
        open_vectors(path)


@pytest.mark.parametrize(("separator", "ending"), [(b",", "csv"), (b" ", "txt")])
def test_a_line_of_too_many_fields_is_not_taken_apart(tmp_path, monkeypatch, separator, ending):
    monkeypatch.setattr("autojacobin.datasets.formats.text.LARGEST_DIMENSION", 100)
    path = tmp_path / f"a.{ending}"
    path.write_bytes(separator.join(100 * [b"1"]))
    assert open_vectors(path).shape == (1, 100)
    path.write_bytes(separator.join(10**6 * [b"1"]))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="more than 100 fields in line 1, expected 1 to 100"):
            open_vectors(path)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20  # a million fields take 34
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "array",
    [
        np.array([[{}, 1]], dtype=object),
        np.array([["a"]]),
        np.array([[1j]]),
        np.zeros((2, 2), dtype=[("x", "f4")]),
        np.zeros(3),
        np.zeros((2, 2, 2)),
        np.array(1.0),
        np.zeros((0, 3)),
        np.zeros((3, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_only_matrices_of_numbers_are_opened(tmp_path, array, ending):
    path = tmp_path / f"a.{ending}"
    np.save(path, array) if ending == "npy" else np.savez(path, array)
    with pytest.raises(FormatError if ending == "npy" else DataError) as error:
        open_vectors(path, part="arr_0" if ending == "npz" else None)
    _is_one_sentence(error.value, path)


def test_headers_of_arrays_are_not_trusted(tmp_path):
    def npy(shape, descr="'<f4'"):
        text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + bytes(64)

    path = tmp_path / "a.npy"
    path.write_bytes(npy("(4, 4)"))
    assert open_vectors(path).shape == (4, 4)
    for content in (
        npy("(5, 4)"),
        npy("(3, 4)"),
        npy("(-4, -4)"),
        npy("(4294967296, 4294967296)"),
        npy("(99999999999999999999999, 4)"),
        npy("(" * 30 + ")" * 30),
        npy("(True, 16)", "'|O'"),
        npy("(4, 4)", "'f0'"),
        npy("(4, 4)", "[('a', '<f4', 4)]"),
        npy("(4, 4)", "'<M8[s]'"),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError) as error:
            open_vectors(path)
        _is_one_sentence(error.value, path)


def test_zips_without_a_matrix_or_with_forged_sizes_are_refused(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        np.save(archive.open("train.npy", "w"), np.zeros((10, 10)))
    content = bytearray(stream.getvalue())
    at = content.index(b"PK\x01\x02") + 24
    content[at : at + 4] = struct.pack("<I", 2**31)
    (tmp_path / "a.npz").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    for name in ("a.npz", "c.npz"):
        with pytest.raises(FormatError, match="has no array of numbers with one vector per row"):
            open_vectors(tmp_path / name)


def test_shapes_that_a_file_cannot_hold_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("train", shape=(10**12, 10**6), chunks=(10, 10), dtype="f4")
    with pytest.raises(FormatError, match="more than it can hold"):
        open_vectors(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file.create_dataset("train", shape=(2, 2), dtype="f4", external=[("elsewhere", 0, 16)])
        file["linked"] = h5py.ExternalLink("a.hdf5", "train")
        file["text"] = [["a", "b"]]
        file["list"] = [1, 2]
    with pytest.raises(FormatError, match="keeps the data of 'train' in other files"):
        open_vectors(tmp_path / "b.hdf5")
    with pytest.raises(DataError, match=r"called 'linked' .*, it has: 'train' \(float32, 2 × 2\)$"):
        open_vectors(tmp_path / "b.hdf5", part="linked")
    with h5py.File(tmp_path / "c.hdf5", "w") as file:
        file["train"] = np.zeros((0, 4))
    with pytest.raises(FormatError, match="holds no vectors in 'train'"):
        open_vectors(tmp_path / "c.hdf5")


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
@pytest.mark.parametrize("checksum", [False, True])
def test_a_chunk_of_fewer_bytes_than_its_rows_is_refused(compression, checksum, tmp_path):
    """HDF5 gives what lies behind it in the memory of the process, or ends it."""
    path = tmp_path / "a.hdf5"
    whole = np.arange(200).reshape(40, 5)
    whole[16:24] = 0
    with h5py.File(path, "w") as file:
        options = {"chunks": (8, 5), "compression": compression, "fletcher32": checksum, "shuffle": bool(compression)}
        dataset = file.create_dataset("train", (40, 5), "i8", **options)
        dataset[:16], dataset[24:] = whole[:16], whole[24:]
    assert np.array_equal(open_vectors(path)[:], whole)
    with h5py.File(path, "r+") as file:
        skipped = 0b110 if compression == "lzf" else 0  # the filters that this chunk has not been through
        short = bytes(100) if compression != "gzip" else zlib.compress(bytes(100))
        file["train"].id.write_direct_chunk((16, 0), short, skipped)
    for rows in (slice(20, 21), slice(None)):
        with pytest.raises(FormatError, match="bytes in the chunk at row 16, expected 320"):
            open_vectors(path)[rows]


def test_chunks_that_were_never_written_are_zero(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("train", (40, 5), "i8", chunks=(8, 5), fill_time="never")[:8] = 7
    junk = [np.full((32, 5), 9) for _ in range(50)]  # which stays in memory that is used again
    del junk
    assert open_vectors(tmp_path / "a.hdf5")[:].tolist() == [[7] * 5] * 8 + [[0] * 5] * 32


def test_hdf5_with_other_filters_or_a_block_of_drivers_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("train", data=np.arange(200).reshape(40, 5), chunks=(8, 5), scaleoffset=0)
    with pytest.raises(FormatError, match="compressed by 'scaleoffset', expected gzip or lzf; copy it with h5repack"):
        open_vectors(tmp_path / "a.hdf5")
    content = bytearray(foreign_file(tmp_path / "b.hdf5", variant=2).read_bytes())
    assert content[512 + 48 : 512 + 56] == b"\xff" * 8
    content[512 + 48 : 512 + 56] = bytes(8)  # HDF5 would take memory for as much as the bytes there say
    (tmp_path / "b.hdf5").write_bytes(content)
    with pytest.raises(FormatError, match="a block of drivers in its head"):
        open_vectors(tmp_path / "b.hdf5")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 2], [3, 4], None], "nulls, or lists of other lengths, in 'v', expected 2 numbers"),
        ([[1, 2], [3], [4, 5]], "nulls, or lists of other lengths, in 'v', expected 2 numbers"),
        ([[1, 2], [3, 4], [4, None]], "nulls, or lists of other lengths, in 'v', expected 2 numbers"),
        ([[], [1]], "no number in row 0 of 'v'"),
        ([None, [1]], "no number in row 0 of 'v'"),
        ([], "holds no vectors"),
    ],
)
@pytest.mark.parametrize("group", [1, 10])
def test_lists_with_holes_are_named(tmp_path, rows, message, group):
    lists = pyarrow.array(rows, type=pyarrow.list_(pyarrow.float32()))
    pyarrow.parquet.write_table(pyarrow.table({"v": lists}), tmp_path / "a.parquet", row_group_size=group)
    with pytest.raises(FormatError) as error:
        np.asarray(open_vectors(tmp_path / "a.parquet"))
    _is_one_sentence(error.value, tmp_path / "a.parquet")
    assert message in str(error.value)


def test_more_rows_than_a_file_can_hold_are_refused(tmp_path):
    path = foreign_file(tmp_path / "a.parquet", variant=1)
    content, rows = (
        path.read_bytes(),
        struct.pack("<2B", 0x16, 2 * 8),
    )  # a zigzag number of 64 bits: 8 rows, the last group
    assert content.count(rows) >= 1
    at = content.rindex(rows)
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    start = len(content) - 8 - len(footer)
    forged = footer[: at - start] + b"\x16" + b"\x80" * 8 + b"\x20" + footer[at - start + 2 :]  # 2**60
    path.write_bytes(content[:start] + forged + struct.pack("<I", len(forged)) + b"PAR1")
    with pytest.raises(FormatError, match=rf"{2**60 + 32} rows in a file of \d+ bytes, more than it can hold"):
        open_vectors(path)


def test_holes_in_lists_of_fixed_size_are_named(tmp_path):
    fixed = pyarrow.list_(pyarrow.int8(), 2)
    # Arrow before version 26 refuses to read a missing list of fixed size by itself
    missing = "holds nulls|Expected all lists to be of size=2"
    for rows, message in (([[1, 2], None], missing), ([[1, 2], [None, 3]], missing)):
        lists = pyarrow.array(rows, type=fixed)
        pyarrow.parquet.write_table(pyarrow.table({"v": lists}), tmp_path / "a.parquet")
        with pytest.raises(FormatError, match=message):
            open_vectors(tmp_path / "a.parquet")[1]
    pyarrow.parquet.write_table(pyarrow.table({"v": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(FormatError, match="has no column of numbers with one vector per row"):
        open_vectors(tmp_path / "a.parquet")


def test_what_is_no_file_is_told(tmp_path):
    os.mkfifo(tmp_path / "pipe.fvecs")
    (tmp_path / "folder.npy").mkdir()
    for path, message in (
        (tmp_path / "nowhere.npy", "there is no such file"),
        (tmp_path / "folder.npy", "it is a folder, expected a file of vectors"),
        (tmp_path / "pipe.fvecs", "it is a pipe or a device"),
        (Path("/dev/null"), "it is a pipe or a device"),
        (tmp_path / "nowhere.npy" / "a.npy", "there is no such file"),
        (tmp_path / ("a" * 300), "file name too long"),
    ):
        with pytest.raises(StorageError) as error:
            open_vectors(path)
        _is_one_sentence(error.value, path)
        assert message in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read_is_told(tmp_path):
    path = foreign_file(tmp_path / "a.npy")
    path.chmod(0)
    with pytest.raises(StorageError, match="permission denied"):
        open_vectors(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "vecs"}, "format must be one of fvecs, bvecs"),
        ({"format": 3}, "format must be one of"),
        ({"part": "train"}, "a npy file is one matrix without parts, got part='train'"),
        ({"path": "a.npz", "part": 3}, "part must be the name of a matrix in the file, got 3"),
    ],
)
def test_wrong_arguments_are_told(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    foreign_file(tmp_path / "a.npy")
    foreign_file(tmp_path / "a.npz")
    with pytest.raises(DataError) as error:
        open_vectors(**{"path": "a.npy", **arguments})
    assert message in str(error.value)


@pytest.mark.parametrize(("ending", "package"), [("hdf5", "h5py"), ("parquet", "pyarrow")])
def test_a_missing_package_names_its_line(tmp_path, monkeypatch, ending, package):
    path = foreign_file(tmp_path / f"a.{ending}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"needs the package '{package}'.*pip install 'autojacobin\[data\]'"):
        open_vectors(path)


def _is_one_sentence(error, path):
    text = str(error)
    assert isinstance(error, AutoJacobinError)
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 600 + len(str(path))


SHORTENED = """
import os, sys
import numpy as np
from autojacobin.datasets import open_vectors, write_vectors
from autojacobin.errors import FormatError

for name in ("a.npy", "a.fvecs", "a.fbin"):
    write_vectors(name, np.zeros((20_000, 8), np.float32))
    vectors = open_vectors(name)
    blocks = vectors.blocks(1_000)
    next(blocks)
    os.truncate(name, 5_000)
    for read in (lambda: next(blocks), lambda: vectors[19_999], lambda: vectors[-5:], lambda: np.asarray(vectors)):
        try:
            read()
        except FormatError as error:
            assert "was shortened while it was open, to 5,000 of " in str(error)
        else:
            sys.exit(f"{name} was read")
"""


@pytest.mark.skipif(os.name != "posix", reason="Windows does not shorten a mapped file")
def test_a_file_that_is_shortened_while_it_is_open_is_told(tmp_path):
    """In a process of its own, which the system would end."""
    done = subprocess.run(
        [sys.executable, "-c", SHORTENED], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
