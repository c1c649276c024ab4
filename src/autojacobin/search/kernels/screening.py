"""Rows that may be among the nearest, from a matrix product with an error bound (see ``search/truth.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel


@kernel
def keep_near(
    dots: Any, lowered: Any, spread: Any, first: int, exact: bool, k: int, rows_from: int, rows_to: int, found: Any,
    reached: Any,
) -> None:  # fmt: skip
    """Add the columns of ``dots`` that may be near to the candidates of queries ``rows_from`` to ``rows_to``.

    ``first`` is the id of column 0, ``found`` the tuple (slack, limits, counts, low, high, ids). ``reached`` holds the
    column at which each query goes on, and afterwards how far it came: not to the end if more candidates remain than
    there is memory for, all of them within the error of the limit.
    """
    slack, limits, counts, low, high, ids = found
    columns = dots.shape[1]
    capacity = ids.shape[1]
    for q in range(rows_from, rows_to):
        limit, count, column = limits[q], counts[q], reached[q]
        stuck = False
        while column < columns and not stuck:
            end = min(column + 64, columns)
            near = False
            # numba checks signed indices for counting from the end; only with unsigned ones is the loop vectorised
            for j in range(np.uint64(column), np.uint64(end)):
                near |= lowered[j] - dots[q, j] <= limit
            if near:
                while column < end:
                    value = lowered[column] - dots[q, column]
                    if value < limit or (value == limit and not exact):
                        if count == capacity:
                            limit, count = remove_far(k, exact, q, limit, count, low, high, ids)
                            stuck = count > (k + capacity) // 2
                            if stuck:
                                break
                            continue  # the limit has changed, so the column is tested again
                        low[q, count] = value
                        high[q, count] = np.inf
                        if value > -np.inf:
                            high[q, count] = value if exact else value + (spread[column] + slack[q])
                        ids[q, count] = first + column
                        count += 1
                    column += 1
            else:
                column = end
        limits[q], counts[q], reached[q] = limit, count, column


@kernel(inner=True)
def _kth_smallest(values: Any, k: int) -> Any:
    """Give the ``k``-th smallest of a list of numbers, which is put into another order: Hoare's algorithm.

    np.partition gives the same, but numba takes 8 s to compile it.
    """
    wanted, low, high = k - 1, 0, len(values) - 1
    while low < high:
        pivot = values[(low + high) // 2]
        left, right = low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while pivot < values[right]:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if wanted <= right:
            high = right
        elif wanted >= left:
            low = left
        else:
            break
    return values[wanted]


@kernel
def remove_far(k: int, exact: bool, q: int, limit: Any, count: int, low: Any, high: Any, ids: Any) -> Any:
    """Lower the limit to the k-th smallest ``high``, and keep the candidates that may still be near, in their order."""
    limit = min(limit, _kth_smallest(high[q, :count].copy(), k))
    missing = k
    if exact:
        for c in range(count):
            missing -= low[q, c] < limit
    left = 0
    for c in range(count):
        if low[q, c] < limit or (low[q, c] == limit and (not exact or missing > 0)):
            if exact and low[q, c] == limit:
                missing -= 1
            low[q, left], high[q, left], ids[q, left] = low[q, c], high[q, c], ids[q, c]
            left += 1
    return limit, left
