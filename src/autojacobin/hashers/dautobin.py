"""DAutoBin: the denoising auto-encoder with the binary constraint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from autojacobin._arrays import namespace
from autojacobin.hashers._autoencoder import AutoEncoderHasher
from autojacobin.hashers._parameters import Limit, Number

__all__ = ["DAutoBin"]


class DAutoBin(AutoEncoderHasher):
    """AutoBin that has to restore what noise took away: Σᵢ ‖z(x̃ᵢ) − xᵢ‖² + α ‖ỸỸ' − nI‖₁ᵋ.

    x̃ is x with each entry set to 0 with probability t, drawn anew for every mini-batch.

    Parameters
    ----------
    corruption : float, default=0.1
        The share t of entries set to 0. The paper searches {0.01, 0.05, 0.1, 0.2} and does not say which it took.
    n_bits, alpha, epsilon, batch_size, n_epochs, scale, threshold, init, tol, random_state, device, progress
        As in :class:`AutoJacoBin`, with the same defaults.

    Attributes
    ----------
    W1_, b1_, W2_, b2_, scale_, history_
        As in :class:`AutoJacoBin`; the history has no Jacobian term.

    References
    ----------
    P. Vincent et al., "Stacked denoising autoencoders", JMLR 11, 2010.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import DAutoBin
    >>> X = load_digits().data
    >>> DAutoBin(n_bits=32, corruption=0.05, random_state=0).fit(X).encode(X)
    Codes(1797 codes of 32 bits)
    """

    _limits: ClassVar[dict[str, Limit]] = {
        **AutoEncoderHasher._limits,
        "corruption": Number(0, 1, below_high=True),
    }

    def __init__(
        self,
        n_bits: int = 64,
        *,
        corruption: float = 0.1,
        alpha: float = 0.1,
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
        self.corruption = corruption

    def _corruption(self, rng: np.random.RandomState) -> Callable[[Any], Any]:
        def corrupt(X: Any) -> Any:
            kept = rng.random_sample(X.shape) > self.corruption
            return X * namespace(X).asarray(kept)

        return corrupt
