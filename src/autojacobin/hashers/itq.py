"""Iterative quantisation, and the random rotation that it starts from."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import namespace
from autojacobin.core.linear_algebra import (
    coordinates,
    corners,
    mean_row,
    nearest_frame,
    principal_frame,
    random_rotation,
)  # fmt: skip
from autojacobin.core.parallel import map_points, one_blas_thread
from autojacobin.hashers.base import LinearHasher
from autojacobin.hashers.learning import warn_caller
from autojacobin.hashers.parameters import Bits, Seed, Whole, parameter
from autojacobin.hashers.persistence import Tensor

_NUMBERS_PER_TASK = 2**17


@dataclass(eq=False, repr=False)
class PCARotation(LinearHasher):
    """PCA, then a random rotation: where ITQ starts.

    The principal directions carry very different amounts of variance, but each of them gets one bit. A random rotation
    spreads the variance over all bits.

    ``decode`` rotates the corners of a cube back and adds the mean: x ≈ μ + a R's. The cube of the method has corners
    at ±1 whatever the units of the data, so its size a is fitted to them by least squares: with V the coordinates of
    the centred data in the principal directions, a = mean |V R|.

    References
    ----------
    H. Jégou, M. Douze, C. Schmid and P. Pérez, "Aggregating local descriptors into a compact image representation",
    CVPR 2010. It is the baseline PCA-RR of Gong and Lazebnik, CVPR 2011.
    """

    n_bits: int = parameter(64, Bits(), "Length of the codes; at most the number of features.")
    _: KW_ONLY
    random_state: Any = parameter(None, Seed(), "Draws the initial rotation.")

    _tensors: ClassVar[dict[str, Tensor]] = {
        "weights_": Tensor("f", ("n_bits", "n_features"), "Orthonormal normals of the hyperplanes."),
        "mean_": Tensor("f", ("n_features",), "Mean of the training data."),
        "scale_": Tensor("f", (), "a, half the length of an edge of the cube that codes are decoded to."),
    }
    _more_bits_than_features: ClassVar[bool] = False

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        if len(X) <= self.n_bits:
            warn_caller(
                f"{type(self).__name__} learns {self.n_bits} directions from {len(X)} training points, which vary in "
                f"at most {len(X) - 1}, so the other bits carry no information. Pass more training points, or a "
                "smaller n_bits"
            )
        self.mean_ = mean_row(X)
        frame = principal_frame(X, self.mean_, self.n_bits)
        V = coordinates(X, self.mean_, frame)
        rotation = self._rotation(V, rng)
        self.weights_ = rotation.T @ frame
        self.scale_ = float(np.abs(V @ rotation).mean())

    def _rotation(self, V: Any, rng: np.random.RandomState) -> Any:
        return itq_rotation(V, 0, rng)[0]

    def _decoder(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.weights_ * self.scale_, self.mean_


@dataclass(eq=False, repr=False, kw_only=True)
class ITQ(PCARotation):
    """PCA, then the rotation that brings the points closest to the corners of a cube.

    With V the centred data in its ``n_bits`` leading principal directions, ITQ minimises the quantisation error

        Q(B, R) = ‖B − V R‖²,   B ∈ {−1, 1}, R orthogonal,

    alternately over B and R: B = sign(V R) for a fixed R, then R = U W' from the SVD V'B = U S W' for a fixed B. Codes
    are decoded as in :class:`PCARotation`.

    References
    ----------
    Y. Gong and S. Lazebnik, "Iterative quantization: a Procrustean approach to learning binary codes", CVPR 2011.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import ITQ
    >>> X = load_digits().data
    >>> ITQ(n_bits=32, random_state=0).fit(X).encode(X)
    Codes(1797 codes of 32 bits)
    """

    n_iter: int = parameter(50, Whole(1, 10**6), "Iterations.")

    _tensors: ClassVar[dict[str, Tensor]] = {
        **PCARotation._tensors,
        "quantization_error_": Tensor("f", ("n_iter",), "Q / (n · n_bits) of each turn; it never increases.", power=2),
    }

    def _rotation(self, V: Any, rng: np.random.RandomState) -> Any:
        rotation, self.quantization_error_ = itq_rotation(V, self.n_iter, rng)
        return rotation


@one_blas_thread()
def itq_rotation(V: Any, n_iter: int, rng: np.random.RandomState) -> tuple[Any, npt.NDArray[np.float64]]:
    """Return the rotation R (d, d) that minimises ‖sign(V R) − V R‖², and that error per entry at each iteration."""
    xp = namespace(V)
    rotation = xp.asarray(random_rotation(V.shape[1], rng).astype(V.dtype))
    energy = float((V * V).sum(dtype=xp.float64))
    errors = []
    for _ in range(n_iter):
        products = _products_with_corners(V, rotation)
        rotation = nearest_frame(products).astype(V.dtype)
        # ‖B − VR‖² = ‖B‖² − 2 tr(R' V'B) + ‖V‖², and all three parts are known
        errors.append(1 + (energy - 2 * float((products * rotation).sum())) / V.size)
    return rotation, np.array(errors)


def _products_with_corners(V: Any, rotation: Any) -> Any:
    """V'B for the corners B = sign(V R), in slices of points that stay in the cache between the two products."""

    def work(points: slice) -> Any:
        part = V[points]
        return part.T @ corners(part @ rotation)

    per_task = max(1, _NUMBERS_PER_TASK // V.shape[1]) if namespace(V) is np else len(V)
    return sum(part.astype("float64") for part in map_points(work, V, per_task))
