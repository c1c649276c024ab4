"""Vectors come out of every format as other programs put them in, and go back in as they came."""

import gzip
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from autojacobin.datasets import Vectors, open_vectors, write_vectors
from autojacobin.errors import DataError
from tests.datasets.vector_files import FORMATS, WHOLE, foreign_file

DTYPES = {"fvecs": "f4", "bvecs": "u1", "ivecs": "i4", "fbin": "f4", "u8bin": "u1", "i8bin": "i1", "ibin": "i4"}
FREE = [np.dtype(kind) for kind in ("f2", "f4", "f8", ">f4", ">i2", "i1", "i4", "i8", "u1", "u2", "u8", "?")]
PACKED = ["fvecs.gz", "bvecs.gz", "ivecs.gz", "fbin.gz", "npy.gz", "csv.gz", "tsv.gz", "txt.gz"]


@pytest.mark.parametrize("variant", [0, 1, 2])
@pytest.mark.parametrize("ending", FORMATS + PACKED)
def test_files_of_other_programs_are_read(tmp_path, ending, variant):
    with open_vectors(foreign_file(tmp_path / f"base.{ending}", variant=variant)) as vectors:
        assert isinstance(vectors, Vectors)
        assert vectors.shape == WHOLE.shape
        assert len(vectors) == len(WHOLE)
        np.testing.assert_array_equal(np.asarray(vectors), WHOLE)


def test_numbers_are_those_of_the_bytes(tmp_path):
    (tmp_path / "a.fvecs").write_bytes(struct.pack("<i3fi3f", 3, 0.5, -1e-30, np.inf, 3, 2.0, 3e38, -0.0))
    expected = np.array([[0.5, -1e-30, np.inf], [2.0, 3e38, -0.0]], dtype=np.float32)
    assert open_vectors(tmp_path / "a.fvecs")[:].tobytes() == expected.tobytes()
    (tmp_path / "a.i8bin").write_bytes(struct.pack("<II4b", 2, 2, -128, -1, 127, 0))
    assert open_vectors(tmp_path / "a.i8bin")[:].tolist() == [[-128, -1], [127, 0]]


@given(data=st.data())
def test_what_is_written_is_read(data):
    ending = data.draw(st.sampled_from(FORMATS))
    dtype = np.dtype(DTYPES[ending]) if ending in DTYPES else None
    dtype = data.draw(st.sampled_from(FREE)) if dtype is None else dtype
    shape = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 9)))
    matrix = data.draw(arrays.arrays(dtype, shape, elements=_elements(dtype)))
    as_stream = data.draw(st.booleans())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(matrix)), max_size=3)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{ending}"
        write_vectors(path, iter(np.split(matrix, cuts)) if as_stream else matrix)
        assert os.listdir(folder) == [path.name]
        with open_vectors(path) as vectors:
            assert vectors.shape == matrix.shape
            if vectors.format not in ("csv", "tsv", "text"):
                assert vectors.dtype == matrix.dtype.newbyteorder("<")
            found = np.asarray(vectors).astype(matrix.dtype)
            np.testing.assert_array_equal(found, matrix)
            if matrix.dtype.kind == "f":
                np.testing.assert_array_equal(np.signbit(found), np.signbit(matrix))


def _elements(dtype):
    if dtype.kind == "f":
        return st.floats(width=8 * dtype.itemsize, allow_nan=False) | st.just(-0.0)
    if dtype.itemsize == 8:  # text is read as float64, which holds these exactly
        return st.integers(0 if dtype.kind == "u" else -(2**53), 2**53)
    return None


