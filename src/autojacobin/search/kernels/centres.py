"""The nearest of some centres, and the means of groups of vectors.

*One centre* (``nearest_column``), for k-means. With x·c from a matrix product, ‖x − c‖² − ‖x‖² = ‖c‖² − 2 x·c. The
smallest of these is found in strips: a strip is read one by one only if it holds something smaller than what was found
before, and whether it does is tested by whole vectors.

*Some centres* (``nearest_centres``), for queries. Products of bytes choose the centres that are measured: CPUs take 64
of them by one instruction, and the centres take a quarter of the memory. Centres are rounded to multiples of a step s,
and a query x to multiples of a step t. Rounding errors are about uniform, so the product x·c errs by a standard
deviation of about √((s² ‖x‖² + t² ‖c‖²) / 12), and the squared distance by twice that. A centre is measured if its
estimate exceeds that of the n-th by at most four of these. With one million SIFT descriptors and 4,096 centres, all of
the nearest were found for each of 1,000 queries. Sums of whole numbers do not depend on their order, so the centres of
a query do not depend on what else is searched for.

*Cells.* Many centres are in cells of 64 near ones, and only the cells whose means are nearest to the query are looked
at. Some of the nearest centres are missed then, mostly the farthest of them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic, kernel, popcount, trailing_zeros, use_wide_registers
from autojacobin.search.kernels.simd import (
    INT32,
    WORD,
    call,
    everywhere,
    generate_loop,
    join,
    load,
    machine_has,
    shuffle,
)

__all__ = [
    "CENTRES_PER_GROUP",
    "STEPS_AT_ONCE",
    "group_rows",
    "nearest_centres",
    "nearest_column",
    "write_groups",
    "write_means",
]

_STRIP = 64
CENTRES_PER_GROUP = 64  # whose products are taken together
_LANES, _BYTES_PER_LANE, _VECTORS_PER_GROUP = 16, 4, 4
_QUERIES_AT_ONCE = 4
STEPS_AT_ONCE = 2  # of four features, by a query alone: an addition to a sum waits for the one before
_DEVIATIONS = 4.0
_MOST_RANKED = 256  # more numbers are sorted faster in another way
_INT32S = ir.VectorType(INT32, _LANES)
_BYTES = ir.VectorType(ir.IntType(8), _LANES * _BYTES_PER_LANE)
_DOT = "llvm.aarch64.neon.sdot.v4i32.v16i8"
_INFINITE_BITS = np.int32(0x7F800000)  # of float32
_LARGEST = np.finfo(np.float32).max


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


# Products of bytes


@kernel
def write_groups(centres: Any, step: float, largest: int, groups: Any) -> None:
    """Round centres to multiples of ``step``, add ``largest`` and write them as bytes, as the products read them.

    ``groups`` has the shape (groups, steps, 4, 16, 4) and holds zeros: four features of 16 centres are a vector, and
    those of 64 centres follow each other. The steps are n_features / 4, rounded up to a multiple of STEPS_AT_ONCE.
    """
    for c in range(centres.shape[0]):
        group, vector, lane = c // CENTRES_PER_GROUP, c // _LANES % _VECTORS_PER_GROUP, c % _LANES
        for j in range(centres.shape[1]):
            groups[group, j >> 2, vector, lane, j & 3] = largest + _rounded(centres[c, j] / step, largest)


@kernel(inline=True)
def _rounded(value: Any, largest: int) -> Any:
    """Round to a whole number from −largest to largest; 0 for NaN."""
    return np.int32(np.rint(min(max(value, -largest), largest))) if value == value else np.int32(0)


@intrinsic  # type: ignore[untyped-decorator]
def _multiply_one(_typing_context: Any, asked: Any, groups: Any, group: Any, products: Any, place: Any) -> Any:
    """Write the products of a query of int8 with the 64 centres of a group, from ``place`` on."""
    return types.void(asked, groups, group, products, place), partial(_generate_products, 1)


@intrinsic  # type: ignore[untyped-decorator]
def _multiply_some(_typing_context: Any, asked: Any, groups: Any, group: Any, products: Any, place: Any) -> Any:
    """Write the products of four queries of int8 with the 64 centres of a group, from ``place`` on."""
    return types.void(asked, groups, group, products, place), partial(_generate_products, _QUERIES_AT_ONCE)


def _generate_products(n_queries: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    asked, groups, products = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 3))
    group, n_steps = arguments[2], builder.extract_value(groups.shape, 1)
    width = builder.mul(n_steps, WORD(_BYTES_PER_LANE))
    bytes_per_step = CENTRES_PER_GROUP * _BYTES_PER_LANE
    centres = builder.gep(groups.data, [builder.mul(builder.mul(group, n_steps), WORD(bytes_per_step))])

    steps_at_once = STEPS_AT_ONCE if n_queries == 1 else 1

    def add(first: Any, totals: list[Any]) -> list[Any]:
        results: list[Any] = []
        for part in range(steps_at_once):
            step = builder.add(first, WORD(part))
            place = builder.mul(step, WORD(bytes_per_step))
            vectors = [
                load(builder, builder.gep(centres, [builder.add(place, WORD(v * 64))]), _BYTES, 1)
                for v in range(_VECTORS_PER_GROUP)
            ]
            for q in range(n_queries):
                offset = builder.add(builder.mul(WORD(q), width), builder.mul(step, WORD(_BYTES_PER_LANE)))
                four = builder.load(builder.bitcast(builder.gep(asked.data, [offset]), INT32.as_pointer()))
                four.align = 1
                numbers = builder.bitcast(everywhere(builder, four, _INT32S), _BYTES)
                for vector in vectors:
                    results.append(_add_products(builder, totals[len(results)], vector, numbers))
        return results

    zeros = [ir.Constant(_INT32S, [0] * _LANES)] * (steps_at_once * n_queries * _VECTORS_PER_GROUP)
    _, totals = generate_loop(builder, WORD(0), n_steps, steps_at_once, zeros, add)
    columns = builder.extract_value(products.shape, 1)
    n_totals = n_queries * _VECTORS_PER_GROUP
    for i, total in enumerate(totals[:n_totals]):
        for later in totals[n_totals + i :: n_totals]:
            total = builder.add(total, later)
        q, v = divmod(i, _VECTORS_PER_GROUP)
        column = builder.add(arguments[4], WORD(v * _LANES))
        out = builder.gep(products.data, [builder.add(builder.mul(WORD(q), columns), column)])
        builder.store(total, builder.bitcast(out, _INT32S.as_pointer())).align = 4
    return context.get_dummy_value()


def _add_products(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """Add the products of 64 bytes with 64 signed ones to 16 sums, four to each."""
    if machine_has("avx512vnni"):
        words = (builder.bitcast(numbers, _INT32S) for numbers in (unsigned, signed))
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", _INT32S, total, *words)
    if machine_has("dotprod"):  # both factors are signed there: u·s = (u − 128)·s + 2·64·s
        unsigned = builder.xor(unsigned, ir.Constant(_BYTES, [128] * _BYTES.count))
        parts = []
        for lane in range(0, _LANES, 4):
            some, one, other = (
                shuffle(builder, vector, range(lane * size, (lane + 4) * size))
                for vector, size in ((total, 1), (unsigned, 4), (signed, 4))
            )
            zeros, halves = ir.Constant(some.type, [0] * 4), ir.Constant(one.type, [64] * 16)
            half = call(builder, _DOT, some.type, zeros, halves, other)
            parts.append(call(builder, _DOT, some.type, builder.add(some, builder.add(half, half)), one, other))
        return join(builder, parts)
    for first in range(_BYTES_PER_LANE):
        one, other = (shuffle(builder, numbers, range(first, 64, _BYTES_PER_LANE)) for numbers in (unsigned, signed))
        total = builder.add(total, builder.mul(builder.zext(one, _INT32S), builder.sext(other, _INT32S)))
    return total


# The nearest centres of queries


@kernel
def nearest_centres(
    X: Any, points: Any, origin: Any, groups: Any, members: Any, norms: Any, rounding: Any, cells: Any, labels: Any,
    squared: Any,
) -> None:  # fmt: skip
    """Write the nearest centres of each row and their squared distances, in this order; of equal ones the first.

    ``groups`` holds the centres less the origin as :func:`write_groups` gives them, in the order of ``members``, and
    ``norms`` their squared norms, filled up with infinity. Centres with an infinite norm do not count; where there are
    too few others, -1 is written. ``rounding`` is the step of the centres, the largest whole number and the largest
    norm. ``cells`` holds the means of the groups as groups of their own, their norms, and how many groups to look at;
    0 stands for all.
    """
    use_wide_registers()
    step, largest, largest_norm = rounding
    means, norms_of_means, n_cells = cells
    n, width, wanted = X.shape[0], np.uint64(X.shape[1]), labels.shape[1]
    at_once = _QUERIES_AT_ONCE if n > 1 and n_cells == 0 else 1
    asked = np.zeros((at_once, 4 * groups.shape[1]), dtype=np.int8)
    products = np.empty((at_once, norms.shape[0]), dtype=np.int32)
    estimates = np.empty(norms.shape[0], dtype=np.float32)
    looked_at = np.arange(groups.shape[0])
    products_of_means = np.empty((1, norms_of_means.shape[0]), dtype=np.int32)
    estimates_of_means = np.empty(norms_of_means.shape[0], dtype=np.float32)
    units, squares = np.empty(at_once), np.empty(at_once)
    shifted = np.empty(X.shape[1], dtype=np.float32)
    for first in range(0, n, at_once):
        some = min(at_once, n - first)
        for i in range(np.uint64(some)):
            for j in range(width):
                shifted[j] = X[np.uint64(first) + i, j] - origin[j]
            units[i], squares[i] = _round_query(shifted, largest, asked, i)
        n_looked_at = groups.shape[0]
        if n_cells > 0:
            for group in range(means.shape[0]):
                _multiply_one(asked, means, group, products_of_means, group * CENTRES_PER_GROUP)
            constant, factor = _scale_of(asked[0], step * units[0], largest, squares[0])
            for group in range(means.shape[0]):
                _estimate(products_of_means[0], estimates_of_means, group, norms_of_means, group, constant, factor)
            n_looked_at = _choose_cells(estimates_of_means, n_cells, looked_at)
        for place in range(n_looked_at):
            if some == 1:
                _multiply_one(asked, groups, looked_at[place], products, place * CENTRES_PER_GROUP)
            else:
                _multiply_some(asked, groups, looked_at[place], products, place * CENTRES_PER_GROUP)
        for i in range(np.uint64(some)):
            q = np.uint64(first) + i
            constant, factor = _scale_of(asked[i], step * units[i], largest, squares[i])
            for place in range(n_looked_at):
                _estimate(products[i], estimates, place, norms, looked_at[place], constant, factor)
            error = math.sqrt((step * step * squares[i] + units[i] * units[i] * largest_norm) / 12)
            near = estimates[: CENTRES_PER_GROUP * n_looked_at]
            limit = min(_limit_of(near.view(np.int32), wanted) + np.float32(2 * _DEVIATIONS * error), _LARGEST)
            keys = _measure(X, q, points, near, limit, looked_at, members)
            ordered = _sorted(keys)
            found = min(wanted, len(ordered))
            for place in range(np.uint64(found)):
                squared[q, place] = np.int32(ordered[place] >> 32).view(np.float32)
                labels[q, place] = ordered[place] & 0xFFFFFFFF
            for place in range(np.uint64(found), np.uint64(wanted)):
                squared[q, place], labels[q, place] = np.inf, -1


@kernel(inline=True)
def _choose_cells(estimates: Any, wanted: int, chosen: Any) -> Any:
    """Write the numbers of the ``wanted`` nearest cells, or of a few more, and give how many they are."""
    limit, count = _limit_of(estimates.view(np.int32), wanted), 0
    for first in range(0, estimates.shape[0], CENTRES_PER_GROUP):
        near = _mark(estimates, first, limit)
        while near:
            chosen[count] = first + np.int64(trailing_zeros(near))
            near &= near - np.uint64(1)
            count += 1
    return count


@kernel(inline=True)
def _round_query(shifted: Any, largest: int, asked: Any, row: Any) -> Any:
    """Round a vector to multiples of a step of its own; gives the step and the squared norm."""
    square, size = np.float32(0), np.float32(0)
    for j in range(np.uint64(shifted.shape[0])):
        size = max(size, abs(shifted[j]))
    step = size / largest if size > 0 else 1.0
    per_step = np.float32(1 / step)
    for j in range(np.uint64(shifted.shape[0])):
        asked[row, j] = np.int8(_rounded(shifted[j] * per_step, largest))
        square += shifted[j] * shifted[j]
    return step, np.float64(square)


@kernel(inline=True)
def _scale_of(asked: Any, unit: float, largest: int, square: float) -> Any:
    """The constant and the factor of ‖x‖² − 2 x·c for the rounded x and c, whose bytes are larger by ``largest``."""
    total = np.int64(0)
    for j in range(np.uint64(asked.shape[0])):
        total += np.int64(asked[j])
    return np.float32(square + 2 * unit * largest * total), np.float32(-2 * unit)


@kernel(inline=True)
def _estimate(products: Any, estimates: Any, place: int, norms: Any, group: int, constant: Any, factor: Any) -> None:
    """Write ‖x‖² + ‖c‖² − 2 x·c for the centres of a group, at ``place``, where its products are.

    What is not a number becomes infinite, so that what fills up a group is never taken for a centre.
    """
    first, start = np.uint64(place * CENTRES_PER_GROUP), np.uint64(group * CENTRES_PER_GROUP)
    for c in range(np.uint64(CENTRES_PER_GROUP)):
        value = (constant + factor * np.float32(products[first + c])) + norms[start + c]
        estimates[first + c] = value if value > 0 else (np.float32(0) if value <= 0 else np.float32(np.inf))


@kernel(inline=True)
def _limit_of(bits: Any, wanted: int) -> Any:
    """Limit that ``wanted`` estimates or a few more do not exceed; the largest of them if there are fewer.

    Estimates are given as their bits. Numbers of at least zero have the same order as their bits, so that the range of
    the bits can be halved.
    """
    count = np.uint64(bits.shape[0])
    low, high = np.int32(_INFINITE_BITS - 1), np.int32(0)
    for c in range(count):
        low = min(low, bits[c])
        high = max(high, bits[c] if bits[c] < _INFINITE_BITS else np.int32(0))
    while low < high:
        middle = np.int32((np.int64(low) + np.int64(high)) >> 1)
        within = np.int32(0)
        for c in range(count):
            within = np.int32(within + np.int32(bits[c] <= middle))
        enough = within >= wanted  # no branch: the CPU could not predict it
        low, high = np.int32(low if enough else middle + 1), np.int32(middle if enough else high)
        if enough and within <= wanted + (wanted >> 3) + 2:
            break
    return np.int32(high).view(np.float32)


@kernel(inline=True, reassociate=True)
def _distance(X: Any, q: Any, points: Any, c: Any) -> Any:
    total = np.float32(0)
    for j in range(np.uint64(points.shape[1])):
        gap = X[q, j] - points[c, j]
        total += gap * gap
    return total


@intrinsic  # type: ignore[untyped-decorator]
def _mark(typing_context: Any, estimates: Any, first: Any, limit: Any) -> Any:  # noqa: ARG001
    """Bitmap of the 64 estimates from ``first`` on that are at most ``limit``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = context.make_array(signature.args[0])(context, builder, arguments[0])
        floats = ir.VectorType(ir.FloatType(), 64)
        limits = everywhere(builder, arguments[2], floats)
        values = load(builder, builder.gep(table.data, [arguments[1]]), floats, 4)
        return builder.bitcast(builder.fcmp_ordered("<=", values, limits), WORD)

    return types.uint64(estimates, first, limit), generate


