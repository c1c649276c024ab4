"""A search in one call of compiled code: centres, tables, codes, candidates and vectors.

A *part* is a segment as a record: the addresses of its arrays, and their sizes (``prepared_search.Stored``). So one
compiled function searches any number of segments, and a call passes a handful of arrays.

Threads share the queries of a batch: each makes one call, which takes block after block of the queries from a counter.
They need Python, which one thread at a time can run, only to begin and to end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]

from autojacobin.core.compilation import intrinsic, kernel, part_of_others
from autojacobin.search.kernels.coarse_quantiser import CENTRES_PER_GROUP, cells_to_look_at, nearest_centres
from autojacobin.search.kernels.exhaustive import scan_tiles, write_query, write_sizes, write_tables
from autojacobin.search.kernels.l2 import measure, prefetch_bytes
from autojacobin.search.kernels.list_scan import keep_nearest_slots, scan_lists
from autojacobin.search.kernels.lookup import CODES_PER_BLOCK, make_tables, write_weights
from autojacobin.search.kernels.selection import LAST_ID, select_smallest

_PART = (
    "n", "codes", "offsets", "bounds", "positions", "allowed", "counts", "ids", "first_id", "rows", "vectors",
    "n_vectors", "row_bytes", "checked", "n_checked", "block_bytes",
)  # fmt: skip
_MODEL = (
    "width", "bytes_per_code", "n_lists", "points", "origin", "groups", "order", "norms", "n_groups", "n_steps",
    "means", "norms_of_means", "n_means", "in_cells", "largest", "matrix", "start", "shift", "n_rows", "n_bits",
    "n_level_bits", "n_words", "lanes", "columns", "copies", "decoded", "kind",
)  # fmt: skip
_REALS = ("step", "largest_norm", "low", "offset_step", "offset")
PART = np.dtype([(name, np.int64) for name in _PART])
"""What a part consists of. Addresses are 0 where there is no such array."""
MODEL = np.dtype([*((name, np.int64) for name in _MODEL), *((name, np.float64) for name in _REALS)])
"""What all parts share.

Of lists, the centres as ``Centres.arrays`` gives them, and the grid of the offsets. Of tiles, the numbers of bits, the
shape, a constant, and whether distances are those of decoded codes. The weights of the bits of a query are
2 (query − start)·matrix' + shift. ``kind`` is the type of the vectors, a place in ``KINDS``.
"""
KINDS: tuple[Any, ...] = None, np.uint8, np.float16, np.float32, np.float64
"""Types of vectors; the first is for no vectors."""

_PREFETCHED = 256  # bytes of a vector; the CPU notices by itself that others follow
_LARGEST_OF_LEVELS = 255  # whole weight of a bit of a level

_UINT8, _FLOAT16, _FLOAT32 = 1, 2, 3  # in KINDS
_UNLIKE_ALL = 3  # a query that is compared with all vectors

_nearest_centres, _scan_lists, _make_tables, _write_weights, _select_smallest = map(
    part_of_others, (nearest_centres, scan_lists, make_tables, write_weights, select_smallest)
)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_typing_context: Any, address: Any, like: Any) -> Any:
    """An address as a pointer to numbers of the type of ``like``."""
    kind = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(address, like), generate


@intrinsic  # type: ignore[untyped-decorator]
def _take(_typing_context: Any, counter: Any, step: Any) -> Any:
    """Add ``step`` to the only entry of ``counter``; gives what it was. Threads may do so at the same time."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, arguments[1], "monotonic")

    return types.int64(counter, step), generate


@kernel(inline=True)
def _parts_at(addresses: Any) -> Any:
    """The parts: given are their address and number, and the address of what they share."""
    return carray(_pointer(addresses[0], PART), (addresses[1],))


@kernel(inline=True)
def _models_at(addresses: Any) -> Any:
    """What the parts share, as the only entry of an array."""
    return carray(_pointer(addresses[2], MODEL), (1,))


