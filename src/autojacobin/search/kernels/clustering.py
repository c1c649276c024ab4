"""What k-means and lists need: the nearest centre of vectors, the two lists of a vector, and vectors in groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel, use_wide_registers

_STRIP = 64
_TINY = 1e-37


@kernel
def nearest_column(products: Any, norms: Any, labels: Any) -> None:
    """Write the column with the smallest norm − 2 · product of each row; of equal ones the first.

    With x·c from a matrix product, ‖x − c‖² − ‖x‖² = ‖c‖² − 2 x·c. A strip of columns is read one by one only if it
    holds something smaller than what was found before, and whether it does is tested by whole vectors.
    """
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


@kernel(reassociate=True)
def choose_first_and_second(X: Any, points: Any, near: Any, first: Any, second: Any) -> None:
    """Write two centres of each row, as :meth:`~autojacobin.search.centres.Centres.first_and_second` says.

    ``near`` has the nearest centres, in order, and then -1. Of a row that is not finite, which is reported later, both
    are 0.
    """
    left = np.empty(X.shape[1], dtype=np.float32)
    for q in range(np.uint64(X.shape[0])):
        length, best = np.float32(_TINY), np.float32(np.inf)
        first[q] = second[q] = max(near[q, 0], 0)
        for j in range(np.uint64(X.shape[1])):
            left[j] = X[q, j] - points[np.uint64(first[q]), j]
            length += left[j] * left[j]
        for place in range(np.uint64(1), np.uint64(near.shape[1])):
            c = near[q, place]
            if c < 0:
                break
            square, along = np.float32(0), np.float32(0)
            for j in range(np.uint64(X.shape[1])):
                gap = X[q, j] - points[np.uint64(c), j]
                square += gap * gap
                along += gap * left[j]
            cost = square + along * (along / length)
            if cost < best or place == 1:
                best, second[q] = cost, c


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
