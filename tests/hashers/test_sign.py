"""The sign of each number, against the rule that embedding libraries use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone

import autojacobin
from autojacobin import Codes, DataError, Index, Sign
from autojacobin.search import asymmetric_topk
from tests.hashers.methods import digits

FLOATS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


def embeddings(n=60, D=48, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)
    X[::7, ::5] = 0.0
    X[1::7, ::5] = -0.0
    return X


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=20), elements=FLOATS))
def test_the_bits_are_those_of_binary_quantisation(X):
    codes = Sign().fit(X).encode(X)
    assert codes.n_bits == X.shape[1]
    assert np.array_equal(codes.to_bits(), X > 0)
    # quantize_embeddings of sentence-transformers, precision "ubinary"
    assert np.array_equal(codes.to_packed("big"), np.packbits(X > 0, axis=1))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint8])
def test_every_type_of_number(dtype):
    X = (embeddings() * 3).astype(dtype)
    assert np.array_equal(Sign().fit(X).transform(X), X > 0)


def test_the_projection_is_the_number_itself():
    X = embeddings()
    assert np.allclose(Sign().fit(X).project(X), X, rtol=0, atol=1e-37)
    assert np.allclose(Sign(10).fit(X).project(X), X[:, :10], rtol=0, atol=1e-37)


def test_prepareder_bits_take_the_first_numbers():
    X = embeddings()
    assert np.array_equal(Sign(10).fit(X).transform(X), X[:, :10] > 0)


def test_centred_bits_compare_with_the_mean():
    X = digits()[:500]
    hasher = Sign(centred=True).fit(X)
    mean = X.mean(axis=0, dtype=np.float64)
    clear = np.abs(X - mean) > 1e-4
    assert np.array_equal(hasher.transform(X)[clear], (X - mean > 0)[clear])


@pytest.mark.parametrize("n_bits", [None, 10, 48, 130])
def test_a_rotation_keeps_lengths_and_allows_any_number_of_bits(n_bits):
    X = embeddings()
    hasher = Sign(n_bits, rotate=True, centred=True, random_state=0).fit(X)
    assert hasher.encode(X).n_bits == (n_bits or 48)
    rows = hasher.weights_[:48]
    assert np.allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-5)
    expected = (X - X.mean(axis=0, dtype=np.float64)) @ hasher.weights_.T.astype(np.float64)
    assert np.allclose(hasher.project(X), expected, atol=1e-4)
    other = Sign(n_bits, rotate=True, centred=True, random_state=1).fit(X)
    assert other.encode(X) != hasher.encode(X)
    again = other.set_params(rotate=False, n_bits=None).fit(X)  # the rotation of the earlier fit is gone
    assert again.encode(X) == Sign(centred=True).fit(X).encode(X)


def test_more_bits_than_features_need_a_rotation():
    with pytest.raises(DataError, match=r"one bit of each feature, got n_bits=49 for 48 feature.*rotate=True"):
        Sign(49).fit(embeddings())


def test_the_number_of_bits_follows_the_features_of_each_fit(tmp_path):
    hasher = Sign()
    assert hasher.n_bits is None
    hasher.fit(embeddings(D=48))
    assert hasher.n_bits == 48
    assert hasher.get_params()["n_bits"] is None
    assert clone(hasher).n_bits is None
    assert hasher.fit(embeddings(D=20)).n_bits == 20
    assert list(hasher.get_feature_names_out()[:2]) == ["sign0", "sign1"]
    hasher.save(tmp_path / "sign.safetensors")
    loaded = autojacobin.load(tmp_path / "sign.safetensors")
    assert loaded.n_bits == 20
    assert loaded.get_params() == hasher.get_params()
    with pytest.raises(DataError, match="n_bits of Sign was set to 8 after it was fitted with 20"):
        hasher.set_params(n_bits=8).encode(embeddings(D=20))


def test_an_index_searches_by_both_distances():
    X = embeddings(400, 32)
    index = Index(Sign().fit(X))
    index.add(X)
    queries = embeddings(9, 32, seed=1)
    codes = Codes.from_bits(X > 0)
    for distance in ("hamming", "asymmetric"):
        _, ids = index.search(queries, 5, distance=distance, candidates=400)
        exact = np.argsort(((queries[:, None] - X[None]) ** 2).sum(axis=2), axis=1, kind="stable")[:, :5]
        assert np.array_equal(ids, exact)
    _, nearest = index.search(queries, 5, distance="asymmetric", rerank=False)
    _, expected = asymmetric_topk(queries, codes, 5)  # the numbers of the query are their own projections
    assert np.array_equal(nearest, expected)
