"""The spherical Hamming distance against its definition, written out in fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import Codes, DataError
from autojacobin.search import spherical, spherical_topk
from autojacobin.search.spherical import spherical_queries
from autojacobin.search.tiles import tiles_of


def distance(a, b):
    """The number of bits that differ over the number of ones in both; 1 / n_bits stands for no such one."""
    differing, shared = int(np.sum(a != b)), int(np.sum(a & b))
    return Fraction(differing, shared) if shared else Fraction(differing * len(a))


def by_brute_force(queries, base, k, rows=None):
    rows = range(len(base)) if rows is None else rows
    ids = [sorted(rows, key=lambda row: (distance(query, base[row]), row))[:k] for query in queries]
    near = [[float(distance(query, base[row])) for row in found] for query, found in zip(queries, ids, strict=True)]
    return np.array(near, dtype=np.float32), np.array(ids)


@given(
    n_bits=st.one_of(st.integers(1, 12), st.sampled_from([63, 64, 65, 128, 129, 200, 257])),
    n=st.integers(1, 90),
    share=st.sampled_from([0.02, 0.1, 0.5, 0.95]),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_the_search_is_exact_also_for_codes_that_share_no_one(n_bits, n, share, seed, data):
    rng = np.random.default_rng(seed)
    base, queries = rng.random((n, n_bits)) < share, rng.random((5, n_bits)) < share
    queries[0] = False
    k = data.draw(st.integers(1, n))
    expected = by_brute_force(queries, base, k)
    codes = Codes.from_bits(base)
    found = spherical_topk(Codes.from_bits(queries), codes, k)
    assert np.array_equal(found[1], expected[1])
    assert np.array_equal(found[0], expected[0])
    on_gpu = spherical._topk_by_products(Codes.from_bits(queries), codes, k)  # NumPy takes the place of CuPy
    assert np.array_equal(on_gpu[1], expected[1])
    assert np.array_equal(on_gpu[0], expected[0])
    allowed = rng.random(n) < 0.6
    rows = np.flatnonzero(allowed)
    bitmap = np.packbits(allowed, bitorder="little")
    prepared = spherical_queries(Codes.from_bits(queries))
    whole, positions = tiles_of(codes).nearest(prepared, k, bitmap)
    among = by_brute_force(queries, base, min(k, len(rows)), rows)
    assert positions.shape == (5, min(k, len(rows)))
    assert np.array_equal(positions, among[1].reshape(positions.shape))
    assert np.array_equal(prepared.real(whole), among[0].reshape(positions.shape))
    if len(rows):
        assert np.array_equal(spherical_topk(Codes.from_bits(queries), codes, 1, subset=allowed)[1], among[1][:, :1])


def test_many_codes_in_several_tiles():
    rng = np.random.default_rng(0)
    base, queries = rng.random((5000, 96)) < 0.5, rng.random((3, 96)) < 0.5
    distances, ids = spherical_topk(Codes.from_bits(queries), Codes.from_bits(base), 700)
    for query, near, found in zip(queries, distances, ids, strict=True):
        differing, shared = (query != base).sum(axis=1), (query & base).sum(axis=1)
        order = np.lexsort((np.arange(5000), differing / shared))[:700]
        assert np.array_equal(found, order)
        assert np.array_equal(near, (differing / shared)[order].astype(np.float32))


def test_no_query_finds_nothing():
    base = Codes.from_bits(np.eye(4, dtype=bool))
    distances, ids = spherical_topk(base[:0], base, 2)
    assert distances.shape == ids.shape == (0, 2)


def test_codes_that_are_too_long_are_refused():
    codes = Codes.from_bits(np.ones((2, 2049), dtype=bool))
    with pytest.raises(DataError, match="at most 2,048 bits, got 2,049; use shorter codes, or the Hamming distance"):
        spherical_topk(codes, codes, 1)
