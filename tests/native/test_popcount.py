"""Distances by counting bits, against NumPy, at every level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.search.tiles import shape_of
from tests.native.test_slice_scan import as_tiles


@given(seed=st.integers(0, 2**32), n_words=st.integers(1, 40), n=st.integers(0, 1500), first=st.integers(0, 900))
def test_codes_are_written_where_tiles_have_them(kernels, seed, n_words, n, first):
    rng = np.random.default_rng(seed)
    tiles = rng.integers(0, 2**64, shape_of(2400, 64 * n_words), dtype=np.uint64)
    _, _, lanes, columns = tiles.shape
    rows, codes = rng.integers(0, 2**64, (n, n_words), dtype=np.uint64), lanes * columns
    before = tiles.reshape(-1, n_words, lanes, 64 // lanes, codes // 64).transpose(0, 4, 2, 3, 1).reshape(-1, n_words)
    before = before.copy()
    before[first : first + n] = rows
    kernels.write_tiles(rows, tiles, first)
    assert np.array_equal(tiles, as_tiles(before, codes, lanes))


@given(seed=st.integers(0, 2**32), n_words=st.integers(1, 40), n=st.integers(0, 300))
def test_distances_of_rows_count_the_bits_that_differ(kernels, seed, n_words, n):
    words = np.random.default_rng(seed).integers(0, 2**64, (n + 1, n_words), dtype=np.uint64)
    expected = np.bitwise_count(words[1:] ^ words[0]).sum(axis=1, dtype=np.int32)
    assert np.array_equal(kernels.row_distances(words[1:], words[0]), expected)


@given(seed=st.integers(0, 2**32), n_bytes=st.integers(1, 40), n=st.integers(0, 300))
def test_tables_are_summed_in_the_order_of_the_bytes(kernels, seed, n_bytes, n):
    rng = np.random.default_rng(seed)
    packed, tables = rng.integers(0, 256, (n, n_bytes)).astype(np.uint8), rng.normal(size=(n_bytes, 256))
    expected = np.zeros(n)
    for byte, table in enumerate(tables):
        expected += table[packed[:, byte]]
    assert np.array_equal(kernels.table_sums(packed, tables), expected)


@given(
    seed=st.integers(0, 2**32), n_words=st.integers(1, 5), n=st.integers(1, 3000), k=st.integers(1, 400),
    share=st.sampled_from([None, 0.2, 0.9]), n_levels=st.sampled_from([2, 2000]),
)  # fmt: skip
def test_the_nearest_by_levels_are_those_of_the_table(kernels, seed, n_words, n, k, share, n_levels):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**64, (n, n_words), dtype=np.uint64)
    tiles, query = np.zeros(shape_of(n, 64 * n_words), dtype=np.uint64), codes[0] ^ np.uint64(7)
    kernels.write_tiles(codes, tiles, 0)
    table = rng.integers(0, n_levels, (64 * n_words + 1,) * 2).astype(np.float32)
    mask = np.ones(n, dtype=bool) if share is None else rng.random(n) < share
    mask[0] = True
    allowed = np.empty(0, np.uint8) if share is None else np.packbits(mask, bitorder="little")
    both = [np.bitwise_count(part).sum(axis=1) for part in (codes ^ query, codes & query)]
    levels, k = table[both[0], both[1]], min(k, int(mask.sum()))
    positions = np.flatnonzero(mask)
    positions = positions[np.argsort(levels[mask], kind="stable")[:k]]
    found = kernels.nearest_by_levels(tiles, n, query, table, allowed, k)
    assert np.array_equal(found[1], positions)
    assert np.array_equal(found[0], levels[positions])


def test_what_does_not_fit_is_an_error(kernels):
    words, tiles = np.zeros((5, 2), dtype=np.uint64), np.zeros(shape_of(2048, 128), dtype=np.uint64)
    table, all_allowed = np.zeros((129, 129), dtype=np.float32), np.empty(0, dtype=np.uint8)
    for call in (
        lambda: kernels.write_tiles(words, tiles, 2044),
        lambda: kernels.write_tiles(words, tiles, -1),
        lambda: kernels.write_tiles(words[:, :1].copy(), tiles, 0),
        lambda: kernels.row_distances(words, words[0, :1]),
        lambda: kernels.table_sums(np.zeros((5, 2), np.uint8), np.zeros((3, 256))),
        lambda: kernels.nearest_by_levels(tiles, 2049, words[0], table, all_allowed, 1),
        lambda: kernels.nearest_by_levels(tiles, 20, words[0], table, np.zeros(2, np.uint8), 1),
        lambda: kernels.nearest_by_levels(tiles, 20, words[0], table, all_allowed, 21),
        lambda: kernels.nearest_by_levels(tiles, 20, words[0, :1], table, all_allowed, 1),
    ):
        with pytest.raises(ValueError, match="wrong argument of a kernel"):
            call()
