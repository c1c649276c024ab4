"""The scan of bit slices against counting bits in NumPy, at every level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

MISSING = 2**16 - 1
NO_PLANES = np.empty((0, 0, 0), dtype=np.uint64)


def case(rng, n_words, n_tiles, n_queries, n_planes):
    """Codes in their order and as tiles, queries, planes, and a bound of the distances."""
    lanes, codes = (8, 2048) if n_words <= 2 else (4, 1024 if n_words <= 4 else 512)
    centre = rng.integers(0, 2**64, n_words, dtype=np.uint64)
    rows = centre ^ sparse(rng, (n_tiles * codes, n_words))  # codes that depend on each other
    queries = centre ^ sparse(rng, (n_queries, n_words))
    planes = NO_PLANES if not n_planes else rng.integers(0, 2**64, (n_queries, n_planes, n_words), dtype=np.uint64)
    planes[:, 4:, 1:] = 0  # large weights for few bits: sums stay below 2^15
    weights = np.bitwise_count(planes).sum(axis=2, dtype=np.int64) @ (1 << np.arange(n_planes)) if n_planes else 0
    n_levels = int(np.max(weights, initial=64 * n_words if not n_planes else 0)) + 1
    return rows, as_tiles(rows, codes, lanes), queries, planes, n_levels


def sparse(rng, shape):
    some = rng.integers(0, 2**64, (3, *shape), dtype=np.uint64)
    return some[0] & some[1] & some[2]


def as_tiles(rows, codes, lanes):
    """Code 64 g + (64 / L) j + s of a tile is at [w, j, s G + g], see ``search/tiles.py``."""
    groups, steps = codes // 64, 64 // lanes
    tiles = rows.reshape(-1, groups, lanes, steps, rows.shape[1])
    # one word further on, so that tiles do not begin at a multiple of a register
    memory = np.zeros(rows.size + 1, dtype=np.uint64)
    memory[1:] = tiles.transpose(0, 4, 2, 3, 1).ravel()
    return memory[1:].reshape(len(tiles), rows.shape[1], lanes, codes // lanes)


def distances_of(rows, queries, planes):
    differing = queries[:, None] ^ rows[None]
    if not planes.size:
        return np.bitwise_count(differing).sum(axis=2, dtype=np.int64)
    return sum(
        np.bitwise_count(differing & planes[:, None, p]).sum(axis=2, dtype=np.int64) << p
        for p in range(planes.shape[1])
    )


def nearest(distances, allowed, k):
    """Distances and positions of the nearest in the order of positions, then those that are missing."""
    bits = np.unpackbits(allowed.view(np.uint8), bitorder="little").astype(bool)
    found = np.full((2, len(distances), k), -1)
    found[0] = MISSING
    for q, row in enumerate(distances):
        positions = np.flatnonzero(bits)
        positions = np.sort(positions[np.argsort(row[positions], kind="stable")[:k]])
        found[:, q, : len(positions)] = row[positions], positions
    return found


@given(
    seed=st.integers(0, 2**32), n_words=st.integers(1, 8), n_tiles=st.integers(1, 3), n_queries=st.integers(1, 5),
    n_planes=st.sampled_from([0, 0, 1, 3, 4, 8]), k=st.integers(1, 700), share=st.sampled_from([0.05, 0.7, 1]),
)  # fmt: skip
def test_the_nearest_are_those_of_numpy(kernels, seed, n_words, n_tiles, n_queries, n_planes, k, share):
    rng = np.random.default_rng(seed)
    rows, tiles, queries, planes, n_levels = case(rng, n_words, n_tiles, n_queries, n_planes)
    allowed = np.packbits(rng.random(len(rows)) < share, bitorder="little").view(np.uint64)
    distances = distances_of(rows, queries, planes)
    # some radii are far too small
    radii = rng.choice([n_levels, int(np.median(distances)), int(distances.min()), 0], n_queries).astype(np.int64)
    found = kernels.scan_slices(tiles, queries, planes, n_levels, allowed, radii, k)
    assert np.array_equal(found, nearest(distances, allowed, k))


@pytest.mark.parametrize("n_planes", [0, 8])
@pytest.mark.parametrize("n_words", range(1, 9))
def test_distances_may_be_0_and_the_largest(kernels, n_words, n_planes):
    """Of the opposite of a query, and of the query itself, with the widest sums."""
    queries = np.stack([np.zeros(n_words), np.full(n_words, -1)]).astype(np.int64).view(np.uint64)
    planes = np.zeros((2, n_planes, n_words), dtype=np.uint64) if n_planes else NO_PLANES
    planes[:, :, :1] = 2**64 - 1
    n_levels = 2**15 if n_planes else 64 * n_words + 1
    rows = np.tile(queries, (1024, 1))
    lanes, codes = (8, 2048) if n_words <= 2 else (4, 1024 if n_words <= 4 else 512)
    tiles, allowed = as_tiles(rows, codes, lanes), np.full(32, 2**64 - 1, dtype=np.uint64)
    for radius in (1, n_levels):
        radii = np.full(2, radius)
        for k in (1, 1024, 1025, 2048):
            found = kernels.scan_slices(tiles, queries, planes, n_levels, allowed, radii, k)
            assert np.array_equal(found, nearest(distances_of(rows, queries, planes), allowed, k))


@given(
    seed=st.integers(0, 2**32), n_words=st.integers(1, 8), n_planes=st.sampled_from([0, 4, 8]),
    k=st.sampled_from([1, 30, 400]), wanted=st.sampled_from([1, 10**6]), short=st.integers(0, 2000),
)  # fmt: skip
def test_the_estimate_is_the_distance_of_a_rank_in_a_sample(kernels, seed, n_words, n_planes, k, wanted, short):
    rng = np.random.default_rng(seed)
    rows, tiles, queries, planes, n_levels = case(rng, n_words, 40, 3, n_planes)
    n = len(rows) - short
    allowed = np.packbits((rng.random(len(rows)) < 0.7) & (np.arange(len(rows)) < n), bitorder="little").view(np.uint64)
    whole = n // 512
    chunks = min(16, whole // 4)
    while 2 * chunks <= min(whole // 4, 256) and rank_of(k, chunks, n) * whole > wanted * chunks:
        chunks *= 2
    expected, rank = np.full(3, n_levels), rank_of(k, chunks, n)
    if rank <= 128 * chunks:
        sample = (512 * (np.arange(chunks) * whole // chunks)[:, None] + np.arange(512)).ravel()
        sample = sample[np.unpackbits(allowed.view(np.uint8), bitorder="little")[sample] == 1]
        expected = np.sort(distances_of(rows[sample], queries, planes), axis=1)[:, rank - 1] + 1
    radii = kernels.estimate_radii(tiles, n, queries, planes, n_levels, allowed, k, wanted)
    assert np.array_equal(radii, expected)


def rank_of(k, chunks, n):
    share = k * 512 * chunks / n
    return int(share + 3 * share**0.5 + 4)


@pytest.mark.parametrize("n", [1, 511, 512 * 3, 512 * 15 + 511])
def test_in_a_small_base_all_codes_are_within_the_radius(kernels, n):
    _, tiles, queries, planes, n_levels = case(np.random.default_rng(0), 1, 4, 3, 0)
    allowed = np.full(tiles.size // 64, 2**64 - 1, dtype=np.uint64)
    assert np.all(kernels.estimate_radii(tiles, n, queries, planes, n_levels, allowed, 1, 10**6) == n_levels)
