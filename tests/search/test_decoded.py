"""Search by the distance to what codes decode to: real numbers and whole weights against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import BinaryAutoencoder, Codes, DataError
from autojacobin.errors import DataTypeError
from autojacobin.search import decoded_topk
from autojacobin.search.decoded import decoded_queries
from autojacobin.search.queries import DistanceTerms
from tests.hashers.methods import digits, fitted

# The fixture only chooses a kernel, so examples may share it.


def problem(seed, n_bits, n_level_bits, n_base, heavy=1.0):
    rng = np.random.default_rng(seed)
    base = Codes.from_bits(rng.integers(0, 2, (n_base, n_bits + n_level_bits)))
    weights = rng.normal(size=(3, n_bits + n_level_bits))
    weights[:, n_bits:] = -heavy * 2.0 ** np.arange(n_level_bits)
    return DistanceTerms(weights, rng.normal(size=3), n_level_bits), base


def by_the_definition(terms, base):
    return terms.constants[:, None] - terms.weights @ base.to_signs().astype(float).T


@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(0, 8), st.integers(1, 80), st.data())
def test_the_exact_form_equals_brute_force(seed, n_bits, n_level_bits, n_base, data):
    terms, base = problem(seed, n_bits, n_level_bits, n_base)
    k = data.draw(st.integers(1, n_base))
    distances, ids = decoded_topk(terms, base, k, exact=True)
    expected = by_the_definition(terms, base)
    assert np.allclose(distances, np.sort(expected, axis=1)[:, :k], rtol=1e-5, atol=1e-3)
    assert np.allclose(np.take_along_axis(expected, ids, axis=1), distances, rtol=1e-5, atol=1e-3)


@given(
    st.integers(0, 2**32), st.integers(1, 300), st.integers(0, 8), st.floats(0.01, 10), st.integers(1, 80), st.data()
)
@pytest.mark.usefixtures("scanned_as")
def test_the_search_equals_sorting_whole_weights(seed, n_bits, n_level_bits, heavy, n_base, data):
    terms, base = problem(seed, n_bits, n_level_bits, n_base, heavy)
    k = data.draw(st.integers(1, n_base))
    distances, ids = decoded_topk(terms, base, k)
    sizes = np.abs(terms.weights)
    units = sizes[:, :n_bits].max(axis=1) / (31 if n_bits <= 64 else 15)
    if n_level_bits:
        units = np.maximum(units, sizes[:, n_bits:].max(axis=1) / 255)
    whole = np.where(terms.weights >= 0, 1, -1) * np.rint(sizes / units[:, None])
    order = -(whole @ base.to_signs().astype(float).T)
    assert np.array_equal(ids, np.argsort(order, axis=1, kind="stable")[:, :k])
    expected = terms.constants[:, None] + units[:, None] * order
    assert np.allclose(distances, np.take_along_axis(expected, ids, axis=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_bits", [1, 63, 64, 2150, 2151, 5000])
def test_no_sum_of_weights_exceeds_what_the_kernels_hold(n_bits):
    weights = -np.ones((1, n_bits + 8))
    weights[:, n_bits:] *= 2.0 ** np.arange(8) * 1e9  # the levels weigh all they can
    for values in (weights, np.sign(weights)):
        queries = decoded_queries(DistanceTerms(values, np.zeros(1), 8))
        planes = np.unpackbits(queries.planes.view(np.uint8), axis=2, bitorder="little")
        total = (planes.sum(axis=2, dtype=np.int64) * 2 ** np.arange(8)).sum()
        assert total < queries.n_levels <= 2**15


def test_codes_that_are_too_long_are_refused_but_can_be_searched_exactly():
    terms, base = problem(0, 20_000, 0, 5)
    with pytest.raises(DataError, match=r"codes of at most 16,1\d\d bits, got 20,000; use shorter codes, or decoded_t"):
        decoded_topk(terms, base, 2)
    assert decoded_topk(terms, base, 2, exact=True)[1].shape == (3, 2)


@pytest.mark.parametrize("exact", [True, False])
def test_reported_distances_are_those_to_decoded_vectors_and_their_errors(exact):
    X = digits().astype(np.float64)
    hasher = BinaryAutoencoder(48, random_state=0).fit(X[:1200])
    base, queries = X[:1200], X[1200:1260]
    codes = hasher.encode(base)
    decoded = hasher.decode(codes)
    distances, ids = decoded_topk(hasher.distance_terms(queries), codes, len(base), exact=exact)
    true = ((queries[:, None, :] - decoded) ** 2).sum(axis=2) + 0.6 * ((base - decoded) ** 2).sum(axis=1)
    seen = np.take_along_axis(true, ids, axis=1)
    # what is lost by rounding the offsets to levels, and the weights to whole numbers
    assert np.abs(distances - seen).mean() < 0.02 * true.mean()
    assert np.corrcoef(distances.ravel(), seen.ravel())[0, 1] > 0.999


def test_a_subset_and_bad_arguments():
    hasher, X = fitted("BinaryAutoencoder"), digits()[:200]
    codes, terms = hasher.encode(X), hasher.distance_terms(X[:4])
    allowed = np.arange(0, 200, 3)
    _, ids = decoded_topk(terms, codes, 67, subset=allowed)
    assert np.array_equal(np.sort(ids, axis=1), np.tile(allowed, (4, 1)))
    assert decoded_topk(hasher.distance_terms(X[:1])._replace(weights=np.empty((0, 16))), codes, 2)[1].shape == (0, 2)
    with pytest.raises(DataTypeError, match="base must be Codes, got ndarray"):
        decoded_topk(terms, X, 3)
    with pytest.raises(
        DataTypeError, match=r"terms must be DistanceTerms, got ndarray; use hasher.distance_terms\(X\)"
    ):
        decoded_topk(hasher.project(X), codes, 3)
    with pytest.raises(DataError, match="the terms are for codes of 16 bits, got a base of 9 bits"):
        decoded_topk(terms, Codes.from_bits(np.ones((3, 9))), 1)
    with pytest.raises(DataError, match="LSH has no distance 'decoded'"):
        fitted("LSH").distance_terms(X)


@pytest.mark.parametrize("exponent", [-1074, -1070, -1022, -1000, -140, 0, 900])
def test_the_size_of_weights_does_not_change_the_order(exponent):
    """Not even of subnormal numbers, of which a fraction has few digits or none."""
    rng = np.random.default_rng(0)
    base = Codes.from_bits(rng.integers(0, 2, (300, 40)))
    whole = rng.integers(-60, 61, (4, 40)).astype(np.float64)
    found = []
    for weights in (whole, np.ldexp(whole, exponent)):
        with np.errstate(over="ignore"):
            found.append(decoded_topk(DistanceTerms(weights, np.zeros(4), 3), base, 300)[1])
    assert np.array_equal(found[0], found[1])
