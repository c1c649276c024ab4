"""AutoBin: the auto-encoder with the binary constraint alone."""

from __future__ import annotations

from autojacobin.hashers._autoencoder import AutoEncoderHasher

__all__ = ["AutoBin"]


class AutoBin(AutoEncoderHasher):
    """Auto-JacoBin without its Jacobian term: Σᵢ ‖zᵢ − xᵢ‖² + α ‖YY' − nI‖₁ᵋ.

    With mini-batches this is the paper's AutoBin1. With ``batch_size=None`` every step takes the whole training
    set, which is its AutoBin2; the paper's 50 steps are then 50 epochs: ``AutoBin(batch_size=None, n_epochs=50)``.

    Parameters
    ----------
    n_bits, alpha, epsilon, batch_size, n_epochs, scale, threshold, init, tol, random_state, device, progress
        As in :class:`AutoJacoBin`, with the same defaults.

    Attributes
    ----------
    W1_, b1_, W2_, b2_, scale_, history_
        As in :class:`AutoJacoBin`; the history has no Jacobian term.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import AutoBin
    >>> X = load_digits().data
    >>> AutoBin(n_bits=32, random_state=0).fit(X).encode(X)
    Codes(1797 codes of 32 bits)
    """
