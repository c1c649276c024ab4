"""What k-means and lists need, against NumPy, at every level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


@given(
    seed=st.integers(0, 2**32), rows=st.integers(0, 20), columns=st.integers(1, 300),
    few=st.booleans(), infinite=st.sampled_from([0, 0.3, 1]),
)  # fmt: skip
def test_the_nearest_column_is_the_first_of_the_smallest(kernels, seed, rows, columns, few, infinite):
    rng = np.random.default_rng(seed)
    products = rng.normal(size=(rows, columns)).astype(np.float32)
    norms = rng.random(columns).astype(np.float32)
    if few:
        products, norms = np.rint(products), np.rint(norms)
    norms[rng.random(columns) < infinite] = np.inf
    expected = np.argmin(norms - 2 * products, axis=1)  # of infinite ones 0
    assert np.array_equal(kernels.nearest_column(products, norms), expected)


def test_a_column_that_is_not_a_number_is_never_the_nearest(kernels):
    products = np.full((2, 100), np.nan, dtype=np.float32)
    products[0, 77] = -5
    assert kernels.nearest_column(products, np.zeros(100, dtype=np.float32)).tolist() == [77, 0]


def in_order(rows):
    """Sums in 16 accumulators, which are added by halves."""
    sums = np.zeros((len(rows), 16), dtype=np.float32)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 16)))
    for start in range(0, padded.shape[1], 16):
        sums += padded[:, start : start + 16]
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


@given(seed=st.integers(0, 2**32), D=st.integers(1, 140), n_near=st.integers(1, 24))
def test_two_centres_are_those_of_the_formula(kernels, seed, D, n_near):
    rng = np.random.default_rng(seed)
    X, centres = rng.normal(size=(10, D)).astype(np.float32), rng.normal(size=(40, D)).astype(np.float32)
    near = np.argsort(((X[:, None] - centres) ** 2).sum(axis=2), axis=1)[:, :n_near].astype(np.int32)
    near[3, n_near // 2 :] = -1
    first, second = kernels.choose_first_and_second(X, centres, near)
    assert np.array_equal(first, np.maximum(near[:, 0], 0))
    for q, numbers in enumerate(near):
        others = numbers[1:][numbers[1:] >= 0]
        left, gaps = X[q] - centres[first[q]], X[q] - centres[others]
        length = np.float32(1e-37) + in_order((left * left)[None])[0]
        along = in_order(gaps * left)
        costs = in_order(gaps * gaps) + along * (along / length)
        assert second[q] == (others[np.argmin(costs)] if len(others) else first[q])


def test_of_vectors_that_are_not_finite_a_centre_is_named(kernels):
    X, centres = np.full((2, 5), np.nan, dtype=np.float32), np.zeros((3, 5), dtype=np.float32)
    found = kernels.choose_first_and_second(X, centres, np.array([[-1, -1], [2, 1]], dtype=np.int32))
    assert [part.tolist() for part in found] == [[0, 2], [0, 1]]


@given(seed=st.integers(0, 2**32), dtype=st.sampled_from([np.uint8, np.float32]), D=st.integers(1, 70))
def test_means_are_those_of_numpy(kernels, seed, dtype, D):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(60, D)) * 20 + 100).astype(dtype)
    labels = rng.integers(0, 9, 60)
    order, bounds = np.argsort(labels, kind="stable"), np.searchsorted(np.sort(labels), np.arange(11))
    means = np.full((10, D), 7, dtype=np.float32)
    kernels.write_means(X, order, bounds, 2, 10, means)
    for group in range(10):
        rows = X[labels == group].astype(np.float64)
        expected = np.add.accumulate(rows, axis=0)[-1] / len(rows) if group >= 2 and len(rows) else np.full(D, 7)
        assert np.array_equal(means[group], expected.astype(np.float32))


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (0, np.zeros((4, 3), dtype=np.float64), "uint8 or float32"),
        (1, np.array([0, 1, 2, 4]), "rows of X"),
        (2, np.array([0, 3, 2]), "where each group begins"),
        (2, np.array([0, 3, 5]), "where each group begins"),
        (4, 3, "must be groups"),
        (5, np.zeros((2, 2), dtype=np.float32), "as wide as X"),
    ],
)
def test_groups_that_are_none_are_an_error(kernels, place, wrong, message):
    good = [np.zeros((4, 3), np.uint8), np.arange(4), np.array([0, 2, 4]), 0, 2, np.zeros((2, 3), np.float32)]
    kernels.write_means(*good)
    with pytest.raises(ValueError, match=message):
        kernels.write_means(*good[:place], wrong, *good[place + 1 :])
