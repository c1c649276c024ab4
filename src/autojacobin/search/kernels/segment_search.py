"""A search in one call of compiled code: centres, tables, codes, candidates and vectors.

Threads share the queries of a batch: each makes a call, which takes block after block of the queries from a counter.
They need Python, which one thread at a time can run, only after thousands of lists, so that it can handle an interrupt.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]

from autojacobin.core.compilation import intrinsic, kernel, part_of_others
from autojacobin.search.kernels.byte_products import CENTRES_PER_GROUP, write_weights
from autojacobin.search.kernels.coarse_quantiser import cells_to_look_at, nearest_centres
from autojacobin.search.kernels.list_scan import scan_lists
from autojacobin.search.kernels.lookup import CODES_PER_BLOCK, make_tables
from autojacobin.search.kernels.parts import (
    in_float64,
    models_at,
    nearest_of_parts,
    order_codes,
    order_vectors,
    parts_at,
    pointer,
)

_nearest_centres, _scan_lists, _make_tables = map(part_of_others, (nearest_centres, scan_lists, make_tables))


@intrinsic  # type: ignore[untyped-decorator]
def _take(_typing_context: Any, counter: Any, step: Any) -> Any:
    """Add ``step`` to the only entry of ``counter``; gives what it was. Threads may do so at the same time."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, arguments[1], "monotonic")

    return types.int64(counter, step), generate


# Lists


@kernel(inner=True)
def _choose_lists(queries: Any, addresses: Any, rule: Any, shares: Any, lists: Any, squared: Any) -> None:
    """Write the lists that each query scans, nearest first, and the squared distances of their centres; then -1.

    ``rule`` and ``shares`` are those of :func:`~autojacobin.search.kernels.coarse_quantiser.nearest_centres`.
    """
    model = models_at(addresses)[0]
    n_lists, width, n_steps = model.n_lists, model.width, model.n_steps
    n_groups, n_means = model.n_groups, model.n_means
    points = carray(pointer(model.points, np.float32), (n_lists, width))
    origin = carray(pointer(model.origin, np.float32), (width,))
    groups = carray(pointer(model.groups, np.uint8), (n_groups, n_steps, 4, 16, 4))
    order = carray(pointer(model.order, np.int32), (n_lists,))
    norms = carray(pointer(model.norms, np.float32), (n_groups * CENTRES_PER_GROUP,))
    means = carray(pointer(model.means, np.uint8), (n_means, n_steps, 4, 16, 4))
    norms_of_means = carray(pointer(model.norms_of_means, np.float32), (n_means * CENTRES_PER_GROUP,))
    n_cells = cells_to_look_at(n_lists, lists.shape[1]) if model.in_cells else 0
    rounding = model.step, model.largest, model.largest_norm, model.tolerance
    cells = means, norms_of_means, n_cells
    _nearest_centres(queries, points, origin, groups, order, norms, rounding, cells, rule, shares, lists, squared)


@kernel
def search_lists(
    queries: Any, doubles: Any, addresses: Any, coding: Any, rule: Any, shares: Any, most: int, lists: Any,
    squared: Any, n_candidates: int, wider: Any, counter: Any, step: int, enough: int, distances: Any, numbers: Any,
    unlike: Any, doubtful: Any,
) -> tuple[int, int, bool]:  # fmt: skip
    """Write the nearest vectors or codes of queries of float32, in the lists that they scan.

    ``doubles`` are the queries in float64, empty if they are the same numbers. ``addresses`` are those of the segments
    and of what they share, records of ``PART`` and ``MODEL``: numba takes long to find the type of records that are
    passed to it. ``coding`` has words, planes, scales and constants of the queries, all empty if codes are of
    residuals. A query scans at most ``most`` lists, chosen by ``rule`` and ``shares``, or ``lists`` if it has rows.
    ``squared`` are the squared distances of their centres. If ``numbers`` has no columns, nothing is searched for, and
    the chosen lists are written there.

    So many candidates are ordered by their vectors; if they are 0, codes are ordered. Equal distances are in the order
    of numbers. Where there are too few, distances are infinite and numbers -1.

    ``wider`` says which queries are unlike those that the index learned from, and how they are searched again
    (``probing.Wider``). Of these, ``unlike`` marks those that are to be compared with all vectors.

    Queries are taken from ``counter`` in blocks of ``step``. No block is begun after ``enough`` lists were scanned, or
    after a block with doubtful vectors: ``doubtful`` then has part and row of those whose bytes were not checked, or
    whose distance is not finite. Gives the number of these, the number of queries with too few results, and whether
    there may be more blocks.
    """
    n, k = numbers.shape
    n_doubtful, n_short, n_scanned = 0, 0, 0
    while n_scanned < enough and n_doubtful == 0:
        first = _take(counter, step)
        if first >= n:
            return n_doubtful, n_short, False
        last = min(first + step, n)
        asked = queries[first:last]
        if k == 0:
            _choose_lists(asked, addresses, rule, shares, lists[first:last], squared[first:last])
            n_scanned += most * (last - first)
            continue
        if lists.shape[0] > 0:
            chosen, gaps = lists[first:last], squared[first:last]
        else:
            chosen, gaps = _chosen_lists(asked, addresses, rule, shares, most)
        n_scanned += chosen.size
        found = distances[first:last], numbers[first:last]
        n_doubtful = _search_block(
            asked, doubles, addresses, coding, first, chosen, gaps, n_candidates, found, doubtful, 0
        )
        if unlike.shape[0] > 0:
            n_doubtful, n_more = _search_wider(
                asked, doubles, addresses, coding, first, wider, found, unlike, doubtful, n_doubtful
            )
            n_scanned += n_more
        for q in range(first, last):
            n_short += numbers[q, k - 1] < 0
    return n_doubtful, n_short, True


