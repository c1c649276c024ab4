"""Adders over slices: numbers kept a bit to a word, 512 of them at a time.

In a vector of 512 bits, bit i belongs to code i of a chunk. A number of n bits for each code is then n vectors, its
planes, and a full adder on planes adds 512 numbers with two instructions: the parity and the majority of three bits,
which AVX-512 computes for any three inputs. Rows of bits (``_slices.py``) are added up in a tree, eight or sixteen at
a time, and only what is carried out of the tree ripples on: a little more than two instructions a row for 512 codes,
where counting the bits of 512 words takes 64 XORs, 64 counts and as many shifts and additions again.

LLVM has to be told: a loop in Python would keep the planes in memory, and the majority would take two instructions. So
these functions write its code themselves. Without AVX-512 the same code comes out in narrower registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic
from autojacobin.search._registers import VECTOR, WORD, WORDS, everywhere, load, machine_has, store

__all__ = ["add_up_rows", "mark_near", "write_margins"]

_SHORT = ir.IntType(32)
_ZERO, _ONES = everywhere(0), everywhere(-1)
_MAJORITY = 0xE8  # its truth table, as the instruction wants it
_FEW, _MANY = 8, 16  # rows that are added in one go


@intrinsic  # type: ignore[untyped-decorator]
def add_up_rows(typing_context: Any, slices: Any, chunk: Any, rows: Any, ends: Any, q: Any, sums: Any, n: Any) -> Any:  # noqa: ARG001
    """Count, for each code of a chunk, the ones in the rows that list ``q`` names; ``sums`` gets ~count."""
    signature = types.void(slices, chunk, rows, ends, q, sums, n)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = _Code(context, builder, signature, arguments)
        planes = code.add_lists([_ZERO] * n.count, levels=[0])
        for i, plane in enumerate(planes):
            store(builder, builder.xor(plane, _ONES), code.pointer(5, WORD(i * WORDS)))
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def mark_near(
    typing_context: Any,  # noqa: ARG001
    slices: Any,
    chunk: Any,
    rows: Any,
    ends: Any,
    q: Any,
    seeds: Any,
    near: Any,
    lists: Any,
    n: Any,
) -> Any:
    """Mark the codes of a chunk that are nearer to query ``q`` than its radius R; gives the words that have marks.

    ``lists`` is a tuple as long as a query has lists of rows: one for Hamming distances, more for weighted ones.

    *Hamming.* With s the number of ones that code x and query have in common, R − 1 − d = 2 s + (R − |q|) + ~|x|. The
    planes start as R − |q|, the rows where the query has a one come in at the second plane, ~|x| is ready in the last
    rows of the slices, and the sign says which are near.

    *Weighted.* R − 1 − d is R − 1 − (all weights) + (weights of the bits that agree). The planes start as the constant
    part; list t names the rows that agree in bits whose weight has 2^t in it.
    """
    signature = types.uint64(slices, chunk, rows, ends, q, seeds, near, lists, n)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = _Code(context, builder, signature, arguments)
        return code.mark(builder.xor(code.margins(lists.count, n.count)[-1], _ONES))

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def write_margins(
    typing_context: Any,  # noqa: ARG001
    slices: Any,
    chunk: Any,
    rows: Any,
    ends: Any,
    q: Any,
    seeds: Any,
    margins: Any,
    lists: Any,
    n: Any,
) -> Any:
    """Write R − 1 − d, of which :func:`mark_near` looks at the sign: a row of ``margins`` has a plane of all chunks."""
    signature = types.void(slices, chunk, rows, ends, q, seeds, margins, lists, n)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = _Code(context, builder, signature, arguments)
        for i, plane in enumerate(code.margins(lists.count, n.count)):
            row = builder.mul(WORD(i), code.extent(6, 1))
            store(builder, plane, code.pointer(6, builder.add(row, builder.mul(arguments[1], WORD(WORDS)))))
        return context.get_dummy_value()

    return signature, generate


class _Code:
    """Code in the making: the arguments, and what is done with them.

    All three functions begin with slices (chunks, rows, 8 words), the chunk, lists of rows by query, where each list
    ends, and the query. A row is named by the words in front of it, eight times its number.
    """

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder, self.arguments = builder, arguments
        self.arrays = {
            i: context.make_array(kind)(context, builder, argument)
            for i, (kind, argument) in enumerate(zip(signature.args, arguments, strict=True))
            if isinstance(kind, types.Array)
        }
        self.query = arguments[4]
        size = builder.mul(self.extent(0, 1), WORD(WORDS))
        self.chunk = self.pointer(0, builder.mul(arguments[1], size))

    def extent(self, array: int, axis: int) -> Any:
        return self.builder.extract_value(self.arrays[array].shape, axis)

    def pointer(self, array: int, offset: Any) -> Any:
        return self.builder.gep(self.arrays[array].data, [offset])

    def row_of(self, array: int) -> Any:
        """Pointer to the row of a matrix that belongs to the query."""
        return self.pointer(array, self.builder.mul(self.query, self.extent(array, 1)))

    def seeds(self, n: int) -> list[Any]:
        """Planes that hold the same number, given as a word of zeros or ones a plane, for all codes."""
        builder, row = self.builder, self.row_of(5)
        undefined = ir.Constant(VECTOR, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(_SHORT, WORDS), [0] * WORDS)
        planes = []
        for i in range(n):
            word = builder.load(builder.gep(row, [WORD(i)]))
            planes.append(
                builder.shuffle_vector(builder.insert_element(undefined, word, _SHORT(0)), undefined, everywhere)
            )
        return planes

    def margins(self, lists: int, n: int) -> list[Any]:
        """Planes of R − 1 − d."""
        if lists > 1:
            return self.add_lists(self.seeds(n), levels=range(lists))
        planes, carry = self.add_lists(self.seeds(n), levels=[1]), _ZERO
        first = self.builder.sub(self.extent(0, 1), WORD(n))
        out = []
        for i, plane in enumerate(planes):
            row = self.builder.mul(self.builder.add(first, WORD(i)), WORD(WORDS))
            other = load(self.builder, self.builder.gep(self.chunk, [row]))
            out.append(self.builder.xor(self.builder.xor(plane, other), carry))
            carry = self.majority(plane, other, carry)
        return out

    def mark(self, near: Any) -> Any:
        builder = self.builder
        store(builder, near, self.pointer(6, builder.mul(self.arguments[1], WORD(WORDS))))
        some = builder.bitcast(builder.icmp_signed("!=", near, _ZERO), ir.IntType(WORDS))
        return builder.zext(some, WORD)

    def add_lists(self, planes: list[Any], levels: Sequence[int]) -> list[Any]:
        """Add the rows of the query's lists, one list for each level, the plane that its rows come in at."""
        ends, start = self.row_of(3), WORD(0)
        for number, level in enumerate(levels):
            end = self.builder.load(self.builder.gep(ends, [WORD(number)]))
            planes = self.add_list(planes, level, start, end)
            start = end
        return planes

    def add_list(self, planes: list[Any], level: int, start: Any, end: Any) -> list[Any]:
        """Add rows ``start`` to ``end`` of the list, a multiple of eight: sixteen at a time, then eight if left."""
        builder = self.builder
        most = builder.sub(end, WORD(_MANY))
        before = builder.block
        head, body, rest, eight, done = (
            builder.append_basic_block(name) for name in ("head", "sixteen", "rest", "eight", "done")
        )
        builder.branch(head)
        builder.position_at_end(head)
        i = builder.phi(WORD)
        i.add_incoming(start, before)
        loop = [builder.phi(VECTOR) for _ in planes]
        for phi, plane in zip(loop, planes, strict=True):
            phi.add_incoming(plane, before)
        builder.cbranch(builder.icmp_signed("<=", i, most), body, rest)
        builder.position_at_end(body)
        for phi, plane in zip(loop, self.add(loop, level, self.rows(i, _MANY)), strict=True):
            phi.add_incoming(plane, body)
        i.add_incoming(builder.add(i, WORD(_MANY)), body)
        builder.branch(head)
        builder.position_at_end(rest)
        builder.cbranch(builder.icmp_signed("<", i, end), eight, done)
        builder.position_at_end(eight)
        more = self.add(loop, level, self.rows(i, _FEW))
        builder.branch(done)
        builder.position_at_end(done)
        out = []
        for without, with_them in zip(loop, more, strict=True):
            phi = builder.phi(VECTOR)
            phi.add_incoming(without, rest)
            phi.add_incoming(with_them, eight)
            out.append(phi)
        return out

    def rows(self, first: Any, count: int) -> list[Any]:
        builder, listed = self.builder, self.row_of(2)
        vectors = []
        for i in range(count):
            offset = builder.load(builder.gep(listed, [builder.add(first, WORD(i))]))
            vectors.append(load(builder, builder.gep(self.chunk, [builder.zext(offset, WORD)])))
        return vectors

    def add(self, planes: Sequence[Any], level: int, rows: list[Any]) -> list[Any]:
        """Add single bits to the numbers, at plane ``level``: what is carried from a plane goes on to the next."""
        builder, planes = self.builder, list(planes)
        while rows and level < len(planes):
            plane, carried = planes[level], []
            for one, other in zip(rows[0::2], rows[1::2], strict=False):
                carried.append(self.majority(one, other, plane))
                plane = builder.xor(builder.xor(one, other), plane)
            if len(rows) % 2:
                carried.append(builder.and_(rows[-1], plane))
                plane = builder.xor(rows[-1], plane)
            planes[level] = plane
            rows, level = carried, level + 1
        return planes

    def majority(self, a: Any, b: Any, c: Any) -> Any:
        builder = self.builder
        if not machine_has("avx512f"):  # LLVM does not use its instruction for a majority by itself
            return builder.or_(builder.and_(a, b), builder.and_(c, builder.or_(a, b)))
        kind = ir.FunctionType(VECTOR, [VECTOR, VECTOR, VECTOR, _SHORT])
        logic: Callable[..., Any] = builder.module.declare_intrinsic("llvm.x86.avx512.pternlog.q.512", (), kind)
        return builder.call(logic, [a, b, c, _SHORT(_MAJORITY)])
