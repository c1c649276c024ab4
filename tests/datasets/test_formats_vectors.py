"""An open file behaves like the matrix it holds, wherever a matrix can stand."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from autojacobin import ITQ
from autojacobin.datasets import open_vectors, write_vectors
from autojacobin.errors import DataError
from autojacobin.evaluation import ground_truth
from autojacobin.index.index import Index
from tests.datasets.vector_files import MAPPED, WHOLE, foreign_file

KEYS = st.one_of(
    st.integers(-40, 39),
    st.builds(slice, *[st.none() | st.integers(-60, 60)] * 2, st.none() | st.integers(-9, 9).filter(bool)),
    st.lists(st.integers(-40, 39), max_size=9).map(lambda ids: np.array(ids, dtype=np.int64)),
    st.lists(st.integers(0, 39), min_size=1, max_size=9),
    arrays.arrays(bool, 40),
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opened")
    endings = ["fvecs", "fbin", "npy", "npz", "hdf5", "parquet", "txt", "csv.gz"]
    return [open_vectors(foreign_file(folder / f"a.{ending}", variant=1)) for ending in endings]


@given(data=st.data(), key=KEYS)
def test_indexing_is_that_of_numpy(opened, data, key):
    vectors = data.draw(st.sampled_from(opened))
    found = vectors[key]
    assert found.dtype == vectors.dtype
    np.testing.assert_array_equal(found, WHOLE[key])
    columns = data.draw(st.integers(-5, 4) | st.just(slice(1, None, 2)))
    np.testing.assert_array_equal(vectors[key, columns], WHOLE[key][..., columns])


@given(data=st.data(), rows=st.integers(1, 60))
def test_blocks_cover_the_rows_in_order(opened, data, rows):
    vectors = data.draw(st.sampled_from(opened))
    blocks = list(vectors.blocks(rows))
    assert [len(block) for block in blocks[:-1]] == [rows] * (len(blocks) - 1)
    np.testing.assert_array_equal(np.concatenate(blocks), WHOLE)
    np.testing.assert_array_equal(np.stack(list(vectors)), WHOLE)


def test_rows_that_are_not_there_are_an_error_as_in_numpy(opened):
    for vectors in opened:
        for key in (40, -41, [0, 40], np.array([2**40]), (slice(1, 3), 5)):
            with pytest.raises(IndexError):
                vectors[key]
        for rows in (0, -1, 1.5, "2"):
            with pytest.raises(DataError, match="rows must be an integer of at least 1"):
                vectors.blocks(rows)


@pytest.mark.parametrize("ending", MAPPED)
def test_the_array_is_a_map_and_not_a_copy(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    write_vectors(path, WHOLE)
    vectors = open_vectors(path)
    array = np.asarray(vectors)
    assert not array.flags.writeable
    assert not array.flags.owndata
    assert np.shares_memory(array, np.asarray(vectors))
    assert np.shares_memory(array, vectors[10:20])
    at = path.read_bytes().index(np.ascontiguousarray(array[3]).tobytes())
    with path.open("r+b") as file:  # what is mapped shows what others write
        file.seek(at)
        file.write(bytes(array.dtype.itemsize))
    assert array[3].tolist() == [0, *WHOLE[3, 1:]]
    assert np.array(vectors).flags.writeable


@pytest.mark.parametrize("ending", ["hdf5", "parquet", "fvecs.gz"])
def test_what_must_be_decoded_is_decoded_once(tmp_path, ending):
    vectors = open_vectors(foreign_file(tmp_path / f"a.{ending}", variant=1))
    first = np.asarray(vectors)
    assert np.shares_memory(first, np.asarray(vectors))
    assert np.shares_memory(first, vectors[2:5])
    assert not first.flags.owndata


@pytest.mark.parametrize("ending", ["fvecs", "hdf5", "parquet", "csv"])
def test_several_threads_read_one_file(tmp_path, ending):
    matrix = np.random.default_rng(3).integers(0, 100, size=(2000, 5))
    vectors = open_vectors(foreign_file(tmp_path / f"a.{ending}", matrix, variant=1))

    def work(number):
        ids = np.random.default_rng(number).integers(0, 2000, size=50)
        found = np.asarray(vectors)[ids] if number % 8 == 7 else vectors[ids]
        rows = slice(number * 20, number * 20 + 9)
        return np.array_equal(found, matrix[ids]) and np.array_equal(vectors[rows], matrix[rows])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(24)))


def test_numpy_is_told_when_there_must_be_a_copy(tmp_path):
    write_vectors(tmp_path / "a.npy", WHOLE.astype(np.float32))
    vectors = open_vectors(tmp_path / "a.npy")
    assert np.asarray(vectors, dtype=np.float64).dtype == np.float64
    assert np.shares_memory(np.asarray(vectors), np.asarray(vectors, copy=False))
    with pytest.raises(ValueError, match="copy"):
        np.asarray(vectors, dtype=np.float64, copy=False)


@pytest.mark.parametrize("ending", ["fvecs", "hdf5", "parquet", "csv"])
def test_closed_vectors_say_so_and_leave_their_arrays(tmp_path, ending):
    with open_vectors(foreign_file(tmp_path / f"a.{ending}", variant=1)) as vectors:
        array, block = np.asarray(vectors), vectors[:3]
    vectors.close()
    for use in (lambda: vectors[0], lambda: np.asarray(vectors), lambda: list(vectors.blocks()), vectors.__enter__):
        with pytest.raises(DataError, match="are closed; open them again"):
            use()
    np.testing.assert_array_equal(array, WHOLE)
    np.testing.assert_array_equal(block, WHOLE[:3])
    assert repr(vectors).startswith("Vectors(40 × 5 ")


@pytest.mark.parametrize("ending", ["fvecs", "bvecs", "npy", "npz", "hdf5", "parquet", "csv"])
def test_the_library_takes_vectors_for_arrays(tmp_path, ending):
    matrix = np.random.default_rng(2).integers(0, 256, size=(300, 24)).astype(np.uint8)
    write_vectors(tmp_path / f"a.{ending}", matrix)
    vectors = open_vectors(tmp_path / f"a.{ending}")
    plain = np.ascontiguousarray(vectors)
    hasher = ITQ(16, random_state=0).fit(vectors)
    np.testing.assert_array_equal(hasher.weights_, ITQ(16, random_state=0).fit(plain).weights_)
    assert hasher.encode(vectors) == hasher.encode(plain)
    np.testing.assert_array_equal(ground_truth(vectors, vectors[:5], 3), ground_truth(matrix, matrix[:5], 3))
    index = Index(hasher)
    index.add(vectors)
    _, ids = index.search(vectors[:4], k=1)
    assert ids[:, 0].tolist() == [0, 1, 2, 3]
