"""The compiled tabu search of ``tabu_search``, which holds its formulas, for many vectors.

One pass over a row of G changes all v_i and finds the next bit, 16 bits at a time: the lowest binary digits of the cost
of a flip are replaced by i, and the smallest cost carries the place along. So costs have 23 − log2(d) binary digits
where bits are compared, and all of them where they are summed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic, kernel, use_wide_registers
from autojacobin.core.simd import INT32, WORD, call, combine_lanes, everywhere, generate_loop, load

BITS_AT_ONCE = 16
_FLOATS, _INTS = ir.VectorType(ir.FloatType(), BITS_AT_ONCE), ir.VectorType(INT32, BITS_AT_ONCE)
_FUSED = ("contract",)  # a product and a sum may be one instruction
_NEVER = np.int32(2**31 - 1)
_ROWS_AT_ONCE = 8  # multiplied by a matrix that is too large for the cache


@intrinsic  # type: ignore[untyped-decorator]
def _change_and_find(
    _typing_context: Any, v: Any, moves: Any, s: Any, row: Any, sign: Any, ready: Any, step: Any, wanted: Any,
    levels: Any, place: Any,
) -> Any:  # fmt: skip
    """Add ``sign`` · s_i · row_i to each v_i, after a flip, and find the bit that costs least to flip next.

    Flipping bit i moves the level by ``both`` · v_i − moves_i, and costs v_i plus ``stiffness`` times the squared
    distance of the new level to the nearest whole one from 0 to ``top``; ``levels`` holds the level and these numbers.
    Bits count that are ``ready`` at this step, or cost less than ``wanted``. Gives the smallest cost, with the place of
    its bit in the digits under the mask ``place``; infinity if no bit counts. The length of the arrays is a multiple of
    16.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        v, moves, s, row, ready = (
            context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 2, 3, 5)
        )
        sign, wanted = (everywhere(builder, arguments[i], _FLOATS) for i in (4, 7))
        step, place = (everywhere(builder, arguments[i], _INTS) for i in (6, 9))
        level, both, stiffness, top = (
            everywhere(builder, builder.extract_value(arguments[8], i), _FLOATS) for i in range(4)
        )
        zero, infinite = (ir.Constant(_FLOATS, [number] * BITS_AT_ONCE) for number in (0.0, math.inf))
        numbers, following = (
            ir.Constant(_INTS, list(some)) for some in (range(BITS_AT_ONCE), [BITS_AT_ONCE] * BITS_AT_ONCE)
        )

        def take(array: Any, first: Any, kind: Any = _FLOATS) -> Any:
            return load(builder, builder.gep(array.data, [first]), kind, 4)

        def smaller(one: Any, other: Any) -> Any:
            return call(builder, f"llvm.minnum.v{one.type.count}f32", one.type, one, other, flags=("nnan",))

        def add_product(number: Any, one: Any, other: Any) -> Any:
            return builder.fadd(number, builder.fmul(one, other, flags=_FUSED), flags=_FUSED)

        def look_at(first: Any, running: list[Any]) -> list[Any]:
            smallest, places = running
            value = add_product(take(v, first), take(s, first), builder.fmul(sign, take(row, first)))
            out = builder.bitcast(builder.gep(v.data, [first]), _FLOATS.as_pointer())
            builder.store(value, out).align = 4
            moved = add_product(builder.fsub(level, take(moves, first)), both, value)
            held = smaller(builder.select(builder.fcmp_ordered(">", moved, zero), moved, zero), top)
            off = builder.fsub(moved, call(builder, "llvm.rint.v16f32", _FLOATS, held))
            cost = add_product(value, stiffness, builder.fmul(off, off))
            is_ready = builder.icmp_signed("<=", take(ready, first, _INTS), step)
            counts = builder.or_(is_ready, builder.fcmp_ordered("<", cost, wanted))
            digits = builder.and_(builder.bitcast(cost, _INTS), builder.not_(place))
            offered = builder.bitcast(builder.or_(digits, places), _FLOATS)
            smallest = builder.select(counts, smaller(offered, smallest), smallest)
            return [smallest, builder.add(places, following)]

        width = builder.extract_value(row.shape, 0)
        _, (found, _) = generate_loop(builder, WORD(0), width, BITS_AT_ONCE, [infinite, numbers], look_at)
        return combine_lanes(builder, found, smaller)

    return types.float32(v, moves, s, row, sign, ready, step, wanted, levels, place), generate


