"""The steps of a search in lists, one kernel at a time: what a search in one call is compared with."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from autojacobin import Codes
from autojacobin.search.kernels.list_scan import scan_lists
from autojacobin.search.kernels.lookup import make_tables, write_exact_weights

MISSING = 2**31 - 1


@dataclass
class ListQueries:
    """The lists that queries probe, and their distances as tables of whole numbers."""

    probes: Any
    starts: Any
    tables: Any
    factors: Any
    units: Any
    smallest: Any

    def __len__(self):
        return len(self.probes)

    def real(self, distances):
        if self.units is None:
            return distances
        real = (self.smallest[:, None] + self.units[:, None] * distances).astype(np.float32)
        real[distances == MISSING] = np.inf
        return real


def list_queries(weights, probes, constants, grid):
    """Queries of codes of residuals."""
    n, n_bits = weights.shape
    queries = ListQueries(
        probes, np.empty(probes.shape, dtype=np.int32), np.empty((n, -(-n_bits // 8), 2, 16), dtype=np.uint8),
        np.empty(n, dtype=np.int64), np.empty(n), np.empty(n),
    )  # fmt: skip
    floats, added = (np.ascontiguousarray(array, dtype=np.float32) for array in (weights, constants))
    make_tables(
        floats, added, probes, grid.low, grid.step, queries.tables, queries.factors, queries.starts, queries.units,
        queries.smallest,
    )  # fmt: skip
    return queries


def weighted_list_queries(queries, n_bits, probes):
    """Queries of codes that are compared as without lists."""
    n, n_bytes = len(queries), -(-n_bits // 8)
    bits, planes = (
        np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")[..., : 8 * n_bytes]
        for words in (queries.words, queries.planes)
    )
    weights = np.einsum("qtb,t->qb", planes, 2 ** np.arange(planes.shape[1])) if planes.size else np.ones_like(bits)
    values = np.arange(16)[:, None] >> np.arange(4) & 1  # of four bits
    differs = values != bits.reshape(n, n_bytes, 2, 1, 4)
    tables = (differs * weights.reshape(n, n_bytes, 2, 1, 4)).sum(axis=-1).astype(np.uint8)
    smallest = np.zeros(n) if queries.constants is None else queries.constants
    starts, factors = np.zeros(probes.shape, dtype=np.int32), np.zeros(n, dtype=np.int64)
    return ListQueries(probes, starts, tables, factors, queries.scales, smallest)


def codes_of(lists):
    """The codes in the order of their positions: in a block, code i is in column 2 i, and from 32 on in 2 i − 63."""
    slots = np.arange(lists.n)
    columns = np.where(slots % 64 < 32, 2 * (slots % 64), 2 * (slots % 64) - 63)
    packed = np.empty((lists.n, lists.blocks.shape[1]), dtype=np.uint8)
    packed[lists.positions] = lists.blocks[slots // 64, :, columns]
    return Codes(packed, lists.n_bits)


def query_weights(queries, origin, decoder):
    """Weights of bits that depend on the query alone, 2 (q − origin)·C'."""
    weights = np.empty((len(queries), len(decoder)), dtype=np.float32)
    write_exact_weights(queries, origin.astype(np.float32), np.ascontiguousarray(decoder, dtype=np.float32), weights)
    return weights


def rounded_weights(queries, origin, decoder):
    """The same as a search in lists takes them: from the whole numbers that queries and decoder are rounded to."""
    step, shifted = np.float64(np.abs(decoder).max()) / 127, (queries - origin).astype(np.float32)
    units = np.abs(shifted).max(axis=1).astype(np.float64) / 127
    units[units == 0] = 1
    asked = np.rint(shifted * (1 / units).astype(np.float32)[:, np.newaxis])
    products = asked.astype(np.int64) @ np.rint((decoder / step).astype(np.float32)).astype(np.int64).T
    return (2 * step * units).astype(np.float32)[:, np.newaxis] * products.astype(np.float32)


def nearest_in_lists(lists, queries, k, allowed=None):
    """Whole distances and positions of the nearest codes, equal distances by position; -1 where there are fewer."""
    distances, positions = np.empty((len(queries), k), dtype=np.int32), np.empty((len(queries), k), dtype=np.int64)
    some = allowed or (np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))
    scan_lists(
        (lists.blocks, lists.offsets), lists.bounds, lists.positions, tuple(some), queries.tables, queries.factors,
        queries.probes, queries.starts, k, distances, positions,
    )  # fmt: skip
    order = np.lexsort((positions, distances), axis=1)
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(positions, order, axis=1)
