"""Tabu search for the code s ∈ {−1, 1}^d that a linear decoder reconstructs a vector best from.

With C the decoder, shape (d, D), and y the vector minus the decoder's mean, the error is

    E(s) = ‖y − C's‖² = ‖y‖² − 2 b·s + s'Gs,   b = C y,   G = C C'.

Flipping bit j changes it by 4 v_j with v_j = s_j (b_j − Σ_{i≠j} G_ij s_i). Each step flips the bit with the lowest
v_j, even if the error rises, and the bit then waits some steps before it may flip back, unless that gives the lowest
error so far. The best code on the way is the answer. (F. Glover, "Tabu search", 1989, the usual heuristic for such
quadratic problems.) A flip of bit k changes every v_i by 2 s_i s_k G_ik, which is one pass over a row of G.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from autojacobin.core.arrays import namespace
from autojacobin.core.parallel import run_tasks

__all__ = ["Decoder", "search_codes", "waits"]

_STEPS_PER_TASK = 2**18
_GPU_THREADS = 128
# Errors are compared up to this share of Σ|b|: without it, rounding would take the way back for an improvement.
_SLACK = np.float32(1e-6)


@dataclass(frozen=True)
class Decoder:
    """A linear decoder, laid out for the search.

    Attributes
    ----------
    middle : array of shape (D,)
        m, which is subtracted from every vector.
    columns : array of shape (D, d)
        C' in units of ``scale``, a power of two: products of it neither overflow nor vanish in float32.
    gram : array of float32, shape (d, d)
        2 C C' in the same units, with zeros on the diagonal.
    """

    middle: Any
    columns: Any
    gram: Any
    scale: float

    @classmethod
    def prepare(cls, weights: Any, middle: Any) -> Decoder:
        """Lay out the decoder x ≈ m + C's with C = ``weights``, shape (d, D)."""
        xp = namespace(weights)
        largest = float(xp.abs(weights).max())
        scale = 2.0 ** np.ceil(np.log2(largest)) if largest > 0 else 1.0
        unit = weights.astype(xp.float64) / scale
        gram = 2 * (unit @ unit.T)
        xp.fill_diagonal(gram, 0)
        columns = xp.ascontiguousarray(unit.T.astype(weights.dtype))
        return cls(middle, columns, xp.ascontiguousarray(gram.astype(xp.float32)), float(scale))

    def products(self, X: Any) -> Any:
        """C (x − m) of every row, in units of the scale squared."""
        return ((X - self.middle) * X.dtype.type(1 / self.scale)) @ self.columns


