"""The k nearest codes of the lists that a query probes.

The distances to the codes of its first lists are all written down (``lookup.py``), and a radius that holds a few more
than k of them is found by counting. From then on, only codes within the radius are written down. Whenever their memory
is full, the k nearest stay and the radius shrinks; of equal distances, the lower positions stay. While a list is
scanned, as many blocks of the next one are prefetched; these may be addresses beyond the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel, popcount, trailing_zeros, use_wide_registers
from autojacobin.search.kernels.lookup import CODES_PER_BLOCK, count_sums, mark_row, measure_block
from autojacobin.search.kernels.selection import count_up_to, kth_smallest

# What correctness needs
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_UNBOUNDED = np.int64(2**62)
_LARGEST_SUM = np.int64(2**16 - 1)
_LARGEST_INT32 = np.int32(2**31 - 1)
_MOST_ROWS = 2**16 - 1  # of sums that can be counted

# What tunes the search
_FIRST_CODES = 2048  # of a query, which are all written down
_GUESS_PER_BYTE = 128  # of the first radius
_FEWEST_MORE = 128  # codes beyond k that are written down before the radius shrinks


@kernel
def map_allowed(bitmap: Any, slots: Any, words: Any) -> None:
    """Write a bitmap of positions in the order of lists; ``words`` may have bits already."""
    for i in range(len(bitmap)):
        rest = bitmap[i]
        while rest:
            position = (i << 6) + np.int64(trailing_zeros(rest))
            rest &= rest - np.uint64(1)
            slot = slots[position]
            words[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)


@kernel
def count_allowed(words: Any, bounds: Any, counts: Any) -> None:
    """Write how many bits each list has in a bitmap in the order of lists."""
    for label in range(len(counts)):
        first, last, count = bounds[label], bounds[label + 1], np.int64(0)
        for block in range(first >> 6, (last + 63) >> 6):
            count += np.int64(popcount(words[block] & _codes_between(block, first, last)))
        counts[label] = count


@kernel
def scan_lists(
    store: Any, bounds: Any, positions: Any, allowed: Any, tables: Any, factors: Any, probes: Any, starts: Any, k: int,
    found: Any, nearest: Any,
) -> None:  # fmt: skip
    """Write the whole distances and the positions of the ``k`` nearest codes of each query, in any order.

    ``store`` holds the blocks and the offsets. List l is the codes from bounds[l] to bounds[l + 1] of them.
    ``allowed`` is a bitmap of these codes, empty if all count, and the number of allowed codes in each list. Probes
    below 0 are left out. Missing codes have position -1.
    """
    use_wide_registers()
    blocks, offsets = store
    bitmap, n_allowed = allowed
    filtered = len(bitmap) > 0
    n_queries, n_probes = probes.shape
    trigger = k + max(k, _FEWEST_MORE)
    distances = np.empty(trigger + 2 * CODES_PER_BLOCK, dtype=np.int32)
    slots = np.empty(trigger + CODES_PER_BLOCK, dtype=np.int64)
    most_rows = min(max(_FIRST_CODES, 4 * k) // CODES_PER_BLOCK, _MOST_ROWS)
    sums = np.empty((most_rows, CODES_PER_BLOCK), dtype=np.uint16)
    firsts = np.empty(most_rows, dtype=np.int64)
    for q in range(n_queries):
        factor = np.int64(factors[q])
        rows, p = 0, 0
        while p < n_probes:
            number = np.int64(probes[q, p])
            if number >= 0 and (not filtered or n_allowed[number] > 0):
                first, last = bounds[number], bounds[number + 1]
                if rows + ((last + 63) >> 6) - (first >> 6) > most_rows:
                    break
                start = min(np.int64(starts[q, p]), _LARGEST_SUM)
                ahead = (bounds[_next_list(probes, q, p)] >> 6) - (first >> 6)
                for block in range(first >> 6, (last + 63) >> 6):
                    valid = _codes_between(block, first, last)
                    if filtered:
                        valid &= bitmap[block]
                    if valid:
                        measure_block(
                            blocks, offsets, block, valid, tables, q, factor, start, 0, sums, rows, block + ahead
                        )
                        firsts[rows] = block << 6
                        rows += 1
            p += 1
        count, radius = 0, _first_radius(sums, rows, k, _GUESS_PER_BYTE * tables.shape[1])
        if radius == _UNBOUNDED:
            p = 0
        else:
            for row in range(rows):
                near = mark_row(sums, row, radius)
                count = _append(near, sums, row, np.int64(0), firsts[row], distances, slots, count)
                if count >= trigger:
                    radius = np.int64(keep_nearest_slots(distances, slots, count, k, positions))
                    count = k
        for later in range(p, n_probes):
            number, start = np.int64(probes[q, later]), np.int64(starts[q, later])
            if number < 0 or start > radius or (filtered and n_allowed[number] == 0):
                continue
            first, last = bounds[number], bounds[number + 1]
            ahead = (bounds[_next_list(probes, q, later)] >> 6) - (first >> 6)
            for block in range(first >> 6, (last + 63) >> 6):
                valid = _codes_between(block, first, last)
                if filtered:
                    valid &= bitmap[block]
                limit = min(radius - start, _LARGEST_SUM)
                if valid == 0 or limit < 0:
                    continue
                near = measure_block(
                    blocks, offsets, block, valid, tables, q, factor, np.int64(0), limit, sums, 0, block + ahead
                )
                count = _append(near, sums, 0, start, block << 6, distances, slots, count)
                if count >= trigger:
                    radius = np.int64(keep_nearest_slots(distances, slots, count, k, positions))
                    count = k
        if count > k:
            keep_nearest_slots(distances, slots, count, k, positions)
            count = k
        for i in range(count):
            found[q, i], nearest[q, i] = distances[i], positions[slots[i]]
        for i in range(count, k):
            found[q, i], nearest[q, i] = _LARGEST_INT32, -1


@kernel(inline=True)
def _next_list(probes: Any, q: int, p: int) -> Any:
    """The list after the p-th of a query, which may be the first of the next query; any if there is none."""
    n_queries, n_probes = probes.shape
    if p + 1 < n_probes and probes[q, p + 1] >= 0:
        return np.int64(probes[q, p + 1])
    return max(np.int64(probes[min(q + 1, n_queries - 1), 0]), 0)


@kernel(inline=True)
def _codes_between(block: int, first: int, last: int) -> Any:
    """Bitmap of the codes of a block that are between ``first`` and ``last``."""
    valid, place = _ALL, block << 6
    if place < first:
        valid &= _ALL << np.uint64(first - place)
    if place + 64 > last:
        valid &= _ALL >> np.uint64(place + 64 - last)
    return valid


@kernel(inline=True)
def _append(near: Any, sums: Any, row: int, start: Any, place: int, distances: Any, slots: Any, count: Any) -> Any:
    """Write down the marked codes of a row; gives their new number."""
    count = np.uint64(count)
    while near:
        i = trailing_zeros(near)
        near &= near - np.uint64(1)
        distances[count] = np.int32(start + np.int64(sums[np.uint64(row), i]))
        slots[count] = place + np.int64(i)
        count += np.uint64(1)
    return np.int64(count)


@kernel(inline=True)
def _first_radius(sums: Any, rows: int, k: int, guess: int) -> Any:
    """Radius that ``k`` sums or a few more do not exceed, from a guess on; unbounded if there are too few."""
    if CODES_PER_BLOCK * rows < k:
        return _UNBOUNDED
    low, high = np.int64(0), min(np.int64(guess), _LARGEST_SUM - 1)
    while count_sums(sums, rows, high) < k:
        if high == _LARGEST_SUM - 1:
            return _UNBOUNDED
        low, high = high + 1, min(2 * high, _LARGEST_SUM - 1)
    while low < high:
        middle = (low + high) >> 1
        within = count_sums(sums, rows, middle)
        enough = within >= k  # no branch: the CPU could not predict it
        low, high = low if enough else middle + 1, middle if enough else high
        if enough and within <= k + (k >> 2) + _FEWEST_MORE // 8:
            break
    return high


@kernel(inner=True)
def keep_nearest_slots(distances: Any, slots: Any, count: int, k: int, positions: Any) -> Any:
    """Move the ``k`` nearest of ``count`` codes to the front, and give the distance of the k-th.

    Of equal distances, those stay whose slots have the lower positions; without positions, the lower slots do. The
    memory must exceed ``count`` by 64.
    """
    use_wide_registers()
    radius = kth_smallest(distances, count, k)
    within, below = count_up_to(distances, count, radius), count_up_to(distances, count, np.int32(radius - 1))
    last, room = np.int64(-1), k - below
    if within > k:
        ties, n_ties = np.empty(within - below + CODES_PER_BLOCK, dtype=np.int64), 0
        for i in range(count):
            if distances[i] == radius:
                ties[n_ties] = slots[i] if positions is None else positions[slots[i]]
                n_ties += 1
        last = kth_smallest(ties, n_ties, k - below)
        for i in range(n_ties):
            room -= ties[i] < last
    kept = np.uint64(0)
    for i in range(np.uint64(count)):
        # written in any case and then counted or not: the CPU would mispredict half of the branches
        distance, slot = distances[i], slots[i]
        distances[kept], slots[kept] = distance, slot
        stays = distance <= radius
        if within > k and distance == radius:
            place = slot if positions is None else np.int64(positions[slot])
            stays = place < last or (place == last and room > 0)  # two codes of a vector have one position
            room -= place == last
        kept += np.uint64(stays)
    return radius
