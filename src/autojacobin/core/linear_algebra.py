"""Orthonormal frames (the principal one of a point cloud, random ones, the nearest one to a matrix), and distances."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from autojacobin.core.arrays import namespace

_ROWS_PER_BLOCK = 2**14
_SMALLEST_EIGENVALUE = 1e-8  # of M'M, as a share of the largest, for which a polar factor is computed from M'M


def centre(X: Any) -> tuple[Any, Any]:
    """Mean of the rows of ``X``, and the rows minus that mean."""
    mean = mean_row(X)
    return mean, X - mean


def mean_row(X: Any) -> Any:
    """Mean of the rows of ``X``, summed in double precision, because a sum of millions of float32 loses digits."""
    return X.mean(axis=0, dtype="float64").astype(X.dtype)


def principal_frame(X: Any, mean: Any, n_directions: int) -> Any:
    """Leading principal directions of the rows of ``X`` around their ``mean``, as orthonormal rows.

    The covariance is summed in the precision of the points, a block at a time, so that no centred copy of them is
    needed, and decomposed in double precision.
    """
    xp = namespace(X)
    D = X.shape[1]
    largest = max((float(abs(block).max()) for block in _centred_blocks(X, mean)), default=0.0)
    covariance = xp.zeros((D, D), dtype=xp.float64)
    for block in _centred_blocks(X, mean):
        unit = block / largest if largest > 0 else block  # tiny or huge units must not under- or overflow
        covariance += unit.T @ unit
    _, vectors = xp.linalg.eigh(covariance)
    frame = vectors.T[::-1][:n_directions]
    # The sign of each direction is fixed, so that the frame does not depend on the LAPACK library.
    peak = xp.take_along_axis(frame, xp.abs(frame).argmax(axis=1)[:, None], axis=1)
    return xp.ascontiguousarray(xp.where(peak < 0, -frame, frame)).astype(X.dtype)


def coordinates(X: Any, mean: Any, frame: Any) -> Any:
    """Coordinates (X − mean) frame' of the rows of ``X`` in a frame, without a centred copy of them."""
    return namespace(X).concatenate([block @ frame.T for block in _centred_blocks(X, mean)])


def _centred_blocks(X: Any, mean: Any) -> Iterator[Any]:
    for start in range(0, len(X), _ROWS_PER_BLOCK):
        yield X[start : start + _ROWS_PER_BLOCK] - mean


def random_rotation(size: int, rng: np.random.RandomState) -> Any:
    """Draw an orthogonal matrix uniformly (Haar), in double precision on the CPU."""
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    return q * np.where(np.diagonal(r) < 0, -1.0, 1.0)


def nearest_frame(matrix: Any) -> Any:
    """Orthonormal-columned matrix R that maximises tr(R' matrix): the polar factor, U V' of the thin SVD M = U S V'.

    If M is well conditioned, it is computed as M (M'M)^(−1/2), in half the time of an SVD or less. The error of that,
    about 1e-16 cond(M)², is below the rounding of float32.
    """
    xp = namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix.T @ matrix)
    if float(values[0]) > _SMALLEST_EIGENVALUE * float(values[-1]):
        return matrix @ ((vectors / xp.sqrt(values)) @ vectors.T)
    u, _, vt = xp.linalg.svd(matrix, full_matrices=False)
    return u @ vt


def squared_distances(X: Any, points: Any) -> Any:
    """Squared distances ‖x − p‖² of the rows of ``X`` to some points, as a matrix.

    They are differences of squares, so both should be near the origin compared with the distances.
    """
    squares = (X * X).sum(axis=1)[:, None] + (points * points).sum(axis=1)
    squares -= 2 * (X @ points.T)
    return squares.clip(0)


def corners(values: Any) -> Any:
    """Signs of ``values``, 1 where they are ≥ 0 and −1 elsewhere, as floats.

    A comparison takes five times as long: processors cannot predict the branches of random signs.
    """
    values = values + values.dtype.type(0)  # this sum makes −0 a 0
    return namespace(values).copysign(values.dtype.type(1), values)
