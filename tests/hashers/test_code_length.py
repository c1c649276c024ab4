"""The length of codes that is chosen for vectors."""

import numpy as np
import pytest

from autojacobin import BinaryAutoencoder
from autojacobin.evaluation import ground_truth
from autojacobin.hashers.autoencoders.code_length import CANDIDATES, RECALL, choose_n_bits
from autojacobin.search.distances import DISTANCES


def lying(n, n_features, n_inner, seed=0):
    """Points near a subspace of few dimensions."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, n_inner)) @ rng.normal(size=(n_inner, n_features))).astype(np.float32)


def test_points_in_few_dimensions_take_fewer_bits_than_those_in_all():
    inner = lying(40_000, 16, 4)
    everywhere = np.random.default_rng(1).normal(size=(40_000, 16)).astype(np.float32)
    few, found = choose_n_bits(inner)
    many, found_of_many = choose_n_bits(everywhere * np.float32(1e12) + np.float32(1e13))
    assert few == 32 < many <= 64
    assert found >= RECALL
    assert found_of_many >= RECALL or many == 64


def test_the_recall_is_that_of_a_search_by_codes():
    """The estimate from few codes, against a search among the codes of all vectors."""
    X = lying(6_000, 16, 10)
    n_bits, estimate = choose_n_bits(X)
    base, queries = X[300:], X[:300]
    hasher = BinaryAutoencoder(n_bits, random_state=0).fit(base, training_points=3_000)
    decoded = DISTANCES["decoded"]
    _, ids = decoded.topk(decoded.encode(hasher, queries), hasher.encode(base), CANDIDATES)
    truth = ground_truth(base, queries, 10)
    found = np.mean([np.isin(near, some).mean() for near, some in zip(truth, ids, strict=True)])
    assert estimate == pytest.approx(found, abs=0.04)


@pytest.mark.parametrize(
    ("shape", "expected"), [((5_000, 192), 384), ((5_000, 1_000), 384), ((2_000, 20), 40), ((3, 1), 8), ((9, 100), 200)]
)
def test_where_there_is_nothing_to_measure_the_fewest_bits_are_taken(shape, expected):
    assert choose_n_bits(np.random.default_rng(0).normal(size=shape)) == (expected, None)


def test_vectors_of_which_most_are_equal_are_no_trouble():
    X = np.zeros((70_000, 2))
    X[0] = 1
    assert choose_n_bits(X) == (8, None)