@kernel(reassociate=True)
def search(
    X: Any, decoder: Any, start: Any, first: Any, given: bool, n_steps: int, waits: Any, out: Any, levels: Any
) -> None:
    """Search for the code of each row of ``X``, from ``first`` if it is ``given``, else from the signs by ``start``.

    ``levels`` gets the levels of their offsets, which are not rounded yet. Rows of matrices of the decoder, and of
    ``start``, are filled up with zeros to a multiple of 16 numbers.
    """
    use_wide_registers()
    middle, columns, inverse, gram, slack, offsets = decoder
    slope, trace, share, low, per_step, top, stiffness = offsets
    n, D = X.shape
    d, width = gram.shape
    y = np.empty((_ROWS_AT_ONCE, D), dtype=X.dtype)
    product = np.empty((_ROWS_AT_ONCE, width), dtype=X.dtype)
    b = np.empty((_ROWS_AT_ONCE, width), dtype=np.float32)
    v = np.empty((_ROWS_AT_ONCE, width), dtype=np.float32)
    s = np.zeros((_ROWS_AT_ONCE, width), dtype=np.float32)
    moves = np.zeros(width, dtype=np.float32)
    best = np.empty(d, dtype=np.float32)
    ready = np.full(width, _NEVER, dtype=np.int32)
    for begin in range(0, n, _ROWS_AT_ONCE):
        rows = min(_ROWS_AT_ONCE, n - begin)
        for r in range(rows):
            for k in range(D):
                y[r, k] = (X[begin + r, k] - middle[k]) * inverse
        _multiply(y, columns, product, rows)
        for r in range(rows):
            for i in range(d):
                b[r, i] = product[r, i]
        if given:
            for r in range(rows):
                for i in range(d):
                    s[r, i] = first[begin + r, i]
        else:
            _multiply(b, start, v, rows)
            for r in range(rows):
                for i in range(d):
                    s[r, i] = np.float32(1) if v[r, i] >= 0 else np.float32(-1)
        _multiply(s, gram, v, rows)
        for r in range(rows):
            energy = np.float32(0)
            for k in range(D):
                energy += np.float32(y[r, k] * y[r, k])
            total = agreement = quadratic = linear = np.float32(0)
            for i in range(d):
                total += abs(b[r, i])
                quadratic += np.float32(0.5) * s[r, i] * v[r, i]
                v[r, i] = s[r, i] * (b[r, i] - np.float32(0.5) * v[r, i])
                agreement += s[r, i] * b[r, i]
                linear += s[r, i] * slope[i]
                moves[i] = per_step * (s[r, i] * (b[r, i] - slope[i]))
            v[r, d:] = np.inf  # bits that there are not are never flipped
            if not total + energy < np.float32(np.inf):
                for i in range(d):
                    out[begin + r, i] = np.float32(np.nan)
                continue
            norm = quadratic + trace
            offset = norm + share * (energy - np.float32(2) * agreement + norm) - np.float32(2) * linear
            level = (np.float32(0.25) * offset - low) * per_step
            both = per_step * (np.float32(1) + share)
            levels[begin + r] = _tabu(
                v[r], moves, s[r], gram, ready, best, n_steps, waits, slack * total, (level, both, stiffness, top)
            )
            _copy(best, out[begin + r])


@kernel(reassociate=True, inner=True)
def _multiply(values: Any, matrix: Any, out: Any, rows: int) -> None:
    """Out = values @ matrix for the first ``rows`` rows, which share each pass over the matrix.

    The order of the sums is always the same, whatever rows a row comes with.
    """
    use_wide_registers()
    n, width = matrix.shape
    for r in range(rows):
        for i in range(width):
            out[r, i] = 0
    whole = n - n % 4
    for k in range(0, whole, 4):
        r0, r1, r2, r3 = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
        for r in range(rows):
            a0, a1, a2, a3, sums = values[r, k], values[r, k + 1], values[r, k + 2], values[r, k + 3], out[r]
            for i in range(width):
                sums[i] += (a0 * r0[i] + a1 * r1[i]) + (a2 * r2[i] + a3 * r3[i])
    for k in range(whole, n):
        row = matrix[k]
        for r in range(rows):
            a0, sums = values[r, k], out[r]
            for i in range(width):
                sums[i] += a0 * row[i]


@kernel(reassociate=True, inline=True)
def _tabu(
    v: Any, moves: Any, s: Any, gram: Any, ready: Any, best: Any, n_steps: int, waits: Any, slack: Any, levels: Any
) -> Any:
    level, both, stiffness, top = levels
    best_level = level
    d = len(best)
    power = 1
    while power < d:
        power *= 2
    place = np.int32(power - 1)  # the digits that hold a place
    ready[:d] = 0
    _copy(s, best)
    change = lowest = np.float32(0)
    flipped, sign = np.int64(0), np.float32(0)  # the first pass changes nothing
    shortest, longest = np.int32(waits[0]), np.int32(waits[1])
    wait = shortest
    for count in range(n_steps):
        step = np.int32(count)
        now = stiffness * _off_grid(level, top)
        wanted = np.float32((lowest - change - slack) + now)
        smallest = _change_and_find(
            v, moves, s, gram[flipped], sign, ready, step, wanted, (level, both, stiffness, top), place
        )
        if smallest == np.float32(np.inf):
            break
        flipped = np.int64(np.float32(smallest).view(np.int32) & place)
        sign = s[flipped]
        level += both * v[flipped] - moves[flipped]
        change += v[flipped] + (stiffness * _off_grid(level, top) - now)
        v[flipped], moves[flipped], s[flipped] = -v[flipped], -moves[flipped], -sign
        ready[flipped] = step + wait
        wait = shortest if wait == longest else wait + np.int32(1)
        if change < lowest - slack:
            lowest = change
            _copy(s, best)
            best_level = level
    return best_level


@kernel(inline=True)
def _copy(values: Any, out: Any) -> None:
    """Copy numbers one by one: an assignment of arrays takes 3 s to compile, for the text of its error."""
    for i in range(len(out)):
        out[i] = values[i]


@kernel(reassociate=True, never_nan=True, inline=True)
def _off_grid(level: Any, top: Any) -> Any:
    """Squared distance of a level to the nearest whole one from 0 to ``top``."""
    held = min(max(level, np.float32(0)), top)
    off = level - np.rint(held)
    return off * off
