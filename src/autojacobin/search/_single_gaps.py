"""Squared distances in float32, to vectors of bytes, float16 or float32.

Most machines turn sixteen numbers of float16, which numba does not know, into float32 in one instruction, and all add
up faster where a sum need not wait for the one before it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic
from autojacobin.search._registers import WORD, machine_has

__all__ = ["SINGLES_AT_ONCE", "single_gap", "single_squares"]

SINGLES_AT_ONCE = 16
_SUMS_AT_ONCE = 4
_NUMBER, _SINGLE = ir.IntType(32), ir.FloatType()
_STORED = {
    types.uint8: ir.IntType(8),
    types.uint16: ir.IntType(16),  # the bits of a float16
    types.float32: _SINGLE,
}
_HALF_UNIT = 2.0**112  # from the exponents of float16, moved up by 13 bits, to those of float32
_BEYOND_HALVES = 65536.0


@intrinsic  # type: ignore[untyped-decorator]
def single_squares(typing_context: Any, queries: Any, q: Any, vectors: Any, row: Any) -> Any:  # noqa: ARG001
    """Sum of the squared differences of row ``q`` of ``queries`` (float32) and a row of ``vectors``, both in C order.

    Vectors of ``uint16`` are the bits of float16. Only whole stretches of ``SINGLES_AT_ONCE`` are taken; what is left
    over is for the caller.
    """
    stored = _STORED[vectors.dtype]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tables = [context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2)]
        width = builder.extract_value(tables[0].shape, 1)
        pointers = [
            builder.gep(table.data, [builder.mul(arguments[i], width)]) for table, i in zip(tables, (1, 3), strict=True)
        ]
        none = ir.Constant(ir.VectorType(_SINGLE, SINGLES_AT_ONCE), [0.0] * SINGLES_AT_ONCE)
        start, sums = _added_up(builder, pointers, stored, width, WORD(0), [none] * _SUMS_AT_ONCE)
        while len(sums) > 1:
            sums = [builder.fadd(one, other) for one, other in zip(sums[0::2], sums[1::2], strict=True)]
        _, sums = _added_up(builder, pointers, stored, width, start, sums)
        return _total(builder, sums[0])

    return types.float32(queries, q, vectors, row), generate


@intrinsic  # type: ignore[untyped-decorator]
def single_gap(typing_context: Any, single: Any, number: Any) -> Any:  # noqa: ARG001
    """Subtract a number from a float32; a ``uint16`` is taken for the bits of a float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.fsub(arguments[0], _as_singles(builder, arguments[1]))

    return types.float32(types.float32, number), generate


def _added_up(
    builder: Any, pointers: list[Any], stored: Any, width: Any, first: Any, sums: list[Any]
) -> tuple[Any, list[Any]]:
    """Write a loop over as many stretches at a time as there are sums; gives where it stopped and the sums."""
    before = builder.block
    head, body, done = (builder.append_basic_block(name) for name in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    start, running = builder.phi(WORD), [builder.phi(one.type) for one in sums]
    end = builder.add(start, WORD(len(sums) * SINGLES_AT_ONCE))
    for phi, value in zip([start, *running], [first, *sums], strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<=", end, width), body, done)
    builder.position_at_end(body)
    for stretch, phi in enumerate(running):
        place = builder.add(start, WORD(stretch * SINGLES_AT_ONCE))
        asked, there = (
            _loaded(builder, builder.gep(pointer, [place]), kind)
            for pointer, kind in zip(pointers, (_SINGLE, stored), strict=True)
        )
        gaps = builder.fsub(asked, _as_singles(builder, there))
        squares = builder.fmul(gaps, gaps, flags=("contract",))
        phi.add_incoming(builder.fadd(phi, squares, flags=("contract",)), body)
    start.add_incoming(end, body)
    builder.branch(head)
    builder.position_at_end(done)
    return start, running


def _loaded(builder: Any, pointer: Any, kind: Any) -> Any:
    vector = builder.load(builder.bitcast(pointer, ir.VectorType(kind, SINGLES_AT_ONCE).as_pointer()))
    vector.align = 4 if kind is _SINGLE else kind.width // 8
    return vector


def _as_singles(builder: Any, numbers: Any) -> Any:
    """Give one number or several as float32."""
    width = getattr(getattr(numbers.type, "element", numbers.type), "width", None)
    if width is None:
        return numbers
    if width == 8:
        return builder.uitofp(numbers, _like(numbers, _SINGLE))
    if machine_has("f16c"):
        return builder.fpext(builder.bitcast(numbers, _like(numbers, ir.HalfType())), _like(numbers, _SINGLE))
    return _from_bits(builder, builder.zext(numbers, _like(numbers, _NUMBER)))


def _from_bits(builder: Any, bits: Any) -> Any:
    """Move the bits to where a float32 has them; without the instruction LLVM calls a function that is not there."""
    singles = _like(bits, _SINGLE)
    moved = builder.shl(builder.and_(bits, _all(bits.type, 0x7FFF)), _all(bits.type, 13))
    size = builder.fmul(builder.bitcast(moved, singles), _all(singles, _HALF_UNIT))
    size = builder.select(
        builder.fcmp_ordered("<", size, _all(singles, _BEYOND_HALVES)), size, _all(singles, float("inf"))
    )
    sign = builder.shl(builder.and_(bits, _all(bits.type, 0x8000)), _all(bits.type, 16))
    return builder.bitcast(builder.or_(builder.bitcast(size, bits.type), sign), singles)


def _like(numbers: Any, kind: Any) -> Any:
    """Type of as many of a kind as there are numbers."""
    return ir.VectorType(kind, numbers.type.count) if isinstance(numbers.type, ir.VectorType) else kind


def _all(kind: Any, value: Any) -> Any:
    """A constant of a type, with the same value everywhere."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _total(builder: Any, sums: Any) -> Any:
    """Sum over the places of a vector, by halves."""
    while sums.type.count > 1:
        count = sums.type.count // 2
        undefined = ir.Constant(sums.type, ir.Undefined)
        places = ir.VectorType(_NUMBER, count)
        low, high = (
            builder.shuffle_vector(sums, undefined, ir.Constant(places, list(range(first, first + count))))
            for first in (0, count)
        )
        sums = builder.fadd(low, high)
    return builder.extract_element(sums, _NUMBER(0))
