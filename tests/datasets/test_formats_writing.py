"""Files are written whole or not at all, with the numbers that were given or none."""

import gzip
import os
import resource
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin.datasets import open_vectors, write_vectors
from autojacobin.datasets.formats.matrices import outgoing
from autojacobin.errors import DataError, FormatError, StorageError
from tests.datasets.vector_files import FORMATS, WHOLE, foreign_file

NUMBERS = [np.dtype(kind) for kind in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")]


def _changed(row, column, value):
    matrix = WHOLE.astype(np.float64)
    matrix[row, column] = value
    return matrix


@pytest.mark.parametrize(
    ("name", "vectors", "message"),
    [
        ("a.bvecs", _changed(7, 2, 0.5), "row 7, column 2 holds 0.5, which cannot be stored as uint8"),
        ("a.bvecs", _changed(7, 2, 256), "row 7, column 2 holds 256.0"),
        ("a.bvecs", _changed(39, 4, -1).astype(int), "row 39, column 4 holds -1"),
        ("a.ivecs", _changed(0, 0, np.nan), "row 0, column 0 holds nan"),
        ("a.ibin", _changed(0, 1, np.inf), "row 0, column 1 holds inf"),
        ("a.ivecs", WHOLE + 2**31, "which cannot be stored as int32"),
        ("a.fvecs", _changed(3, 1, 1e300), "row 3, column 1 holds 1e+300, which cannot be stored as float32"),
        ("a.fbin", np.array([[1, 2**24 + 1]]), "row 0, column 1 holds 16777217"),
        ("a.fvecs", _changed(3, 1, -1e39), "row 3, column 1"),
        ("a.fvecs", iter([WHOLE, WHOLE, _changed(5, 0, 1e39)]), "row 85, column 0 holds 1e+39"),
        ("a.npy", iter([WHOLE, WHOLE + 0.5]), "row 40, column 0 holds"),
        ("a.npy", iter([WHOLE, WHOLE[:, 1:]]), "got 4 from row 40 on and 5 before"),
        ("a.npz", {"train": WHOLE, "test": iter([WHOLE, WHOLE[:, 1:]])}, "got 4 from row 40 on"),
        ("a.hdf5", {"a": WHOLE, "a/b": WHOLE}, "HDF5 takes no dataset called 'a/b' here"),
        ("a.fvecs", np.zeros((0, 3)), "there are no vectors to write, got shape (0, 3)"),
        ("a.fvecs", np.zeros((3, 0)), "got shape (3, 0)"),
        ("a.fvecs", np.zeros(3), "got shape (3,)"),
        ("a.npy", iter([]), "an iterator without a block"),
        ("a.npy", iter([WHOLE[:0]]), "an iterator without a block"),
        ("a.npy", [["a"]], "vectors must be numbers, got <U1"),
        ("a.npy", [[1], [2, 3]], "vectors holds rows of different lengths, got 1 number in row 0"),
        ("a.npy", np.ones((2, 2)) * 1j, "vectors must be numbers, got complex128"),
        ("a.npy", {"a": WHOLE}, "a npy file is one matrix without parts"),
        ("a.parquet", {"a": WHOLE, "b": WHOLE}, "a parquet file is written from one matrix"),
        ("a.npz", {}, "a npz file is written from one matrix or more"),
        ("a.npz", {"": WHOLE}, "a part needs a name"),
        ("a.npz", {3: WHOLE}, "a part needs a name"),
        ("a.what", WHOLE, "the format of"),
        ("a.npz.gz", WHOLE, "files are written unpacked"),
    ],
)
def test_what_cannot_be_written_is_named_and_leaves_the_old_file(tmp_path, name, vectors, message):
    path = tmp_path / name
    path.write_bytes(b"what was there before")
    with pytest.raises(DataError) as error:
        write_vectors(path, vectors)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == [name]
    assert path.read_bytes() == b"what was there before"


def test_wrong_types_are_told(tmp_path):
    with pytest.raises(DataError, match="part= goes with one matrix"):
        write_vectors(tmp_path / "a.npz", {"a": WHOLE}, part="b")
    with pytest.raises(DataError, match="without parts"):
        write_vectors(tmp_path / "a.npy", WHOLE, part="b")
    assert not os.listdir(tmp_path)


@settings(max_examples=4 * settings.default.max_examples)
@given(data=st.data(), source=st.sampled_from(NUMBERS), target=st.sampled_from(NUMBERS))
def test_a_number_is_written_as_it_is_or_refused(data, source, target):
    value = data.draw(_numbers(source))
    number = np.array([[value]], dtype=source)
    exact = number[0, 0].item()
    try:
        (block,) = outgoing(number, target).blocks()
    except DataError as error:
        assert "row 0, column 0" in str(error)
        with np.errstate(all="ignore"):
            nearest = number.astype(np.float64).astype(target)
        if target.kind == "f" and source.kind == "f":
            assert np.isinf(nearest).all()
        elif abs(exact) <= 2**53:
            assert nearest[0, 0].item() != exact
        return
    written = block[0, 0].item()
    assert block.dtype == target
    if np.isnan(exact):
        assert np.isnan(written)
    elif target.kind == "f" and source.kind == "f":
        assert written == exact or abs(written - exact) <= np.finfo(target).eps * abs(exact) + np.finfo(target).tiny
    else:
        assert written == exact


def _numbers(dtype):
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind == "f":
        return st.floats(width=8 * dtype.itemsize) | st.integers(-300, 300).map(float)
    limits = np.iinfo(dtype)
    near = st.sampled_from([0, 1, 127, 128, 255, 256, 2**15, 2**16, 2**24, 2**24 + 1, 2**31, 2**32, 2**53 + 1, 2**63])
    return st.integers(int(limits.min), int(limits.max)) | near.filter(lambda value: value <= limits.max)


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_is_converted_to_any_other_format(tmp_path, ending):
    with open_vectors(foreign_file(tmp_path / "a.bvecs")) as vectors:
        write_vectors(tmp_path / f"b.{ending}", vectors)
    with open_vectors(tmp_path / f"b.{ending}") as vectors:
        write_vectors(tmp_path / "c.bvecs", vectors)
        write_vectors(tmp_path / f"b.{ending}", vectors)  # onto itself
    assert (tmp_path / "c.bvecs").read_bytes() == (tmp_path / "a.bvecs").read_bytes()
    assert open_vectors(tmp_path / f"b.{ending}")[:].tolist() == WHOLE.tolist()


@pytest.mark.parametrize("ending", FORMATS)
def test_the_same_vectors_give_the_same_file(tmp_path, ending):
    write_vectors(tmp_path / f"a.{ending}", WHOLE)
    write_vectors(tmp_path / f"b.{ending}", iter([WHOLE[:7], WHOLE[:0], WHOLE[7:]]))
    if ending == "parquet":  # the blocks of a stream are its row groups
        assert open_vectors(tmp_path / "a.parquet")[:].tolist() == open_vectors(tmp_path / "b.parquet")[:].tolist()
    else:
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_the_type_is_that_of_the_vectors(tmp_path):
    for ending in ("npy", "npz", "hdf5", "parquet"):
        write_vectors(tmp_path / f"a.{ending}", WHOLE.astype(np.float16))
        assert open_vectors(tmp_path / f"a.{ending}").dtype == np.float16
        write_vectors(tmp_path / f"a.{ending}", WHOLE.astype(np.longdouble))
        assert open_vectors(tmp_path / f"a.{ending}").dtype == np.float64
    write_vectors(tmp_path / "a.csv", (WHOLE / 3).astype("f4"))
    assert (tmp_path / "a.csv").read_text().split(",")[0] == f"{np.float32(WHOLE[0, 0] / 3):.9g}"


def test_a_stream_passes_through_in_bounded_memory(tmp_path):
    block = np.ones((2**12, 128), dtype=np.float32)
    for ending in ("fvecs", "npy", "npz", "hdf5", "fbin"):
        tracemalloc.start()
        write_vectors(tmp_path / f"a.{ending}", (block for _ in range(20)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert open_vectors(tmp_path / f"a.{ending}").shape == (20 * 2**12, 128)
        assert peak < 4 * block.nbytes


def test_an_interrupted_stream_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_vectors(tmp_path / "a.npy", (_interrupt() for _ in range(3)))
    assert not os.listdir(tmp_path)


def _interrupt():
    raise KeyboardInterrupt


def test_damage_in_what_is_copied_leaves_nothing(tmp_path):
    (tmp_path / "a.csv").write_text("1,2\n" * 9 + "1,x\n")
    with pytest.raises(FormatError, match="'x' in field 2 of line 10"):
        write_vectors(tmp_path / "b.fvecs", open_vectors(tmp_path / "a.csv"))
    assert os.listdir(tmp_path) == ["a.csv"]


def test_places_that_cannot_be_written_to_are_told(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    for path, message in (
        (tmp_path / "nowhere" / "a.npy", "the folder .*nowhere does not exist; make it first"),
        (tmp_path / "folder.npy", "it is a folder, expected a file or nothing"),
    ):
        with pytest.raises(StorageError, match=rf"^cannot write {path}: {message}"):
            write_vectors(path, WHOLE)
    assert os.listdir(tmp_path) == ["folder.npy"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_replaced(tmp_path, make):
    make(tmp_path / "a.npy")
    before = (tmp_path / "a.npy").stat()
    with pytest.raises(StorageError, match=r"cannot write .*a\.npy: it is (a folder|a pipe or a device)"):
        write_vectors(tmp_path / "a.npy", np.eye(3))
    assert os.path.samestat((tmp_path / "a.npy").stat(), before)
    assert os.listdir(tmp_path) == ["a.npy"]


@pytest.fixture
def hardly_any_room():
    """Let no file grow over a hundred kilobytes, which fails a write as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("ending", ["fvecs", "fbin", "npy", "npz", "hdf5", "parquet", "csv"])
def test_a_full_disk_leaves_the_old_file(tmp_path, hardly_any_room, ending):
    path = tmp_path / f"a.{ending}"
    write_vectors(path, WHOLE)
    before = path.read_bytes()
    vectors = np.random.default_rng(0).normal(size=(400, 256)).astype(np.float32)
    for stream in (vectors, iter([vectors, vectors])):
        with pytest.raises(StorageError, match="file too large"):
            write_vectors(path, stream)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_a_full_temporary_folder_is_told(tmp_path, hardly_any_room):
    (tmp_path / "a.npy.gz").write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(StorageError, match="cannot unpack .*a.npy.gz in the temporary folder .* TMPDIR"):
        open_vectors(tmp_path / "a.npy.gz")


def test_whole_numbers_that_a_float64_would_round_are_refused():
    with pytest.raises(DataError, match="row 0, column 1 holds 9007199254740993"):
        list(outgoing(np.array([[1, 2**53 + 1]]), np.dtype(np.float64)).blocks())
    (block,) = outgoing(np.array([[1, 2**53]]), np.dtype(np.float64)).blocks()
    assert block.tolist() == [[1.0, 2.0**53]]
