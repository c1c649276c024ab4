"""Hashing by k-means whose centres are corners, of a box (OKMeans) or of a parallelepiped (NOKMeans, reconstructed)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy  # which loads its parts when they are used

from autojacobin.core.linear_algebra import centre, corners, nearest_frame, principal_frame, random_rotation
from autojacobin.core.parallel import one_blas_thread, run_tasks, slices
from autojacobin.hashers.base import LinearHasher
from autojacobin.hashers.parameters import Bits, Seed, Whole, parameter
from autojacobin.hashers.persistence import Tensor

_NUMBERS_PER_TASK = 2**19
_FEW_CHANGES = 0.03  # share of changed signs up to which a sparse product is faster than a dense one
# A new hyperplane is rejected if its direction or its bits correlate more than this with those of another one,
_LARGEST_SIMILARITY = 0.95
# or if the variance along its normal is below this share of the mean variance over the initial frame.
_LEAST_VARIANCE = 1e-2
# Multiples of this, modulo one, are never close to each other.
_GOLDEN = 0.6180339887498949


@dataclass(eq=False, repr=False)
class OKMeans(LinearHasher):
    """k-means whose 2^n_bits centres are the corners of a box, rotated and shifted to fit the data.

    With R an orthonormal frame, s the half-lengths of the box and μ its centre, OKMeans minimises

        E = Σᵢ ‖xᵢ − μ − R (s ∘ bᵢ)‖²,   bᵢ ∈ {−1, 1}^n_bits, R'R = I,

    alternately over b, s, R and μ. Each step is solved exactly: b = sign(R'(x − μ)); s = mean |R'(x − μ)|; R = U W'
    from the SVD of Σ (x − μ)(s ∘ b)'; μ = mean of x − R (s ∘ b). ``decode`` gives the centre μ + R (s ∘ b) of a code.

    References
    ----------
    M. Norouzi and D. Fleet, "Cartesian k-means", CVPR 2013.
    """

    n_bits: int = parameter(64, Bits(), "Length of the codes; at most the number of features.")
    _: KW_ONLY
    n_iter: int = parameter(100, Whole(1, 10**6), "Iterations.")
    random_state: Any = parameter(None, Seed(), "Draws the initial rotation of the PCA frame.")

    _tensors: ClassVar[dict[str, Tensor]] = {
        "weights_": Tensor("f", ("n_bits", "n_features"), "R': orthonormal normals of the hyperplanes."),
        "mean_": Tensor("f", ("n_features",), "μ, through which all hyperplanes pass."),
        "scales_": Tensor("f", ("n_bits",), "s, half the length of each edge of the box."),
        "quantization_error_": Tensor("f", ("n_iter",), "E / n at each iteration; it never increases.", power=2),
    }
    _more_bits_than_features: ClassVar[bool] = False

    @one_blas_thread()
    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        origin, X = centre(X)  # near zero, where float32 is most precise
        middle = np.zeros_like(origin)
        rotation = random_rotation(self.n_bits, rng).astype(X.dtype)
        frame = principal_frame(X, middle, self.n_bits).T @ rotation
        energy = float(np.einsum("ij,ij->i", X, X).sum(dtype=np.float64))
        n = len(X)
        signs = _Signs(X, self.n_bits)
        errors = []
        for _ in range(self.n_iter):
            offsets = middle @ frame
            signs.update(frame, offsets)
            # Σ |P| = Σ B ∘ P for the projections P = X frame − offsets and their signs B
            scales = ((signs.products * frame).sum(axis=0) - offsets * signs.sums) / n
            column_sums = scales * signs.sums
            products = signs.products * scales
            frame = nearest_frame(products - np.outer(middle, column_sums)).astype(X.dtype)
            middle = (-(frame @ column_sums) / n).astype(X.dtype)  # the mean of X is zero
            # E = ‖X‖² − 2 tr(frame' X' corners) + ‖corners‖² − n ‖middle‖², and all parts are known
            fit = float((products * frame).sum())
            spread = n * float((scales * scales).sum())
            errors.append((energy - 2 * fit + spread) / n - float(middle @ middle))
        self.weights_ = np.ascontiguousarray(frame.T)
        self.mean_ = origin + middle
        self.scales_ = scales.astype(X.dtype)
        self.quantization_error_ = np.array(errors)

    def _decoder(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.scales_[:, None] * self.weights_, self.mean_


class _Signs:
    """The signs B of the projections of the points, the sums of the columns of B, and the products X'B.

    After the first turns few signs change, so sums and products are updated by the changes alone.
    """

    def __init__(self, X: Any, n_bits: int) -> None:
        self._X = X
        self._positive = np.zeros((len(X), n_bits), dtype=bool)  # all signs are −1
        self.sums = np.full(n_bits, -float(len(X)))
        self.products = np.repeat(-X.sum(axis=0, dtype=np.float64)[:, None], n_bits, axis=1)

    def update(self, frame: Any, offsets: Any) -> None:
        """Set the signs to those of X frame − offsets."""
        X, positive = self._X, self._positive

        def work(points: slice) -> tuple[Any, Any]:
            new = X[points] @ frame >= offsets
            changed = np.flatnonzero(new != positive[points])
            positive[points] = new
            return points.start * new.shape[1] + changed, new.ravel()[changed]

        per_task = max(1, _NUMBERS_PER_TASK // X.shape[1])
        parts = run_tasks(work, [(points,) for points in slices(len(X), per_task)])
        places, now_positive = (np.concatenate(part) for part in zip(*parts, strict=True))
        values = 4 * now_positive.astype(X.dtype) - 2  # from −1 to 1 or back
        changes = scipy.sparse.csr_array((values, np.divmod(places, positive.shape[1])), positive.shape)
        self.sums += changes.sum(axis=0, dtype=np.float64)
        few = changes.nnz <= _FEW_CHANGES * positive.size
        self.products += ((changes.T @ X) if few else (changes.toarray().T @ X)).T


@dataclass(eq=False, repr=False, kw_only=True)
class NOKMeans(LinearHasher):
    """k-means whose 2^n_bits centres are the corners of a parallelepiped; the hyperplanes need not be orthogonal.

    **A reconstruction.** The original paper was not available. This class follows its abstract and the remarks in the
    Auto-JacoBin paper: cluster centres as in OKMeans, no orthogonality, points represented by their distances to the
    hyperplanes, 50 iterations. The objective is the quantisation error

        E = Σᵢ ‖xᵢ − m − C bᵢ‖²,   b_ij = sign(w_j · xᵢ − t_j),  ‖w_j‖ = 1,

    where the columns of C, the edges of the parallelepiped, do not depend on the hyperplanes (w_j, t_j). Each iteration

    1. solves for m and C by least squares, with the codes fixed;
    2. visits every hyperplane j. With all other bits fixed, bit j should have the sign of
       u_i = c_j · (xᵢ − m − Σ_{l≠j} c_l b_il), and E falls by 4 |u_i| for every point that moves to the right side. A
       least-squares fit predicts u from the distances to the hyperplanes. The hyperplane where the fit is zero replaces
       the old one if E falls.

    So E never increases. A hyperplane that nearly equals another one, or has a normal along which the data hardly
    vary, is rejected, because it adds nothing to the code. ``decode`` gives the centre m + C b of a code.

    References
    ----------
    X. Fu, B. McCane, S. Mills and M. Albert, "NOKMeans: Non-orthogonal k-means hashing", ACCV 2014.
    """

    n_iter: int = parameter(50, Whole(1, 10**6), "Iterations.")
    random_state: Any = parameter(None, Seed(), "Draws the initial rotation of the PCA frame.")

    _tensors: ClassVar[dict[str, Tensor]] = {
        "weights_": Tensor("f", ("n_bits", "n_features"), "w: unit normals of the hyperplanes."),
        "offsets_": Tensor(
            "f", ("n_bits",), "−t: ``weights_ @ x + offsets_`` is the signed distance to each hyperplane."
        ),
        "mean_": Tensor("f", ("n_features",), "m, the centre of the parallelepiped."),
        "edges_": Tensor("f", ("n_bits", "n_features"), "C': half of each edge."),
        "quantization_error_": Tensor("f", ("n_iter + 1",), "E / n at the start and after each iteration.", power=2),
    }

    @one_blas_thread()  # many products of a matrix with a vector, which several threads would only slow down
    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        origin, X = centre(X)
        unit = np.abs(X).max()  # keeps products of four coordinates near 1
        X /= unit
        frame = principal_frame(X, np.zeros_like(origin), min(self.n_bits, X.shape[1]))
        # random orthonormal rows in the principal frame; several such frames if there are more bits
        rotations = [random_rotation(len(frame), rng) for _ in range(-(-self.n_bits // len(frame)))]
        planes = _Hyperplanes(X, frame, np.concatenate(rotations)[: self.n_bits].astype(X.dtype))
        energy = float(np.einsum("ij,ij->i", X, X).sum(dtype=np.float64))
        middle, edges, error = planes.centres(energy)
        errors = [error]
        for _ in range(self.n_iter):
            planes.improve(edges @ X.T - (edges @ middle)[:, None], edges @ edges.T)
            middle, edges, error = planes.centres(energy)
            errors.append(error)
        self.weights_ = planes.directions @ frame
        self.offsets_ = -planes.thresholds * unit - self.weights_ @ origin
        self.mean_ = origin + middle * unit
        self.edges_ = edges * unit
        self.quantization_error_ = np.array(errors) * float(unit) ** 2

    def _decoder(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.edges_, self.mean_


class _Hyperplanes:
    """The hyperplanes, and on which side of them the points ``X`` lie.

    ``points`` are the coordinates of X in the principal frame. They span the same functions as the distances to the
    hyperplanes, so a least-squares fit is the same in both, and in the principal frame it needs no matrix inverse.

    When a hyperplane is replaced, few points move to its other side. So everything that depends on the signs is kept,
    and is updated by these points alone: the products of the signs with each other, with 1, and with X.
    """

    def __init__(self, X: Any, frame: Any, directions: Any) -> None:
        self.X, self.points, self.directions = X, X @ frame.T, directions
        self.thresholds = np.zeros(len(directions), dtype=X.dtype)
        self.signs = corners(directions @ self.points.T)  # one row per hyperplane
        self._separate_duplicates()
        self.products = (self.signs @ self.signs.T).astype(np.float64)
        self.sums = self.signs.sum(axis=1, dtype=np.float64)
        self.products_with_X = (self.signs @ X).astype(np.float64)
        self.sum_of_X = X.sum(axis=0, dtype=np.float64)
        variances = self.points.var(axis=0)
        self.least_variance = _LEAST_VARIANCE * float(variances.mean())
        # axes without variance are excluded from the fits
        self.inverse_variances = np.where(
            variances > 1e-6 * variances.max(), 1 / np.maximum(variances, np.finfo(X.dtype).tiny), 0
        )
        self.variances = variances

    def _separate_duplicates(self) -> None:
        """Shift every hyperplane that nearly equals an earlier one, as some must in few dimensions."""
        for j in range(1, len(self.directions)):
            if np.abs(self.signs[:j] @ self.signs[j]).max() > _LARGEST_SIMILARITY * len(self.points):
                distances = self.points @ self.directions[j]
                share = 0.1 + 0.8 * ((0.5 + j * _GOLDEN) % 1)
                self.thresholds[j] = np.quantile(distances, share)
                self.signs[j] = corners(distances - self.thresholds[j])

    def centres(self, energy: float) -> tuple[Any, Any, float]:
        """Centre, edges and quantisation error E / n that fit the codes best; ``energy`` is Σ ‖x‖²."""
        n, d, sums = len(self.X), len(self.signs), self.sums[:, None]
        normal = np.block([[self.products, sums], [sums.T, np.full((1, 1), n)]])
        products = np.concatenate([self.products_with_X, self.sum_of_X[None]])
        solution = np.linalg.pinv(normal, rcond=1e-10, hermitian=True) @ products
        solved = solution.astype(self.X.dtype)
        return solved[d], solved[:d], (energy - float((products * solution).sum())) / n

    def improve(self, along_edges: Any, gram: Any) -> None:
        """Replace each hyperplane if that lowers the error, given (x − m)·c_l for every point, and c_j·c_l."""
        n = len(self.points)
        wanted = along_edges - gram @ self.signs
        wanted += np.diagonal(gram)[:, None] * self.signs
        covariances = wanted @ self.points / n
        for j in range(len(self.directions)):
            better = self._better(j, wanted[j], covariances[j])
            if better is None:
                continue
            direction, threshold, signs = better
            moved = np.flatnonzero(signs != self.signs[j])
            change = 2 * signs[moved]
            if self._replace(j, direction, threshold, moved, change):
                effects = gram[j + 1 :, j, None]
                wanted[j + 1 :, moved] -= effects * change
                covariances[j + 1 :] -= effects * (change @ self.points[moved] / n)

    def _better(self, j: int, wanted: Any, covariance: Any) -> tuple[Any, Any, Any] | None:
        """Direction, threshold and signs of the plane that is fitted in place of ``j``; None if no error is saved."""
        # the principal coordinates are uncorrelated and have mean zero, so the fit needs no matrix inverse
        direction = covariance * self.inverse_variances
        length = np.sqrt((direction * direction).sum())
        if not length:
            return None
        direction /= length
        threshold = -wanted.mean() / length
        signs = corners(self.points @ direction - threshold)
        gain = (signs - self.signs[j]) @ wanted
        if gain <= 0 or direction * direction @ self.variances < self.least_variance:
            return None
        return direction, threshold, signs

    def _replace(self, j: int, direction: Any, threshold: Any, moved: Any, change: Any) -> bool:
        """Replace hyperplane ``j``, so that signs of ``moved`` points grow by ``change``; False if it is a copy."""
        n = len(self.points)
        products = self.products[j] + self.signs[:, moved] @ change
        products[j] = n
        for new, old, most in (
            (self.directions @ direction, self.directions @ self.directions[j], _LARGEST_SIMILARITY),
            (products, self.products[j], _LARGEST_SIMILARITY * n),
        ):
            similarity = _largest_but(j, new)
            # In one dimension all directions are equal. There, a step is rejected only if it makes things worse.
            if similarity > most and similarity > _largest_but(j, old):
                return False
        self.directions[j], self.thresholds[j] = direction, threshold
        self.signs[j, moved] += change
        self.products[j] = self.products[:, j] = products
        self.sums[j] += change.sum()
        self.products_with_X[j] += change @ self.X[moved]
        return True


def _largest_but(j: int, similarities: Any) -> float:
    """Largest absolute value, except that of number ``j``."""
    others = np.abs(similarities)
    others[j] = 0
    return float(others.max())
