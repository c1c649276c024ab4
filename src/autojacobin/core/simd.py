"""512-bit vectors for the functions that generate LLVM code.

LLVM vectorises simple loops by itself. Where it does not find the best instructions, an *intrinsic* generates the code
through llvmlite. The helpers here are what several intrinsics need. On machines without AVX-512, LLVM splits the
vectors into narrower registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
from llvmlite import binding, ir

CACHE_LINE = 64  # bytes
WORDS = 8  # 64-bit words in a vector
WORD, INT32 = ir.IntType(64), ir.IntType(32)
VECTOR = ir.VectorType(WORD, WORDS)


# As far as the kernels ask for them. They count for CPUs that NUMBA_CPU_NAME names, and where LLVM does not look for a
# feature of this machine, as for dotprod.
_FEATURES = {
    "x86-64-v2": ("ssse3",),
    "x86-64-v3": ("ssse3", "avx2", "f16c"),
    "haswell": ("ssse3", "avx2", "f16c"),
    "x86-64-v4": ("ssse3", "avx2", "f16c", "avx512f", "avx512bw"),
    **dict.fromkeys(("neoverse-n1", "neoverse-n2", "neoverse-v1", "neoverse-v2"), ("neon", "dotprod")),
}


def machine_has(feature: str) -> bool:
    """Return whether the machine that code is compiled for has a CPU feature of LLVM's list, such as ``avx512f``."""
    settings: Any = numba.config
    if settings.CPU_NAME or settings.CPU_FEATURES:  # another machine than this one
        given = (settings.CPU_FEATURES or "").split(",")
        named = feature in _FEATURES.get(settings.CPU_NAME, ())
        return f"+{feature}" in given or (named and f"-{feature}" not in given)
    known = feature in _FEATURES.get(binding.get_host_cpu_name(), ())
    return bool(binding.get_host_cpu_features().get(feature, known))


def splat(number: int) -> Any:
    """A constant vector with the same number in every word."""
    return ir.Constant(VECTOR, [number] * WORDS)


def load(builder: Any, pointer: Any, kind: Any = VECTOR, align: int = 8) -> Any:
    """Load a vector from a pointer to its elements, which are aligned to ``align`` bytes."""
    vector = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    vector.align = align
    return vector


def store(builder: Any, vector: Any, pointer: Any) -> None:
    """Store eight words at a pointer to words."""
    builder.store(vector, builder.bitcast(pointer, VECTOR.as_pointer())).align = 8


def call(builder: Any, name: str, result: Any, *arguments: Any, flags: Sequence[str] = ()) -> Any:
    """Call a function of LLVM, most often an instruction of the machine, that gives the type ``result``.

    ``flags`` are those of its fast mathematics.
    """
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.module.declare_intrinsic(name, (), kind), arguments, fastmath=flags)


def prefetch(builder: Any, pointer: Any) -> None:
    """Ask for a cache line without waiting for it."""
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, INT32, INT32, INT32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    builder.call(function, [pointer, INT32(0), INT32(3), INT32(1)])  # to read, keep in all caches, data


def shuffle(builder: Any, vector: Any, order: Sequence[int]) -> Any:
    """Give the elements of a vector with these numbers."""
    chosen = ir.Constant(ir.VectorType(INT32, len(order)), list(order))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)


def join(builder: Any, parts: Sequence[Any]) -> Any:
    """Put vectors of one length, a power of two of them, one after another."""
    while len(parts) > 1:
        count = 2 * parts[0].type.count
        order = ir.Constant(ir.VectorType(INT32, count), list(range(count)))
        parts = [builder.shuffle_vector(*pair, order) for pair in zip(parts[0::2], parts[1::2], strict=True)]
    return parts[0]


def everywhere(builder: Any, number: Any, kind: Any = VECTOR) -> Any:
    """Give a vector with the same number everywhere."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, INT32(0))
    return shuffle(builder, first, [0] * kind.count)


def generate_loop(
    builder: Any, start: Any, end: Any, step: int, values: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> tuple[Any, list[Any]]:
    """Generate ``while start + step <= end: values = body(start, values); start += step``.

    Gives the last ``start`` and ``values``.
    """
    before = builder.block
    head, inside, done = (builder.append_basic_block(name) for name in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    current, running = builder.phi(WORD), [builder.phi(value.type) for value in values]
    following = builder.add(current, WORD(step))
    for phi, value in zip([current, *running], [start, *values], strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<=", following, end), inside, done)
    builder.position_at_end(inside)
    results = body(current, running)
    for phi, value in zip([current, *running], [following, *results], strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(done)
    return current, running


def sums_of_pairs(builder: Any, one: Any, other: Any) -> Any:
    """Products of 32 signed 16-bit numbers, of which neighbours are added: 16 sums of 32 bits."""
    sums = ir.VectorType(INT32, 16)
    if machine_has("avx512bw"):  # LLVM does not always find these instructions by itself
        return call(builder, "llvm.x86.avx512.pmaddw.d.512", sums, one, other)
    if machine_has("avx2"):
        halves = ([shuffle(builder, words, range(first, first + 16)) for words in (one, other)] for first in (0, 16))
        kind = ir.VectorType(INT32, 8)
        return join(builder, [call(builder, "llvm.x86.avx2.pmadd.wd", kind, *half) for half in halves])
    parts = [
        [builder.sext(shuffle(builder, words, range(first, 32, 2)), sums) for words in (one, other)] for first in (0, 1)
    ]
    return builder.add(*(builder.mul(*part) for part in parts))


def combine_lanes(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the elements of a vector: its two halves, then the halves of the result, down to one number."""
    while vector.type.count > 1:
        count = vector.type.count // 2
        vector = combine(*(shuffle(builder, vector, range(first, first + count)) for first in (0, count)))
    return builder.extract_element(vector, INT32(0))
