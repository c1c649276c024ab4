"""Leading eigenvectors of many symmetric matrices at once, by matrix products, for a GPU.

Batched ``eigh`` computes all D eigenvectors, at 960 dimensions in some 11 ms a matrix on an H200. A tangent space wants
r of them. Subspace iteration multiplies a block of r + r/4 + 32 vectors with the matrix and makes it orthonormal again,
over and over: the error at the r-th eigenvalue shrinks each time by the ratio of the first one outside the block to it,
and the directions of the whole data set are a good start. A small ``eigh`` in the block gives the rest.

Where the residual says that this was not enough although the spectrum has a gap, the matrix is decomposed as a whole:
the answer is that of ``eigh``, only sooner.
"""

from __future__ import annotations

from typing import Any

from autojacobin._arrays import namespace

__all__ = ["block_size", "leading_eigenvectors"]

_ROUNDS = 12
_LAST_ROUNDS = 3
_LARGEST_ANGLE = 5e-4
_GAP = 0.1  # share of an eigenvalue by which the next one must be smaller for the space to be a definite one
_SMALL = 32


def block_size(r: int) -> int:
    """Vectors that are iterated for ``r`` eigenvectors."""
    return r + r // 4 + 32


def leading_eigenvectors(matrices: Any, r: int, start: Any) -> tuple[Any, Any]:
    """Largest ``r`` eigenvalues (s, r), descending, and eigenvectors as rows (s, r, D), of matrices (s, D, D).

    The matrices are symmetric and have no negative eigenvalues. ``start`` has orthonormal columns, more than ``r``.
    """
    xp = namespace(matrices)
    V = xp.broadcast_to(start, (len(matrices), *start.shape))
    for _ in range(_ROUNDS):
        V = _orthonormal(xp.matmul(matrices, V))
    for _ in range(_LAST_ROUNDS):  # for what rounding left: vectors beyond the rank of a matrix are nothing else
        V = _orthonormal(V)
    images = xp.matmul(matrices, V)
    values, turn = xp.linalg.eigh(xp.matmul(V.transpose(0, 2, 1), images))
    values, turn = values[:, ::-1], turn[:, :, ::-1][:, :, :r]
    vectors, images = xp.matmul(V, turn), xp.matmul(images, turn)
    images -= vectors * values[:, None, :r]
    residual = xp.sqrt((images * images).sum(axis=(1, 2)))
    gap = values[:, r - 1] - values[:, r]
    missed = (gap > _GAP * values[:, r - 1]) & ~(residual <= _LARGEST_ANGLE * gap)
    missed |= ~xp.isfinite(residual)
    values, rows = values[:, :r].copy(), vectors.transpose(0, 2, 1).copy()
    again = xp.flatnonzero(missed)
    if len(again):
        all_values, all_vectors = xp.linalg.eigh(matrices[again])
        values[again] = all_values[:, ::-1][:, :r]
        rows[again] = all_vectors.transpose(0, 2, 1)[:, ::-1][:, :r]
    return values, rows


def _orthonormal(Y: Any) -> Any:
    """Orthonormal columns with the same span, by a Cholesky factor of the columns' products, taken at unit length."""
    xp = namespace(Y)
    tiny = xp.finfo(Y.dtype).tiny
    Y = Y / xp.maximum(xp.sqrt((Y * Y).sum(axis=1, keepdims=True)), tiny)
    products = xp.matmul(Y.transpose(0, 2, 1), Y)
    # Columns that have become nearly equal must not make the products singular; the next round sets them apart.
    little = 4 * Y.shape[2] * float(xp.finfo(Y.dtype).eps)
    products += little * xp.eye(Y.shape[2], dtype=Y.dtype)
    products /= 1 + little
    _, inverse = _factor(products)
    return xp.matmul(Y, inverse.transpose(0, 2, 1))


def _factor(matrices: Any) -> tuple[Any, Any]:
    """Cholesky factors and their inverses, by halves: matrix products but for small blocks.

    The batched routines of a GPU are made for small matrices, and take ten times as long on large ones as this does.
    """
    xp = namespace(matrices)
    n = matrices.shape[1]
    if n <= _SMALL:
        factor = xp.linalg.cholesky(matrices)
        return factor, xp.linalg.inv(factor)
    half = n // 2
    first, first_inverse = _factor(matrices[:, :half, :half])
    below = xp.matmul(matrices[:, half:, :half], first_inverse.transpose(0, 2, 1))
    rest = matrices[:, half:, half:] - xp.matmul(below, below.transpose(0, 2, 1))
    second, second_inverse = _factor(rest)
    factor, inverse = xp.zeros_like(matrices), xp.zeros_like(matrices)
    factor[:, :half, :half], factor[:, half:, :half], factor[:, half:, half:] = first, below, second
    inverse[:, :half, :half], inverse[:, half:, half:] = first_inverse, second_inverse
    inverse[:, half:, :half] = -xp.matmul(second_inverse, xp.matmul(below, first_inverse))
    return factor, inverse
