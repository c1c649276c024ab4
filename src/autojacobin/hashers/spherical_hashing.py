"""Spherical hashing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from autojacobin.core.linear_algebra import mean_row, squared_distances
from autojacobin.core.parallel import one_blas_thread
from autojacobin.hashers.base import Hasher
from autojacobin.hashers.parameters import Seed, Whole, parameter
from autojacobin.hashers.persistence import Tensor

_POINTS_PER_CENTRE = 5
_MEAN_TOLERANCE, _SPREAD_TOLERANCE = 0.10, 0.15  # of the overlaps, as shares of n / 4


@dataclass(eq=False, repr=False, kw_only=True)
class SphericalHashing(Hasher):
    """Spheres instead of hyperplanes: ``bit_j = [‖x − c_j‖ ≤ r_j]``.

    Each sphere holds half of the n training points, and each two of them share a quarter, so that bits are balanced and
    independent. Centres start as means of five random points each. Then radii and centres take turns: r_j becomes the
    median distance to c_j; and with o_ij the number of points inside both spheres i and j, the centres move by

        f_i = 1 / n_bits · Σ_j ½ (o_ij − n/4) / (n/4) (c_i − c_j),

    apart where the spheres share too much, and together where they share too little. It ends when |o_ij − n/4| is at
    most 10 % of n/4 on average and the standard deviation of o_ij at most 15 %.

    Codes are compared by the spherical Hamming distance by default, the number of bits that differ divided by the
    number of ones that are shared: two vectors inside the same sphere are near each other, and two outside of it need
    not be. ``project`` gives r_j − ‖x − c_j‖.

    References
    ----------
    J.-P. Heo, Y. Lee, J. He, S.-F. Chang and S.-E. Yoon, "Spherical hashing", CVPR 2012.
    """

    n_iter: int = parameter(100, Whole(0, 10**6), "The most iterations.")
    random_state: Any = parameter(None, Seed(), "Draws the points whose means the centres start from.")

    distances: ClassVar[tuple[str, ...]] = ("spherical", "hamming", "asymmetric")
    _tensors: ClassVar[dict[str, Tensor]] = {
        "centres_": Tensor("f", ("n_bits", "n_features"), "Centres of the spheres."),
        "radii_": Tensor("f", ("n_bits",), "Their radii."),
        "overlap_error_": Tensor(
            "f", ("iterations",), "Mean of |o_ij − n/4| as a share of n/4, at the start and after each iteration."
        ),
        "overlap_spread_": Tensor("f", ("iterations",), "Standard deviation of o_ij, in the same way."),
    }

    @one_blas_thread()
    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        mean = mean_row(X)
        centred = X - mean
        size = min(_POINTS_PER_CENTRE, len(X) // 2)
        chosen = [rng.choice(len(X), size, replace=False) for _ in range(self.n_bits)]
        centres = np.stack([centred[rows].mean(axis=0) for rows in chosen])
        errors, spreads = [], []
        while True:
            inside = _halving_radii(centred, centres)[1]
            surplus = (inside.T @ inside) / (len(X) / 4) - 1  # exact: the counts are below 2^24
            pairs = surplus[np.triu_indices(self.n_bits, 1)]
            errors.append(float(np.abs(pairs).mean()) if len(pairs) else 0.0)
            spreads.append(float(pairs.std()) if len(pairs) else 0.0)
            if (errors[-1] <= _MEAN_TOLERANCE and spreads[-1] <= _SPREAD_TOLERANCE) or len(errors) > self.n_iter:
                break
            forces = surplus / 2
            np.fill_diagonal(forces, 0)
            moves = forces.sum(axis=1, keepdims=True) * centres - forces @ centres
            centres = centres + moves / X.dtype.type(self.n_bits)
        self.centres_ = centres + mean
        # the radii belong to the centres as they are stored, which may be rounded
        self.radii_ = _halving_radii(centred, self.centres_ - mean)[0]
        self.overlap_error_, self.overlap_spread_ = np.array(errors), np.array(spreads)

    def _projector(self, xp: Any) -> Callable[[Any], Any]:
        middle = mean_row(self.centres_)  # near the data, where differences are precise
        origin, radii = xp.asarray(middle), xp.asarray(self.radii_)
        centres = xp.asarray(self.centres_ - middle)

        def project(X: Any) -> Any:
            return radii - xp.sqrt(squared_distances(X - origin, centres))

        return project


def _halving_radii(X: Any, centres: Any) -> tuple[Any, Any]:
    """Give the radius around each centre within which half of the points are, and 1.0 for each point inside."""
    distances = np.sqrt(squared_distances(X, centres))
    half = len(X) // 2
    ordered = np.partition(distances, [half - 1, half], axis=0)
    radii = (ordered[half - 1] + ordered[half]) / 2  # between two points, so that rounding does not move one
    return radii, (distances <= radii).astype(X.dtype)
