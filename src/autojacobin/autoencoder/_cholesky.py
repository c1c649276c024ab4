"""Cholesky factors of many matrices at once, and their inverses, for a GPU: matrix products but for small blocks.

The batched routines of a GPU are made for small matrices, and take ten times as long on large ones as halving does;
and on the small blocks they spend more time on starting than on computing, so these have a kernel of their own, with a
block of threads for each matrix and a thread for each row.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from autojacobin._arrays import namespace

__all__ = ["factor_and_inverse"]

_SMALL = 48

_SOURCE = """
extern "C" __global__ void factor_and_inverse(const NUMBER* matrices, NUMBER* factors, NUMBER* inverses, int n) {
    __shared__ NUMBER L[SMALL][SMALL + 1], X[SMALL][SMALL + 1];
    const int row = threadIdx.x;
    const size_t start = (size_t)blockIdx.x * n * n;
    for (int i = 0; i < n; ++i) L[i][row] = matrices[start + i * n + row];
    __syncthreads();
    for (int k = 0; k < n; ++k) {
        const NUMBER pivot = sqrt(L[k][k]);
        __syncthreads();
        if (row == k) L[k][k] = pivot;
        if (row > k) L[row][k] /= pivot;
        __syncthreads();
        if (row > k) for (int j = k + 1; j <= row; ++j) L[row][j] -= L[row][k] * L[j][k];
        __syncthreads();
    }
    for (int i = 0; i < n; ++i) {  // here a thread has a column
        NUMBER sum = i == row;
        for (int j = row; j < i; ++j) sum -= L[i][j] * X[j][row];
        X[i][row] = i < row ? 0 : sum / L[i][i];
    }
    __syncthreads();
    for (int i = 0; i < n; ++i) {
        factors[start + i * n + row] = i < row ? 0 : L[i][row];
        inverses[start + i * n + row] = X[i][row];
    }
}
"""


def factor_and_inverse(matrices: Any) -> tuple[Any, Any]:
    """Lower triangular L with L L' = M, and L⁻¹, for symmetric positive matrices M (s, n, n)."""
    xp = namespace(matrices)
    n = matrices.shape[1]
    if n <= _SMALL:
        return _small(matrices)
    half = n // 2
    first, first_inverse = factor_and_inverse(matrices[:, :half, :half])
    below = xp.matmul(matrices[:, half:, :half], first_inverse.transpose(0, 2, 1))
    rest = matrices[:, half:, half:] - xp.matmul(below, below.transpose(0, 2, 1))
    second, second_inverse = factor_and_inverse(rest)
    factor, inverse = xp.zeros_like(matrices), xp.zeros_like(matrices)
    factor[:, :half, :half], factor[:, half:, :half], factor[:, half:, half:] = first, below, second
    inverse[:, :half, :half], inverse[:, half:, half:] = first_inverse, second_inverse
    inverse[:, half:, :half] = -xp.matmul(second_inverse, xp.matmul(below, first_inverse))
    return factor, inverse


def _small(matrices: Any) -> tuple[Any, Any]:
    xp = namespace(matrices)
    if xp is np:
        factor = np.linalg.cholesky(matrices)
        return factor, np.linalg.inv(factor)
    matrices = xp.ascontiguousarray(matrices)
    factors, inverses = xp.empty_like(matrices), xp.empty_like(matrices)
    s, n, _ = matrices.shape
    _kernel(matrices.dtype.name)((s,), (n,), (matrices, factors, inverses, np.int32(n)))
    return factors, inverses


@cache
def _kernel(dtype: str) -> Any:
    import cupy

    number = {"float32": "float", "float64": "double"}[dtype]
    return cupy.RawKernel(_SOURCE.replace("NUMBER", number).replace("SMALL", str(_SMALL)), "factor_and_inverse")