def waits(d: int) -> tuple[int, int]:
    """Fewest and most steps that a bit waits; they take turns, so that no cycle of flips closes."""
    return 1 + min(3, d // 4), 1 + min(7, d // 2)


def search_codes(X: Any, decoder: Decoder, n_steps: int, *, start: Any = None, signs: Any = None) -> Any:
    """Search the code of every row of ``X``.

    Parameters
    ----------
    X : array of floats, shape (n, D)
        Vectors, NumPy or CuPy.
    decoder : Decoder
        In the same array library.
    n_steps : int
        Flips of each code, at least 0.
    start : array of float32, shape (d, d), optional
        Codes start from the signs of C y ``start``.
    signs : array of int8, shape (n, d), optional
        Codes to start from instead.

    Returns
    -------
    array of float32, shape (n, d)
        Codes of −1 and 1. A vector that is not finite, or too large to project, has NaN for a code.
    """
    given = signs is not None
    xp = namespace(X)
    d = len(decoder.gram)
    first = signs if given else xp.empty((0, d), dtype=xp.int8)
    matrix = xp.empty((0, d), dtype=xp.float32) if start is None else start
    if xp is not np:
        return _search_on_gpu(X, decoder, n_steps, matrix, first, given)
    from autojacobin.hashers.tabu_kernels import search  # not before a fit: loading numba takes a second

    out = np.empty((len(X), d), dtype=np.float32)
    rows = max(1, _STEPS_PER_TASK // ((n_steps + 16) * (16 + d // 16)))

    def work(begin: int, end: int) -> None:
        part = first[begin:end] if given else first
        search(
            X[begin:end], decoder.middle, decoder.columns, X.dtype.type(1 / decoder.scale), decoder.gram, matrix, part,
            given, n_steps, *waits(d), _SLACK, out[begin:end],
        )  # fmt: skip

    run_tasks(work, [(begin, min(begin + rows, len(X))) for begin in range(0, len(X), rows)])
    return out


# One warp per vector. Lane l holds the bits l, l + 32, l + 64, …
_CUDA = r"""
extern "C" __global__ void tabu(
    const float* gains, const float* gram, signed char* signs, int n, int d, int n_steps,
    int place, int shortest, int longest, const float* slacks)
{
    const int never = 0x7fffffff;
    int vector = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (vector >= n) return;
    float v[WORDS];
    bool s[WORDS], best[WORDS];
    int ready[WORDS];
    #pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        int i = lane + 32 * w;
        v[w] = i < d ? gains[(long long)vector * d + i] : 0.0f;
        s[w] = best[w] = i < d && signs[(long long)vector * d + i] > 0;
        ready[w] = i < d ? 0 : never;
    }
    float change = 0.0f, lowest = 0.0f, slack = slacks[vector];
    int wait = shortest;
    for (int step = 0; step < n_steps; ++step) {
        float wanted = lowest - change - slack;
        int smallest = never;
        #pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            int i = lane + 32 * w, word = __float_as_int(v[w]);
            int ordered = ((word ^ ((word >> 31) & never)) & ~place) | i;
            if (i < d && (ready[w] <= step || v[w] < wanted)) smallest = min(smallest, ordered);
        }
        for (int other = 16; other > 0; other /= 2)
            smallest = min(smallest, __shfl_xor_sync(0xffffffffu, smallest, other));
        if (smallest == never) break;
        int flipped = smallest & place, owner = flipped % 32;
        float gain = 0.0f;
        bool sign = false;
        #pragma unroll
        for (int w = 0; w < WORDS; ++w)
            if (w == flipped / 32) { gain = v[w]; sign = s[w]; }
        gain = __shfl_sync(0xffffffffu, gain, owner);
        sign = __shfl_sync(0xffffffffu, (int)sign, owner);
        const float* row = gram + (long long)flipped * d;
        #pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            int i = lane + 32 * w;
            if (i == flipped) {
                v[w] = -v[w];
                s[w] = !s[w];
                ready[w] = step + wait;
            } else if (i < d) {
                v[w] += s[w] == sign ? row[i] : -row[i];
            }
        }
        change += gain;
        wait = wait == longest ? shortest : wait + 1;
        if (change < lowest - slack) {
            lowest = change;
            #pragma unroll
            for (int w = 0; w < WORDS; ++w) best[w] = s[w];
        }
    }
    #pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        int i = lane + 32 * w;
        if (i < d) signs[(long long)vector * d + i] = best[w] ? 1 : -1;
    }
}
"""


def _search_on_gpu(X: Any, decoder: Decoder, n_steps: int, start: Any, first: Any, given: bool) -> Any:
    xp = namespace(X)
    n, d = len(X), len(decoder.gram)
    b = decoder.products(X).astype(xp.float32)
    s = first.astype(xp.float32) if given else xp.where(b @ start >= 0, xp.float32(1), xp.float32(-1))
    gains = s * (b - 0.5 * (s @ decoder.gram))
    signs = s.astype(xp.int8)
    place = 2 ** (d - 1).bit_length() - 1
    shortest, longest = waits(d)
    blocks = -(-n * 32 // _GPU_THREADS)
    arguments = (
        gains,
        decoder.gram,
        signs,
        *map(np.int32, (n, d, n_steps, place, shortest, longest)),
        _SLACK * xp.abs(b).sum(axis=1),
    )
    _cuda_kernel(xp, -(-d // 32))((blocks,), (_GPU_THREADS,), arguments)
    return xp.where(xp.isfinite(b).all(axis=1)[:, None], signs, xp.float32(xp.nan))


@cache
def _cuda_kernel(cupy: Any, words: int) -> Any:
    return cupy.RawKernel(_CUDA, "tabu", options=(f"-DWORDS={words}",))
