"""CAutoBin: the contractive auto-encoder with the binary constraint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from autojacobin.autoencoder import Objective
from autojacobin.hashers._autoencoder import AutoEncoderHasher
from autojacobin.hashers._parameters import Limit, Number

__all__ = ["CAutoBin"]


class CAutoBin(AutoEncoderHasher):
    """AutoBin whose hidden features should move little: Σᵢ ‖zᵢ − xᵢ‖² + λ Σᵢ ‖∂yᵢ/∂xᵢ‖² + α ‖YY' − nI‖₁ᵋ.

    Parameters
    ----------
    contraction : float, default=0.01
        Weight λ of the squared norm of the hidden layer's Jacobian. The paper searches {0.01, 0.1, 1, 10} and does
        not say which it took; from 0.1 on, the codes were worse than those of random hyperplanes on SIFT and digits.
    alpha : float, default=0.01
        Weight α of the binary term; the paper uses a smaller one here than elsewhere.
    n_bits, epsilon, batch_size, n_epochs, scale, threshold, init, tol, random_state, device, progress
        As in :class:`AutoJacoBin`, with the same defaults.

    Attributes
    ----------
    W1_, b1_, W2_, b2_, scale_, history_
        As in :class:`AutoJacoBin`; the history has ``contraction`` in place of the Jacobian term.

    References
    ----------
    S. Rifai et al., "Contractive auto-encoders: explicit invariance during feature extraction", ICML 2011.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import CAutoBin
    >>> X = load_digits().data
    >>> CAutoBin(n_bits=32, contraction=0.001, random_state=0).fit(X).encode(X)
    Codes(1797 codes of 32 bits)
    """

    _limits: ClassVar[dict[str, Limit]] = {**AutoEncoderHasher._limits, "contraction": Number(0)}

    def __init__(
        self,
        n_bits: int = 64,
        *,
        contraction: float = 0.01,
        alpha: float = 0.01,
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
        self.contraction = contraction

    def _objective(self) -> Objective:
        return replace(super()._objective(), contraction_weight=float(self.contraction))
