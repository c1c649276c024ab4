"""The compiled tabu search of ``_tabu_search``, which holds its formulas, for many vectors.

One pass over a row of G changes all v_i and finds the next bit: v_i is read as an integer of the same order, its
lowest bits are replaced by i, and the smallest integer carries the place along. So v has 23 − log2(d) binary digits
where bits are compared, and all of them where errors are summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from autojacobin.core.compilation import intrinsic, kernel, use_wide_registers

__all__ = ["search"]

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
    """Give the smaller one of two integers, or the first if the second is not allowed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        before, new, condition = arguments
        offered = builder.select(condition, new, new.type(2**31 - 1))
        return builder.select(builder.icmp_signed("<", offered, before), offered, before)

    return types.int32(types.int32, types.int32, types.boolean), generate


@kernel(reassociate=True)
def search(
    X: Any, middle: Any, columns: Any, inverse: Any, gram: Any, start: Any, first: Any, given: bool, n_steps: int,
    shortest: int, longest: int, slack: Any, out: Any,
) -> None:  # fmt: skip
    """Search for the code of each row of ``X``, from ``first`` if it is ``given``, else from the signs by ``start``."""
    use_wide_registers()
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
            total = np.float32(0)
            for i in range(d):
                total += abs(b[r, i])
                v[r, i] = s[r, i] * (b[r, i] - np.float32(0.5) * v[r, i])
            if total < np.float32(np.inf):
                _tabu(v[r], s[r], gram, ready, best, n_steps, np.int32(shortest), np.int32(longest), slack * total)
                out[begin + r] = best
            else:
                out[begin + r] = np.nan


@kernel(reassociate=True, inline=True)
def _multiply(values: Any, matrix: Any, out: Any, rows: int) -> None:
    """Out = values @ matrix for the first ``rows`` rows, which share each pass over the matrix.

    The order of the sums is always the same, whatever rows a row comes with.
    """
    n, width = matrix.shape
    out[:rows] = 0
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
    v: Any, s: Any, gram: Any, ready: Any, best: Any, n_steps: int, shortest: Any, longest: Any, slack: Any
) -> None:
    d = len(s)
    power = 1
    while power < d:
        power *= 2
    place = np.int32(power - 1)  # the bits that hold a place
    ready[:] = 0
    best[:] = s
    change = lowest = np.float32(0)
    flipped, sign = np.int64(0), np.float32(0)  # the first pass changes nothing
    wait = shortest
    for count in range(n_steps):
        step = np.int32(count)
        row = gram[flipped]
        wanted = lowest - change - slack
        smallest = _NEVER
        for i in range(d):
            value = np.float32(v[i] + s[i] * (sign * row[i]))
            v[i] = value
            allowed = (ready[i] <= step) | (value < wanted)
            smallest = _smaller(smallest, _ordered(value, i, place), allowed)
        if smallest == _NEVER:
            break
        flipped = np.int64(smallest & place)
        sign = s[flipped]
        change += v[flipped]
        v[flipped] = -v[flipped]
        s[flipped] = -sign
        ready[flipped] = step + wait
        wait = shortest if wait == longest else wait + np.int32(1)
        if change < lowest - slack:
            lowest = change
            best[:] = s
