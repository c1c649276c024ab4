"""Distances by bit slices: 512 codes at a time, for many queries.

A *slice* is one bit of each of 512 codes, as a vector of 512 bits: row b of a *chunk* holds bit b of each code. A
number of n bits for each code is stored the same way, as n vectors that are called its *planes*. Adding the same row to
512 numbers is then a full adder on whole vectors, with the parity and the majority of three bits. Rows are added as a
tree, eight or sixteen at a time, so that only the carries of the tree ripple through the higher planes. This takes a
little more than two instructions for each row and 512 codes.

*Hamming distance.* With s the number of ones that code x and query q have in common, d = |x| + |q| − 2 s. To find the
codes with d < R, the planes start as R − |q|, the rows where the query has a one are added at the second plane, and
then ~|x| is added, which is computed once for all queries:

    R − 1 − d = 2 s + (R − |q|) + ~|x|

The sign of the result shows which codes are near. If the query has more ones than zeros, the rows where it has a zero
are added instead. With t ones of the code among these, the sum is the complement of the above:

    d − R = 2 t + (|q| + 1 − R) + ~|x|

*Weighted distance.* R − 1 − d is R − 1 − (all weights) + (weights of the bits that agree). List t of a query names the
rows that agree with it in bits whose weight has 2^t in its binary form; they are added at plane t.

Transposing a tile takes as long as a dozen queries, so it is done once for a block of queries and not kept. Codes of
more than 512 bits have tiles of fewer than 512 codes and cannot be sliced.

The rows of a chunk are: one for each bit; a row of zeros, which fills up the lists of rows; then the planes of ~|x|, or
for weighted distances the inverted rows of the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from autojacobin.core import simd
from autojacobin.core.compilation import intrinsic, kernel, trailing_zeros, use_wide_registers
from autojacobin.core.simd import INT32, VECTOR, WORD, WORDS, machine_has

CODES_PER_CHUNK = 64 * WORDS
_MOST_WORDS = 8  # of a code
_ROWS_AT_ONCE, _FEWER_ROWS = 16, 8  # rows that are added as one tree
_USUAL_WEIGHT = 15
_TRUTH_TABLE_OF_MAJORITY = 0xE8
_ZERO, _ONES = simd.splat(0), simd.splat(-1)


class SlicedQueries(NamedTuple):
    """A block of queries as lists of rows, with memory for the slices of a tile. Compiled functions take it whole.

    A row is named by the number of words before it, eight times its number. There is one list for Hamming distances,
    and one for each plane of the weights. The sums of a query start with sign times radius plus constant. The sign is
    −1 if the rows of its zeros are added, otherwise 1.
    """

    rows: npt.NDArray[np.uint16]  # that each query adds up
    ends: npt.NDArray[np.int64]  # of the lists of each query, shape (n_queries, lists)
    signs: npt.NDArray[np.int64]
    constants: npt.NDArray[np.int64]
    starts: npt.NDArray[np.uint64]  # of the sums in two's complement, each bit as a word, shape (n_queries, width)
    lists: tuple[int, ...]  # as long as a query has lists; the compiler knows the length of a tuple
    width: tuple[int, ...]  # as long as a sum has bits
    slices: npt.NDArray[np.uint64]  # memory, shape (chunks, rows, 8)
    all_bits: npt.NDArray[np.uint16]  # the rows of all bits, as the list of one query
    all_ends: npt.NDArray[np.int64]  # its end


def can_be_sliced(words: npt.NDArray[np.uint64]) -> bool:
    """Return whether tiles, given as their words, hold whole chunks of 512 codes."""
    return bool(words.shape[1] <= _MOST_WORDS)


def slice_queries(queries: Any, planes: Any, n_levels: int, codes_per_tile: int) -> SlicedQueries:
    """Prepare a block of queries; ``planes`` are empty for Hamming distances, ``n_levels`` bounds the distances."""
    n, n_bits = len(queries), 64 * queries.shape[1]
    lists = planes.shape[1] if planes.size else 1
    # Bits for the largest distance and a sign. Each width is compiled for itself, so it depends on whole words of
    # usual weights, unless the distances are larger.
    usual = n_bits * (_USUAL_WEIGHT if planes.size else 1)
    width = max(usual, n_levels - 1).bit_length() + 1
    rows = np.empty((n, lists * (n_bits + _FEWER_ROWS)), dtype=np.uint16)
    ends = np.empty((n, lists), dtype=np.int64)
    signs = np.ones(n, dtype=np.int64)
    if planes.size:
        _list_rows(queries, planes, rows, ends)
        weights = np.bitwise_count(planes).sum(axis=2, dtype=np.int64)
        constants = -1 - weights @ (1 << np.arange(lists))
    else:
        constants = -np.bitwise_count(queries).sum(axis=1, dtype=np.int64)
        mostly_ones = -constants > n_bits // 2
        signs[mostly_ones] = -1
        constants[mostly_ones] = 1 - constants[mostly_ones]
        chosen = np.where(mostly_ones[:, np.newaxis], ~queries, queries)
        _list_rows(np.full_like(queries, ~np.uint64(0)), chosen[:, np.newaxis], rows, ends)
    n_rows = n_bits + 1 + (n_bits if planes.size else width)
    return SlicedQueries(
        rows,
        ends,
        signs,
        constants,
        np.empty((n, width), dtype=np.uint64),
        (0,) * lists,
        (0,) * width,
        empty_slices(codes_per_tile // CODES_PER_CHUNK, n_bits, n_rows),
        WORDS * np.arange(n_bits, dtype=np.uint16)[None],
        np.full((1, 1), n_bits, dtype=np.int64),
    )


def empty_slices(chunks: int, n_bits: int, n_rows: int) -> npt.NDArray[np.uint64]:
    """Memory for the slices of some chunks, with a row of zeros after those of the bits."""
    slices = simd.empty_aligned((chunks, n_rows, WORDS), np.uint64)
    slices[:, n_bits] = 0
    return slices


@kernel
def _list_rows(queries: Any, planes: Any, rows: Any, ends: Any) -> None:
    """List the bits that are set in each plane: their own rows where the query has a one, otherwise the inverted."""
    n_bits = 64 * queries.shape[1]
    for q in range(queries.shape[0]):
        count = 0
        for level in range(planes.shape[1]):
            for w in range(queries.shape[1]):
                bits = planes[q, level, w]
                while bits:
                    bit = np.int64(trailing_zeros(bits))
                    bits &= bits - np.uint64(1)
                    one = (queries[q, w] >> np.uint64(bit)) & np.uint64(1)
                    rows[q, count] = WORDS * (64 * w + bit + (0 if one else n_bits + 1))
                    count += 1
            while count % _FEWER_ROWS:  # filled up with the row of zeros
                rows[q, count] = WORDS * n_bits
                count += 1
            ends[q, level] = count


@kernel(inner=True)
def set_start(sliced: Any, q: int, radius: int) -> None:
    """Let :func:`mark_near` look for codes within ``radius`` of query ``q``."""
    number = sliced.signs[q] * radius + sliced.constants[q]
    starts = sliced.starts
    for i in range(starts.shape[1]):
        starts[q, i] = np.uint64(-((number >> i) & 1))


@kernel(inner=True)
def slice_chunk(words: Any, t: int, c: int, sliced: Any, slot: int) -> None:
    """Transpose chunk ``c`` of tile ``t`` into a slot of the slices, and fill the rows that follow the bits."""
    use_wide_registers()
    slices = sliced.slices
    n_bits = 64 * words.shape[1]
    for w in range(words.shape[1]):
        _transpose(words, t, c, w, slices, slot)
    if len(sliced.lists) > 1:
        for b in range(n_bits):
            for i in range(WORDS):
                slices[slot, n_bits + 1 + b, i] = ~slices[slot, b, i]
    else:
        _append_counts(sliced, slot)


@intrinsic  # type: ignore[untyped-decorator]
def _transpose(typing_context: Any, words: Any, t: Any, c: Any, w: Any, slices: Any, slot: Any) -> Any:  # noqa: ARG001
    """Transpose word ``w`` of the 512 codes of chunk ``c`` of tile ``t``: row b of the slot gets bit b of each code.

    Squares of 64 × 64 bits are transposed by exchanging ever smaller squares (Hacker's Delight, section 7-3). Word i of
    every vector belongs to square i, so eight squares are transposed by the same instructions. Eight rows at a time
    stay in registers for three of the six rounds, so that each row is loaded and stored twice.

    Code 64 g + p of a tile is in column p G + g of its word, with G groups of 64 codes in a tile, so that the eight
    words from there on are code p of eight groups.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tiles, target_array = (_array(context, builder, signature.args[i], arguments[i]) for i in (0, 4))
        _, n_words, lanes, columns = (builder.extract_value(tiles.shape, axis) for axis in range(4))
        codes = builder.mul(lanes, columns)
        groups = builder.udiv(codes, WORD(64))
        tile, chunk, number, slot = (arguments[i] for i in (1, 2, 3, 5))
        word = builder.mul(builder.add(builder.mul(tile, n_words), number), codes)
        source = builder.gep(tiles.data, [builder.add(word, builder.mul(chunk, WORD(WORDS)))])
        rows = builder.extract_value(target_array.shape, 1)
        first = builder.add(builder.mul(slot, rows), builder.mul(number, WORD(64)))
        target = builder.gep(target_array.data, [builder.mul(first, WORD(WORDS))])

        def store_rows(numbers: list[Any], vectors: list[Any]) -> None:
            for p, vector in zip(numbers, vectors, strict=True):
                simd.store(builder, vector, builder.gep(target, [builder.mul(p, WORD(WORDS))]))

        def exchange_far(start: Any, _: list[Any]) -> list[Any]:
            numbers = [builder.add(start, WORD(p)) for p in range(0, 64, 8)]
            loaded = [simd.load(builder, builder.gep(source, [builder.mul(p, groups)])) for p in numbers]
            store_rows(numbers, _exchange(builder, loaded, (32, 16, 8)))
            return []

        def exchange_near(start: Any, _: list[Any]) -> list[Any]:
            numbers = [builder.add(start, WORD(p)) for p in range(8)]
            loaded = [simd.load(builder, builder.gep(target, [builder.mul(p, WORD(WORDS))])) for p in numbers]
            store_rows(numbers, _exchange(builder, loaded, (4, 2, 1)))
            return []

        simd.generate_loop(builder, WORD(0), WORD(8), 1, [], exchange_far)
        simd.generate_loop(builder, WORD(0), WORD(64), 8, [], exchange_near)
        return context.get_dummy_value()

    return types.void(words, t, c, w, slices, slot), generate


def _exchange(builder: Any, rows: list[Any], shifts: tuple[int, ...]) -> list[Any]:
    """Three rounds over eight rows. In each, the high bits of one row and the low bits of another change places."""
    distance = len(rows) // 2
    for shift in shifts:
        mask = simd.splat(sum(((1 << shift) - 1) << bit for bit in range(0, 64, 2 * shift)))
        by = simd.splat(shift)
        for one in range(len(rows)):
            if one & distance:
                continue
            low, high = rows[one], rows[one + distance]
            moved = builder.and_(builder.xor(builder.lshr(low, by), high), mask)
            rows[one + distance] = builder.xor(high, moved)
            rows[one] = builder.xor(low, builder.shl(moved, by))
        distance //= 2
    return rows


@intrinsic  # type: ignore[untyped-decorator]
def _append_counts(typing_context: Any, sliced: Any, slot: Any) -> Any:  # noqa: ARG001
    """Write the planes of ~|x| for all codes x of a slot after the rows of the bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        block = _Fields(context, builder, sliced, arguments[0])
        width = block.length("width")
        adder = _Adder(builder, block["slices"], arguments[1], block["all_bits"], block["all_ends"], WORD(0))
        planes = adder.add_lists([_ZERO] * width, levels=[0])
        for i, plane in enumerate(planes):
            simd.store(builder, builder.xor(plane, _ONES), adder.row_from_end(width - i))
        return context.get_dummy_value()

    return types.void(sliced, slot), generate


@intrinsic  # type: ignore[untyped-decorator]
def mark_near(typing_context: Any, sliced: Any, chunk: Any, q: Any, near: Any) -> Any:  # noqa: ARG001
    """Mark the codes of a chunk that are nearer to query ``q`` than its radius.

    The bitmap goes to words 8 ``chunk`` to 8 ``chunk`` + 7 of ``near``. The result has bit i set if word i has marks.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        margins = _margins(context, builder, sliced, arguments)
        marks = builder.xor(margins[-1], _ONES)  # the sign of R − 1 − d is 0 for near codes
        out = _array(context, builder, signature.args[3], arguments[3])
        simd.store(builder, marks, builder.gep(out.data, [builder.mul(arguments[1], WORD(WORDS))]))
        some = builder.bitcast(builder.icmp_signed("!=", marks, _ZERO), ir.IntType(WORDS))
        return builder.zext(some, WORD)

    return types.uint64(sliced, chunk, q, near), generate


@intrinsic  # type: ignore[untyped-decorator]
def write_margins(typing_context: Any, sliced: Any, chunk: Any, q: Any, margins: Any) -> Any:  # noqa: ARG001
    """Write R − 1 − d, whose sign :func:`mark_near` tests. Row i of ``margins`` holds plane i of all chunks."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out = _array(context, builder, signature.args[3], arguments[3])
        for i, plane in enumerate(_margins(context, builder, sliced, arguments)):
            row = builder.mul(WORD(i), builder.extract_value(out.shape, 1))
            place = builder.add(row, builder.mul(arguments[1], WORD(WORDS)))
            simd.store(builder, plane, builder.gep(out.data, [place]))
        return context.get_dummy_value()

    return types.void(sliced, chunk, q, margins), generate


def _margins(context: Any, builder: Any, sliced: Any, arguments: Any) -> list[Any]:
    """Planes of R − 1 − d for the codes of a chunk; the arguments are the sliced queries, the chunk, the query."""
    block = _Fields(context, builder, sliced, arguments[0])
    lists, width = block.length("lists"), block.length("width")
    adder = _Adder(builder, block["slices"], arguments[1], block["rows"], block["ends"], arguments[2])
    planes = _start(builder, block["starts"], arguments[2], width)
    if lists > 1:
        return adder.add_lists(planes, levels=range(lists))
    sign = builder.load(builder.gep(block["signs"].data, [arguments[2]]))
    complement = simd.everywhere(builder, builder.ashr(sign, WORD(63)))
    sums, carry = [], _ZERO
    for i, plane in enumerate(adder.add_lists(planes, levels=[1])):
        other = simd.load(builder, adder.row_from_end(width - i))
        sums.append(builder.xor(builder.xor(builder.xor(plane, other), carry), complement))
        carry = _majority(builder, plane, other, carry)
    return sums


def _start(builder: Any, starts: Any, q: Any, width: int) -> list[Any]:
    """Planes that hold the start of query ``q`` for all codes."""
    row = builder.gep(starts.data, [builder.mul(q, builder.extract_value(starts.shape, 1))])
    return [simd.everywhere(builder, builder.load(builder.gep(row, [WORD(i)]))) for i in range(width)]


def _array(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.make_array(kind)(context, builder, value)


class _Fields:
    """The fields of a named tuple in generated code."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self.context, self.builder, self.kind, self.value = context, builder, kind, value

    def __getitem__(self, name: str) -> Any:
        number = self.kind.fields.index(name)
        return _array(
            self.context, self.builder, self.kind.types[number], self.builder.extract_value(self.value, number)
        )

    def length(self, name: str) -> int:
        """Length of a field that is a tuple."""
        return self.kind.types[self.kind.fields.index(name)].count


class _Adder:
    """Generates the code that adds rows of a chunk to planes."""

    def __init__(self, builder: Any, slices: Any, chunk: Any, rows: Any, ends: Any, query: Any) -> None:
        self.builder = builder
        self.n_rows = builder.extract_value(slices.shape, 1)
        self.slices = builder.gep(slices.data, [builder.mul(chunk, builder.mul(self.n_rows, WORD(WORDS)))])
        self.listed, self.ends = (
            builder.gep(table.data, [builder.mul(query, builder.extract_value(table.shape, 1))])
            for table in (rows, ends)
        )

    def row_from_end(self, number: int) -> Any:
        """Pointer to a row of the chunk, counted from the end."""
        row = self.builder.sub(self.n_rows, WORD(number))
        return self.builder.gep(self.slices, [self.builder.mul(row, WORD(WORDS))])

    def add_lists(self, planes: list[Any], levels: Sequence[int]) -> list[Any]:
        """Add the rows of the query's lists. There is a list for each level, the plane that its rows are added at."""
        start = WORD(0)
        for number, level in enumerate(levels):
            end = self.builder.load(self.builder.gep(self.ends, [WORD(number)]))
            planes = self._add_list(planes, level, start, end)
            start = end
        return planes

    def _add_list(self, planes: list[Any], level: int, start: Any, end: Any) -> list[Any]:
        """Add the rows from ``start`` to ``end``, a multiple of eight: sixteen at a time, then eight if they remain."""

        def add(count: int, i: Any, sums: list[Any]) -> list[Any]:
            return self._add(sums, level, self._rows(i, count))

        for count in (_ROWS_AT_ONCE, _FEWER_ROWS):
            start, planes = simd.generate_loop(self.builder, start, end, count, planes, partial(add, count))
        return planes

    def _rows(self, first: Any, count: int) -> list[Any]:
        builder = self.builder
        places = [builder.gep(self.listed, [builder.add(first, WORD(i))]) for i in range(count)]
        offsets = [builder.zext(builder.load(place), WORD) for place in places]
        return [simd.load(builder, builder.gep(self.slices, [offset])) for offset in offsets]

    def _add(self, planes: Sequence[Any], level: int, rows: list[Any]) -> list[Any]:
        """Add single bits to the numbers at plane ``level``. The carries of a plane are added to the next."""
        builder, planes = self.builder, list(planes)
        while rows and level < len(planes):
            plane, carries = planes[level], []
            for one, other in zip(rows[0::2], rows[1::2], strict=False):
                carries.append(_majority(builder, one, other, plane))
                plane = builder.xor(builder.xor(one, other), plane)
            if len(rows) % 2:
                carries.append(builder.and_(rows[-1], plane))
                plane = builder.xor(rows[-1], plane)
            planes[level] = plane
            rows, level = carries, level + 1
        return planes


def _majority(builder: Any, a: Any, b: Any, c: Any) -> Any:
    if not machine_has("avx512f"):
        # one instruction fewer than the usual (a & b) | (c & (a | b)), and a ^ b is needed for the parity anyway
        return builder.xor(builder.and_(builder.xor(a, b), builder.xor(a, c)), a)
    # LLVM does not find this instruction by itself
    return simd.call(builder, "llvm.x86.avx512.pternlog.q.512", VECTOR, a, b, c, INT32(_TRUTH_TABLE_OF_MAJORITY))
