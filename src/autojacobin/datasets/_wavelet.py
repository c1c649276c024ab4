"""Wavelet texture: how strong a picture is in each band of frequencies, and how unevenly.

A grey picture of 128×128 pixels is split by an orthonormal wavelet into low and high, along rows and columns, three
times over, every band again (the tree-structured transform): 64 bands of 16×16, and two numbers for each.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.datasets._picture import as_picture, as_square, grey_levels

__all__ = ["BANDS", "LOW", "split_bands", "wavelet_texture"]

SIDE = 128
LEVELS = 3

# Daubechies' scaling filter with 16 taps: 8 vanishing moments, extremal phase.
LOW = np.array(
    [
        0.05441584224310426,
        0.3128715909143007,
        0.6756307362972903,
        0.5853546836542056,
        -0.01582910525635034,
        -0.2840155429615465,
        0.00047248457391327634,
        0.12874742662047864,
        -0.017369301001807308,
        -0.044088253930795254,
        0.013981027917398386,
        0.008746094047405955,
        -0.004870352993451676,
        -0.00039174037337694797,
        0.0006754494064505816,
        -0.00011747678412477192,
    ]
)
HIGH = LOW[::-1] * (-1.0) ** np.arange(len(LOW))

# "LH.HL.LL": first split L along y and H along x, that band H along y and L along x, and so on
BANDS = tuple(".".join(path) for path in product(("LL", "LH", "HL", "HH"), repeat=LEVELS))

Floats = npt.NDArray[np.float64]


def wavelet_texture(image: Any) -> npt.NDArray[np.float32]:
    """Describe the texture of a whole picture by 128 numbers.

    The largest square in the middle is brought to 128×128 grey pixels with values from 0 to 255. Of the
    coefficients w of each band, divided by 8 so that the band LL.LL.LL holds local means of the picture, there are
    ln(1 + mean |w|) and ln(1 + standard deviation of |w|). Without the logarithm, brightness (the lowest band) would
    decide most distances.

    Parameters
    ----------
    image : array of uint8, shape (height, width) or (height, width, 3)
        Grey, or red, green and blue.

    Returns
    -------
    vector : array of float32, shape (128,)
        Mean and deviation of the first band of ``BANDS``, of the second, and so on.
    """
    grey = grey_levels(as_square(as_picture(image), SIDE))
    magnitudes = np.abs(split_bands(grey, LEVELS)) / 2**LEVELS
    numbers = np.stack([magnitudes.mean(axis=(1, 2)), magnitudes.std(axis=(1, 2))], axis=1)
    vector: npt.NDArray[np.float32] = np.log1p(numbers).astype(np.float32).ravel()
    return vector


def split_bands(picture: Floats, levels: int) -> Floats:
    """Split a picture into 4**levels bands; the transform is orthonormal, and the picture goes on periodically.

    Returns
    -------
    bands : array of shape (4**levels, height / 2**levels, width / 2**levels)
        The four bands of a band stand where it stood, in the order LL, LH, HL, HH of (y, x).
    """
    bands = picture[None]
    for _ in range(levels):
        rows = _low_and_high(bands.swapaxes(1, 2)).swapaxes(2, 3)
        quarters = _low_and_high(rows)
        bands = quarters.reshape(-1, *quarters.shape[3:])
    return bands


def _low_and_high(signals: Floats) -> Floats:
    """Split along the last axis; which half it is becomes the axis after the first ``ndim - 2``."""
    n = signals.shape[-1]
    windows = (2 * np.arange(n // 2)[:, None] + np.arange(len(LOW))) % n
    return np.moveaxis(signals[..., windows] @ np.stack([LOW, HIGH], axis=1), -1, -3)