# Lists


@kernel(inner=True)
def _choose_lists(queries: Any, addresses: Any, rule: Any, shares: Any, lists: Any, squared: Any) -> None:
    """Write the lists that each query scans, nearest first, and the squared distances of their centres; then -1.

    ``rule`` and ``shares`` are those of :func:`~autojacobin.search.kernels.coarse_quantiser.nearest_centres`.
    """
    model = _models_at(addresses)[0]
    n_lists, width, n_steps = model.n_lists, model.width, model.n_steps
    n_groups, n_means = model.n_groups, model.n_means
    points = carray(_pointer(model.points, np.float32), (n_lists, width))
    origin = carray(_pointer(model.origin, np.float32), (width,))
    groups = carray(_pointer(model.groups, np.uint8), (n_groups, n_steps, 4, 16, 4))
    order = carray(_pointer(model.order, np.int32), (n_lists,))
    norms = carray(_pointer(model.norms, np.float32), (n_groups * CENTRES_PER_GROUP,))
    means = carray(_pointer(model.means, np.uint8), (n_means, n_steps, 4, 16, 4))
    norms_of_means = carray(_pointer(model.norms_of_means, np.float32), (n_means * CENTRES_PER_GROUP,))
    n_cells = cells_to_look_at(n_lists, lists.shape[1]) if model.in_cells else 0
    rounding = model.step, model.largest, model.largest_norm
    cells = means, norms_of_means, n_cells
    _nearest_centres(queries, points, origin, groups, order, norms, rounding, cells, rule, shares, lists, squared)


