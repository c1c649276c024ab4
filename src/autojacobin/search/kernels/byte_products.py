"""Products of queries with centres and with rows of a decoder, by products of bytes.

CPUs take 64 such products by one instruction, and the rows take a quarter of the memory. Rows c are rounded to
multiples of a step s, and a query x to multiples of a step t. Rounding errors are about uniform, so the product x·c
errs by a standard deviation of about √((s² ‖x‖² + t² ‖c‖²) / 12), and the squared distance by twice that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic, kernel, use_wide_registers
from autojacobin.core.simd import (
    INT32,
    WORD,
    call,
    everywhere,
    generate_loop,
    join,
    load,
    machine_has,
    shuffle,
    sums_of_pairs,
)

# What tunes the products
QUERIES_AT_ONCE = 4
STEPS_AT_ONCE = 2  # of four features, by a query alone: an addition to a sum waits for the one before

# What correctness needs: the layout
CENTRES_PER_GROUP = 64  # whose products are taken together
_LANES, _BYTES_PER_LANE, _VECTORS_PER_GROUP = 16, 4, 4
_INT32S = ir.VectorType(INT32, _LANES)
_BYTES = ir.VectorType(ir.IntType(8), _LANES * _BYTES_PER_LANE)
_DOT = "llvm.aarch64.neon.sdot.v4i32.v16i8"
_SHIFTED = not machine_has("dotprod")  # x86 multiplies unsigned bytes with signed ones, ARM signed ones
_SIZE_BITS = np.int32(0x7FFFFFFF)  # of float32, without the sign


@kernel
def write_groups(centres: Any, step: float, largest: int, groups: Any) -> None:
    """Round rows, such as centres, to multiples of ``step`` and write them as bytes, as the products read them.

    They are unsigned, and larger by ``largest``, or signed, as the machine multiplies them.

    ``groups`` has the shape (groups, steps, 4, 16, 4) and holds zeros: four features of 16 centres are a vector, and
    those of 64 centres follow each other. The steps are n_features / 4, rounded up to a multiple of STEPS_AT_ONCE.
    """
    for c in range(centres.shape[0]):
        group, vector, lane = c // CENTRES_PER_GROUP, c // _LANES % _VECTORS_PER_GROUP, c % _LANES
        for j in range(centres.shape[1]):
            whole = _rounded(np.float32(centres[c, j] / step), largest)
            groups[group, j >> 2, vector, lane, j & 3] = (largest if _SHIFTED else 0) + whole


@kernel(inline=True)
def _rounded(value: Any, largest: int) -> Any:
    """Round a float32 to a whole number from −largest to largest, without a branch; NaN to the first."""
    limit = np.float32(largest)
    value = value if value > -limit else -limit
    return np.int32(np.rint(value if value < limit else limit))


@intrinsic  # type: ignore[untyped-decorator]
def multiply_one(_typing_context: Any, asked: Any, groups: Any, group: Any, products: Any, place: Any) -> Any:
    """Write the products of a query of int8 with the 64 centres of a group, from ``place`` on."""
    return types.void(asked, groups, group, products, place), partial(_generate_products, 1)


@intrinsic  # type: ignore[untyped-decorator]
def multiply_some(_typing_context: Any, asked: Any, groups: Any, group: Any, products: Any, place: Any) -> Any:
    """Write the products of four queries of int8 with the 64 centres of a group, from ``place`` on."""
    return types.void(asked, groups, group, products, place), partial(_generate_products, QUERIES_AT_ONCE)


def _generate_products(n_queries: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    asked, groups, products = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 3))
    group, n_steps = arguments[2], builder.extract_value(groups.shape, 1)
    width = builder.mul(n_steps, WORD(_BYTES_PER_LANE))
    bytes_per_step = CENTRES_PER_GROUP * _BYTES_PER_LANE
    centres = builder.gep(groups.data, [builder.mul(builder.mul(group, n_steps), WORD(bytes_per_step))])

    # as many sums as there are registers
    few_registers = machine_has("neon")
    steps_at_once = STEPS_AT_ONCE if n_queries == 1 and not few_registers else 1
    vectors_at_once = 1 if n_queries > 1 and few_registers else _VECTORS_PER_GROUP
    columns = builder.extract_value(products.shape, 1)

    def add(first_vector: int, first: Any, totals: list[Any]) -> list[Any]:
        results: list[Any] = []
        for part in range(steps_at_once):
            step = builder.add(first, WORD(part))
            place = builder.mul(step, WORD(bytes_per_step))
            vectors = [
                load(builder, builder.gep(centres, [builder.add(place, WORD(v * 64))]), _BYTES, 1)
                for v in range(first_vector, first_vector + vectors_at_once)
            ]
            for q in range(n_queries):
                offset = builder.add(builder.mul(WORD(q), width), builder.mul(step, WORD(_BYTES_PER_LANE)))
                four = builder.load(builder.bitcast(builder.gep(asked.data, [offset]), INT32.as_pointer()))
                four.align = 1
                numbers = builder.bitcast(everywhere(builder, four, _INT32S), _BYTES)
                for vector in vectors:
                    results.append(_add_products(builder, totals[len(results)], vector, numbers))
        return results

    n_totals = n_queries * vectors_at_once
    for first_vector in range(0, _VECTORS_PER_GROUP, vectors_at_once):
        zeros = [ir.Constant(_INT32S, [0] * _LANES)] * (steps_at_once * n_totals)
        _, totals = generate_loop(builder, WORD(0), n_steps, steps_at_once, zeros, partial(add, first_vector))
        for i, total in enumerate(totals[:n_totals]):
            for later in totals[n_totals + i :: n_totals]:
                total = builder.add(total, later)
            q, v = divmod(i, vectors_at_once)
            column = builder.add(arguments[4], WORD((first_vector + v) * _LANES))
            out = builder.gep(products.data, [builder.add(builder.mul(WORD(q), columns), column)])
            builder.store(total, builder.bitcast(out, _INT32S.as_pointer())).align = 4
    return context.get_dummy_value()


def _add_products(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """Add the products of 64 bytes with 64 signed ones to 16 sums, four to each; both are signed if not shifted."""
    if machine_has("avx512vnni"):
        words = (builder.bitcast(numbers, _INT32S) for numbers in (unsigned, signed))
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", _INT32S, total, *words)
    if not _SHIFTED:
        parts = []
        for lane in range(0, _LANES, 4):
            some, one, other = (
                shuffle(builder, vector, range(lane * size, (lane + 4) * size))
                for vector, size in ((total, 1), (unsigned, 4), (signed, 4))
            )
            parts.append(call(builder, _DOT, some.type, some, one, other))
        return join(builder, parts)
    words = ir.VectorType(ir.IntType(16), 2 * _LANES)  # with an even and an odd byte each
    eight, low = (ir.Constant(words, [number] * words.count) for number in (8, 255))
    whole, others = (builder.bitcast(numbers, words) for numbers in (unsigned, signed))
    even = sums_of_pairs(builder, builder.and_(whole, low), builder.ashr(builder.shl(others, eight), eight))
    odd = sums_of_pairs(builder, builder.lshr(whole, eight), builder.ashr(others, eight))
    return builder.add(total, builder.add(even, odd))


@kernel(inline=True, reassociate=True)
def round_query(shifted: Any, largest: int, asked: Any, row: Any) -> Any:
    """Round a vector to multiples of a step of its own; gives the step and the squared norm."""
    square, bits, size_bits = np.float32(0), shifted.view(np.int32), np.int32(0)
    for j in range(np.uint64(shifted.shape[0])):  # sizes have the order of their bits; LLVM vectorises this maximum
        size_bits = max(size_bits, bits[j] & _SIZE_BITS)
    size = np.int32(size_bits).view(np.float32)
    step = size / largest if size > 0 else 1.0
    per_step = np.float32(1 / step)
    for j in range(np.uint64(shifted.shape[0])):
        asked[row, j] = np.int8(_rounded(shifted[j] * per_step, largest))
        square += shifted[j] * shifted[j]
    return step, np.float64(square)


@kernel(inline=True)
def _sum_of_shifts(asked: Any, largest: int) -> Any:
    """By how much the products of a query are too large, as the bytes of rows are larger by ``largest``."""
    total = np.int32(0)
    if _SHIFTED:
        for j in range(np.uint64(asked.shape[0])):
            total += np.int32(asked[j])
    return np.int64(largest) * total


@kernel(inline=True)
def scale_of(asked: Any, unit: float, largest: int, square: float) -> Any:
    """The constant and the factor of ‖x‖² − 2 x·c for the rounded x and c, whose bytes may be larger by ``largest``.

    If they are not finite, all distances become infinite.
    """
    constant, factor = np.float32(square + 2 * unit * _sum_of_shifts(asked, largest)), np.float32(-2 * unit)
    if abs(constant) < np.inf and abs(factor) < np.inf:
        return constant, factor
    return np.float32(np.inf), np.float32(0)


@kernel(inline=True)
def estimate(products: Any, estimates: Any, place: int, norms: Any, group: int, constant: Any, factor: Any) -> None:
    """Write ‖x‖² + ‖c‖² − 2 x·c for the centres of a group, at ``place``, where its products are.

    The norms of what fills up a group are infinite, and so are its estimates.
    """
    first, start = np.uint64(place * CENTRES_PER_GROUP), np.uint64(group * CENTRES_PER_GROUP)
    for c in range(np.uint64(CENTRES_PER_GROUP)):
        value = (constant + factor * np.float32(products[first + c])) + norms[start + c]
        estimates[first + c] = value if value > 0 else np.float32(0)


@kernel(inner=True)
def write_weights(queries: Any, origin: Any, groups: Any, step: float, largest: int, weights: Any) -> None:
    """Write 2 (q − origin)·c for each query q and each row c of a decoder, which ``groups`` hold.

    The sums of a query do not depend on what else is searched for.
    """
    use_wide_registers()
    n, at_once = queries.shape[0], QUERIES_AT_ONCE if queries.shape[0] > 1 else 1
    asked = np.zeros((at_once, 4 * groups.shape[1]), dtype=np.int8)
    products = np.empty((at_once, CENTRES_PER_GROUP * groups.shape[0]), dtype=np.int32)
    shifted, units = np.empty(queries.shape[1], dtype=np.float32), np.empty(at_once)
    for first in range(0, n, at_once):
        some = min(at_once, n - first)
        for i in range(np.uint64(some)):
            for j in range(np.uint64(queries.shape[1])):
                shifted[j] = queries[np.uint64(first) + i, j] - origin[j]
            units[i] = round_query(shifted, largest, asked, i)[0]
        for group in range(groups.shape[0]):
            if at_once == 1:
                multiply_one(asked, groups, group, products, group * CENTRES_PER_GROUP)
            else:
                multiply_some(asked, groups, group, products, group * CENTRES_PER_GROUP)
        for i in range(np.uint64(some)):
            shift, unit = np.int32(_sum_of_shifts(asked[i], largest)), np.float32(2 * step * units[i])
            for row in range(np.uint64(weights.shape[1])):
                weights[np.uint64(first) + i, row] = unit * np.float32(products[i, row] - shift)
