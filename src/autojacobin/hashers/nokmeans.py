"""Non-orthogonal k-means, reconstructed."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin._frames import centre, corners, principal_frame, random_rotation
from autojacobin._parallel import one_blas_thread
from autojacobin.hashers._base import LinearHasher
from autojacobin.hashers._parameters import Limit, Seed, Whole
from autojacobin.hashers._persistence import Tensor

__all__ = ["NOKMeans"]

# A new hyperplane that agrees with another one beyond this, in direction or in its bits, is not taken.
_MOST_ALIKE = 0.95
# Nor one along which the points vary less than this share of the average over the starting frame.
_LEAST_VARIANCE = 1e-2
# Multiples of this, modulo one, never come close to each other.
_GOLDEN = 0.6180339887498949


class NOKMeans(LinearHasher):
    """k-means whose 2^n_bits centres are the corners of a parallelepiped; the hyperplanes need not be orthogonal.

    **A reconstruction.** The original paper was not at hand; this follows its abstract and the remarks on it in
    the Auto-JacoBin paper: cluster centres as in OKMeans, no orthogonality, points seen in the space of
    their distances to the hyperplanes, 50 iterations. The objective is the quantisation error

        E = Σᵢ ‖xᵢ − m − C bᵢ‖²,   b_ij = sign(w_j · xᵢ − t_j),  ‖w_j‖ = 1,

    with the edges of the parallelepiped, the columns of C, as free as the hyperplanes (w_j, t_j). An iteration

    1. solves for m and C by least squares, the codes held;
    2. goes through the hyperplanes: with all other bits held, bit j should have the sign of
       u_i = c_j · (xᵢ − m − Σ_{l≠j} c_l b_il), and E falls by 4 |u_i| for every point brought to that side. Least
       squares fits u in the space of the distances to the hyperplanes, and the hyperplane where the fit is zero
       replaces the old one if E falls.

    E therefore never rises. Hyperplanes that collapse onto each other, or onto a direction in which the data hardly
    vary, explain nothing that is not explained without them, so E itself works against them; a step that would still
    lead there is refused.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes; may exceed the number of features.
    n_iter : int, default=50
        Iterations.
    random_state : int, RandomState or None
        Draws the rotation of the PCA frame to start from.

    Attributes
    ----------
    weights_ : array of shape (n_bits, n_features)
        w: unit normals of the hyperplanes.
    offsets_ : array of shape (n_bits,)
        −t: the projection is ``weights_ @ x + offsets_``, the signed distance to each hyperplane.
    mean_ : array of shape (n_features,)
        m, the middle of the parallelepiped.
    edges_ : array of shape (n_bits, n_features)
        C': half of each edge.
    quantization_error_ : array of shape (n_iter + 1,)
        E / n before the first iteration and after each; never rises.

    References
    ----------
    X. Fu, B. McCane, S. Mills and M. Albert, "NOKMeans: Non-orthogonal k-means hashing", ACCV 2014.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import NOKMeans
    >>> X = load_digits().data
    >>> NOKMeans(n_bits=32, random_state=0).fit(X).encode(X)
    Codes(1797 codes of 32 bits)
    """

    weights_: npt.NDArray[Any]
    offsets_: npt.NDArray[Any]
    mean_: npt.NDArray[Any]
    edges_: npt.NDArray[Any]
    quantization_error_: npt.NDArray[Any]

    _limits: ClassVar[dict[str, Limit]] = {"n_bits": Whole(1), "n_iter": Whole(1), "random_state": Seed()}
    _tensors: ClassVar[dict[str, Tensor]] = {
        "weights_": Tensor("f", ("n_bits", "n_features")),
        "offsets_": Tensor("f", ("n_bits",)),
        "mean_": Tensor("f", ("n_features",)),
        "edges_": Tensor("f", ("n_bits", "n_features")),
        "quantization_error_": Tensor("f", ("iterations",)),
    }

    def __init__(self, n_bits: int = 64, *, n_iter: int = 50, random_state: Any = None) -> None:
        self.n_bits = n_bits
        self.n_iter = n_iter
        self.random_state = random_state

    @one_blas_thread()  # products with one vector after another, on which threads wait for each other
    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        origin, X = centre(X)
        unit = np.abs(X).max()  # products of four coordinates are to come, so they should be near 1
        X /= unit
        frame = principal_frame(X, np.zeros_like(origin), min(self.n_bits, X.shape[1]))
        cut = _Hyperplanes(X @ frame.T, _starting_directions(self.n_bits, len(frame), rng).astype(X.dtype))
        energy = float(np.einsum("ij,ij->i", X, X).sum(dtype=np.float64))
        middle, edges, error = _centres(X, cut.signs, energy)
        errors = [error]
        for _ in range(self.n_iter):
            cut.improve(edges @ X.T - (edges @ middle)[:, None], edges @ edges.T)
            middle, edges, error = _centres(X, cut.signs, energy)
            errors.append(error)
        self.weights_ = cut.directions @ frame
        self.offsets_ = -cut.thresholds * unit - self.weights_ @ origin
        self.mean_ = origin + middle * unit
        self.edges_ = edges * unit
        self.quantization_error_ = np.array(errors) * float(unit) ** 2

    def hyperplanes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:  # noqa: D102
        return self.weights_, self.offsets_


class _Hyperplanes:
    """The hyperplanes and the sides that the points lie on.

    ``points`` are coordinates in the principal frame. The distances to the hyperplanes span the same space of
    functions, so a least-squares fit in one is a fit in the other, and this one is solved once for all.
    """

    def __init__(self, points: Any, directions: Any) -> None:
        self.points = points
        self.directions = directions
        self.thresholds = np.zeros(len(directions), dtype=points.dtype)
        self.signs = corners(directions @ points.T)  # a row a hyperplane
        self._move_twins_apart()
        variances = points.var(axis=0)
        self.least_variance = _LEAST_VARIANCE * float(variances.mean())
        # axes without variance are left to the frame: no fit along them means anything
        self.inverse_variances = np.where(
            variances > 1e-6 * variances.max(), 1 / np.maximum(variances, np.finfo(points.dtype).tiny), 0
        )
        self.variances = variances

    def _move_twins_apart(self) -> None:
        """Give a hyperplane that starts as the twin of an earlier one (in few dimensions it must) its own place."""
        for j in range(1, len(self.directions)):
            if _likeness(self.signs[:j], self.signs[j]) > _MOST_ALIKE * len(self.points):
                distances = self.points @ self.directions[j]
                share = 0.1 + 0.8 * ((0.5 + j * _GOLDEN) % 1)
                self.thresholds[j] = np.quantile(distances, share)
                self.signs[j] = corners(distances - self.thresholds[j])

    def improve(self, along_edges: Any, gram: Any) -> None:
        """Replace each hyperplane in turn by a better one, where there is one.

        ``along_edges`` holds (x − m)·c_l for every edge and point, ``gram`` the products of the edges.
        """
        for j in range(len(self.directions)):
            wanted = along_edges[j] - gram[j] @ self.signs + self.signs[j] * gram[j, j]
            mean = wanted.mean()
            # the principal coordinates are uncorrelated with mean zero, so the fit needs no matrix inverse
            direction = (self.points.T @ (wanted - mean)) / len(wanted) * self.inverse_variances
            length = float(np.sqrt(direction @ direction))
            if length > 0:
                self._replace(j, direction / length, -mean / length, wanted)

    def _replace(self, j: int, direction: Any, threshold: Any, wanted: Any) -> None:
        signs = corners(self.points @ direction - threshold)
        if float(signs @ wanted) <= float(self.signs[j] @ wanted):
            return
        if float(self.variances @ (direction * direction)) < self.least_variance:
            return
        for rows, new, most in (
            (self.directions, direction, _MOST_ALIKE),
            (self.signs, signs, _MOST_ALIKE * len(signs)),
        ):
            likeness = _likeness(rows, new, apart_from=j)
            # in one dimension all directions are alike from the start; no step may make it worse
            if likeness > most and likeness > _likeness(rows, rows[j], apart_from=j):
                return
        self.directions[j], self.thresholds[j], self.signs[j] = direction, threshold, signs


def _starting_directions(n_bits: int, rank: int, rng: np.random.RandomState) -> Any:
    """Random orthonormal rows in the principal frame, as many frames below each other as it takes."""
    frames = [random_rotation(rank, rng) for _ in range(-(-n_bits // rank))]
    return np.concatenate(frames)[:n_bits]


def _centres(X: Any, signs: Any, energy: float) -> tuple[Any, Any, float]:
    """Middle, edges and quantisation error E / n that fit the codes best; ``energy`` is Σ ‖x‖²."""
    d, n = signs.shape
    design = np.concatenate([signs, np.ones((1, n), dtype=signs.dtype)])
    normal = (design @ design.T).astype(np.float64)
    products = (design @ X).astype(np.float64)
    solution = np.linalg.pinv(normal, rcond=1e-10, hermitian=True) @ products
    solved = solution.astype(X.dtype)
    return solved[d], solved[:d], (energy - float((products * solution).sum())) / n


def _likeness(rows: Any, row: Any, apart_from: int | None = None) -> float:
    products = np.abs(rows @ row)
    if apart_from is not None:
        products[apart_from] = 0
    return float(products.max(initial=0.0))
