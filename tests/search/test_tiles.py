"""Tiles: their layout, the positions that count, and weights of any size against sums written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import Codes
from autojacobin.search.hamming import hamming_queries
from autojacobin.search.queries import Queries
from autojacobin.search.tiles import Tiles, code_words

# The fixture only chooses a kernel, so examples may share it.


@given(st.integers(1, 300), st.integers(0, 5000), st.integers(0, 2**32))
def test_codes_are_read_back_as_they_were_written(n_bits, n, seed):
    rng = np.random.default_rng(seed)
    codes = Codes.from_bits(rng.integers(0, 2, (n, n_bits), dtype=np.uint8))
    tiles = Tiles.from_codes(codes)
    assert tiles.take(np.arange(n)) == codes
    chosen = rng.integers(0, n, 20) if n else np.empty(0, dtype=np.int64)
    assert tiles.take(chosen) == codes[chosen]
    parts = Tiles.empty(n, n_bits)
    for start in range(0, n, 700):
        parts.put(codes[start : start + 700], start)
    assert np.array_equal(parts.words, tiles.words)


@pytest.mark.parametrize(
    ("n_bits", "lanes", "codes"), [(64, 8, 2048), (128, 8, 2048), (200, 4, 1024), (256, 4, 1024), (1024, 4, 256)]
)
def test_the_layout_is_that_of_indexes_on_disk(n_bits, lanes, codes):
    """Word w of code p = 64 g + (64 / L) j + s is at [w, j, s·G + g]; files of format 1 depend on it."""
    n = 2 * codes + 77
    words = np.random.default_rng(0).integers(0, 2**63, (n, -(-n_bits // 64)), dtype=np.int64).view(np.uint64)
    packed = words.view(np.uint8)[:, : -(-n_bits // 8)].copy()
    tiles = Tiles.from_codes(Codes(packed, n_bits)).words
    assert tiles.shape == (3, -(-n_bits // 64), lanes, codes // lanes)
    expected = code_words(Codes(packed, n_bits))
    for p in (0, 1, 7, 8, 63, 64, 65, 100, codes - 1, codes, 2 * codes + 76):
        g, bit = divmod(p % codes, 64)
        j, s = divmod(bit, 64 // lanes)
        assert np.array_equal(tiles[p // codes, :, j, s * (codes // 64) + g], expected[p])
    assert not tiles.reshape(3, -(-n_bits // 64), -1)[2].any(axis=0).sum() > 77  # the rest of the last tile is zero


def by_sorting(distances, k, allowed):
    """Positions and distances of the k nearest, or of all allowed ones if they are fewer."""
    kept = np.flatnonzero(allowed)
    order = kept[np.argsort(distances[:, kept], axis=1, kind="stable")[:, :k]]
    return np.take_along_axis(distances, order, axis=1), order


@given(
    st.integers(0, 2**32), st.sampled_from([40, 128, 200]), st.integers(1, 9000), st.floats(0, 1), st.integers(1, 300)
)
@pytest.mark.usefixtures("scanned_as")
def test_only_allowed_positions_count(seed, n_bits, n, share, k):
    rng = np.random.default_rng(seed)
    base, queries = (Codes.from_bits(rng.integers(0, 2, (rows, n_bits))) for rows in (n, 3))
    allowed = rng.random(n) < share
    allowed[rng.integers(0, n)] = True
    bitmap = np.packbits(allowed, bitorder="little")
    bitmap[-1] |= 0xFF << (n - 1) % 8 + 1 & 0xFF  # positions beyond the last code do not exist, whatever their bits are
    found = Tiles.from_codes(base).nearest(hamming_queries(queries), min(k, n), bitmap)
    distances = (queries.to_bits()[:, None] != base.to_bits()[None]).sum(axis=2)
    expected = by_sorting(distances, min(k, n), allowed)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])


def weighted_queries(signs, weights):
    """Prepare queries with any whole weights, on a multiple of four planes."""
    n_planes = -(-int(weights.max()).bit_length() // 4) * 4
    planes = [code_words(Codes.from_bits(weights >> plane & 1)) for plane in range(n_planes)]
    n_levels = int(weights.sum(axis=1).max()) + 1
    return Queries(code_words(Codes.from_bits(signs)), n_levels, np.stack(planes, axis=1))


@given(st.integers(0, 2**32), st.sampled_from([40, 100, 200]), st.integers(1, 5000), st.integers(1, 200))
@pytest.mark.usefixtures("scanned_as")
def test_weights_may_take_more_than_four_planes(seed, n_bits, n, k):
    """For instance bits of a code that hold a number, with the weights 1, 2, 4, … for all queries."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (n, n_bits))
    signs, weights = rng.integers(0, 2, (3, n_bits)), rng.integers(0, 16, (3, n_bits))
    signs[:, -8:], weights[:, -8:] = 0, 1 << np.arange(8)
    found = Tiles.from_codes(Codes.from_bits(bits)).nearest(weighted_queries(signs, weights), min(k, n))
    distances = ((signs[:, None] != bits[None]) * weights[:, None]).sum(axis=2)
    expected = by_sorting(distances, min(k, n), np.ones(n, dtype=bool))
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
