"""The scan of tiles for a few queries against NumPy, at every level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.test_slice_scan import MISSING, NO_PLANES, as_tiles, distances_of, sparse


def case(rng, n_words, n_codes, n_queries, n_planes):
    """Codes in their order and as tiles, queries and planes. Many distances are equal."""
    lanes = 8 if n_words <= 2 else 4
    per_tile = max(128, 2 ** int(np.log2(4096 // n_words)) if n_words > 2 else 2048)
    rows = sparse(rng, (-(-n_codes // per_tile) * per_tile, n_words))
    rows[n_codes:] = 0
    queries = sparse(rng, (n_queries, n_words))
    planes = sparse(rng, (n_queries, n_planes, n_words)) if n_planes else NO_PLANES
    planes[:, 4:, 1:] = 0  # large weights for few bits: sums stay below 2^15
    return rows, as_tiles(rows, per_tile, lanes), queries, planes


def nearest(distances, allowed, k):
    """Distances and positions of the nearest, equal ones by position, then those that are missing."""
    found = np.full((2, len(distances), k), -1)
    found[0] = MISSING
    positions = np.flatnonzero(allowed)
    for q, row in enumerate(distances):
        order = positions[np.argsort(row[positions], kind="stable")[:k]]
        found[:, q, : len(order)] = row[order], order
    return found


def in_order(found):
    distances, positions = found
    order = np.lexsort((np.where(positions < 0, 2**62, positions), distances))
    return np.stack([np.take_along_axis(part, order, axis=1) for part in (distances.astype(np.int64), positions)])


@given(
    seed=st.integers(0, 2**32), n_words=st.sampled_from([1, 2, 3, 5, 8, 33]), n_codes=st.integers(1, 5000),
    n_queries=st.integers(1, 5), n_planes=st.sampled_from([0, 1, 4, 8]), k=st.integers(1, 300),
    share=st.sampled_from([None, 0.0, 0.01, 0.6]),
)  # fmt: skip
def test_the_nearest_are_those_of_numpy(kernels, seed, n_words, n_codes, n_queries, n_planes, k, share):
    rng = np.random.default_rng(seed)
    rows, tiles, queries, planes = case(rng, n_words, n_codes, n_queries, n_planes)
    counts = np.ones(n_codes, dtype=bool) if share is None else rng.random(n_codes) < share
    allowed = np.empty(0, dtype=np.uint8) if share is None else np.packbits(counts, bitorder="little")
    found = kernels.scan_tiles(tiles, n_codes, queries, planes, allowed, k)
    assert np.array_equal(in_order(found), nearest(distances_of(rows[:n_codes], queries, planes), counts, k))


@pytest.mark.parametrize("n_planes", [0, 4])
@pytest.mark.parametrize("k", [1, 5, 200])
def test_a_radius_that_is_estimated_too_small_is_found_out(kernels, k, n_planes):
    """Near codes are just where the estimate looks, and far ones anywhere else."""
    rng = np.random.default_rng(k)
    n_codes = 2**15
    rows, tiles, queries, planes = case(rng, 2, n_codes, 2, n_planes)
    blocks = as_positions(n_codes).reshape(-1, 64)[::16]
    rows[blocks.ravel()[: k // 2 + 6]] = queries[0]
    tiles = as_tiles(rows, 2048, 8)
    found = kernels.scan_tiles(tiles, n_codes, queries, planes, np.empty(0, dtype=np.uint8), k)
    expected = nearest(distances_of(rows, queries, planes), np.ones(n_codes, dtype=bool), k)
    assert np.array_equal(in_order(found), expected)


def as_positions(n_codes):
    """Positions of the codes of tiles in the order in which they lie there."""
    positions = np.arange(n_codes, dtype=np.uint64)[:, None]
    return as_tiles(positions, 2048, 8).ravel().astype(np.int64)


@pytest.mark.parametrize("n_words", [1, 2, 40])
def test_distances_may_be_the_largest(kernels, n_words):
    """Of the opposite of a query, with more differing bits than a byte counts."""
    queries = np.stack([np.zeros(n_words), np.full(n_words, -1)]).astype(np.int64).view(np.uint64)
    rows = np.tile(queries, (1024, 1))
    for planes in (NO_PLANES, np.full((2, 8, n_words), 2**64 - 1, dtype=np.uint64)):
        if planes.size and n_words > 2:
            continue  # no query may weigh more than 2^15
        for k in (1, 1024, 1025, 2048):
            tiles = as_tiles(rows, 2048 if n_words <= 2 else 128, 8 if n_words <= 2 else 4)
            found = kernels.scan_tiles(tiles, 2048, queries, planes, np.empty(0, dtype=np.uint8), k)
            expected = nearest(distances_of(rows, queries, planes), np.ones(2048, dtype=bool), k)
            assert np.array_equal(in_order(found), expected)


def test_wrong_arguments_are_errors(kernels):
    _, tiles, queries, planes = case(np.random.default_rng(0), 2, 100, 2, 4)
    good = [tiles, 100, queries, planes, np.empty(0, dtype=np.uint8), 5]
    kernels.scan_tiles(*good)
    for place, wrong in [
        (1, 2049), (1, -1), (2, queries[:, :1].copy()), (3, planes[:1]), (4, np.zeros(12, dtype=np.uint8)), (5, 0),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="wrong argument of a kernel"):
            kernels.scan_tiles(*good[:place], wrong, *good[place + 1 :])