@pytest.mark.parametrize("ending", FORMATS)
def test_other_programs_read_what_is_written(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    write_vectors(path, WHOLE)
    content = path.read_bytes()
    if ending.endswith(("vecs", "bin")):
        assert content == foreign_file(tmp_path / f"b.{ending}").read_bytes()
    elif ending == "npy":
        assert np.load(path, allow_pickle=False).tolist() == WHOLE.tolist()
    elif ending == "npz":
        with np.load(path, allow_pickle=False) as arrays:
            assert arrays["vectors"].tolist() == WHOLE.tolist()
    elif ending == "hdf5":
        with h5py.File(path) as file:
            assert file["train"][()].tolist() == WHOLE.tolist()
    elif ending == "parquet":
        column = pyarrow.parquet.read_table(path)["vector"]
        assert column.type == pyarrow.list_(pyarrow.int64(), 5)
        assert column.to_pylist() == WHOLE.tolist()
    else:
        assert np.loadtxt(path, delimiter={"csv": ",", "tsv": "\t", "txt": None}[ending]).tolist() == WHOLE.tolist()


def test_nan_and_inf_come_back_from_text(tmp_path):
    matrix = np.array([[np.nan, np.inf, -np.inf, 0.1]])
    write_vectors(tmp_path / "a.csv", matrix)
    np.testing.assert_array_equal(open_vectors(tmp_path / "a.csv")[:], matrix)


@pytest.mark.parametrize(
    "text",
    [
        "1 2 3 \n4 5 6 \n",
        "\ufeff1,2,3\n4,5,6",
        "x,y,z\n1,2,3\n4,5,6\n\n\n",
        '"x";"y";"z"\n1;"2";3\n4;5;6\n',
        "# by hand\n# 2 x 3\n1, 2, 3\n4, 5, 6\n",
        "1e0 +2 3.\n4 .5e1 6\n",
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "a.dat"])
def test_text_comes_in_many_dresses(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert open_vectors(tmp_path / name)[:].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.dat"])  # in a tsv file a tab and a blank are not the same
def test_blanks_and_tabs_are_alike(tmp_path, name):
    (tmp_path / name).write_text("  1\t2  3\r\n4 5 6\r\n\r\n", newline="")
    assert open_vectors(tmp_path / name)[:].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_long_text_is_read_in_pieces(tmp_path):
    matrix = np.random.default_rng(1).normal(size=(30_000, 8))
    np.savetxt(tmp_path / "a.txt", matrix, fmt="%.17g")
    with open_vectors(tmp_path / "a.txt") as vectors:
        assert vectors.shape == matrix.shape
        chosen = [29_999, 5, 17_000, -3, 5]
        np.testing.assert_array_equal(vectors[chosen], matrix[chosen])
        np.testing.assert_array_equal(vectors[6_000:6_700], matrix[6_000:6_700])
        np.testing.assert_array_equal(np.asarray(vectors), matrix)


# Which format, which part


@pytest.mark.parametrize("ending", ["npy", "npz", "hdf5", "parquet", "npy.gz"])
@pytest.mark.parametrize("variant", [0, 1, 2])
def test_an_unknown_name_is_recognised_by_its_content(tmp_path, ending, variant):
    path = foreign_file(tmp_path / f"a.{ending}", variant=variant).rename(tmp_path / "vectors.mat")
    assert open_vectors(path)[:].tolist() == WHOLE.tolist()


def test_the_format_can_be_named(tmp_path):
    path = foreign_file(tmp_path / "a.fbin").rename(tmp_path / "base.crop")
    assert open_vectors(path, format="fbin").format == "fbin"
    write_vectors(tmp_path / "b.crop", WHOLE, format="U8BIN")
    assert open_vectors(tmp_path / "b.crop", format="u8bin")[:].tolist() == WHOLE.tolist()
    packed = tmp_path / "c.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert open_vectors(packed, format="fbin")[:].tolist() == WHOLE.tolist()


@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_parts_are_written_and_named(tmp_path, ending):
    parts = {"train": WHOLE.astype(np.float16), "test": iter([WHOLE[:3]]), "neighbors": WHOLE[:, :2]}
    write_vectors(tmp_path / f"a.{ending}", parts)
    path = tmp_path / f"a.{ending}"
    assert open_vectors(path).dtype == np.float16
    assert open_vectors(path, part="test")[:].tolist() == WHOLE[:3].tolist()
    assert open_vectors(path, part="neighbors").shape == (40, 2)
    with pytest.raises(DataError, match=r"called 'tset' .* it has: .*'neighbors' \(int64, 40 × 2\)"):
        open_vectors(path, part="tset")
    write_vectors(path, {"a": WHOLE, "b": WHOLE})
    with pytest.raises(
        DataError,
        match=r"several .*s, name one of them \(part=, or PATH::PART in a command\): 'a' \(int64, 40 × 5\), 'b'",
    ):
        open_vectors(path)
    write_vectors(path, {"set/train": WHOLE, "train": WHOLE[:1]})
    assert open_vectors(path, part="set/train").shape == (40, 5)
    write_vectors(path, WHOLE, part="only")
    assert open_vectors(path, part="only").shape == open_vectors(path).shape


def test_a_column_is_named(tmp_path):
    columns = {"a": WHOLE.tolist(), "a.b": WHOLE[:, ::-1].tolist(), "text": ["x"] * 40}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    for part, expected in (("a", WHOLE), ("a.b", WHOLE[:, ::-1])):
        with open_vectors(tmp_path / "a.parquet", part=part) as vectors:
            assert vectors[:].tolist() == expected.tolist()
    for part in (None, "text"):
        with pytest.raises(DataError, match="'a' .*'a.b'"):
            open_vectors(tmp_path / "a.parquet", part=part)


# Size


def test_a_hundred_gigabytes_open_at_once(tmp_path):
    n, size = 195_312_500, 100 * 10**9
    for name, header in (
        ("a.fbin", struct.pack("<II", n, 128)),
        ("a.npy", _npy_header(n, 128)),
    ):
        with (tmp_path / name).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + size)
            file.seek(len(header) + size - 4)
            file.write(struct.pack("<f", 2.5))
        with open_vectors(tmp_path / name) as vectors:
            assert vectors.shape == (n, 128)
            assert np.asarray(vectors)[-1, -1] == 2.5
            assert vectors[[0, n // 2, n - 1], 127].tolist() == [0, 0, 2.5]
            assert next(vectors.blocks()).nbytes < 2**25
        (tmp_path / name).unlink()


def test_long_rows_with_dimensions_open_at_once(tmp_path):
    n, stride = 2_000, 4 + 4 * 2**20
    with (tmp_path / "a.fvecs").open("wb") as file:
        for row in range(n):
            file.seek(row * stride)
            file.write(struct.pack("<i", 2**20))
        file.truncate(n * stride)
    with open_vectors(tmp_path / "a.fvecs") as vectors:
        assert vectors.shape == (n, 2**20)
        assert np.asarray(vectors)[n - 1, -1] == 0


def _npy_header(n, dimension):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({n}, {dimension}), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.encode()


@pytest.mark.parametrize("address", ["https://me:open/sesame@host/x.npy", "s3://bucket/x.npy?token=sesame"])
def test_an_address_is_no_path_and_is_named_without_its_password(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use in (open_vectors, lambda path: write_vectors(path, np.eye(3))):
        with pytest.raises(DataError, match="a path on this machine is expected, got the address .*; fetch") as told:
            use(address)
        assert "sesame" not in str(told.value)
    Path("http:/host").mkdir(parents=True)
    write_vectors("http:/host/x.npy", np.eye(3))
    assert len(open_vectors("http://host/x.npy")) == 3  # if there is such a file, it is one


def test_importing_stays_light():
    code = (
        "import sys; import autojacobin.datasets; "
        "print([m for m in ('h5py', 'pyarrow.parquet', 'numba') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=1200)
    assert result.stdout.strip() == "[]"


def test_integers_that_fill_some_of_their_bits_are_converted(tmp_path):
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(16)
    kind.set_offset(8)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        dataset = h5py.h5d.create(file.id, b"train", kind, h5py.h5s.create_simple((2, 3)))
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(6, dtype=np.int32).reshape(2, 3))
    assert open_vectors(tmp_path / "a.hdf5")[:].tolist() == [[0, 1, 2], [3, 4, 5]]
