"""Orthonormal frames: the principal one of a point cloud, random ones, and the nearest one to a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._arrays import namespace

__all__ = ["centre", "nearest_frame", "principal_frame", "random_rotation"]


def centre(X: Any) -> tuple[Any, Any]:
    """Mean of the rows of ``X``, and the rows with it taken off.

    Summed in double precision: NumPy adds up the rows of a float32 matrix one after the other, and after some
    millions of them the sum no longer feels the next.
    """
    mean = X.mean(axis=0, dtype="float64").astype(X.dtype)
    return mean, X - mean


def principal_frame(centred: Any, n_directions: int) -> Any:
    """Leading principal directions of points that are centred already, as orthonormal rows.

    The covariance is summed in the precision of the points and decomposed in double precision: the
    D×D decomposition is cheap beside the product, and a clean basis costs nothing more. The sign of
    each direction is fixed, so that the frame does not depend on the LAPACK at hand.
    """
    xp = namespace(centred)
    largest = float(xp.abs(centred).max()) if centred.size else 0.0
    unit = centred / largest if largest > 0 else centred  # tiny or huge units must not under- or overflow
    _, vectors = xp.linalg.eigh((unit.T @ unit).astype(xp.float64))
    frame = vectors.T[::-1][:n_directions]
    peak = xp.take_along_axis(frame, xp.abs(frame).argmax(axis=1)[:, None], axis=1)
    return xp.ascontiguousarray(xp.where(peak < 0, -frame, frame).astype(centred.dtype))


def random_rotation(size: int, rng: np.random.RandomState) -> Any:
    """Draw an orthogonal matrix uniformly (Haar), in double precision on the CPU."""
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    return q * np.where(np.diagonal(r) < 0, -1.0, 1.0)


def nearest_frame(matrix: Any) -> Any:
    """Orthonormal-columned matrix R that maximises tr(R' matrix): the polar factor, U V' of the thin SVD."""
    xp = namespace(matrix)
    u, _, vt = xp.linalg.svd(matrix, full_matrices=False)
    return u @ vt
