"""Spectral hashing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.core.linear_algebra import coordinates, leading_directions, mean_row, principal_frame
from autojacobin.core.sampling import Moments
from autojacobin.hashers.base import Hasher
from autojacobin.hashers.parameters import Bits, Limit
from autojacobin.hashers.persistence import Tensor

__all__ = ["SpectralHashing"]


class SpectralHashing(Hasher):
    """Smoothest waves over a box around the data: ``bit = [cos(m π (v − a) / (b − a)) ≥ 0]``.

    Spectral hashing asks for balanced, uncorrelated bits that change little between neighbours. The relaxed problem
    has a closed solution for a uniform distribution on a box: along a principal axis with range [a, b], the
    eigenfunctions are cosines of m half-waves, and their eigenvalues grow with (m π / (b − a))². The ``n_bits``
    smallest eigenvalues over all axes and all m ≥ 1 define the code. A long axis gives several bits.

    The method is deterministic, so there is no ``random_state``.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes; may exceed the number of features.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
        Mean of the training data.
    components_ : array of shape (min(n_bits, n_features), n_features)
        Principal directions.
    lower_, range_ : arrays of shape (min(n_bits, n_features),)
        The box: a and b − a along each direction.
    axis_ : array of int, shape (n_bits,)
        Principal direction of each bit.
    mode_ : array of int, shape (n_bits,)
        Number of half-waves m of each bit.

    References
    ----------
    Y. Weiss, A. Torralba and R. Fergus, "Spectral hashing", NIPS 2008.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import SpectralHashing
    >>> X = load_digits().data
    >>> SpectralHashing(n_bits=16).fit(X).mode_
    array([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 2])
    """

    mean_: npt.NDArray[Any]
    components_: npt.NDArray[Any]
    lower_: npt.NDArray[Any]
    range_: npt.NDArray[Any]
    axis_: npt.NDArray[np.int64]
    mode_: npt.NDArray[np.int64]

    _limits: ClassVar[dict[str, Limit]] = {"n_bits": Bits()}
    _uses_moments: ClassVar[bool] = True
    _tensors: ClassVar[dict[str, Tensor]] = {
        "mean_": Tensor("f", ("n_features",)),
        "components_": Tensor("f", ("n_components", "n_features")),
        "lower_": Tensor("f", ("n_components",)),
        "range_": Tensor("f", ("n_components",)),
        "axis_": Tensor("i", ("n_bits",)),
        "mode_": Tensor("i", ("n_bits",)),
    }

    def __init__(self, n_bits: int = 64) -> None:
        self.n_bits = n_bits

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:  # noqa: ARG002
        mean = mean_row(X)
        self._fit_box(X, mean, principal_frame(X, mean, min(self.n_bits, X.shape[1])))

    def _fit_moments(self, X: Any, moments: Moments, rng: np.random.RandomState) -> None:  # noqa: ARG002
        frame = leading_directions(moments.covariance, min(self.n_bits, X.shape[1]))
        self._fit_box(X, moments.mean.astype(X.dtype), frame.astype(X.dtype))

    def _fit_box(self, X: Any, mean: Any, components: Any) -> None:
        """Take the box around the rows of ``X`` in a frame, and the waves over it."""
        self.mean_, self.components_ = mean, components
        projected = coordinates(X, self.mean_, self.components_)
        self.lower_ = projected.min(axis=0)
        self.range_ = projected.max(axis=0) - self.lower_
        self.axis_, self.mode_ = _smoothest_waves(self.range_, self.n_bits)

    def _check_learned(self) -> None:
        if not ((self.axis_ >= 0) & (self.axis_ < len(self.range_))).all():
            raise ValueError(f"a number in array axis_ that is not among the {len(self.range_)} axes")
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            if not np.isfinite(self._frequencies()).all():
                raise ValueError("frequencies that are not finite")

    def _frequencies(self) -> Any:
        return (np.pi * self.mode_ / self.range_[self.axis_]).astype(self.range_.dtype)

    def _projector(self, xp: Any) -> Callable[[Any], Any]:
        mean, components = xp.asarray(self.mean_), xp.asarray(self.components_)
        frequency = xp.asarray(self._frequencies())
        lower, axis = xp.asarray(self.lower_[self.axis_]), xp.asarray(self.axis_)

        def project(X: Any) -> Any:
            along = ((X - mean) @ components.T)[:, axis]
            return xp.cos((along - lower) * frequency)

        return project


def _smoothest_waves(ranges: Any, n_bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Axis and number of half-waves of the ``n_bits`` smallest eigenvalues; equal ones are sorted by axis and mode."""
    widest = ranges.max()
    usable = np.flatnonzero(ranges > 1e-6 * widest)  # leave out axes along which nothing varies
    axis = np.repeat(usable, n_bits)
    mode = np.tile(np.arange(1, n_bits + 1), len(usable))
    eigenvalue = (mode * (widest / ranges[axis].astype(np.float64))) ** 2
    chosen = np.argsort(eigenvalue, kind="stable")[:n_bits]
    return axis[chosen].astype(np.int64), mode[chosen].astype(np.int64)