@kernel(inner=True)
def _search_block(
    queries: Any, doubles: Any, addresses: Any, coding: Any, first: int, lists: Any, squared: Any, n_candidates: int,
    found: Any, doubtful: Any, n_doubtful: int,
) -> int:  # fmt: skip
    """Search the chosen lists of some queries, of which the first has this number; gives how many are doubtful now."""
    parts, model = parts_at(addresses), models_at(addresses)[0]
    tables, factors, starts, facts = _tables_of(queries, model, coding, first, lists, squared)
    wanted = max(n_candidates, found[0].shape[1])
    candidates = _candidates_in_lists(parts, model, tables, factors, lists, starts, wanted)
    if n_candidates == 0:
        order_codes(candidates, facts, found[0], found[1])
        return n_doubtful
    exact = in_float64(queries, doubles, first)
    return order_vectors(exact, parts, model.kind, candidates, found[0], found[1], doubtful, n_doubtful)


@kernel(inner=True)
def _search_wider(
    queries: Any, doubles: Any, addresses: Any, coding: Any, first: int, wider: Any, found: Any, unlike: Any,
    doubtful: Any, n_doubtful: int,
) -> Any:  # fmt: skip
    """Search wider for the queries of a block that are unlike those that the index learned from.

    Gives how many vectors are doubtful now, and how many lists were scanned.
    """
    middle, far, central, rules, most, candidates = wider
    n_scanned, shares = 0, np.empty(0)
    for q in range(queries.shape[0]):
        level = _level_of_unlike(queries, q, middle, found[0][q, 0], far, central)
        n_candidates = (0, candidates[0], candidates[1], 0)[level]
        unlike[first + q] = level > 0 and n_candidates == 0
        if n_candidates == 0:
            continue
        one, place = queries[q : q + 1], (found[0][q : q + 1], found[1][q : q + 1])
        lists, squared = _chosen_lists(one, addresses, rules[level - 1], shares, most[level - 1])
        n_scanned += lists.size
        n_doubtful = _search_block(
            one, doubles, addresses, coding, first + q, lists, squared, n_candidates, place, doubtful, n_doubtful
        )
    return n_doubtful, n_scanned


@kernel
def mark_unlike(queries: Any, middle: Any, distances: Any, far: Any, central: Any, unlike: Any) -> int:
    """Write how unlike each query is to those that the index learned from, 0 to 3; gives the sum."""
    total = 0
    for q in range(queries.shape[0]):
        unlike[q] = _level_of_unlike(queries, q, middle, distances[q, 0], far, central)
        total += unlike[q]
    return total


@kernel(inner=True, reassociate=True)
def _level_of_unlike(queries: Any, q: int, middle: Any, distance: float, far: Any, central: Any) -> int:
    """How unlike those that the index learned from a query is, as ``probing.Wider`` says; 0 if it is like them."""
    square, level = 0.0, 0
    for j in range(queries.shape[1]):
        gap = np.float64(queries[q, j]) - np.float64(middle[j])
        square += gap * gap
    for i in range(3):
        if square < central[i] or (i < 2 and distance > far[i]):
            level = i + 1
    return level


@kernel(inner=True)
def _chosen_lists(queries: Any, addresses: Any, rule: Any, shares: Any, most: int) -> Any:
    """The lists that each query scans and their squared distances, with as many columns as are used."""
    n, used = queries.shape[0], 1
    lists, squared = np.empty((n, most), dtype=np.int32), np.empty((n, most), dtype=np.float32)
    _choose_lists(queries, addresses, rule, shares, lists, squared)
    for q in range(n):
        while used < most and lists[q, used] >= 0:
            used += 1
    return lists[:, :used].copy(), squared[:, :used].copy()


