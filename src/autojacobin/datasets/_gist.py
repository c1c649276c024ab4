"""GIST: how much of each orientation and scale there is in each part of a picture (Oliva and Torralba, 2001).

A picture of 128×128 pixels in three colours is evened out in brightness and contrast, filtered with 20 Gabor filters,
and the magnitude of what they answer is averaged over 4×4 blocks: 3 · 20 · 16 = 960 numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from autojacobin.datasets._picture import as_picture, as_square

__all__ = ["even_out", "gabor_magnitudes", "gabor_transfer", "gist"]

SIDE = 128
BLOCKS = 4
ORIENTATIONS = (8, 8, 4)  # at each scale, from the finest on

CUTOFF = 4 / np.sqrt(np.log(2))  # cycles a picture; the low-pass filter falls to a half at 4
EVENING_MARGIN = 5
FILTER_MARGIN = 32
CONTRAST_FLOOR = 0.2

Floats = npt.NDArray[np.float64]


def gist(image: Any) -> npt.NDArray[np.float32]:
    """Describe a whole picture by 960 numbers.

    The largest square in the middle is brought to 128×128 pixels. Grey pictures have three equal colours.

    Parameters
    ----------
    image : array of uint8, shape (height, width) or (height, width, 3)
        Grey, or red, green and blue.

    Returns
    -------
    vector : array of float32, shape (960,)
        In the order (colour, filter, row of blocks, column of blocks). The filters go from the finest scale to the
        coarsest with 8, 8 and 4 orientations; number j of n answers to waves that run in the direction
        πj/n, from the x axis towards the y axis, which points down.
    """
    square = as_square(as_picture(image), SIDE)
    colours = np.stack([square] * 3) if square.ndim == 2 else np.moveaxis(square, 2, 0)
    even = even_out(colours)
    answers = np.stack([gabor_magnitudes(colour) for colour in even])
    size = SIDE // BLOCKS
    means = answers.reshape(*answers.shape[:2], BLOCKS, size, BLOCKS, size).mean(axis=(3, 5))
    vector: npt.NDArray[np.float32] = means.astype(np.float32).ravel()
    return vector


def even_out(colours: Floats) -> Floats:
    r"""Take off the local mean of the logarithm, and divide by the local contrast.

    .. math::
        d_c = \ln(1 + x_c) - g * \ln(1 + x_c), \qquad
        y_c = d_c \,/\, (0.2 + \sqrt{g * \bar d^2}), \qquad \bar d = (d_1 + d_2 + d_3) / 3

    with the low-pass filter g whose transfer function is exp(−|f|²/s²), s = 4/√ln 2, f in cycles a picture. The
    picture is mirrored at its edges by 5 pixels meanwhile, so that they do not meet the opposite ones.
    """
    margin = ((0, 0), (EVENING_MARGIN, EVENING_MARGIN), (EVENING_MARGIN, EVENING_MARGIN))
    logs = np.pad(np.log1p(colours), margin, mode="symmetric")
    detail = logs - _low_pass(logs)
    variance = _low_pass(detail.mean(axis=0) ** 2)
    even = detail / (CONTRAST_FLOOR + np.sqrt(np.maximum(variance, 0.0)))
    return even[:, EVENING_MARGIN:-EVENING_MARGIN, EVENING_MARGIN:-EVENING_MARGIN]


def gabor_magnitudes(channel: Floats, margin: int = FILTER_MARGIN) -> Floats:
    """Magnitude of the answer of every filter at every pixel, of the channel mirrored by ``margin`` pixels.

    Returns
    -------
    magnitudes : array of shape (20, side, side)
    """
    side = len(channel)
    padded = np.pad(channel, margin, mode="symmetric")
    answers = scipy.fft.ifft2(scipy.fft.fft2(padded) * gabor_transfer(len(padded)))
    magnitudes: Floats = np.abs(answers[:, margin : margin + side, margin : margin + side])
    return magnitudes


@cache
def gabor_transfer(side: int) -> Floats:
    r"""Transfer functions of the 20 filters on the grid of the Fourier transform.

    .. math::
        G_{sj}(r, t) = \exp\left(-3.5 \, (r / r_s - 1)^2 - 2\pi \, (n_s / 8)^2 \, t^2\right), \qquad
        r_s = 0.3 / 1.85^s

    where r is the frequency in cycles a pixel and t the angle between it and the filter's direction, from −π to π.
    Each filter lies on one side of the origin, so that the magnitude of its answer is the envelope of the wave
    and not the wave. Frequencies without a direction are left out: zero, and the highest of an even grid, whose
    sign cannot be told. So a picture that is turned by 90° has the same answers, turned.
    """
    frequency = scipy.fft.fftfreq(side)
    fy, fx = np.meshgrid(frequency, frequency, indexing="ij")
    radius, direction = np.hypot(fx, fy), np.arctan2(fy, fx)
    directed = (radius > 0) & (np.abs(fx) < 0.5) & (np.abs(fy) < 0.5)
    filters = []
    for scale, n in enumerate(ORIENTATIONS):
        centre = 0.3 / 1.85**scale
        for j in range(n):
            away = direction - np.pi * j / n
            away -= 2 * np.pi * np.round(away / (2 * np.pi))
            exponent = -3.5 * (radius / centre - 1) ** 2 - 2 * np.pi * (n / 8) ** 2 * away**2
            filters.append(directed * np.exp(exponent))
    transfer = np.stack(filters)
    transfer.flags.writeable = False  # it is shared by all callers
    return transfer


def _low_pass(images: Floats) -> Floats:
    side = images.shape[-1]
    cycles = scipy.fft.fftfreq(side) * side
    transfer = np.exp(-(cycles[:, None] ** 2 + cycles[: side // 2 + 1] ** 2) / CUTOFF**2)
    smooth: Floats = scipy.fft.irfft2(scipy.fft.rfft2(images) * transfer, s=images.shape[-2:])
    return smooth
