"""Rows that may be among the nearest, from a matrix product with an error bound (see ``search/truth.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel


@kernel
def keep_near(dots: Any, lowered: Any, spread: Any, first: int, queries: Any, found: Any, reached: Any) -> None:
    """Add the columns of ``dots`` that may be near to the candidates of some queries.

    ``first`` is the id of column 0, ``found`` the tuple (slack, limits, counts, low, high, ids). ``reached`` holds the
    column at which each query goes on, and afterwards how far it came: not to the end if its memory is full.
    """
    slack, limits, counts, low, high, ids = found
    columns, capacity = dots.shape[1], ids.shape[1]
    for q in queries:
        limit, count, column = limits[q], counts[q], reached[q]
        while column < columns and count < capacity:
            end = min(column + 64, columns)
            near = False
            # numba checks signed indices for counting from the end; only with unsigned ones is the loop vectorised
            for j in range(np.uint64(column), np.uint64(end)):
                near |= lowered[j] - dots[q, j] <= limit
            if not near:
                column = end
            while column < end and count < capacity:
                value = lowered[column] - dots[q, column]
                if value <= limit:
                    low[q, count], ids[q, count] = value, first + column
                    high[q, count] = value + (spread[column] + slack[q]) if value > -np.inf else np.inf
                    count += 1
                column += 1
        counts[q], reached[q] = count, column
