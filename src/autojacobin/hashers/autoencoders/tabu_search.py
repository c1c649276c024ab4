"""Tabu search for the code s ∈ {−1, 1}^d that a linear decoder reconstructs a vector best from.

With C the decoder, shape (d, D), and y the vector minus the decoder's mean, the error is

    E(s) = ‖y − C's‖² = ‖y‖² − 2 b·s + s'Gs,   b = C y,   G = C C'.

Flipping bit j changes it by 4 v_j with v_j = s_j (b_j − Σ_{i≠j} G_ij s_i). Each step flips the bit with the lowest
cost, even if the cost is positive, and the bit then waits some steps before it may flip back, unless that gives the
lowest sum so far. The best code on the way is the answer. (F. Glover, "Tabu search", 1989, the usual heuristic for such
quadratic problems.) A flip of bit k changes every v_i by 2 s_i s_k G_ik, which is one pass over a row of G.

A code is stored with its *offset*, the part of its distance that is the same for all queries:

    r(s) = ‖C's‖² + a E(s)

An offset is stored as slope·s, which takes no memory, plus one of a few levels at equal steps. What is lost by rounding
to the levels counts as well, so that of two codes that reconstruct equally well the one near a level is taken:

    E(s) + λ (r(s) − slope·s − nearest level)²

Flipping bit j changes r(s) − slope·s by 4 (1 + a) v_j − s_j (4 b_j − 2 slope_j).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from autojacobin._native import kernels
from autojacobin.core.arrays import empty_aligned, namespace
from autojacobin.core.parallel import run_tasks

ERROR_SHARE = 0.6  # a: how much of its own error a code adds to its distances
_STIFFNESS = 8  # λ in units of 1 / Σ‖C_j‖²

_STEPS_PER_TASK = 2**18
_GPU_THREADS = 128
# Errors are compared up to this share of Σ|b|: without it, rounding would take the way back for an improvement.
_SLACK = np.float32(1e-6)


@dataclass(frozen=True)
class Offsets:
    """How offsets are stored: r(s) ≈ slope·s + low + step · level, with 2^n_bits levels from 0 on.

    The ``slope`` (d,) is linear in the bits, and ``low`` and ``step`` are the rest at level 0 and from each level to
    the next.
    """

    slope: Any
    low: float
    step: float
    n_bits: int


@dataclass(frozen=True)
class Decoder:
    """A linear decoder, laid out for the search. Lengths are in units of ``scale``, a power of two.

    In these units, products neither overflow nor vanish in float32. ``middle`` (D,) is m, which is subtracted from
    every vector, ``columns`` (D, d) is C', ``gram`` (d, d) is 2 C C' with zeros on the diagonal, ``slope`` (d,) is half
    the slope of the offsets, and ``trace`` is Σ ‖C_j‖². ``low``, ``per_step`` and ``top`` are a quarter of the lowest
    level, one over a quarter of the step, and the number of the highest level. ``stiffness`` is what a code costs whose
    offset is a step away from the nearest level.
    """

    middle: Any
    columns: Any
    gram: Any
    scale: float
    slope: Any
    trace: float
    low: float = 0.0
    per_step: float = 1.0
    top: float = 0.0
    stiffness: float = 0.0

    @classmethod
    def prepare(cls, weights: Any, middle: Any, offsets: Offsets | None = None) -> Decoder:
        """Lay out the decoder x ≈ m + C's with C = ``weights``, shape (d, D); without ``offsets``, only E counts."""
        xp = namespace(weights)
        largest = float(xp.abs(weights).max())
        scale = 2.0 ** np.ceil(np.log2(largest)) if largest > 0 else 1.0
        unit = weights.astype(xp.float64) / scale
        gram = 2 * (unit @ unit.T)
        trace = float(xp.trace(gram)) / 2
        xp.fill_diagonal(gram, 0)
        columns = xp.ascontiguousarray(unit.T.astype(weights.dtype))
        decoder = cls(
            middle, columns, xp.ascontiguousarray(gram.astype(xp.float32)), float(scale),
            xp.zeros(len(weights), dtype=xp.float32), trace,
        )  # fmt: skip
        if offsets is None or not trace:
            return decoder
        square = float(scale) ** 2
        step = offsets.step / (4 * square)
        return replace(
            decoder,
            slope=(offsets.slope.astype(xp.float64) / (2 * square)).astype(xp.float32),
            low=offsets.low / (4 * square),
            per_step=1 / step,
            top=2.0**offsets.n_bits - 1,
            stiffness=4 * _STIFFNESS / trace * step**2,
        )

    def products(self, X: Any) -> Any:
        """C (x − m) of every row, in units of the scale squared."""
        return self.centred(X) @ self.columns

    def centred(self, X: Any) -> Any:
        """The rows minus m."""
        return (X - self.middle) * X.dtype.type(1 / self.scale)

    def nearest(self, levels: Any) -> Any:
        """Round levels to those that are stored."""
        xp = namespace(levels)
        return xp.clip(xp.rint(xp.nan_to_num(levels)), 0, self.top)

    @property
    def constants(self) -> tuple[Any, ...]:
        """The numbers of the offsets, in the precision of the search."""
        numbers = (self.trace, ERROR_SHARE, self.low, self.per_step, self.top, self.stiffness)
        with np.errstate(over="ignore"):
            return tuple(map(np.float32, numbers))


