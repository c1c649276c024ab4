"""Networks that training starts from: linear auto-encoders whose hidden layer is a known set of hyperplanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._arrays import namespace, to_host
from autojacobin._frames import coordinates, mean_row, principal_frame, random_rotation
from autojacobin.autoencoder import Network
from autojacobin.hashers.itq import itq_rotation
from autojacobin.hashers.nokmeans import NOKMeans
from autojacobin.hashers.okmeans import OKMeans

__all__ = ["STARTS", "possible_starts", "starting_network"]

STARTS = ("random", "itq", "okmeans", "nokmeans")
_ITQ_TURNS = 50


def possible_starts(d: int, D: int) -> tuple[str, ...]:
    """Starts that are defined for ``d`` bits in ``D`` dimensions: OKMeans has no more hyperplanes than dimensions."""
    return tuple(name for name in STARTS if d <= D or name != "okmeans")


def starting_network(X: Any, d: int, init: str, rng: np.random.RandomState) -> Network:
    """Start from the linear auto-encoder: W1 a set of hyperplanes, b1 their offsets, W2 and b2 what undoes them.

    For ``"random"`` and ``"itq"`` W1 is a rotated PCA frame and b1 = −W1 μ; W2 is W1' as long as the rows of W1 are
    orthonormal. With more hidden units than inputs, random orthonormal frames are put below the first one, and
    the pseudo-inverse of the whole takes the place of W1'.
    """
    if init in ("okmeans", "nokmeans"):
        return _from_hyperplanes(X, d, init, rng)
    xp = namespace(X)
    D = X.shape[1]
    mean = mean_row(X)
    frame = principal_frame(X, mean, min(d, D))
    if init == "itq":
        rotation, _ = itq_rotation(coordinates(X, mean, frame), _ITQ_TURNS, rng)
    else:
        rotation = xp.asarray(random_rotation(len(frame), rng).astype(X.dtype))
    frames = [rotation.T @ frame]
    while sum(map(len, frames)) < d:
        frames.append(xp.asarray(random_rotation(D, rng).astype(X.dtype)))
    W1 = xp.concatenate(frames)[:d]
    W2 = W1.T.copy() if d <= D else xp.linalg.pinv(W1).astype(X.dtype)
    return Network(W1=W1, b1=-(W1 @ mean), W2=W2, b2=mean)


def _from_hyperplanes(X: Any, d: int, init: str, rng: np.random.RandomState) -> Network:
    xp = namespace(X)
    hasher = (OKMeans if init == "okmeans" else NOKMeans)(d, random_state=rng).fit(to_host(X))
    W1, b1 = (xp.asarray(part.astype(X.dtype)) for part in hasher.hyperplanes())
    W2 = xp.linalg.pinv(W1).astype(X.dtype)
    mean = mean_row(X)
    return Network(W1=W1, b1=b1, W2=W2, b2=mean - W2 @ (W1 @ mean + b1))
