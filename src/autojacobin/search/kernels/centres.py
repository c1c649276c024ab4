"""The nearest of some centres, from products of vectors and centres, and the means of groups of vectors.

With x·c from a matrix product, ‖x − c‖² − ‖x‖² = ‖c‖² − 2 x·c. The smallest of these is found in strips: a strip is
read one by one only if it holds something smaller than what was found before, and whether it does is tested by whole
vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel, use_wide_registers

__all__ = ["group_rows", "nearest_column", "nearest_columns", "write_means", "write_products"]

_STRIP, _NARROW_STRIP = 64, 16
_MOST_INSERTED = 100  # more numbers are sorted faster in another way


@kernel(reassociate=True)
def write_products(X: Any, centres: Any, products: Any) -> None:
    """Write the products of some vectors with all centres."""
    use_wide_registers()
    width = np.uint64(X.shape[1])
    for row in range(np.uint64(X.shape[0])):
        for c in range(np.uint64(centres.shape[0])):
            total = np.float32(0)
            for j in range(width):
                total += X[row, j] * centres[c, j]
            products[row, c] = total


@kernel
def nearest_column(products: Any, norms: Any, labels: Any) -> None:
    """Write the column with the smallest norm − 2 · product of each row; of equal ones the first."""
    use_wide_registers()
    columns = np.uint64(products.shape[1])
    for row in range(products.shape[0]):
        best, label = np.float32(np.inf), np.int64(0)
        first = np.uint64(0)
        while first < columns:
            end = min(first + np.uint64(_STRIP), columns)
            smaller = False
            for j in range(first, end):
                smaller |= norms[j] - np.float32(2) * products[row, j] < best
            if smaller:
                for j in range(first, end):
                    value = norms[j] - np.float32(2) * products[row, j]
                    if value < best:
                        best, label = value, np.int64(j)
            first = end
        labels[row] = label


@kernel
def nearest_columns(products: Any, norms: Any, squares: Any, values: Any, bits: Any, labels: Any, squared: Any) -> None:
    """Write the columns with the smallest square + norm − 2 · product of each row in order, and these sums.

    Of equal sums, the first columns are taken. Columns with an infinite norm do not count; where there are too few
    others, -1 is written. ``values`` is memory for a row of sums, and ``bits`` the same memory as integers: numbers of
    at least zero have the same order as their bits. ``values`` is filled up with infinity to a multiple of 64.
    """
    use_wide_registers()
    columns, wanted = products.shape[1], labels.shape[1]
    padded = np.uint64(values.shape[0])
    keys = np.empty(columns, dtype=np.int64)
    for row in range(products.shape[0]):
        square = squares[row]
        for j in range(np.uint64(columns)):
            value = (square - np.float32(2) * products[row, j]) + norms[j]
            values[j] = value if value > 0 else np.float32(0)
        low, high = bits[0], bits[0]
        for j in range(np.uint64(columns)):
            low, high = min(low, bits[j]), max(high, bits[j])
        while low < high:
            middle = np.int32((np.int64(low) + np.int64(high)) >> 1)
            within = np.int32(0)
            for j in range(padded):
                within = np.int32(within + np.int32(bits[j] <= middle))
            enough = within >= wanted
            low, high = np.int32(low if enough else middle + 1), np.int32(middle if enough else high)
            if enough and within <= wanted + (wanted >> 2) + 4:
                break
        count = 0
        first = np.uint64(0)
        while first < padded:
            near = False
            for j in range(first, first + np.uint64(_NARROW_STRIP)):
                near |= bits[j] <= high
            if near:
                for j in range(first, first + np.uint64(_NARROW_STRIP)):
                    if bits[j] <= high and j < columns:
                        keys[count] = (np.int64(bits[j]) << 32) | np.int64(j)
                        count += 1
            first += np.uint64(_NARROW_STRIP)
        if count > _MOST_INSERTED:
            keys[:count].sort()
        else:
            _insertion_sort(keys, count)
        for i in range(wanted):
            j = keys[i] & 0xFFFFFFFF
            squared[row, i] = values[j]
            labels[row, i] = j if values[j] < np.inf else -1


@kernel(inline=True)
def _insertion_sort(keys: Any, count: int) -> None:
    for i in range(np.uint64(1), np.uint64(count)):
        key, place = keys[i], np.uint64(i)
        while place > 0 and keys[place - np.uint64(1)] > key:
            keys[place] = keys[place - np.uint64(1)]
            place = place - np.uint64(1)
        keys[place] = key


@kernel
def group_rows(labels: Any, bounds: Any, order: Any) -> None:
    """Write the rows of each label in ascending order, and where those of each label begin; ``bounds`` holds zeros."""
    for label in labels:
        bounds[label + 1] += 1
    for number in range(1, bounds.shape[0]):
        bounds[number] += bounds[number - 1]
    ends = bounds.copy()
    for row in range(labels.shape[0]):
        order[ends[labels[row]]] = row
        ends[labels[row]] += 1


@kernel(reassociate=True)
def write_means(X: Any, order: Any, bounds: Any, first: int, last: int, means: Any) -> None:
    """Write the means of groups ``first`` to ``last`` of the rows of ``X``; those of empty groups stay as they are."""
    total = np.empty(X.shape[1])
    for number in range(first, last):
        count = bounds[number + 1] - bounds[number]
        if count:
            total[:] = 0
            for place in range(bounds[number], bounds[number + 1]):
                row = np.uint64(order[place])
                for j in range(np.uint64(X.shape[1])):
                    total[j] += X[row, j]
            for j in range(X.shape[1]):
                means[number, j] = total[j] / count
