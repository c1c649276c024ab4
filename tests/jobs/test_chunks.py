"""What is done to a chunk, against a single machine that has all vectors; and jobs that are interrupted."""

import itertools
import os
import pickle

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, Codes, Index, PartitionedAutoencoder, PartitionedHasher
from autojacobin.errors import DataError
from autojacobin.evaluation import ground_truth
from autojacobin.index.state import codes_at
from autojacobin.jobs import build_index, encode_files, search_index, true_neighbours
from autojacobin.jobs.inputs import survey
from autojacobin.search.kernels.selection import merge_topk
from tests.jobs.cut_files import BLOCK, N, cut_into_files
from tests.jobs.in_process import InProcess

LEARNS_FROM = 20  # queries; see tests/conftest.py
here = InProcess()
numbers = itertools.count()


def test_chunks_cover_all_rows_once_and_begin_where_blocks_do(pattern, X):
    inputs = survey(pattern)
    for rows in (1, BLOCK, BLOCK + 1, 10 * BLOCK):
        chunks = inputs.chunks(rows)
        assert [chunk.first_id for chunk in chunks] == [sum(c.rows for c in chunks[:n]) for n in range(len(chunks))]
        assert sum(chunk.rows for chunk in chunks) == N
        assert all(chunk.first_id % BLOCK == 0 for chunk in chunks)
    assert len(pickle.dumps(chunks)) < 2000  # paths, not vectors


@pytest.mark.parametrize(
    "model",
    [
        LSH(12, random_state=0),
        ITQ(12, random_state=0),
        PartitionedHasher(ITQ(12, random_state=0), n_lists=16, random_state=0),
    ],
    ids=["LSH", "ITQ", "lists"],
)
def test_codes_are_those_of_one_machine_however_files_are_cut(tmp_path, model):
    X = np.random.default_rng(1).normal(size=(2 * BLOCK + 500, 12)).astype(np.float32)
    model.fit(X[:2000])
    whole = Index(model, keep_vectors=False)
    whole.add(X)
    expected = codes_at(whole._state.segments, np.arange(len(X)), model.n_bits)
    for cuts, rows in (([], 1), ([5, 70_001], 1), ([5, 70_001], 2 * BLOCK)):
        number = next(numbers)
        files = cut_into_files(tmp_path / str(number), X, cuts, ("npy", "fvecs"))
        paths = encode_files(files, model, tmp_path / f"codes-{number}", here, rows_per_chunk=rows)
        assert Codes.concatenate(map(Codes.load, paths)) == expected


def test_the_index_is_the_one_that_a_single_machine_builds(built, single, X):
    with Index.open(built) as index:
        index.verify()
        assert index.info()["segments"] == 4
        assert np.array_equal(index.ids, np.arange(N))
        assert index.codes(np.arange(N)) == single.codes(np.arange(N))
        assert np.array_equal(index.vectors(np.arange(N)), X)
        named = {file.name for segment in index._state.segments for file in segment.files.values()}
        named |= {index._state.manifest.hasher.name, "MANIFEST.json", "LOCK"}
        index.add(X[:5])
        assert N + 4 in index
        index.remove(np.arange(N, N + 5))
    assert named <= set(os.listdir(built))
    assert not os.path.exists(f"{built}.building")


def test_an_index_with_lists_is_the_one_that_a_single_machine_builds(tmp_path, pattern, X):
    hasher = PartitionedHasher(LSH(12, random_state=0), n_lists=32, random_state=0).fit(X[:2000])
    build_index(pattern, hasher, tmp_path / "index", here, rows_per_chunk=1)
    alone = Index(hasher)
    alone.add(X)
    with Index.open(tmp_path / "index") as index:
        index.verify()
        assert index.info()["lists"] == 32
        assert index.codes(np.arange(N)) == alone.codes(np.arange(N))
        for options in ({"probes": 3, "rerank": False}, {"probes": "all", "distance": "hamming"}):
            expected = alone.search(X[5:25], 7, **options)
            assert all(map(np.array_equal, index.search(X[5:25], 7, **options), expected))
            assert all(map(np.array_equal, search_index(tmp_path / "index", X[5:25], 7, here, **options), expected))


@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
@pytest.mark.parametrize(("k", "options"), [(7, {}), (300, {"candidates": 500}), (40, {"rerank": False})])
def test_search_over_segments_is_the_search_of_the_index(built, single, X, distance, k, options):
    queries = X[5:25]
    found = search_index(built, queries, k, here, distance=distance, **options)
    expected = single.search(queries, k, distance=distance, **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)