@kernel(inline=True)
def _measure(X: Any, q: Any, points: Any, estimates: Any, limit: Any, looked_at: Any, members: Any) -> Any:
    """Measure the centres whose estimates are up to ``limit``; gives distances and numbers as keys to sort by."""
    count = np.uint64(0)
    for first in range(0, estimates.shape[0], CENTRES_PER_GROUP):
        count += popcount(_mark(estimates, first, limit))
    keys, count = np.empty(np.int64(count), dtype=np.int64), np.uint64(0)
    for first in range(0, estimates.shape[0], CENTRES_PER_GROUP):
        near = _mark(estimates, first, limit)
        start = np.uint64(looked_at[first // CENTRES_PER_GROUP] * CENTRES_PER_GROUP)
        while near:
            c = np.uint64(members[start + trailing_zeros(near)])
            near &= near - np.uint64(1)
            squared = _distance(X, q, points, c)
            keys[count] = (np.int64(np.float32(squared).view(np.int32)) << 32) | np.int64(c)
            count += np.uint64(1)
    return keys


@kernel(inline=True)
def _sorted(keys: Any) -> Any:
    """Sort different numbers: the place of each is how many are smaller, which whole vectors count."""
    if len(keys) > _MOST_RANKED:
        return np.sort(keys)
    ordered = np.empty_like(keys)
    for i in range(np.uint64(len(keys))):
        place = np.int64(0)
        for j in range(np.uint64(len(keys))):
            place += np.int64(keys[j] < keys[i])
        ordered[np.uint64(place)] = keys[i]
    return ordered


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
