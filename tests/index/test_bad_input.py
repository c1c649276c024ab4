"""What users get wrong about an index is told in one sentence, and the index stays as it was."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from autojacobin import LSH, DataError, NotFittedError
from autojacobin.errors import StorageError
from autojacobin.index.index import Index
from tests.index.index_model import contents, small_hasher, vectors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vectors": vectors(2), "ids": [1, 1]}, "ids must be unique, got 1 more than once"),
        ({"vectors": vectors(2), "ids": [1, -1]}, "integers from 0 to 2^63 - 1, got -1"),
        (
            {"vectors": vectors(1), "ids": [2**63]},
            "got 9223372036854775808; give others, or strings in a new index",
        ),
        ({"vectors": vectors(2), "ids": [1.0, 2.0]}, "ids must be a list of integers, got float64"),
        ({"vectors": vectors(2), "ids": ["a", "b"]}, "here integer, got ids of the kind string"),
        ({"vectors": vectors(2), "ids": [[1, 2]]}, "ids must be a list of integers, got int64 of shape (1, 2)"),
        ({"vectors": vectors(2), "ids": [50]}, "got 1 ids for 2 vectors"),
        ({"vectors": vectors(2), "ids": []}, "got 0 ids for 2 vectors"),
        ({"vectors": "blocks", "ids": range(50, 57)}, "got 7 ids for 8 or more vectors"),
        ({"vectors": "blocks", "ids": range(50, 59)}, "got 9 ids for 8 vectors"),
        ({"vectors": vectors(2), "ids": [50, 19]}, "must be new, got 19, which is in the index already"),
        ({"vectors": "blocks", "ids": [*range(50, 57), 3]}, "must be new, got 3, which is in the index already"),
        ({"vectors": vectors(2)[:, :3]}, "X has 3 features, but LSH is expecting 4"),
        ({"vectors": vectors(0)}, "0 sample(s)"),
        ({"vectors": iter([])}, "an iterator without a block"),
        ({"vectors": [["a"] * 4]}, "text where numbers are expected"),
        ({"vectors": "nan"}, "contains NaN in row 5, column 2"),
    ],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_cannot_be_added_is_named_and_changes_nothing(hasher, tmp_path, on_disk, arguments, message):
    index = Index.create(tmp_path / "index", hasher) if on_disk else Index(hasher)
    index.add(vectors(20))
    arguments = dict(arguments)
    if isinstance(arguments["vectors"], str):
        wrong = vectors(8)
        wrong[5, 2] = np.nan if arguments["vectors"] == "nan" else 0
        arguments["vectors"] = iter([wrong[:4], wrong[4:]])
    before, files = contents(index), sorted(os.listdir(tmp_path / "index")) if on_disk else []
    with pytest.raises(DataError) as error:
        index.add(**arguments)
    assert message in str(error.value)
    assert contents(index) == before
    assert files == (sorted(os.listdir(tmp_path / "index")) if on_disk else [])
    index.add(vectors(1))
    assert index.ids[-1] == 20
    index.close()


def test_ids_run_out_in_a_sentence(hasher):
    index = Index(hasher)
    index.add(vectors(1), ids=[2**63 - 1])
    assert index.ids.tolist() == [2**63 - 1]
    with pytest.raises(DataError, match="no ids after 9223372036854775807"):
        index.add(vectors(1))


def test_an_error_of_the_callers_own_stream_is_passed_on(index, tmp_path):
    def blocks():
        yield vectors(3)
        raise FileNotFoundError("the caller's file")

    index.save(tmp_path / "index")
    with Index.open(tmp_path / "index") as opened:
        with pytest.raises(FileNotFoundError, match="the caller's file"):
            opened.add(blocks())
        assert contents(opened) == contents(index)


def test_only_ids_in_the_index_can_be_removed(index):
    for ids, message in [
        ([3, 20], "got 20, which is not"),
        ([-1], "got -1"),
        ([1.5], "list of integers"),
        ([1, [2]], "without lists"),
    ]:
        with pytest.raises(DataError, match=message):
            index.remove(ids)
    assert [1, [2]] not in index
    assert len(index) == 20
    index.remove([])
    index.remove([3, 3])
    with pytest.raises(DataError, match="got 3, which is not"):
        index.remove(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be an integer of at least 1, got 0"),
        ({"k": -3}, "got -3"),
        ({"k": 1.0}, "got 1.0"),
        (
            {"distance": "cosine"},
            "distance must be 'asymmetric' or 'hamming', got 'cosine'; this is how codes",
        ),
        ({"candidates": 2}, "candidates must be at least k = 3, got 2"),
        ({"candidates": "all"}, "candidates must be an integer of at least 1, got 'all'"),
        ({"candidates": 9, "rerank": False}, "candidates are for re-ranking, got 9 with rerank=False"),
        ({"queries": vectors(2)[:, :3]}, "queries have 3 features, but the vectors of this index have 4"),
        ({"queries": vectors(2) * np.nan}, "Input queries contains NaN in row 0"),
        ({"queries": vectors(2)[0][:3]}, "queries have 3 features, but the vectors of this index have 4"),
        ({"queries": vectors(2)[None]}, "with queries.reshape(len(queries), -1)"),
        ({"queries": vectors(0)}, "queries must have at least one vector"),
        ({"queries": ["a"]}, "the argument queries holds text"),
        ({"queries": 3, "k": vectors(2)}, "the queries come first and then k, got 3 first; swap the two arguments"),
        ({"queries": iter([vectors(2)])}, "takes a matrix of numbers"),
    ],
)
def test_searches_that_cannot_be_answered_are_named(index, arguments, message):
    with pytest.raises(DataError) as error:
        index.search(**{"queries": vectors(2), "k": 3, **arguments})
    assert message in str(error.value)


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner_product"])
def test_one_vector_is_one_query(metric):
    base = vectors(50) + np.float32(0.25)  # none is zero, which has no cosine
    index = Index.from_vectors(base, LSH(8, random_state=0), metric=metric)
    for query in (base[3], base[3].tolist(), tuple(base[3].tolist())):
        found = index.search(query, 5)
        assert found[0].shape == found[1].shape == (1, 5)
        for one, other in zip(found, index.search([query], 5), strict=True):
            np.testing.assert_array_equal(one, other)


def test_one_packed_code_is_one_query():
    packed = np.arange(20, dtype=np.uint8)[:, None] * np.ones((1, 2), dtype=np.uint8)
    index = Index.from_codes(packed)
    assert index.search(packed[7], 1, rerank=False)[1].tolist() == [[7]]


def test_an_index_one_level_below_is_named(hasher, tmp_path):
    Index.create(tmp_path / "index", hasher).close()
    with pytest.raises(StorageError, match=r"there is no index at .*, but one at .*index; give that path"):
        Index.open(tmp_path)


def test_an_empty_index_and_an_unfitted_hasher_are_named(hasher):
    with pytest.raises(DataError, match="nothing to find: the index is empty"):
        Index(hasher).search(vectors(2), 1)
    with pytest.raises(NotFittedError):
        Index(LSH(8))
    with pytest.raises(DataError, match="an index needs a fitted hasher, got str"):
        Index("LSH")


def test_a_closed_index_says_so(index):
    index.close()
    index.close()
    assert repr(index) == "Index(closed)"
    for use in (lambda: len(index), lambda: index.add(vectors(1)), lambda: index.search(vectors(1), 1), index.verify):
        with pytest.raises(DataError, match="this index is closed"):
            use()


def test_paths_that_cannot_hold_an_index_are_named(index, hasher, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("mine")
    index.save(tmp_path / "index")
    for make in (lambda path: Index.create(path, hasher), index.save):
        with pytest.raises(StorageError, match="file is a file, expected the folder"):
            make(file)
        with pytest.raises(StorageError, match="the folder .*missing does not exist"):
            make(tmp_path / "missing" / "index")
        with pytest.raises(StorageError, match="holds thesis.tex, which is no part of an index"):
            make(full)
    with pytest.raises(StorageError, match="holds an index already; open it with Index.open"):
        Index.create(tmp_path / "index", hasher)
    with pytest.raises(StorageError, match="file is a file"):
        Index.open(file)
    for empty in (tmp_path / "nowhere", full):
        with pytest.raises(StorageError, match="there is no index at"):
            Index.open(empty)
    assert sorted(os.listdir(full)) == ["thesis.tex"]


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX permissions")
def test_a_folder_without_permission_is_named(index):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "index"
        index.save(path)
        path.chmod(0o555)
        (path / "LOCK").chmod(0o444)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)  # root may do everything
            with Index.open(path) as opened:
                before = contents(opened)
                with pytest.raises(StorageError, match="cannot write to the index .*: permission denied"):
                    opened.add(vectors(2))
                assert contents(opened) == before
            with pytest.raises(StorageError, match="permission denied"):
                index.save(path / "within")
        finally:
            os.seteuid(user)
            path.chmod(0o755)


@pytest.mark.parametrize("read", ["codes", "vectors"])
def test_only_what_is_there_is_read(read):
    index = Index(small_hasher())
    index.add(vectors(5))
    with pytest.raises(DataError, match="only ids in the index can be read, got 7"):
        getattr(index, read)([0, 7])


def test_vectors_that_were_not_kept_are_not_given_back():
    index = Index(small_hasher(), keep_vectors=False)
    index.add(vectors(5))
    assert len(index.codes([4, 0])) == 2
    assert next(index.parts()).vectors is None
    with pytest.raises(DataError, match="keeps no vectors to give back"):
        index.vectors([0])
