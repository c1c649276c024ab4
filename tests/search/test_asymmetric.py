"""Asymmetric search: the real numbers against inner products, the quantised form against sorting whole weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, Codes, DataError
from autojacobin.datasets import load_set
from autojacobin.evaluation import ground_truth, m_recall
from autojacobin.search import asymmetric_topk, hamming_topk
from autojacobin.search.asymmetric import asymmetric_queries

# The fixture only chooses a kernel, so examples may share it.


def weighted(projections, base):
    """Sum of |p| over the bits that differ, by the definition."""
    differs = (projections >= 0)[:, None, :] != base.to_bits().astype(bool)[None]
    return np.where(differs, np.abs(projections)[:, None, :], 0.0).sum(axis=2)


def problem(seed, n_bits, n_base, n_queries=3, ties=False):
    rng = np.random.default_rng(seed)
    base = Codes.from_bits(rng.integers(0, 2, (n_base, n_bits)))
    projections = rng.normal(size=(n_queries, n_bits))
    return (np.rint(projections) if ties else projections), base


@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 80), st.booleans(), st.data())
def test_the_exact_form_equals_brute_force(seed, n_bits, n_base, ties, data):
    projections, base = problem(seed, n_bits, n_base, ties=ties)
    k = data.draw(st.integers(1, n_base))
    distances, ids = asymmetric_topk(projections, base, k, exact=True)
    expected = weighted(projections, base)
    assert np.allclose(distances, np.sort(expected, axis=1)[:, :k], rtol=1e-6)
    if ties:  # whole numbers: equal sums are equal to the bit, and the lower id comes first
        assert np.array_equal(ids, np.argsort(expected, axis=1, kind="stable")[:, :k])
    assert np.allclose(np.take_along_axis(expected, ids, axis=1), distances, rtol=1e-6)


@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 80), st.data())
@pytest.mark.usefixtures("scanned_as")
def test_the_quantised_form_equals_sorting_whole_weights(seed, n_bits, n_base, data):
    projections, base = problem(seed, n_bits, n_base)
    k = data.draw(st.integers(1, n_base))
    distances, ids = asymmetric_topk(projections, base, k)
    largest = np.abs(projections).max(axis=1, keepdims=True)
    whole = np.where(projections >= 0, 1, -1) * np.rint(np.abs(projections) / largest * 15)
    whole[whole == 0] = 0.0
    differs = (projections >= 0)[:, None, :] != base.to_bits().astype(bool)[None]
    steps = np.where(differs, np.abs(whole)[:, None, :], 0).sum(axis=2)
    assert np.array_equal(ids, np.argsort(steps, axis=1, kind="stable")[:, :k])
    assert np.allclose(distances, np.take_along_axis(steps, ids, axis=1) * largest / 15, rtol=1e-6)


@pytest.mark.parametrize("exact", [True, False])
def test_projections_of_plus_and_minus_one_give_the_hamming_distance(exact):
    rng = np.random.default_rng(0)
    base, queries = (Codes.from_bits(rng.integers(0, 2, (n, 90))) for n in (500, 20))
    distances, ids = asymmetric_topk(queries.to_signs(), base, 50, exact=exact)
    expected, expected_ids = hamming_topk(queries, base, 50)
    assert np.array_equal(distances, expected)
    assert np.array_equal(ids, expected_ids)


def test_the_order_is_that_of_the_inner_product_and_of_the_euclidean_distance():
    projections, base = problem(1, 40, 300)
    _, ids = asymmetric_topk(projections, base, 300, exact=True)
    signs = base.to_signs().astype(float)
    assert np.array_equal(ids, np.argsort(-(projections @ signs.T), axis=1))
    corner = ((projections[:, None, :] - signs[None]) ** 2).sum(axis=2)
    assert np.array_equal(ids, np.argsort(corner, axis=1))


@pytest.mark.parametrize("n_bits", [32, 64])
def test_quantising_costs_less_than_two_thousandths_and_asymmetry_gains_much(n_bits):
    data = load_set("digits")
    truth = ground_truth(data.base, data.queries, 10)
    hasher = ITQ(n_bits, random_state=0).fit(data.train)
    projections, base = hasher.project(data.queries), hasher.encode(data.base)
    recalls = {
        name: m_recall(ids, truth, 10, 150)
        for name, (_, ids) in {
            "exact": asymmetric_topk(projections, base, 150, exact=True),
            "quantised": asymmetric_topk(projections, base, 150),
            "symmetric": hamming_topk(hasher.encode(data.queries), base, 150),
        }.items()
    }
    assert abs(recalls["quantised"] - recalls["exact"]) < 0.002
    assert recalls["quantised"] > recalls["symmetric"] + 0.01


def test_a_subset_is_searched_as_if_there_were_nothing_else():
    projections, base = problem(2, 50, 200)
    subset = np.random.default_rng(0).choice(200, 60, replace=False)
    distances, ids = asymmetric_topk(projections, base, 10, subset=subset)
    kept = np.sort(subset)
    expected, places = asymmetric_topk(projections, base[kept], 10)
    assert np.array_equal(ids, kept[places])
    assert np.array_equal(distances, expected)


def test_a_query_of_zeros_is_at_distance_zero_of_all_codes():
    base = Codes.from_bits([[0, 1], [1, 1]])
    distances, ids = asymmetric_topk([[0.0, 0.0]], base, 2)
    assert distances.tolist() == [[0, 0]]
    assert ids.tolist() == [[0, 1]]
    assert asymmetric_topk(np.empty((0, 2)), base, 1)[0].shape == (0, 1)
    assert asymmetric_queries(np.array([[0.0, 0.0]])).scales.tolist() == [0.0]


@pytest.mark.parametrize("exponent", [-1074, -1072, -1060, -1022, -1003, -1000, -999, -140, 0, 1000])
def test_the_size_of_projections_does_not_change_the_order(exponent):
    """Not even of subnormal numbers, of which a fifteenth has few digits or none."""
    rng = np.random.default_rng(0)
    base = Codes.from_bits(rng.integers(0, 2, (200, 30)))
    whole = rng.integers(-60, 61, (4, 30)).astype(np.float64)
    if exponent == -1000:
        whole[1] *= 2.0**-60  # one query is subnormal and the others are not
    tiny = np.ldexp(whole, exponent)
    with np.errstate(over="ignore"):
        found = asymmetric_topk(tiny, base, 200)[1]
    assert np.array_equal(found, asymmetric_topk(whole, base, 200)[1])


def test_codes_that_are_too_long_are_named_and_searched_with_exact():
    projections, base = problem(0, 2185, 20)
    with pytest.raises(DataError, match="at most 2,184 bits, got 2,185; use shorter codes, .* exact=True"):
        asymmetric_topk(projections, base, 5)
    distances, ids = asymmetric_topk(projections, base, 20, exact=True)
    assert np.allclose(distances, np.take_along_axis(weighted(projections, base), ids, axis=1), rtol=1e-6)
    projections, base = problem(0, 2184, 20)
    whole = np.rint(np.abs(projections) / np.abs(projections).max(axis=1, keepdims=True) * 15)
    signs = np.where(projections >= 0, 1, -1)
    whole[whole == 0] = 1e-9  # the sign of a zero would be lost
    expected = np.argsort(np.rint(weighted(signs * whole, base)), axis=1, kind="stable")
    assert np.array_equal(asymmetric_topk(projections, base, 20)[1], expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda base: asymmetric_topk([[1.0, np.nan]], base, 1), "must be finite, got nan in row 0, column 1"),
        (lambda base: asymmetric_topk([[1.0, 2.0, 3.0]], base, 1), "with 2 columns, one for each bit"),
        (lambda base: asymmetric_topk([1.0, 2.0], base, 1), r"of shape \(2,\)"),
        (lambda base: asymmetric_topk([["a", "b"]], base, 1), "matrix of numbers"),
        (lambda base: asymmetric_topk([[1.0, 2.0]], base, 4), "from 1 to 3, the size of the base, got 4"),
        (lambda base: asymmetric_topk([[1.0, 2.0]], base, True), "got True"),
        (lambda base: asymmetric_topk([[1.0, 2.0]], base.packed, 1), "base must be Codes, got ndarray"),
        (lambda base: asymmetric_topk([[1.0, 2.0]], base, 1, subset=[]), "the subset is empty"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call(Codes.from_bits([[0, 1], [1, 1], [0, 0]]))
