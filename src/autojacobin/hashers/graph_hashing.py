"""Hashing by the graph of similarities between points: spectral hashing and scalable graph hashing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.core.linear_algebra import coordinates, corners, mean_row, principal_frame, squared_distances
from autojacobin.core.parallel import one_blas_thread, scipy_linalg
from autojacobin.hashers.base import Hasher
from autojacobin.hashers.parameters import Seed, Whole, parameter
from autojacobin.hashers.persistence import Tensor


class SpectralHashing(Hasher):
    """Smoothest waves over a box around the data: ``bit = [cos(m π (v − a) / (b − a)) ≥ 0]``.

    Spectral hashing asks for balanced, uncorrelated bits that change little between neighbours. The relaxed problem
    has a closed solution for a uniform distribution on a box: along a principal axis with range [a, b], the
    eigenfunctions are cosines of m half-waves, and their eigenvalues grow with (m π / (b − a))². The ``n_bits``
    smallest eigenvalues over all axes and all m ≥ 1 define the code. A long axis gives several bits.

    The method is deterministic, so there is no ``random_state``.

    References
    ----------
    Y. Weiss, A. Torralba and R. Fergus, "Spectral hashing", NIPS 2008.
    """

    _tensors: ClassVar[dict[str, Tensor]] = {
        "mean_": Tensor("f", ("n_features",), "Mean of the training data."),
        "components_": Tensor("f", ("n_components", "n_features"), "Principal directions, at most ``n_bits``."),
        "lower_": Tensor("f", ("n_components",), "The box: a along each direction."),
        "range_": Tensor("f", ("n_components",), "The box: b − a along each direction."),
        "axis_": Tensor("i", ("n_bits",), "Principal direction of each bit."),
        "mode_": Tensor("i", ("n_bits",), "Number of half-waves m of each bit."),
    }

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:  # noqa: ARG002
        self.mean_ = mean_row(X)
        self.components_ = principal_frame(X, self.mean_, min(self.n_bits, X.shape[1]))
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


_RIDGE = 1e-6  # of the mean eigenvalue


@dataclass(eq=False, repr=False, kw_only=True)
class SGH(Hasher):
    """Scalable graph hashing: inner products of codes follow the similarity of all pairs of points.

    With x centred and divided by the largest norm, the similarity of two points is

        S_ij = 2 exp(−‖x_i − x_j‖² / 2) − 1   ≈   p(x_i)·q(x_j),

    where exp(x_i·x_j) is replaced by the line (e − 1/e)/2 x_i·x_j + (e + 1/e)/2, which makes S a product of two thin
    matrices that never has to be written out. The bits are signs of functions of a kernel,

        k_j(x) = exp(−‖x − a_j‖² / 2δ) − its mean over the training points,     bits = sign(W k(x)),

    with a_j some of the training points and δ the mean of ‖x − a_j‖². With K the kernel of the training points and B
    their bits, W minimises ‖n_bits S − BB'‖² bit by bit: w solves

        K' R K w = λ (K'K + γ I) w     for the largest λ,

    where R is what the bits so far leave of n_bits S. A second round learns each bit once more, given all others, in
    random order.

    References
    ----------
    Q.-Y. Jiang and W.-J. Li, "Scalable graph hashing with feature transformation", IJCAI 2015.
    """

    n_anchors: int = parameter(300, Whole(1), "Number of points a_j, or all training points where they are fewer.")
    random_state: Any = parameter(None, Seed(), "Draws the points a_j and the order of the second round.")

    _tensors: ClassVar[dict[str, Tensor]] = {
        "mean_": Tensor("f", ("n_features",), "Mean of the training data."),
        "anchors_": Tensor("f", ("anchors", "n_features"), "The points a_j, centred and divided by ``scale_``."),
        "scale_": Tensor("f", (), "Largest norm of a centred training point."),
        "width_": Tensor("f", (), "δ."),
        "kernel_mean_": Tensor("f", ("anchors",), "Mean of the kernel over the training points."),
        "weights_": Tensor("f", ("n_bits", "anchors"), "W."),
    }

    @one_blas_thread()
    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        self.mean_ = mean_row(X)
        points = X.astype(np.float64) - self.mean_
        self.scale_ = float(np.linalg.norm(points, axis=1).max())
        points /= self.scale_
        anchors = points[rng.permutation(len(points))[: self.n_anchors]]
        squares = squared_distances(points, anchors)
        self.width_ = float(squares.mean())
        K = np.exp(squares / (-2 * self.width_))
        kernel_mean = K.mean(axis=0)
        K -= kernel_mean
        W = _learn_bits(K, *similarity_factors(points), self.n_bits, rng)
        self.anchors_, self.kernel_mean_, self.weights_ = (part.astype(X.dtype) for part in (anchors, kernel_mean, W))

    def _check_learned(self) -> None:
        if not (self.scale_ > 0 and math.isfinite(1 / self.scale_) and self.width_ > 0):
            raise ValueError(f"a scale of {self.scale_} and a width of {self.width_}, expected numbers above 0")

    def _projector(self, xp: Any) -> Callable[[Any], Any]:
        parts = (self.mean_, self.anchors_, self.kernel_mean_, self.weights_)
        mean, anchors, kernel_mean, weights = (xp.asarray(part, dtype=xp.float64) for part in parts)

        def project(X: Any) -> Any:
            # in double precision: the weights are large, and their products with the kernel cancel
            squares = squared_distances((X - mean) / self.scale_, anchors)
            kernel = xp.exp(squares / (-2 * self.width_)) - kernel_mean
            # the kernel of an infinite vector is zero; this term makes NaN of it, so that it is noticed
            return (kernel @ weights.T + 0 * squares[:, :1]).astype(xp.result_type(X, self.weights_))

        return project


def similarity_factors(points: Any) -> tuple[Any, Any]:
    """Give P and Q, shape (n, D + 2), such that P Q' approximates 2 exp(−‖x − y‖² / 2) − 1 for norms of at most 1."""
    heights = np.exp(-(points * points).sum(axis=1, keepdims=True) / 2)
    slope, middle = math.sqrt(math.e - 1 / math.e), math.sqrt(math.e + 1 / math.e)
    common = [slope * heights * points, middle * heights]
    ones = np.ones_like(heights)
    return np.hstack([*common, ones]), np.hstack([*common, -ones])