def waits(d: int) -> tuple[int, int]:
    """Fewest and most steps that a bit waits; they take turns, so that no cycle of flips closes."""
    return 1 + min(3, d // 4), 1 + min(7, d // 2)


def search_codes(X: Any, decoder: Decoder, n_steps: int, *, start: Any = None, signs: Any = None) -> tuple[Any, Any]:
    """Search the code of every row of ``X``, shape (n, D), with ``n_steps`` flips.

    Codes start from ``signs`` (n, d), or else from the signs of C y ``start`` with a matrix ``start`` (d, d). The
    result is the codes of −1 and 1 as float32, and the nearest levels of their offsets. A vector that is not finite, or
    too large to project, has NaN for a code.
    """
    given = signs is not None
    xp = namespace(X)
    d = len(decoder.gram)
    first = signs if given else xp.empty((0, d), dtype=xp.int8)
    matrix = xp.empty((0, d), dtype=xp.float32) if start is None else start
    if xp is not np:
        return _search_on_gpu(X, decoder, n_steps, matrix, first, given)
    first, middle = np.ascontiguousarray(first, dtype=np.int8), np.ascontiguousarray(decoder.middle, dtype=X.dtype)
    columns, gram, matrix = (
        _filled(part, dtype)
        for part, dtype in ((decoder.columns, X.dtype), (decoder.gram, np.float32), (matrix, np.float32))
    )
    out, levels = np.empty((len(X), d), dtype=np.float32), np.empty(len(X), dtype=np.float32)
    layout = (middle, columns, 1 / decoder.scale, gram, decoder.slope, decoder.constants, matrix)
    rows = max(1, _STEPS_PER_TASK // ((n_steps + 16) * (16 + d // 16)))

    def work(begin: int, end: int) -> None:
        block, part = np.ascontiguousarray(X[begin:end]), first[begin:end] if given else first
        arguments: Any = block, *layout, part, n_steps, waits(d), _SLACK, out[begin:end], levels[begin:end]
        kernels.tabu_search(*arguments)

    run_tasks(work, [(begin, min(begin + rows, len(X))) for begin in range(0, len(X), rows)])
    return out, decoder.nearest(levels)


def _filled(matrix: Any, dtype: Any) -> Any:
    """Fill up the rows of a matrix with zeros, as the kernel reads them: whole registers of some cache lines."""
    n, d = matrix.shape
    filled = empty_aligned((n, d + -d % kernels.BITS_AT_ONCE), dtype)
    filled[:, :d], filled[:, d:] = matrix, 0
    return filled


def _search_on_gpu(X: Any, decoder: Decoder, n_steps: int, start: Any, first: Any, given: bool) -> tuple[Any, Any]:
    xp = namespace(X)
    n, d = len(X), len(decoder.gram)
    y = decoder.centred(X)
    b = (y @ decoder.columns).astype(xp.float32, copy=False)
    s = first.astype(xp.float32) if given else xp.where(b @ start >= 0, xp.float32(1), xp.float32(-1))
    gram = xp.pad(decoder.gram, ((0, 0), (0, -d % 32)))
    squares, levels = xp.einsum("ij,ij->i", y, y).astype(xp.float32), xp.empty(n, dtype=xp.float32)
    digits = 2 ** (2 * d - 1).bit_length() - 1
    arguments = (
        b, s @ decoder.gram, squares, gram, decoder.slope, s, levels,
        *map(np.int32, (n, d, n_steps, digits, *waits(d))), _SLACK, *decoder.constants,
    )  # fmt: skip
    _cuda_kernel(xp, -(-d // 32))((-(-n * 32 // _GPU_THREADS),), (_GPU_THREADS,), arguments)
    return s, decoder.nearest(levels)


@cache
def _cuda_kernel(cupy: Any, words: int) -> Any:
    source = Path(__file__).with_name("tabu.cu").read_text(encoding="utf-8")
    return cupy.RawKernel(source, "tabu", options=(f"-DWORDS={words}",))