@kernel
def search_lists(
    queries: Any, doubles: Any, addresses: Any, coding: Any, rule: Any, shares: Any, most: int, lists: Any,
    squared: Any, n_candidates: int, wider: Any, counter: Any, step: int, most_blocks: int, distances: Any,
    numbers: Any, unlike: Any, doubtful: Any,
) -> tuple[int, int, int, bool]:  # fmt: skip
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
    (``prepared_search.Wider``). Of these, ``unlike`` marks those that are to be compared with all vectors.

    Queries are taken from ``counter`` in blocks of ``step``, at most so many blocks. After a block with doubtful
    vectors no other is begun: ``doubtful`` then has part and row of those whose bytes were not checked, or whose
    distance is not finite. Gives the number of these, the numbers of queries with too few results and of marked ones,
    and whether there may be more blocks.
    """
    n, k = numbers.shape
    n_doubtful, n_short, n_unlike, n_blocks = 0, 0, 0, 0
    while n_blocks < most_blocks and n_doubtful == 0:
        first = _take(counter, step)
        if first >= n:
            return n_doubtful, n_short, n_unlike, False
        last, n_blocks = min(first + step, n), n_blocks + 1
        asked = queries[first:last]
        if k == 0:
            _choose_lists(asked, addresses, rule, shares, lists[first:last], squared[first:last])
            continue
        if lists.shape[0] > 0:
            chosen, gaps = lists[first:last], squared[first:last]
        else:
            chosen, gaps = _chosen_lists(asked, addresses, rule, shares, most)
        found = distances[first:last], numbers[first:last]
        n_doubtful = _search_block(
            asked, doubles, addresses, coding, first, chosen, gaps, n_candidates, found, doubtful, 0
        )
        if unlike.shape[0] > 0:
            n_doubtful = _search_wider(
                asked, doubles, addresses, coding, first, wider, found, unlike, doubtful, n_doubtful
            )
            n_unlike += unlike[first:last].sum()
        for q in range(first, last):
            n_short += numbers[q, k - 1] < 0
    return n_doubtful, n_short, n_unlike, True


@kernel(inner=True)
def _search_block(
    queries: Any, doubles: Any, addresses: Any, coding: Any, first: int, lists: Any, squared: Any, n_candidates: int,
    found: Any, doubtful: Any, n_doubtful: int,
) -> int:  # fmt: skip
    """Search the chosen lists of some queries, of which the first has this number; gives how many are doubtful now."""
    parts, model = _parts_at(addresses), _models_at(addresses)[0]
    tables, factors, starts, facts = _tables_of(queries, model, coding, first, lists, squared)
    wanted = max(n_candidates, found[0].shape[1])
    candidates = _candidates_in_lists(parts, model, tables, factors, lists, starts, wanted)
    if n_candidates == 0:
        _order_codes(candidates, facts, found[0], found[1])
        return n_doubtful
    exact = _in_float64(queries, doubles, first)
    return _order_vectors(exact, parts, model.kind, candidates, found[0], found[1], doubtful, n_doubtful)


@kernel(inner=True)
def _search_wider(
    queries: Any, doubles: Any, addresses: Any, coding: Any, first: int, wider: Any, found: Any, unlike: Any,
    doubtful: Any, n_doubtful: int,
) -> int:  # fmt: skip
    """Search wider for the queries of a block that are unlike those that the index learned from."""
    middle, limits, rule, most, some, many = wider
    shares = np.empty(0)
    for q in range(queries.shape[0]):
        level = _level_of_unlike(queries, q, middle, found[0][q, 0], limits)
        n_candidates = 0 if level == _UNLIKE_ALL else (some if level == 1 else many)
        unlike[first + q] = level > 0 and n_candidates == 0
        if n_candidates > 0 and level > 0:
            one, place = queries[q : q + 1], (found[0][q : q + 1], found[1][q : q + 1])
            if level == 1:
                lists, squared = _chosen_lists(one, addresses, rule, shares, most)
            else:
                lists, squared = _chosen_lists(one, addresses, rule[:0], shares, _models_at(addresses)[0].n_lists)
            n_doubtful = _search_block(
                one, doubles, addresses, coding, first + q, lists, squared, n_candidates, place, doubtful, n_doubtful
            )
    return n_doubtful


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
def _in_float64(queries: Any, doubles: Any, first: int) -> Any:
    """Queries of a block in float64."""
    exact = np.empty(queries.shape)
    for q in range(queries.shape[0]):
        for j in range(queries.shape[1]):
            exact[q, j] = doubles[first + q, j] if doubles.shape[0] > 0 else queries[q, j]
    return exact


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
        decoder = carray(_pointer(model.matrix, np.float32), (n_bits, model.width))
        start = carray(_pointer(model.start, np.float32), (model.width,))
        weights = np.empty((n, n_bits), dtype=np.float32)
        _write_weights(queries, start, decoder, weights)
        _make_tables(weights, squared, lists, low, step, tables, factors, starts, facts[:, 0], facts[:, 1])
        return tables, factors, starts, facts
    sizes = np.empty(64 * words.shape[1], dtype=np.int32)
    halves = tables.reshape((n, 2 * n_bytes, 16))
    for q in range(n):
        write_sizes(words, planes, first + q, sizes)
        write_tables(sizes, halves, q)
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
        blocks = carray(_pointer(parts[s].codes, np.uint8), (n_blocks, n_bytes, CODES_PER_BLOCK))
        offsets = carray(_pointer(parts[s].offsets, np.uint8), (n_blocks * CODES_PER_BLOCK,))
        bounds = carray(_pointer(parts[s].bounds, np.int64), (n_lists + 1,))
        positions = carray(_pointer(parts[s].positions, np.int32), (size,))
        bitmap = carray(_pointer(parts[s].allowed, np.uint64), (n_blocks if filtered else 0,))
        counts = carray(_pointer(parts[s].counts, np.int64), (n_lists if filtered else 0,))
        _scan_lists(
            (blocks, offsets), bounds, positions, (bitmap, counts), tables, factors, lists, starts, kept, found[s],
            places[s],
        )  # fmt: skip
        if model.copies > 1:
            _leave_out_copies(found[s], places[s])
    return _nearest_of_parts(parts, found, places, wanted)


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


# Tiles


@kernel
def search_tiles(
    queries: Any, doubles: Any, addresses: Any, coding: Any, asked: Any, rounded_to: int, n_candidates: int,
    distances: Any, numbers: Any, doubtful: Any,
) -> int:  # fmt: skip
    """Write the nearest vectors or codes of queries of float32 among all codes, as :func:`search_lists` does.

    ``asked`` is memory for what :func:`~autojacobin.search.kernels.exhaustive.scan_tiles` needs. ``rounded_to`` is the
    largest whole weight of a bit that is not one of a level, and 1 for the Hamming distance. Gives how many vectors are
    doubtful.
    """
    parts, model = _parts_at(addresses), _models_at(addresses)[0]
    n, n_parts, n_words = queries.shape[0], parts.shape[0], model.n_words
    wanted, facts = max(n_candidates, numbers.shape[1]), np.empty((n, 2))
    found = np.empty((n_parts, n, wanted), dtype=np.int32)
    places = np.empty((n_parts, n, wanted), dtype=np.int64)
    sizes, tables = np.zeros(64 * n_words, dtype=np.int32), np.empty((n, 16 * n_words, 16), dtype=np.uint16)
    for q in range(n):
        _write_sizes(queries, q, model, coding, rounded_to, sizes, facts)
        write_query(sizes, tables, asked, q)
    for s in range(n_parts):
        codes = model.lanes * model.columns
        n_tiles = (parts[s].n + codes - 1) // codes
        tiles = carray(_pointer(parts[s].codes, np.uint64), (n_tiles, n_words, model.lanes, model.columns))
        n_allowed = (parts[s].n + 7) // 8 if parts[s].allowed else 0
        allowed = carray(_pointer(parts[s].allowed, np.uint8), (n_allowed,))
        scan_tiles(tiles, parts[s].n, allowed, tables, asked, wanted, found[s], places[s])
    candidates = _nearest_of_parts(parts, found, places, wanted)
    if n_candidates > 0:
        exact = _in_float64(queries, doubles, 0)
        return _order_vectors(exact, parts, model.kind, candidates, distances, numbers, doubtful, 0)
    _order_codes(candidates, facts, distances, numbers)
    return 0


@kernel(inner=True)
def _write_sizes(
    queries: Any, q: int, model: Any, coding: Any, rounded_to: int, sizes: Any, facts: Any
) -> None:  # fmt: skip
    """Write what a set bit of a code adds to the distance, in whole numbers; the opposite of what a clear bit adds.

    Where the queries have no coding, weights are rounded as in :mod:`autojacobin.search.decoded`.
    """
    words, planes, scales, constants = coding
    if words.shape[0] > 0:
        write_sizes(words, planes, q, sizes)
        facts[q, 0], facts[q, 1] = scales[q], constants[q]
        return
    n_bits, n_rows, n_levels = model.n_bits, model.n_rows, model.n_level_bits
    matrix = carray(_pointer(model.matrix, np.float32), (n_rows, model.width))
    start = carray(_pointer(model.start, np.float32), (model.width,))
    shift = carray(_pointer(model.shift, np.float32), (n_bits,))
    weights = np.zeros((1, n_bits), dtype=np.float32)
    _write_weights(queries[q : q + 1], start, matrix, weights[:, :n_rows])
    unit, constant = 0.0, model.offset
    for b in range(n_bits):
        weights[0, b] += shift[b]
        largest = _LARGEST_OF_LEVELS if b >= n_bits - n_levels else rounded_to
        unit = max(unit, abs(np.float64(weights[0, b])) / largest)
    if not 0 < unit < np.inf:  # NaN too
        unit = 1.0
    total = np.int64(0)
    for b in range(n_bits):
        whole = np.int64(1)
        if rounded_to > 1:
            real = np.rint(abs(np.float64(weights[0, b])) / unit)
            whole = np.int64(real if real <= _LARGEST_OF_LEVELS else 0.0)  # not for NaN
        sizes[b] = -whole if weights[0, b] >= 0 else whole
        total += whole
    facts[q, 0], facts[q, 1] = unit if rounded_to > 1 else 1.0, 0.0
    if model.decoded:
        for j in range(model.width):
            constant += (np.float64(queries[q, j]) - np.float64(start[j])) ** 2
        facts[q, 0], facts[q, 1] = 2 * unit, constant - unit * total


# What was found


@kernel(inner=True)
def _nearest_of_parts(parts: Any, found: Any, places: Any, wanted: int) -> Any:
    """Numbers, parts, positions and whole distances of the nearest codes of all parts; numbers are -1 if fewer."""
    n_parts, n, kept = found.shape
    candidates, capacity = np.empty((4, n, wanted), dtype=np.int64), n_parts * kept + CODES_PER_BLOCK
    whole, slots, ids = np.empty(capacity, np.int32), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    for q in range(n):
        count = 0
        for s in range(n_parts):
            for c in range(kept):
                if places[s, q, c] < 0:  # and so are all that follow
                    break
                whole[count], slots[count] = found[s, q, c], s * kept + c
                ids[s * kept + c] = _id_at(parts, s, places[s, q, c])
                count += 1
        if count > wanted:
            keep_nearest_slots(whole, slots, count, wanted, ids)
            count = wanted
        for c in range(count):
            s = slots[c] // kept
            candidates[0, q, c], candidates[1, q, c] = ids[slots[c]], s
            candidates[2, q, c], candidates[3, q, c] = places[s, q, slots[c] - s * kept], whole[c]
            row_bytes = parts[s].row_bytes  # of the vector, which will be needed soon
            start = parts[s].vectors + _row_at(parts, s, candidates[2, q, c]) * row_bytes
            prefetch_bytes(start, min(row_bytes, _PREFETCHED))
        for c in range(count, wanted):
            candidates[0, q, c] = -1
    return candidates


@kernel(inner=True)
def _order_codes(candidates: Any, facts: Any, distances: Any, numbers: Any) -> None:
    """Write real distances and numbers of the nearest candidates by whole distance; infinity and -1 if fewer."""
    wanted = numbers.shape[1]
    values, names = np.empty((1, candidates.shape[2])), np.empty((1, candidates.shape[2]), dtype=np.int64)
    for q in range(numbers.shape[0]):
        for c in range(candidates.shape[2]):
            missing = candidates[0, q, c] < 0
            names[0, c], values[0, c] = candidates[0, q, c], np.inf if missing else candidates[3, q, c]
        _select_smallest(values, names, wanted, distances[q : q + 1], numbers[q : q + 1])
        for i in range(wanted):
            distances[q, i] = np.float32(facts[q, 1] + facts[q, 0] * distances[q, i])


@kernel(inner=True)
def _order_vectors(
    queries: Any, parts: Any, kind: int, candidates: Any, distances: Any, numbers: Any, doubtful: Any, n_doubtful: int
) -> int:  # fmt: skip
    """Write distances and numbers of the nearest candidates by their vectors; infinity and -1 where there are fewer.

    Gives how many vectors are doubtful now.
    """
    wanted = numbers.shape[1]
    squared = np.empty((1, candidates.shape[2]))
    names, rows = np.empty((1, candidates.shape[2]), np.int64), np.empty((1, candidates.shape[2]), np.int64)
    for q in range(numbers.shape[0]):
        for c in range(candidates.shape[2]):
            names[0, c], squared[0, c] = candidates[0, q, c], np.inf
        scratch = distances[q : q + 1], numbers[q : q + 1]
        for s in range(parts.shape[0]):
            for c in range(candidates.shape[2]):
                here = names[0, c] >= 0 and candidates[1, q, c] == s
                rows[0, c] = _row_at(parts, s, candidates[2, q, c]) if here else -1
            n_doubtful = _add_unchecked(parts, s, rows, doubtful, n_doubtful)
            if kind == _UINT8:
                _measure_part(queries, q, parts, s, np.uint8, rows, squared, scratch)
            elif kind == _FLOAT16:
                _measure_part(queries, q, parts, s, np.uint16, rows, squared, scratch)
            elif kind == _FLOAT32:
                _measure_part(queries, q, parts, s, np.float32, rows, squared, scratch)
            else:
                _measure_part(queries, q, parts, s, np.float64, rows, squared, scratch)
            for c in range(rows.shape[1]):
                if rows[0, c] >= 0 and not squared[0, c] < np.inf:
                    doubtful[0, n_doubtful], doubtful[1, n_doubtful] = s, rows[0, c]
                    n_doubtful += 1
        _select_smallest(squared, names, wanted, *scratch)
        for i in range(wanted):
            distances[q, i] = math.sqrt(distances[q, i])
            if numbers[q, i] == LAST_ID:  # nothing was comparable
                numbers[q, i] = -1
    return n_doubtful


@kernel(inline=True)
def _id_at(parts: Any, s: int, position: int) -> Any:
    if parts[s].ids == 0:
        return parts[s].first_id + position
    return carray(_pointer(parts[s].ids, np.int64), (parts[s].n,))[position]


@kernel(inline=True)
def _row_at(parts: Any, s: int, position: int) -> Any:
    if parts[s].rows == 0:
        return position
    return np.int64(carray(_pointer(parts[s].rows, np.uint32), (parts[s].n,))[position])


@kernel(inner=True)
def _add_unchecked(parts: Any, s: int, rows: Any, doubtful: Any, n_doubtful: int) -> int:
    """Write which rows of a part have bytes that were not checked; gives the number of doubtful ones so far."""
    if parts[s].checked != 0:
        checked = carray(_pointer(parts[s].checked, np.uint8), (parts[s].n_checked,))
        row_bytes, block_bytes = parts[s].row_bytes, parts[s].block_bytes
        for c in range(rows.shape[1]):
            start = rows[0, c] * row_bytes
            for block in range(start // block_bytes, (start + row_bytes - 1) // block_bytes + 1):
                if start >= 0 and checked[block] == 0:
                    doubtful[0, n_doubtful], doubtful[1, n_doubtful] = s, rows[0, c]
                    n_doubtful += 1
                    break
    return n_doubtful


@kernel(inner=True)
def _measure_part(
    queries: Any, q: int, parts: Any, s: int, like: Any, rows: Any, squared: Any, scratch: Any
) -> None:  # fmt: skip
    """Write squared distances to rows of a part."""
    vectors = carray(_pointer(parts[s].vectors, like), (parts[s].n_vectors, queries.shape[1]))
    measure(queries[q : q + 1], vectors, rows, squared, scratch)


@kernel
def mark_unlike(queries: Any, middle: Any, distances: Any, limits: Any, unlike: Any) -> int:
    """Write how unlike those that an index learned from queries are, from 0 to 3; gives the sum."""
    total = 0
    for q in range(queries.shape[0]):
        unlike[q] = _level_of_unlike(queries, q, middle, distances[q, 0], limits)
        total += unlike[q]
    return total


@kernel(inner=True, reassociate=True)
def _level_of_unlike(queries: Any, q: int, middle: Any, distance: float, limits: Any) -> int:
    """How unlike the others a query is, by the distance of its nearest neighbour and its distance to the middle.

    ``limits`` are two of the first, and then two of the square of the second.
    """
    square, level = 0.0, 0
    for j in range(queries.shape[1]):
        gap = np.float64(queries[q, j]) - np.float64(middle[j])
        square += gap * gap
    if distance > limits[0] or square < limits[2]:
        level = 1
    if distance > limits[1]:
        level = 2
    return _UNLIKE_ALL if square < limits[3] else level