def _learn_bits(K: Any, P: Any, Q: Any, n_bits: int, rng: np.random.RandomState) -> Any:
    """Give W, shape (n_bits, m), one bit after the other, and then each once more.

    With K'K = U diag(s) U' and T = U diag(s + γ)^(-1/2) the generalised problem is an ordinary one in v, for w = Tv and
    the matrix T' K' R K T. A bit b of the training points changes R by −bb', and so this matrix by −uu' with u = T'K'b.
    Directions in which the kernel of all training points is zero are left out: the bits there would be signs of
    rounding errors.
    """
    linalg = scipy_linalg()
    squares, U = linalg.eigh(K.T @ K)
    ridge = _RIDGE * squares.mean()
    kept = squares > len(squares) * np.finfo(np.float64).eps * squares[-1]
    T = U[:, kept] / np.sqrt(squares[kept] + ridge)
    whitened = T.T @ K.T
    rest = n_bits * (whitened @ P) @ (whitened @ Q).T
    rest = (rest + rest.T) / 2
    W, changes = np.zeros((n_bits, len(T))), np.zeros((n_bits, len(rest)))
    for bit in (*range(n_bits), *rng.permutation(n_bits)):
        rest += np.outer(changes[bit], changes[bit])  # zero in the first round
        last = len(rest) - 1
        v = linalg.eigh(rest, subset_by_index=[last, last])[1][:, 0]
        changes[bit] = whitened @ corners(v @ whitened)
        rest -= np.outer(changes[bit], changes[bit])
        w = T @ v
        W[bit] = w if w[np.abs(w).argmax()] > 0 else -w
    return W
