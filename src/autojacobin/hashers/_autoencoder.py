"""What the auto-encoder methods share: scaling, the start, Algorithm 1, and the hyperplanes of the hidden layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin._arrays import namespace, on_device, to_host
from autojacobin.autoencoder import Network, Objective, TangentsOnDemand, TangentSpaces, train
from autojacobin.hashers._base import LinearHasher
from autojacobin.hashers._parameters import Callback, Choice, Limit, Number, OrNone, Seed, Whole
from autojacobin.hashers._persistence import Tensor
from autojacobin.hashers._starts import STARTS, starting_network
from autojacobin.hashers._vectors import as_floats
from autojacobin.hashers._warnings import warn_caller

__all__ = ["AutoEncoderHasher"]

_ENOUGH_TO_JUDGE = 100
_ROWS_PER_BLOCK = 2**14


class AutoEncoderHasher(LinearHasher):
    """Base of the auto-encoder methods; they differ in the objective and in what goes into the network."""

    W1_: npt.NDArray[Any]
    b1_: npt.NDArray[Any]
    W2_: npt.NDArray[Any]
    b2_: npt.NDArray[Any]
    scale_: float
    history_: dict[str, npt.NDArray[Any]]

    _limits: ClassVar[dict[str, Limit]] = {
        "n_bits": Whole(1),
        "alpha": Number(0),
        "epsilon": Number(0, above_low=True),
        "batch_size": OrNone(Whole(1)),
        "n_epochs": Whole(0),
        "scale": Number(0, above_low=True),
        "threshold": Choice("bias", "origin"),
        "init": Choice(*STARTS),
        "tol": Number(0),
        "random_state": Seed(),
        "device": Choice("cpu", "cuda"),
        "progress": OrNone(Callback()),
    }
    _tensors: ClassVar[dict[str, Tensor]] = {
        "W1_": Tensor("f", ("n_bits", "n_features")),
        "b1_": Tensor("f", ("n_bits",)),
        "W2_": Tensor("f", ("n_features", "n_bits")),
        "b2_": Tensor("f", ("n_features",)),
        "scale_": Tensor("f"),
        "history_": Tensor("f", ("steps",), columns=True, required={"cost": "f", "n_points": "i"}),
    }

    def __init__(
        self,
        n_bits: int = 64,
        *,
        alpha: float | str = 0.1,
        epsilon: float = 1e-4,
        batch_size: int | None = 1000,
        n_epochs: int = 5,
        scale: float = 0.8,
        threshold: str = "bias",
        init: str = "random",
        tol: float = 0.0,
        random_state: Any = None,
        device: str = "cpu",
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.n_bits = n_bits
        self.alpha = alpha
        self.epsilon = epsilon
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.scale = scale
        self.threshold = threshold
        self.init = init
        self.tol = tol
        self.random_state = random_state
        self.device = device
        self.progress = progress

    # What a method may change

    def _objective(self) -> Objective:
        return Objective(alpha=float(self.alpha), epsilon=float(self.epsilon))

    def _corruption(self, rng: np.random.RandomState) -> Callable[[Any], Any] | None:  # noqa: ARG002
        return None

    # How it is done

    def hyperplanes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        offsets = self.b1_ if self.threshold == "bias" else np.zeros_like(self.b1_)
        return self.W1_ * self.scale_, offsets

    def _training_floats(self, array: Any) -> Any:
        return on_device(as_floats(array), self.device)

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        X = self._scaled(X)
        start = starting_network(X, self.n_bits, self.init, rng)
        self._train(start, X, self._objective(), self.n_epochs, rng)

    def _scaled(self, X: Any) -> Any:
        """Training points inside (-1, 1), where tanh wants them, with room left for points farther out than any."""
        self.scale_ = float(self.scale) / float(namespace(X).einsum("ij,ij->i", X, X).max()) ** 0.5
        return X * self.scale_

    def _train(
        self,
        start: Network,
        X: Any,
        objective: Objective,
        n_epochs: int,
        rng: np.random.RandomState,
        tangents: TangentSpaces | TangentsOnDemand | None = None,
    ) -> None:
        network, self.history_ = train(
            start,
            X,
            objective,
            rng=rng,
            tangents=tangents,
            batch_size=self.batch_size,
            n_epochs=n_epochs,
            tol=self.tol,
            corrupt=self._corruption(rng),
            progress=self._tell("training"),
        )
        self.W1_, self.b1_, self.W2_, self.b2_ = (
            to_host(part).copy() for part in (network.W1, network.b1, network.W2, network.b2)
        )
        self._warn_of_constant_bits(X, network)

    def _warn_of_constant_bits(self, X: Any, network: Network) -> None:
        xp = namespace(X)
        ones = xp.zeros(self.n_bits, dtype=xp.int64)
        for start in range(0, len(X), _ROWS_PER_BLOCK):
            ones += (X[start : start + _ROWS_PER_BLOCK] @ network.W1.T + network.b1 >= 0).sum(axis=0)
        constant = int(((ones == 0) | (ones == len(X))).sum())
        if len(X) >= _ENOUGH_TO_JUDGE and 4 * constant > self.n_bits:
            warn_caller(
                f"{constant} of the {self.n_bits} bits of {type(self).__name__} are the same for all {len(X)} "
                "training points. This happens when the data lie far from the origin compared with their spread "
                "(subtract their mean first, for example with StandardScaler(with_std=False) in a pipeline), or when "
                "alpha or another weight is too large"
            )

    def _tell(self, stage: str) -> Callable[[int, int], None] | None:
        if self.progress is None:
            return None
        tell = self.progress
        return lambda done, total: tell(stage, done, total)
