"""Orthogonal k-means."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy  # which loads its parts when they are used

from autojacobin.core.linear_algebra import centre, nearest_frame, principal_frame, random_rotation
from autojacobin.core.parallel import one_blas_thread, run_tasks
from autojacobin.hashers.base import LinearHasher
from autojacobin.hashers.parameters import Bits, Limit, Seed, Whole
from autojacobin.hashers.persistence import Tensor

_NUMBERS_PER_TASK = 2**19
_FEW_CHANGES = 0.03  # share of changed signs up to which a sparse product is faster than a dense one


class OKMeans(LinearHasher):
    """k-means whose 2^n_bits centres are the corners of a box, rotated and shifted to fit the data.

    With R an orthonormal frame, s the half-lengths of the box and μ its centre, OKMeans minimises

        E = Σᵢ ‖xᵢ − μ − R (s ∘ bᵢ)‖²,   bᵢ ∈ {−1, 1}^n_bits, R'R = I,

    alternately over b, s, R and μ. Each step is solved exactly: b = sign(R'(x − μ)); s = mean |R'(x − μ)|; R = U W'
    from the SVD of Σ (x − μ)(s ∘ b)'; μ = mean of x − R (s ∘ b). ``decode`` gives the centre μ + R (s ∘ b) of a code.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes; at most the number of features.
    n_iter : int, default=100
        Iterations.
    random_state : int, RandomState or None
        Draws the initial rotation of the PCA frame.

    Attributes
    ----------
    weights_ : array of shape (n_bits, n_features)
        R': orthonormal normals of the hyperplanes.
    mean_ : array of shape (n_features,)
        μ, through which all hyperplanes pass.
    scales_ : array of shape (n_bits,)
        s, half the length of each edge of the box.
    quantization_error_ : array of shape (n_iter,)
        E / n at each iteration; it never increases.

    References
    ----------
    M. Norouzi and D. Fleet, "Cartesian k-means", CVPR 2013.
    """

    _limits: ClassVar[dict[str, Limit]] = {"n_bits": Bits(), "n_iter": Whole(1, 10**6), "random_state": Seed()}
    _tensors: ClassVar[dict[str, Tensor]] = {
        "weights_": Tensor("f", ("n_bits", "n_features")),
        "mean_": Tensor("f", ("n_features",)),
        "scales_": Tensor("f", ("n_bits",)),
        "quantization_error_": Tensor("f", ("iterations",), power=2),
    }
    _more_bits_than_features: ClassVar[bool] = False

    def __init__(self, n_bits: int = 64, *, n_iter: int = 100, random_state: Any = None) -> None:
        self.n_bits = n_bits
        self.n_iter = n_iter
        self.random_state = random_state

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

    def hyperplanes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:  # noqa: D102
        return self.weights_, -self.weights_ @ self.mean_

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

        def work(first: int) -> tuple[Any, Any]:
            points = slice(first, first + per_task)
            new = X[points] @ frame >= offsets
            changed = np.flatnonzero(new != positive[points])
            positive[points] = new
            return first * new.shape[1] + changed, new.ravel()[changed]

        per_task = max(1, _NUMBERS_PER_TASK // X.shape[1])
        parts = run_tasks(work, [(first,) for first in range(0, len(X), per_task)])
        places, now_positive = (np.concatenate(part) for part in zip(*parts, strict=True))
        values = 4 * now_positive.astype(X.dtype) - 2  # from −1 to 1 or back
        changes = scipy.sparse.csr_array((values, np.divmod(places, positive.shape[1])), positive.shape)
        self.sums += changes.sum(axis=0, dtype=np.float64)
        few = changes.nnz <= _FEW_CHANGES * positive.size
        self.products += ((changes.T @ X) if few else (changes.toarray().T @ X)).T
