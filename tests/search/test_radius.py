"""Radius search against all distances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import Codes, DataError
from autojacobin.search import hamming_radius


@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(0, 60), st.integers(0, 5), st.integers(0, 220))
@settings(deadline=None)
def test_equals_brute_force(seed, n_bits, n_base, n_queries, radius):
    rng = np.random.default_rng(seed)
    base = Codes.from_bits(rng.integers(0, 2, (n_base, n_bits)))
    queries = Codes.from_bits(rng.integers(0, 2, (n_queries, n_bits)))
    subset = np.flatnonzero(rng.integers(0, 2, n_base)) if seed % 2 else None
    limits, distances, ids = hamming_radius(queries, base, radius, subset=subset)
    assert len(limits) == n_queries + 1
    for q in range(n_queries):
        all_distances = (queries.to_bits()[q] != base.to_bits()).sum(axis=1)
        kept = [i for i in (range(n_base) if subset is None else subset) if all_distances[i] <= radius]
        kept.sort(key=lambda i: (all_distances[i], i))
        found = slice(limits[q], limits[q + 1])
        assert ids[found].tolist() == kept
        assert distances[found].tolist() == [all_distances[i] for i in kept]


@pytest.mark.parametrize("radius", [-1, 1.5, "2"])
def test_a_wrong_radius_is_named(radius):
    codes = Codes.from_bits([[0, 1]])
    with pytest.raises(DataError, match="radius must be an integer of at least 0, got"):
        hamming_radius(codes, codes, radius)
