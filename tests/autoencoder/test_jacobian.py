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
