"""The compiled tabu search of ``tabu_search``, which holds its formulas, for many vectors.

One pass over a row of G changes all v_i and finds the next bit: the cost of a flip is read as an integer of the same
order, its lowest bits are replaced by i, and the smallest integer carries the place along. So costs have 23 − log2(d)
binary digits where bits are compared, and all of them where they are summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from autojacobin.core.compilation import intrinsic, kernel, use_wide_registers

_NEVER = np.int32(2**31 - 1)
_ROWS_AT_ONCE = 8  # multiplied by a matrix that is too large for the cache


@intrinsic  # type: ignore[untyped-decorator]
def _ordered(typing_context: Any, value: Any, i: Any, place: Any) -> Any:  # noqa: ARG001
    """Turn a float into an integer of the same order whose bits under the mask ``place`` are those of i.

    In 32 bits: numba computes with integers in 64, which takes twice the registers.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        number, where, mask = arguments
        word = builder.bitcast(number, mask.type)
        lower = builder.and_(builder.ashr(word, mask.type(31)), mask.type(2**31 - 1))
        high = builder.and_(builder.xor(word, lower), builder.not_(mask))
        return builder.or_(high, builder.trunc(where, mask.type))

    return types.int32(types.float32, types.int64, types.int32), generate


@intrinsic  # type: ignore[untyped-decorator]
def _smaller(typing_context: Any, smallest: Any, word: Any, allowed: Any) -> Any:  # noqa: ARG001
    """Give the smaller one of two integers, or the first if the second is not allowed.

    The second is raised to the largest integer unless it is allowed, by a maximum: two instructions instead of four.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        before, new, condition = arguments
        least = builder.xor(builder.sext(condition, new.type), new.type(2**31 - 1))
        offered = builder.select(builder.icmp_signed(">", new, least), new, least)
        return builder.select(builder.icmp_signed("<", offered, before), offered, before)

    return types.int32(types.int32, types.int32, types.boolean), generate


@kernel(reassociate=True)
def search(
    X: Any, decoder: Any, start: Any, first: Any, given: bool, n_steps: int, waits: Any, out: Any, levels: Any
) -> None:
    """Search for the code of each row of ``X``, from ``first`` if it is ``given``, else from the signs by ``start``.

    ``levels`` gets the levels of their offsets, which are not rounded yet.
    """
    use_wide_registers()
    middle, columns, inverse, gram, slack, offsets = decoder
    slope, trace, share, low, per_step, top, stiffness = offsets
    n, D = X.shape
    d = gram.shape[0]
    y = np.empty((_ROWS_AT_ONCE, D), dtype=X.dtype)
    product = np.empty((_ROWS_AT_ONCE, d), dtype=X.dtype)
    b = np.empty((_ROWS_AT_ONCE, d), dtype=np.float32)
    v = np.empty((_ROWS_AT_ONCE, d), dtype=np.float32)
    s = np.empty((_ROWS_AT_ONCE, d), dtype=np.float32)
    best = np.empty(d, dtype=np.float32)
    ready = np.empty(d, dtype=np.int32)
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
            _multiply(b, start, s, rows)
            for r in range(rows):
                for i in range(d):
                    s[r, i] = np.float32(1) if s[r, i] >= 0 else np.float32(-1)
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
                b[r, i] -= slope[i]  # from here on, all that is needed of b
            if not total + energy < np.float32(np.inf):
                for i in range(d):
                    out[begin + r, i] = np.float32(np.nan)
                continue
            norm = quadratic + trace
            offset = norm + share * (energy - np.float32(2) * agreement + norm) - np.float32(2) * linear
            level = (np.float32(0.25) * offset - low) * per_step
            levels[begin + r] = _tabu(
                v[r], b[r], s[r], gram, ready, best, n_steps, waits, slack * total,
                (level, share, per_step, top, stiffness),
            )  # fmt: skip
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
    v: Any, c: Any, s: Any, gram: Any, ready: Any, best: Any, n_steps: int, waits: Any, slack: Any, offset: Any
) -> Any:
    level, share, per_step, top, stiffness = offset
    both = np.float32(1) + share
    best_level = level
    d = len(s)
    power = 1
    while power < d:
        power *= 2
    place = np.int32(power - 1)  # the bits that hold a place
    for i in range(d):
        ready[i] = 0
    _copy(s, best)
    change = lowest = np.float32(0)
    flipped, sign = np.int64(0), np.float32(0)  # the first pass changes nothing
    shortest, longest = np.int32(waits[0]), np.int32(waits[1])
    wait = shortest
    for count in range(n_steps):
        step = np.int32(count)
        row = gram[flipped]
        now = stiffness * _off_grid(level, top)
        wanted = lowest - change - slack
        smallest = _NEVER
        for i in range(d):
            value = np.float32(v[i] + s[i] * (sign * row[i]))
            v[i] = value
            moved = level + per_step * (both * value - s[i] * c[i])
            cost = np.float32(value + (stiffness * _off_grid(moved, top) - now))
            allowed = (ready[i] <= step) | (cost < wanted)
            smallest = _smaller(smallest, _ordered(cost, i, place), allowed)
        if smallest == _NEVER:
            break
        flipped = np.int64(smallest & place)
        sign = s[flipped]
        level += per_step * (both * v[flipped] - sign * c[flipped])
        change += v[flipped] + (stiffness * _off_grid(level, top) - now)
        v[flipped] = -v[flipped]
        s[flipped] = -sign
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
    for i in range(len(values)):
        out[i] = values[i]


@kernel(reassociate=True, never_nan=True, inline=True)
def _off_grid(level: Any, top: Any) -> Any:
    """Squared distance of a level to the nearest whole one from 0 to ``top``."""
    held = min(max(level, np.float32(0)), top)
    off = level - np.rint(held)
    return off * off
