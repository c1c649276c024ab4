"""Auto-JacoBin, the method of the paper."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin._arrays import to_host
from autojacobin.autoencoder import Objective, TangentsOnDemand, TangentSpaces, tangents_for_training
from autojacobin.hashers._autoencoder import AutoEncoderHasher
from autojacobin.hashers._parameters import Limit, Number, OrNone, Whole
from autojacobin.hashers._persistence import Tensor

__all__ = ["AutoJacoBin"]


class AutoJacoBin(AutoEncoderHasher):
    """Auto-encoder Jacobian binary hashing.

    A three-layer tanh auto-encoder, z = tanh(W2 y + b2) with y = tanh(W1 x + b1), is trained to lower

        Σᵢ ‖zᵢ − xᵢ‖²  +  w Σᵢ ‖Jᵢ − TᵢTᵢ'‖²  +  α ‖YY' − nI‖₁ᵋ

    over mini-batches of n points. J is the Jacobian ∂z/∂x and T a basis of the tangent space of the data at
    x, found by local PCA: the function that sends noisy points to the nearest point of a manifold has
    the Jacobian TT', and the network should do the same to first order. The last term is the
    1-norm with |u| smoothed to √(u² + ε); it asks for features near ±1 that are uncorrelated. The bits are the
    signs of the hidden features y.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes; may exceed the number of features.
    alpha : float, default=0.1
        Weight α of the binary term.
    epsilon : float, default=1e-4
        Smoothing ε of its 1-norm.
    energy : float, default=0.98
        Share of the local variance that a tangent space keeps, with at most ``n_bits`` dimensions.
    n_neighbors : int, optional
        Nearest training points, the point itself among them, that a tangent space is estimated from; by default
        n_features + n_bits. Cut down, with a warning, when there are fewer training points.
    tangent_sample : int or None, default=100_000
        The neighbours are looked for among this many training points, drawn at random, if there are more; None looks
        among all of them, which takes a time that grows with the square of their number.
    batch_size : int or None, default=1000
        Points a step; None takes the whole set every step.
    n_epochs : int, default=5
        Passes over the training set.
    jacobian_weight : float, default=1.0
        Weight w of the Jacobian term, which the paper leaves at 1.
    scale : float, default=0.8
        The training data are divided by their largest norm and multiplied by this before they enter the network.
    threshold : {"bias", "origin"}, default="bias"
        ``"bias"`` takes the sign of W1 x + b1, that of the hidden feature. ``"origin"`` takes the sign of W1 x,
        as the paper prints it; on SIFT that loses about 0.11 m-Recall.
    init : {"random", "itq"}, default="random"
        Rotation of the PCA frame that W1 starts from: a random one, or the one that ITQ finds.
    tol : float, default=0.0
        Stop after an epoch that lowers the cost by less than this share; 0 runs all epochs.
    random_state : int, RandomState or None
        Draws the rotation and the mini-batches.
    device : {"cpu", "cuda"}, default="cpu"
        Where to compute; ``"cuda"`` needs CuPy. Data that are on a GPU already stay there.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` during ``fit``; it is not copied into a saved model.

    Attributes
    ----------
    W1_, b1_ : arrays of shape (n_bits, n_features) and (n_bits,)
        Weights from the (scaled) input to the hidden layer.
    W2_, b2_ : arrays of shape (n_features, n_bits) and (n_features,)
        Weights from the hidden layer to the output.
    scale_ : float
        Factor that the data are multiplied by.
    tangent_rank_ : array of int, shape (n_samples,)
        Dimension of the tangent space at each training point.
    history_ : dict of arrays
        A row a step: ``epoch``, ``n_points``, ``cost_before`` and ``cost`` of the batch before and after the
        step, the weighted terms ``reconstruction``, ``jacobian`` and ``binary`` that add up to ``cost``, the
        ``step`` length and the number of ``evaluations`` of the objective.

    References
    ----------
    X. Fu, B. McCane, S. Mills, M. Albert and L. Szymanski, "Auto-JacoBin: Auto-encoder Jacobian binary hashing".

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import AutoJacoBin
    >>> X = load_digits().data
    >>> hasher = AutoJacoBin(n_bits=32, random_state=0).fit(X)
    >>> hasher.encode(X)
    Codes(1797 codes of 32 bits)
    """

    tangent_rank_: npt.NDArray[np.int32]

    _limits: ClassVar[dict[str, Limit]] = {
        **AutoEncoderHasher._limits,
        "energy": Number(0, 1, above_low=True),
        "n_neighbors": OrNone(Whole(2)),
        "tangent_sample": OrNone(Whole(2)),
        "jacobian_weight": Number(0),
    }
    _tensors: ClassVar[dict[str, Tensor]] = {
        **AutoEncoderHasher._tensors,
        "tangent_rank_": Tensor("i", ("n_samples",)),
    }

    def __init__(
        self,
        n_bits: int = 64,
        *,
        alpha: float = 0.1,
        epsilon: float = 1e-4,
        energy: float = 0.98,
        n_neighbors: int | None = None,
        tangent_sample: int | None = 100_000,
        batch_size: int | None = 1000,
        n_epochs: int = 5,
        jacobian_weight: float = 1.0,
        scale: float = 0.8,
        threshold: str = "bias",
        init: str = "random",
        tol: float = 0.0,
        random_state: Any = None,
        device: str = "cpu",
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        super().__init__(
            n_bits,
            alpha=alpha,
            epsilon=epsilon,
            batch_size=batch_size,
            n_epochs=n_epochs,
            scale=scale,
            threshold=threshold,
            init=init,
            tol=tol,
            random_state=random_state,
            device=device,
            progress=progress,
        )
        self.energy = energy
        self.n_neighbors = n_neighbors
        self.tangent_sample = tangent_sample
        self.jacobian_weight = jacobian_weight

    def _objective(self) -> Objective:
        return replace(super()._objective(), jacobian_weight=float(self.jacobian_weight))

    def _tangents(self, X: Any, rng: np.random.RandomState) -> TangentSpaces | TangentsOnDemand:
        n, D = X.shape
        available = n if self.tangent_sample is None else min(n, self.tangent_sample)
        wanted = D + int(self.n_bits) if self.n_neighbors is None else self.n_neighbors
        if wanted > available:
            where = "training points" if available == n else "in tangent_sample"
            warnings.warn(
                f"tangent spaces were to be estimated from {wanted} neighbours, but there are {available} {where}; "
                f"all {available} are used for each. Pass more {where}, or n_neighbors={available} or fewer",
                stacklevel=4,
            )
        return tangents_for_training(
            X,
            min(wanted, available),
            min(self.n_bits, D),
            self.energy,
            sample=self.tangent_sample,
            rng=rng,
            progress=self._tell("tangent spaces"),
        )

    def _remember_tangents(self, tangents: Any) -> None:
        self.tangent_rank_ = to_host(tangents.ranks)