@kernel(inner=True)
def _tables_of(queries: Any, model: Any, coding: Any, first: int, lists: Any, squared: Any) -> Any:
    """Tables, factors and starts of the queries of a block, and what a whole distance is multiplied by and added to."""
    n, n_bytes = queries.shape[0], model.bytes_per_code
    facts = np.empty((n, 2))
    factors, starts = np.zeros(n, dtype=np.int64), np.zeros(lists.shape, dtype=np.int32)
    tables = np.empty((n, n_bytes, 2, 16), dtype=np.uint8)
    words, planes, scales, constants = coding
    if words.shape[0] == 0:
        n_bits, low, step = model.n_rows, model.low, model.offset_step
        n_groups = (n_bits + CENTRES_PER_GROUP - 1) // CENTRES_PER_GROUP
        decoder = carray(pointer(model.matrix, np.uint8), (n_groups, model.n_steps, 4, 16, 4))
        start = carray(pointer(model.start, np.float32), (model.width,))
        weights = np.empty((n, n_bits), dtype=np.float32)
        write_weights(queries, start, decoder, model.matrix_step, model.largest, weights)
        _make_tables(weights, squared, lists, low, step, tables, factors, starts, facts[:, 0], facts[:, 1])
        return tables, factors, starts, facts
    sizes = np.empty(64 * words.shape[1], dtype=np.int32)
    halves = tables.reshape((n, 2 * n_bytes, 16))
    for q in range(n):
        _write_sizes(words, planes, first + q, sizes)
        _write_tables(sizes, halves, q)
        facts[q, 0], facts[q, 1] = scales[first + q], constants[first + q]
    return tables, factors, starts, facts


@kernel(inner=True)
def _candidates_in_lists(
    parts: Any, model: Any, tables: Any, factors: Any, lists: Any, starts: Any, wanted: int
) -> Any:  # fmt: skip
    """Numbers, parts, positions and whole distances of the nearest codes, in any order; numbers are -1 if fewer."""
    n, n_parts = tables.shape[0], parts.shape[0]
    kept = wanted * model.copies  # each vector may be found once for each of its codes
    found = np.empty((n_parts, n, kept), dtype=np.int32)
    places = np.empty((n_parts, n, kept), dtype=np.int64)
    for s in range(n_parts):
        size, n_lists, n_bytes = parts[s].n, model.n_lists, model.bytes_per_code
        n_blocks, filtered = (size + CODES_PER_BLOCK - 1) // CODES_PER_BLOCK, parts[s].allowed != 0
        blocks = carray(pointer(parts[s].codes, np.uint8), (n_blocks, n_bytes, CODES_PER_BLOCK))
        offsets = carray(pointer(parts[s].offsets, np.uint8), (n_blocks * CODES_PER_BLOCK,))
        bounds = carray(pointer(parts[s].bounds, np.int64), (n_lists + 1,))
        positions = carray(pointer(parts[s].positions, np.int32), (size,))
        bitmap = carray(pointer(parts[s].allowed, np.uint64), (n_blocks if filtered else 0,))
        counts = carray(pointer(parts[s].counts, np.int64), (n_lists if filtered else 0,))
        _scan_lists(
            (blocks, offsets), bounds, positions, (bitmap, counts), tables, factors, lists, starts, kept, found[s],
            places[s],
        )  # fmt: skip
        if model.copies > 1:
            _leave_out_copies(found[s], places[s])
    return nearest_of_parts(parts, found, places, wanted)


@kernel(inner=True)
def _leave_out_copies(found: Any, places: Any) -> None:
    """Of several codes of one vector, keep the nearest; then -1. A hash table has the places that were seen."""
    n, kept = found.shape
    size = 1 << math.ceil(math.log2(2 * kept))
    table = np.empty(size, dtype=np.int32)
    for q in range(n):
        table[:], count = -1, 0
        for c in range(kept):
            place = places[q, c]
            if place < 0:  # and so are all that follow
                break
            at = np.int64((np.uint64(place) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & (size - 1)
            while table[at] >= 0 and places[q, table[at]] != place:
                at = (at + 1) & (size - 1)
            if table[at] >= 0:
                found[q, table[at]] = min(found[q, table[at]], found[q, c])
            else:
                table[at] = count
                found[q, count], places[q, count] = found[q, c], place
                count += 1
        places[q, count:] = -1


@kernel(inner=True)
def _write_sizes(queries: Any, planes: Any, q: int, sizes: Any) -> None:
    """Write what a set bit of a code adds to the distance of query ``q``; the opposite of what a clear bit adds."""
    for b in range(sizes.shape[0]):
        weight, shift = np.int64(0 if planes.shape[0] else 1), np.uint64(b & 63)
        for p in range(planes.shape[1]):
            weight += np.int64((planes[q, p, b >> 6] >> shift) & np.uint64(1)) << p
        sizes[b] = -weight if (queries[q, b >> 6] >> shift) & np.uint64(1) else weight


@kernel(inner=True)
def _write_tables(sizes: Any, tables: Any, q: int) -> None:
    """Write the tables of query ``q`` from what a set bit adds to its distances."""
    for g in range(tables.shape[1]):
        for value in range(16):
            total = 0
            for b in range(4):
                size = sizes[4 * g + b]
                total += max(size, 0) if value >> b & 1 else max(-size, 0)
            tables[q, g, value] = total