def test_search_of_an_index_with_removals_chosen_ids_and_several_types(tmp_path, X, hasher):
    path = tmp_path / "index"
    with Index.create(path, hasher) as index:
        index.add(X[:300])
        index.add(X[300:600].astype(np.float64) + 0.25, ids=np.arange(5000, 5600, 2)[::-1])
        index.remove(np.arange(0, 300, 3))
        queries = X[290:310]
        for options in ({}, {"distance": "asymmetric"}, {"rerank": False}):
            expected = index.search(queries, 30, **options)
            found = search_index(path, queries, 30, here, **options)
            assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize(
    "options",
    [{}, {"probes": 1}, {"probes": 2, "rerank": False}, {"probes": "all", "candidates": 300}, {"candidates": 40}],
)
@pytest.mark.parametrize(
    ("hasher", "distance"),
    [
        (PartitionedAutoencoder(16, n_lists=16, n_iterations=2, random_state=0), "decoded"),
        (PartitionedAutoencoder(32, n_lists=16, copies=2, n_iterations=2, random_state=0), "decoded"),
        (PartitionedHasher(ITQ(8, random_state=0), n_lists=16, random_state=0), "asymmetric"),
        (PartitionedHasher(LSH(24, random_state=0), n_lists=16, random_state=0), "hamming"),
    ],
    ids=["auto-encoder", "two copies", "ITQ", "LSH"],
)
def test_search_of_an_index_with_lists_and_names(tmp_path, X, hasher, distance, options):
    options = options | {"distance": distance}
    hasher.fit(X[:600])
    path = tmp_path / "index"
    with Index.create(path, hasher) as index:
        index.add(X[:400], ids=[f"first {row}" for row in range(400)])
        index.add(X[400:700].astype(np.float64) + 0.25, ids=[f"second {row}" for row in range(300)])
        index.remove([f"first {row}" for row in range(0, 400, 3)])
        expected = index.search(X[290:310], 30, **options)
    found = search_index(path, X[290:310], 30, here, **options)
    assert isinstance(found[1][0, 0], str)
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("k", [1, 100])
def test_ground_truth_is_that_of_one_machine(pattern, X, k):
    queries = X[:12]
    assert np.array_equal(true_neighbours(pattern, queries, k, here, rows_per_chunk=1), ground_truth(X, queries, k))


@given(data=st.data())
def test_ground_truth_of_any_cut_is_that_of_the_whole(tmp_path_factory, data):
    kind = data.draw(st.sampled_from(["u1", "i4", "i8", "f4", "f8"]))
    n, width = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 5))
    largest = {"u1": 255, "i4": 2**31 - 1, "i8": 2**33, "f4": 2**20, "f8": 2**40}[kind]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    few = data.draw(st.booleans())  # so that there are ties
    X = rng.integers(0, 3 if few else largest, size=(n + 3, width)).astype(kind)
    if kind[0] == "f" and not few:
        X /= 7
    X, queries = X[:n], X[n:]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    pattern = cut_into_files(tmp_path_factory.mktemp("cut"), X, cuts)
    k = data.draw(st.integers(1, n))
    assert np.array_equal(true_neighbours(pattern, queries, k, here), ground_truth(X, queries, k))


@given(data=st.data())
def test_merging_in_any_grouping_is_sorting_the_whole(data):
    n, k = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 12))
    distances = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    order = np.lexsort((np.arange(n), distances))[:k]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    edges = [0, *cuts, n]
    answers = []
    for start, stop in itertools.pairwise(edges):
        if stop > start:
            ids = start + np.lexsort((np.arange(stop - start), distances[start:stop]))[:k]
            answers.append((distances[ids][None], ids[None]))
    while len(answers) > 1:
        answers = data.draw(st.permutations(answers))
        taken = data.draw(st.integers(2, len(answers)))
        answers = [merge_topk(answers[:taken], k), *answers[taken:]]
    assert np.array_equal(answers[0][1][0], order)
    assert np.array_equal(answers[0][0][0], distances[order])


def test_numbers_whose_squares_overflow_are_refused_and_not_misjudged(tmp_path):
    np.save(tmp_path / "far.npy", np.array([[1e200], [2e200]]))
    with pytest.raises(DataError, match=r"far.npy.*squares float64 holds, got 1e\+200; divide"):
        true_neighbours(tmp_path / "far.npy", np.array([[0.0]]), 1, here)


def test_remote_inputs_make_the_same_index(tmp_path, X, hasher, single):
    memory = fsspec.filesystem("memory")
    cut_into_files(tmp_path / "files", X, [BLOCK - 9, 2 * BLOCK + 5], ("npy", "u8bin", "parquet"))
    for path in (tmp_path / "files").iterdir():
        memory.put_file(str(path), f"/many/{path.name}")
    try:
        build_index("memory://many/*", hasher, tmp_path / "index", here, rows_per_chunk=1)
        truth = true_neighbours("memory://many/*", X[:3], 5, here, rows_per_chunk=1)
    finally:
        memory.rm("/many", recursive=True)
    with Index.open(tmp_path / "index") as index:
        assert index.codes(np.arange(N)) == single.codes(np.arange(N))
    assert np.array_equal(truth, ground_truth(X, X[:3], 5))
