"""Squared distances of bytes, as whole numbers.

Machines multiply pairs of 16-bit numbers and add the two products in one instruction, 32 numbers at a time. LLVM finds
it for the code written here, which says just that, and something else where the machine has no such instruction.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic
from autojacobin.search._registers import WORD, machine_has

__all__ = ["BYTES_AT_ONCE", "LONGEST", "squared_gaps"]

BYTES_AT_ONCE = 32
LONGEST = (2**31 - 1) // 255**2  # bytes a vector whose sum of squares is sure to fit 32 bits

_NUMBERS = ir.VectorType(ir.IntType(16), BYTES_AT_ONCE)
_PLACE = ir.IntType(32)
_UNROLLED = 4
_HALF = BYTES_AT_ONCE // 2
_SUMS = ir.VectorType(_PLACE, _HALF)


@intrinsic  # type: ignore[untyped-decorator]
def squared_gaps(typing_context: Any, queries: Any, q: Any, vectors: Any, row: Any) -> Any:  # noqa: ARG001
    """Sum of the squared differences of row ``q`` of ``queries`` (int16) and a row of ``vectors`` (uint8).

    Only whole stretches of ``BYTES_AT_ONCE`` are taken; what is left over is for the caller.
    """
    signature = types.int32(queries, q, vectors, row)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tables = [context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2)]
        width = builder.extract_value(tables[0].shape, 1)
        asked, stored = (
            builder.gep(table.data, [builder.mul(arguments[i], width)]) for table, i in zip(tables, (1, 3), strict=True)
        )
        none = ir.Constant(_SUMS, [0] * _HALF)
        start, sums = WORD(0), none
        for stretches in (_UNROLLED, 1):
            start, sums = _added_up(builder, asked, stored, width, stretches, start, sums)
        return _total(builder, sums)

    return signature, generate


def _added_up(
    builder: Any, asked: Any, stored: Any, width: Any, stretches: int, first: Any, sums: Any
) -> tuple[Any, Any]:
    """Write a loop over so many stretches at a time; gives where it stopped and the sums."""
    before = builder.block
    head, body, done = (builder.append_basic_block(name) for name in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    start, running = builder.phi(WORD), builder.phi(_SUMS)
    end = builder.add(start, WORD(stretches * BYTES_AT_ONCE))
    start.add_incoming(first, before)
    running.add_incoming(sums, before)
    builder.cbranch(builder.icmp_signed("<=", end, width), body, done)
    builder.position_at_end(body)
    parts = []
    for stretch in range(stretches):
        place = builder.add(start, WORD(stretch * BYTES_AT_ONCE))
        numbers = _loaded(builder, builder.gep(asked, [place]), 16)
        bytes_ = builder.zext(_loaded(builder, builder.gep(stored, [place]), 8), _NUMBERS)
        parts.append(_added_squares(builder, builder.sub(numbers, bytes_)))
    while len(parts) > 1:
        parts = [builder.add(one, other) for one, other in zip(parts[0::2], parts[1::2], strict=True)]
    running.add_incoming(builder.add(running, parts[0]), body)
    start.add_incoming(end, body)
    builder.branch(head)
    builder.position_at_end(done)
    return start, running


def _loaded(builder: Any, pointer: Any, bits: int) -> Any:
    vector = builder.load(builder.bitcast(pointer, ir.VectorType(ir.IntType(bits), BYTES_AT_ONCE).as_pointer()))
    vector.align = bits // 8
    return vector


def _added_squares(builder: Any, gaps: Any) -> Any:
    """Squares of neighbours, added two by two."""
    if machine_has("avx512bw"):
        kind = ir.FunctionType(_SUMS, [_NUMBERS, _NUMBERS])
        multiply_and_add = builder.module.declare_intrinsic("llvm.x86.avx512.pmaddw.d.512", (), kind)
        return builder.call(multiply_and_add, [gaps, gaps])
    squares = []
    for first in (0, 1):
        places = ir.Constant(_SUMS, list(range(first, BYTES_AT_ONCE, 2)))
        every_other = builder.sext(builder.shuffle_vector(gaps, ir.Constant(_NUMBERS, ir.Undefined), places), _SUMS)
        squares.append(builder.mul(every_other, every_other))
    return builder.add(*squares)


def _total(builder: Any, sums: Any) -> Any:
    """Sum over the places of a vector, by halves."""
    count = _HALF
    while count > 1:
        count //= 2
        kind = ir.VectorType(_PLACE, count)
        undefined = ir.Constant(sums.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(sums, undefined, ir.Constant(kind, list(range(first, first + count))))
            for first in (0, count)
        )
        sums = builder.add(low, high)
    return builder.extract_element(sums, _PLACE(0))
