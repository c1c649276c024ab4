"""What the Jacobian term computes between its matrix products, against ``einsum``."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.autoencoder import jacobian

SIZES = st.integers(1, 7)


def arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


@given(SIZES, SIZES, SIZES, st.integers(0, 2**32), st.data())
def test_products_of_pairs_and_their_derivatives(s, height, more, seed, data):
    d = height + more
    first = data.draw(st.integers(0, more))
    rows, weights, panel = arrays(seed, (s, d), (height, d - first), (s, height, d - first))
    n, m = rows[:, first : first + height], rows[:, first:]
    made = np.full((s, height, d - first), np.nan)
    jacobian.pair_products(rows, first, weights, made)
    assert np.allclose(made, np.einsum("in,im,nm->inm", n, m, weights))

    sums, per_weight = arrays(seed + 1, (s, d), weights.shape)
    expected, expected_weight = sums.copy(), per_weight + np.einsum("inm,in,im->nm", panel, n, m)
    expected[:, first : first + height] += np.einsum("inm,nm,im->in", panel, weights, m)
    expected[:, first:] += np.einsum("inm,nm,in->im", panel, weights, n)
    without = sums.copy()
    jacobian.add_pair_derivatives(panel.copy(), rows, first, weights, sums, per_weight)
    jacobian.add_pair_derivatives(panel.copy(), rows, first, weights, without)
    assert np.allclose(sums, expected)
    assert np.allclose(without, expected)
    assert np.allclose(per_weight, expected_weight)


@given(SIZES, SIZES, SIZES, SIZES, st.integers(0, 2**32))
def test_derivatives_of_the_trace(s, r, D, d, seed):
    U, V, g, Q, a, W2, per_W2 = arrays(seed, (s, r, d), (s, r, d), (s, d), (s, D, d), (s, D), (D, d), (D, d))
    per_g, per_a = np.full((s, d), np.nan), np.full((s, D), np.nan)
    scaled = V.copy()
    jacobian.trace_hidden_derivatives(U, scaled, g, per_g)
    assert np.allclose(per_g, np.einsum("ikn,ikn->in", U, V))
    assert np.allclose(scaled, V * g[:, None])
    expected = per_W2 + np.einsum("ij,ijn,in->jn", a, Q, g)
    jacobian.trace_output_derivatives(Q.copy(), g, a, W2, per_a, per_W2)
    assert np.allclose(per_a, np.einsum("ijn,in,jn->ij", Q, g, W2))
    assert np.allclose(per_W2, expected)


@given(SIZES, SIZES, SIZES, st.integers(0, 2**32))
def test_coefficients_and_products_along_a_line(s, D, d, seed):
    Q, R, W2, S2, g, powers = arrays(seed, (s, D, d), (s, D, d), (D, d), (D, d), (s, d), (s, 3, D))
    E = np.full((s, 3, D, d), np.nan)
    E[:, 0] = Q
    jacobian.line_coefficients(E, R.copy(), W2, S2)
    assert np.allclose(E, np.stack([W2 * Q, S2 * Q + W2 * R, S2 * R], axis=1))
    per_row, per_g = np.full((s, 3, D), np.nan), np.full((s, d), np.nan)
    jacobian.line_products(E, g, powers, per_row, per_g)
    assert np.allclose(per_row, np.einsum("ipjn,in->ipj", E, g))
    assert np.allclose(per_g, np.einsum("ipjn,ipj->in", E, powers))
