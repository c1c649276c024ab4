"""Turning 64 × 64 bits on their side, for eight blocks of codes at once.

Bits are transposed by exchanging ever smaller squares (Hacker's Delight, section 7-3). Word i of every vector belongs
to block i, so all eight blocks are turned by the same instructions. Eight rows at a time stay in registers for three
of the six rounds, so each row is read and written twice; a loop in Python would go through memory in every round.
"""

from __future__ import annotations

from typing import Any

from numba import types

from autojacobin.core.compilation import intrinsic
from autojacobin.search._registers import WORD, WORDS, everywhere, load, store

__all__ = ["turn_blocks"]

_ROWS_AT_ONCE = 8


@intrinsic  # type: ignore[untyped-decorator]
def turn_blocks(typing_context: Any, words: Any, t: Any, c: Any, w: Any, slices: Any, slot: Any) -> Any:  # noqa: ARG001
    """Write the slices of word ``w`` of the codes of chunk ``c`` of tile ``t`` to a slot: row b gets bit b of each.

    Code 64 g + p of a tile stands at column p G + g of its word, with G codes a row, so that eight words from there on
    are code p of eight blocks.
    """
    signature = types.void(words, t, c, w, slices, slot)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tiles = context.make_array(signature.args[0])(context, builder, arguments[0])
        turned = context.make_array(signature.args[4])(context, builder, arguments[4])
        _, n_words, lanes, columns = (builder.extract_value(tiles.shape, axis) for axis in range(4))
        codes = builder.mul(lanes, columns)
        groups = builder.udiv(codes, WORD(64))
        tile, chunk, number, slot = (arguments[i] for i in (1, 2, 3, 5))
        word = builder.mul(builder.add(builder.mul(tile, n_words), number), codes)
        source = builder.gep(tiles.data, [builder.add(word, builder.mul(chunk, WORD(WORDS)))])
        rows = builder.extract_value(turned.shape, 1)
        first = builder.add(builder.mul(slot, rows), builder.mul(number, WORD(64)))
        target = builder.gep(turned.data, [builder.mul(first, WORD(WORDS))])
        for start in range(_ROWS_AT_ONCE):
            numbers = range(start, 64, _ROWS_AT_ONCE)
            loaded = [load(builder, builder.gep(source, [builder.mul(WORD(p), groups)])) for p in numbers]
            _write(builder, target, numbers, _exchanged(builder, loaded, (32, 16, 8)))
        for start in range(0, 64, _ROWS_AT_ONCE):
            numbers = range(start, start + _ROWS_AT_ONCE)
            loaded = [load(builder, builder.gep(target, [WORD(WORDS * p)])) for p in numbers]
            _write(builder, target, numbers, _exchanged(builder, loaded, (4, 2, 1)))
        return context.get_dummy_value()

    return signature, generate


def _exchanged(builder: Any, rows: list[Any], shifts: tuple[int, ...]) -> list[Any]:
    """Three rounds over eight rows: in each, the high part of one and the low part of another change places."""
    distance = len(rows) // 2
    for shift in shifts:
        mask = everywhere(sum(((1 << shift) - 1) << place for place in range(0, 64, 2 * shift)))
        by = everywhere(shift)
        for one in range(len(rows)):
            if one & distance:
                continue
            low, high = rows[one], rows[one + distance]
            moved = builder.and_(builder.xor(builder.lshr(low, by), high), mask)
            rows[one + distance] = builder.xor(high, moved)
            rows[one] = builder.xor(low, builder.shl(moved, by))
        distance //= 2
    return rows


def _write(builder: Any, target: Any, numbers: range, rows: list[Any]) -> None:
    for p, row in zip(numbers, rows, strict=True):
        store(builder, row, builder.gep(target, [WORD(WORDS * p)]))
