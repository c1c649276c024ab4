"""Initial networks: linear auto-encoders whose hidden layer is a known set of hyperplanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.autoencoder import Network
from autojacobin.core.arrays import namespace, to_host
from autojacobin.core.linear_algebra import coordinates, mean_row, principal_frame, random_rotation
from autojacobin.hashers.itq import itq_rotation
from autojacobin.hashers.nokmeans import NOKMeans
from autojacobin.hashers.okmeans import OKMeans

__all__ = ["INITS", "initial_network", "possible_inits"]

INITS = ("random", "itq", "okmeans", "nokmeans")
_ITQ_ITERATIONS = 50


def possible_inits(d: int, D: int) -> tuple[str, ...]:
    """Initialisations that are defined for ``d`` bits in ``D`` dimensions; OKMeans is not if d > D."""
    return tuple(name for name in INITS if d <= D or name != "okmeans")


def initial_network(X: Any, d: int, init: str, rng: np.random.RandomState) -> Network:
    """Make a linear auto-encoder: W1 and b1 are a set of hyperplanes, and W2 and b2 reconstruct X from them.

    For ``"random"`` and ``"itq"``, W1 is a rotated PCA frame and b1 = −W1 μ. Since the rows of W1 are orthonormal, W2
    is W1'. With more hidden units than inputs, W1 has random orthonormal frames below the first one, and W2 is its
    pseudo-inverse. For ``"okmeans"`` and ``"nokmeans"``, the hyperplanes are those of the method.
    """
    xp = namespace(X)
    D = X.shape[1]
    mean = mean_row(X)
    if init in ("okmeans", "nokmeans"):
        hasher = (OKMeans if init == "okmeans" else NOKMeans)(d, random_state=rng).fit(to_host(X))
        W1, b1 = (xp.asarray(part.astype(X.dtype)) for part in hasher.hyperplanes())
        W2 = xp.linalg.pinv(W1).astype(X.dtype)
        return Network(W1=W1, b1=b1, W2=W2, b2=mean - W2 @ (W1 @ mean + b1))
    frame = principal_frame(X, mean, min(d, D))
    if init == "itq":
        rotation, _ = itq_rotation(coordinates(X, mean, frame), _ITQ_ITERATIONS, rng)
    else:
        rotation = xp.asarray(random_rotation(len(frame), rng).astype(X.dtype))
    frames = [rotation.T @ frame]
    while sum(map(len, frames)) < d:
        frames.append(xp.asarray(random_rotation(D, rng).astype(X.dtype)))
    W1 = xp.concatenate(frames)[:d]
    W2 = W1.T.copy() if d <= D else xp.linalg.pinv(W1).astype(X.dtype)
    return Network(W1=W1, b1=-(W1 @ mean), W2=W2, b2=mean)
