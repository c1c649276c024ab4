"""The auto-encoders without the Jacobian term: AutoBin, CAutoBin and DAutoBin, and what all auto-encoders share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder import History, Network, Objective, TimeLimit, train
from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace, to_host
from autojacobin.core.linear_algebra import coordinates, mean_row, principal_frame, random_rotation
from autojacobin.core.parallel import Progress
from autojacobin.hashers.base import LinearHasher
from autojacobin.hashers.itq import itq_rotation
from autojacobin.hashers.kmeans_hashing import NOKMeans, OKMeans
from autojacobin.hashers.learning import warn_caller
from autojacobin.hashers.parameters import Callback, Choice, Number, OrNone, Seed, Whole, parameter
from autojacobin.hashers.persistence import Tensor

INITS = ("random", "itq", "okmeans", "nokmeans")
_ITQ_ITERATIONS = 50


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
        hasher = (OKMeans if init == "okmeans" else NOKMeans)(d, random_state=rng).fit(to_host(X), training_points=None)
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


_FEWEST_POINTS_TO_WARN = 100
_ROWS_PER_BLOCK = 2**14


@dataclass(eq=False, repr=False, kw_only=True)
class AutoEncoderHasher(LinearHasher):
    """Base of the auto-encoder methods: scaling, initialisation, Algorithm 1, and the hyperplanes of the hidden layer.

    The methods differ in their objective and in the inputs of the network.
    """

    alpha: float | str = parameter(0.1, Number(0), "Weight α of the binary term; 0.1 in the paper.")
    epsilon: float = parameter(1e-4, Number(0, above_low=True), "Smoothing ε of the 1-norm of that term.")
    batch_size: int | None = parameter(1000, OrNone(Whole(1)), "Points per step; None takes the whole set every step.")
    n_epochs: int = parameter(5, Whole(0, 10**6), "Passes over the training set.")
    scale: float = parameter(0.8, Number(0, above_low=True), "Largest norm of the training data after scaling.")
    threshold: str = parameter(
        "bias",
        Choice("bias", "origin"),
        "``'bias'`` takes the sign of W1 x + b1, that of the hidden feature. ``'origin'`` takes the sign of W1 x, as "
        "printed in the paper; on SIFT it loses about 0.11 m-Recall.",
    )
    init: str = parameter(
        "random", Choice(*INITS), "Initial hyperplanes: PCA, rotated at random, or those of a method."
    )
    tol: float = parameter(0.0, Number(0), "Stop after an epoch that reduces the cost by less than this share.")
    stop_below: float | None = parameter(
        None, OrNone(Number(0)), "Stop after a step that brings the cost of its batch below this number."
    )
    max_seconds: float | None = parameter(
        None,
        OrNone(Number(0, above_low=True)),
        "End the fit after about this time, with the best network so far. Then it is not repeatable.",
    )
    random_state: Any = parameter(None, Seed(), "Draws the held-out points, the rotation and the mini-batches.")
    device: str = parameter("cpu", Choice("cpu", "cuda"), "Where to compute; ``'cuda'`` needs CuPy.")
    progress: Progress | None = parameter(None, OrNone(Callback()), "Called as ``progress(stage, done, total)``.")

    _tensors: ClassVar[dict[str, Tensor]] = {
        "W1_": Tensor("f", ("n_bits", "n_features"), "Weights from the (scaled) input to the hidden layer."),
        "b1_": Tensor("f", ("n_bits",), "Biases of the hidden layer."),
        "W2_": Tensor("f", ("n_features", "n_bits"), "Weights from the hidden layer to the output."),
        "b2_": Tensor("f", ("n_features",), "Biases of the output."),
        "scale_": Tensor("f", (), "Factor by which the data are scaled."),
        "hidden_scales_": Tensor(
            "f", ("n_bits",), "A bit is decoded to a hidden unit of this value, with either sign."
        ),
        "history_": Tensor(
            "f",
            ("steps",),
            "Columns with one entry per step: ``epoch``, ``n_points``, ``cost_before`` and ``cost`` of the batch "
            "before and after the step, the weighted terms such as ``reconstruction`` that add up to ``cost``, the "
            "``step`` length, and the number of ``evaluations`` of the objective.",
            columns={"cost": "f", "n_points": "i"},
        ),
    }

    def _objective(self) -> Objective:
        return Objective(alpha=float(self.alpha), epsilon=float(self.epsilon))

    def _corruption(self, rng: np.random.RandomState) -> Callable[[Any], Any] | None:  # noqa: ARG002
        """Return the function that makes inputs from clean points; None leaves them clean."""
        return None

    def hyperplanes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:  # noqa: D102
        offsets = self.b1_ if self.threshold == "bias" else np.zeros_like(self.b1_)
        return self.W1_ * self.scale_, offsets

    def decode(self, codes: Codes) -> npt.NDArray[Any]:
        """Reconstruct vectors from their codes, shape (n, n_features), by the output layer of the network.

        A bit stands for ±``hidden_scales_``, the value that fits its hidden unit best.
        """
        out = super().decode(codes)
        np.tanh(out, out=out)
        out /= self.scale_
        return out

    def _decoder(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.hidden_scales_[:, None] * self.W2_.T, self.b2_

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        report = TimeLimit(self.max_seconds, self.progress)
        X = self._scaled(X)
        network = initial_network(X, self.n_bits, self.init, rng)
        trained = self._trained(network, X, self._objective(), rng, n_epochs=self.n_epochs, progress=report)
        self._keep(X, *trained)

    def _scaled(self, X: Any) -> Any:
        """Scale points into the unit ball, since tanh has values in (−1, 1); ``scale`` < 1 leaves room for others."""
        self.scale_ = float(self.scale) / float(namespace(X).einsum("ij,ij->i", X, X).max()) ** 0.5
        return X * self.scale_

    def _trained(
        self, network: Network, X: Any, objective: Objective, rng: np.random.RandomState, **options: Any
    ) -> tuple[Network, History]:
        given = {name: getattr(self, name) for name in ("batch_size", "tol", "stop_below")}
        return train(network, X, objective, rng=rng, corrupt=self._corruption(rng), **given, **options)

    def _keep(self, X: Any, network: Network, history: History) -> None:
        """Store the network that training has ended with."""
        self.history_ = history
        self.W1_, self.b1_, self.W2_, self.b2_ = (
            to_host(part).copy() for part in (network.W1, network.b1, network.W2, network.b2)
        )
        self._measure_hidden_units(X, network)

    def _measure_hidden_units(self, X: Any, network: Network) -> None:
        """Fit ``hidden_scales_`` by least squares, and warn if many bits are the same for all points."""
        xp = namespace(X)
        ones = xp.zeros(self.n_bits, dtype=xp.int64)
        products = xp.zeros(self.n_bits, dtype=xp.float64)
        thresholds = 0 if self.threshold == "bias" else network.b1
        for start in range(0, len(X), _ROWS_PER_BLOCK):
            inputs = X[start : start + _ROWS_PER_BLOCK] @ network.W1.T + network.b1
            ones += (inputs >= 0).sum(axis=0)
            hidden = xp.tanh(inputs)
            products += xp.where(inputs >= thresholds, hidden, -hidden).sum(axis=0)
        self.hidden_scales_ = to_host(products / len(X)).astype(X.dtype)
        constant = int(((ones == 0) | (ones == len(X))).sum())
        if len(X) >= _FEWEST_POINTS_TO_WARN and 4 * constant > self.n_bits:
            warn_caller(
                f"{constant} of the {self.n_bits} bits of {type(self).__name__} are the same for all {len(X)} "
                "training points. This happens when the data lie far from the origin compared with their spread "
                "(subtract their mean first, for example with StandardScaler(with_std=False) in a pipeline), or when "
                "alpha or another weight is too large"
            )


class AutoBin(AutoEncoderHasher):
    """Auto-JacoBin without its Jacobian term: Σᵢ ‖zᵢ − xᵢ‖² + α ‖YY' − nI‖₁ᵋ.

    With mini-batches this is the paper's AutoBin1. With ``batch_size=None`` every step takes the whole training
    set, which is its AutoBin2; the paper's 50 steps are then 50 epochs: ``AutoBin(batch_size=None, n_epochs=50)``.
    """


@dataclass(eq=False, repr=False, kw_only=True)
class DAutoBin(AutoEncoderHasher):
    """AutoBin as a denoising auto-encoder: Σᵢ ‖z(x̃ᵢ) − xᵢ‖² + α ‖ỸỸ' − nI‖₁ᵋ.

    The network has to restore x from x̃, which is x with each entry set to 0 with probability t. The noise is drawn
    anew for every mini-batch.

    References
    ----------
    P. Vincent et al., "Stacked denoising autoencoders", JMLR 11, 2010.
    """

    corruption: float = parameter(
        0.1,
        Number(0, 1, below_high=True),
        "The probability t. The paper searches {0.01, 0.05, 0.1, 0.2} and does not report its choice.",
    )

    def _corruption(self, rng: np.random.RandomState) -> Callable[[Any], Any]:
        def corrupt(X: Any) -> Any:
            kept = rng.random_sample(X.shape) > self.corruption
            return X * namespace(X).asarray(kept)

        return corrupt


@dataclass(eq=False, repr=False, kw_only=True)
class CAutoBin(AutoEncoderHasher):
    """AutoBin as a contractive auto-encoder: Σᵢ ‖zᵢ − xᵢ‖² + λ Σᵢ ‖∂yᵢ/∂xᵢ‖² + α ‖YY' − nI‖₁ᵋ.

    References
    ----------
    S. Rifai et al., "Contractive auto-encoders: explicit invariance during feature extraction", ICML 2011.
    """

    contraction: float = parameter(
        0.01,
        Number(0),
        "Weight λ of the squared norm of the hidden layer's Jacobian. The paper searches {0.01, 0.1, 1, 10} and does "
        "not report its choice. From 0.1 on, the codes were worse than those of random hyperplanes on SIFT and digits.",
    )
    alpha: float = parameter(0.01, Number(0), "Weight α of the binary term; smaller than elsewhere, as in the paper.")

    def _objective(self) -> Objective:
        return replace(super()._objective(), contraction_weight=float(self.contraction))
