"""Fits from iterators of blocks and from memory maps, which need not fit into memory."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, DataError, PartitionedAutoencoder, Sign
from autojacobin.core.sampling import sample_of_blocks, sampled_rows
from autojacobin.hashers.learning import TRAINING_POINTS
from tests.hashers.methods import METHODS, ONE_POINT, digits, some

DRAWING = [name for name in METHODS if name not in ONE_POINT]


def in_blocks(X, size):
    return (X[start : start + size] for start in range(0, len(X), size))


@pytest.mark.parametrize("name", some(METHODS))
def test_blocks_give_the_model_of_the_whole_matrix(name):
    X = digits()[:300]
    whole, streamed = METHODS[name]().fit(X), METHODS[name]().fit(in_blocks(X, 37))
    assert streamed.n_features_in_ == 64
    for attribute in whole._tensors:
        expected = getattr(whole, attribute, None)
        if isinstance(expected, np.ndarray):
            assert np.allclose(getattr(streamed, attribute), expected, rtol=1e-6, atol=1e-30), attribute
    assert streamed.encode(X) == whole.encode(X)


@pytest.mark.parametrize("name", some(DRAWING))
def test_a_longer_stream_gives_the_model_of_a_sample(name):
    X = digits()[:900]
    streamed = METHODS[name]().fit(in_blocks(X, 50), training_points=200)
    other = METHODS[name]().fit(in_blocks(X, 333), training_points=200)
    assert streamed.encode(X) == other.encode(X)  # the size of the blocks does not matter


@pytest.mark.parametrize("name", ["ITQ", "LSH", "Sign"])
def test_a_memory_map_gives_what_its_blocks_give(name, tmp_path):
    X = digits()
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    from_map = METHODS[name]().fit(mapped, training_points=200)
    assert from_map.encode(X) == METHODS[name]().fit(in_blocks(X, 100), training_points=200).encode(X)
    whole = METHODS[name]().fit(X)
    assert METHODS[name]().fit(mapped, training_points=None).encode(X) == whole.encode(X)
    assert (from_map.encode(X) == whole.encode(X)) == (name == "Sign")  # which learns nothing


@given(
    n=st.integers(1, 60),
    size=st.integers(1, 70),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_sample_is_drawn_without_replacement_whatever_the_blocks(n, size, cuts, seed):
    X = np.arange(n, dtype=np.float32)[:, None]
    edges = sorted({0, n, *(cut for cut in cuts if cut < n)})
    blocks = [X[a:b] for a, b in pairwise(edges)]
    sample = sample_of_blocks(iter(blocks), size, np.random.RandomState(seed))[:, 0]
    assert len(sample) == min(n, size)
    assert (np.diff(sample) > 0).all()
    assert np.array_equal(sample, sampled_rows(n, size, np.random.RandomState(seed)))
    assert np.array_equal(sample, sample_of_blocks(iter([X]), size, np.random.RandomState(seed))[:, 0])


def test_every_row_is_as_likely_as_any_other():
    counts = np.zeros(40)
    for seed in range(2000):
        counts[sampled_rows(40, 10, np.random.RandomState(seed))] += 1
    # binomial: 500 expected, a standard deviation of 19.4
    assert np.abs(counts - 500).max() < 5 * 19.4


@given(st.lists(st.sampled_from([np.float32, np.float64, np.uint8]), min_size=2, max_size=5))
def test_one_block_in_double_precision_makes_the_fit_double(dtypes):
    X = digits()[:200]
    parts = [part.astype(dtype) for part, dtype in zip(np.array_split(X, len(dtypes)), dtypes, strict=True)]
    expected = np.float64 if np.float64 in dtypes else np.float32
    assert ITQ(4, random_state=0).fit(iter(parts)).weights_.dtype == expected
    assert LSH(4, random_state=0).fit(iter(parts)).weights_.dtype == expected


@pytest.mark.parametrize("make", [lambda: ITQ(8, random_state=0), lambda: LSH(8, random_state=0)])
def test_memory_stays_bounded(make):
    rows, width, blocks = 1000, 256, 150  # 154 MB in all
    base = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    make().fit(base)
    tracemalloc.start()
    try:
        make().fit((base + np.float32(number) for number in range(blocks)), training_points=2000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.2 * rows * width * 4 * blocks


def test_more_rows_than_the_default_sample():
    X = np.random.default_rng(0).normal(size=(TRAINING_POINTS + 500, 4)).astype(np.float32)
    rows = sampled_rows(len(X), TRAINING_POINTS, np.random.RandomState(3))
    sample = ITQ(4, random_state=3).fit(in_blocks(X, 999))
    assert np.allclose(sample.mean_, X[rows].mean(axis=0), atol=1e-6)
    assert sample.scale_ == pytest.approx(np.abs(sample.project(X[rows])).mean(), rel=1e-5)
    with pytest.warns(UserWarning, match="learns from 10,000 of 10,500 rows"):
        assert np.allclose(ITQ(4, random_state=3).fit(X).mean_, sample.mean_, atol=1e-6)
    everything = ITQ(4, random_state=3).fit(in_blocks(X, 999), training_points=None)
    assert np.array_equal(everything.weights_, ITQ(4, random_state=3).fit(X, training_points=None).weights_)


@pytest.mark.parametrize("name", METHODS)
def test_bad_blocks_are_named_by_their_row(name):
    X = digits()[:50]
    bad = X.copy()
    bad[7, 3] = np.nan
    for blocks, message in (
        ([X, X[:, :32]], "the block of vectors from row 50 on has 32 features, expected 64"),
        ([X, bad], "NaN in row 57, column 3"),
        ([X[:0], X[:1], bad], "NaN in row 8, column 3"),
        ([], "an iterator without a block"),
        ([X[:0]], "an iterator without a block"),
        ([X, X[0]], "got 1D array"),
    ):
        hasher = METHODS[name]()
        with pytest.raises(DataError, match=message) as caught:
            hasher.fit(iter(blocks))
        assert "\n" not in str(caught.value)
        assert not [attribute for attribute in vars(hasher) if attribute.endswith("_")]


def test_one_point_in_all_blocks_is_too_few():
    with pytest.raises(DataError, match=r"1 sample\(s\).*a minimum of 2 is required by ITQ"):
        ITQ(4).fit(iter([digits()[:1]]))
    blocks = (digits()[row : row + 1] for row in range(30))
    assert ITQ(4, random_state=0).fit(blocks).encode(digits()) == ITQ(4, random_state=0).fit(digits()[:30]).encode(
        digits()
    )


def test_a_bad_row_of_a_memory_map_is_named_by_its_place_in_the_file(tmp_path):
    X = np.zeros((500, 4), dtype=np.float32)
    X[:] = np.random.default_rng(0).normal(size=X.shape)
    rows = sampled_rows(500, 100, np.random.RandomState(0))
    X[rows[40], 2] = np.inf
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(DataError, match=f"inf in row {rows[40]}, column 2"):
        ITQ(4, random_state=0).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), training_points=100)


def test_names_of_columns_are_remembered_and_compared():
    frame = pd.DataFrame(digits()[:100], columns=[f"pixel{j}" for j in range(64)])
    for hasher in (ITQ(4, random_state=0), LSH(4, random_state=0)):
        assert list(hasher.fit(iter([frame[:60], frame[60:]])).feature_names_in_) == list(frame.columns)
        with pytest.raises(ValueError, match="feature names"):
            hasher.fit(iter([frame[:60], frame[frame.columns[::-1]][60:]]))


@pytest.mark.parametrize("wrong", [0, -3, 1.5, "all"])
def test_a_sample_of_a_size_that_makes_no_sense(wrong):
    with pytest.raises(DataError, match="training_points must be an integer of at least 1"):
        ITQ(4).fit(digits(), training_points=wrong)


def test_of_many_rows_a_sample_is_learned_from_and_a_warning_says_so():
    X = np.random.default_rng(0).normal(size=(10_050, 6)).astype(np.float32)
    with pytest.warns(UserWarning, match=r"ITQ learns from 10,000 of 10,050 rows.* pass training_points=None"):
        sampled = ITQ(4, random_state=0).fit(X)
    asked, mapped = (ITQ(4, random_state=0).fit(source, training_points=10_000) for source in (X, iter([X])))
    assert sampled.encode(X) == asked.encode(X) == mapped.encode(X)
    whole = ITQ(4, random_state=0).fit(X, training_points=None)
    assert not np.array_equal(whole.project(X[:5]), sampled.project(X[:5]))


def test_methods_that_need_a_mean_take_it_over_all_rows_of_a_matrix():
    X = np.random.default_rng(0).normal(size=(10_050, 6)).astype(np.float32)
    assert LSH(4, random_state=0).default_training_points() is None
    assert np.allclose(LSH(4, random_state=0).fit(X).mean_, X.mean(axis=0), atol=1e-6)
    assert np.allclose(Sign(centred=True).fit(X).thresholds_, X.mean(axis=0), atol=1e-6)


def test_lists_are_learned_from_as_many_rows_as_they_need():
    assert PartitionedAutoencoder(16, n_lists=4).default_training_points() == 20_000
    assert PartitionedAutoencoder(16, n_lists=10_000).default_training_points() >= 32 * 10_000
    assert PartitionedAutoencoder(16).default_training_points() is None
