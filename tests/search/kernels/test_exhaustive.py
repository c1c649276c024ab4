"""Blocks of 64 codes against a radius, by the instructions of several machines."""

import numba
import numpy as np
import pytest

from autojacobin import Codes
from autojacobin.search.kernels import exhaustive, lookup
from autojacobin.search.tiles import Tiles


def sums_of(block, tables):
    """Sums of the entries for each four bits of codes, which are columns of words."""
    parts = [(block[g // 16] >> np.uint64(4 * (g % 16))) & np.uint64(15) for g in range(len(tables))]
    return sum(table[part].astype(int) for table, part in zip(tables, parts, strict=True))


@pytest.mark.parametrize("feature", ["avx512bw", "avx2", "ssse3", "neon", "none"])
def test_all_codes_within_the_radius_are_marked_and_few_others(feature, monkeypatch):
    """Vectors are as wide as on each machine; they are split where this one has narrower registers."""
    if feature == "neon" and not exhaustive.machine_has("neon"):
        pytest.skip("this machine has no neon")
    looked_up_alike = feature == "none" or exhaustive.machine_has(feature)
    monkeypatch.setattr(exhaustive, "machine_has", lambda name: name == feature)
    if looked_up_alike:
        monkeypatch.setattr(lookup, "machine_has", lambda name: name == feature)

    @numba.njit
    def near(words, t, first, asked, q, radius):
        return exhaustive._near(words, t, first, asked, q, radius)

    for n_bits in (64, 128, 192, 300):
        rng = np.random.default_rng(n_bits)
        codes = Codes.from_bits(rng.integers(0, 2, (2048, n_bits)))
        words = Tiles.from_codes(codes).words
        n_words, codes_per_tile = words.shape[1], words.shape[2] * words.shape[3]
        flat = words.reshape(len(words), n_words, codes_per_tile)
        query = rng.integers(0, 2**63, (1, n_words)).astype(np.uint64)
        asked = np.stack([~query, query])
        tables = rng.integers(0, 40, (16 * n_words, 16)).astype(np.uint8)
        for first in range(0, 256, 64):
            block = flat[0, :, first : first + 64]
            counts = np.bitwise_count(block ^ query.T).sum(axis=0)
            radius = int(np.sort(counts)[5])
            marks = near(words, 0, first, asked, 1, radius)
            assert [int(marks) >> i & 1 for i in range(64)] == (counts <= radius).tolist()

            table = np.rint(tables * (255 / np.median(sums_of(block, tables)))).astype(np.uint8)
            sums = sums_of(block, table)
            marks = near(words, 0, first, np.stack([~table, table]), 1, radius)
            assert 0 < (sums < 255).sum() < 64
            assert [int(marks) >> (8 * (i % 8) + i // 8) & 1 for i in range(64)] == (sums < 255).tolist()
