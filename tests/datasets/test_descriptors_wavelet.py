"""Wavelet texture: against a transform through the frequencies, and on pictures whose answer is known beforehand."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin.datasets.descriptors import BANDS, split_bands, wavelet_texture


def noise(side, seed=0):
    return np.random.default_rng(seed).normal(size=(side, side))


# spectral factorisation: the roots inside the unit circle of the only polynomial with 8 vanishing moments
y = np.roots([comb(7 + k, k) for k in range(7, -1, -1)])
z = np.concatenate([(1 - 2 * y) + s * np.sqrt((1 - 2 * y) ** 2 - 1 + 0j) for s in (1, -1)])
taps = np.poly(np.concatenate([-np.ones(8), z[np.abs(z) < 1]])).real
LOW = taps * np.sqrt(2) / taps.sum()
HIGH = LOW[::-1] * (-1.0) ** np.arange(16)


def band_by_frequencies(picture, path):
    """Follow one path of a band: multiply the spectrum by the filter's, transform back, keep every other point."""
    for step in path.split("."):
        for axis, half in enumerate(step):
            n = picture.shape[axis]
            spectrum = np.fft.fft({"L": LOW, "H": HIGH}[half], n).conj()
            shape = (n, 1) if axis == 0 else (1, n)
            filtered = np.fft.ifft(np.fft.fft(picture, axis=axis) * spectrum.reshape(shape), axis=axis).real
            picture = filtered[::2] if axis == 0 else filtered[:, ::2]
    return picture


@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1))
def test_every_band_is_what_the_frequencies_say(seed):
    picture = noise(128, seed)
    bands = split_bands(picture, 3)
    assert bands.shape == (64, 16, 16)
    for band, path in zip(bands, BANDS, strict=True):
        expected = band_by_frequencies(picture, path)  # up to its sign, and to where the first coefficient is
        np.testing.assert_allclose(np.sort(np.abs(band), axis=None), np.sort(np.abs(expected), axis=None), atol=1e-11)


@given(st.integers(0, 2**32 - 1), st.sampled_from([(16, 1), (32, 1), (32, 2), (64, 3)]))
def test_energy_and_angles_are_kept(seed, size):
    side, levels = size
    one, other = noise(side, seed), noise(side, seed ^ 1)
    a, b = split_bands(one, levels), split_bands(other, levels)
    assert np.isclose((a * a).sum(), (one * one).sum())
    assert np.isclose((a * b).sum(), (one * other).sum())


def test_the_vector_holds_mean_and_deviation_of_each_band():
    picture = np.random.default_rng(0).integers(0, 256, (128, 128), dtype=np.uint8)
    vector = wavelet_texture(picture)
    assert vector.shape == (128,)
    assert vector.dtype == np.float32
    expected = []
    for path in BANDS:
        sizes = np.abs(band_by_frequencies(picture.astype(float), path)).ravel() / 8
        mean = sum(sizes) / 256
        expected += [np.log(1 + mean), np.log(1 + np.sqrt(sum((sizes - mean) ** 2) / 256))]
    np.testing.assert_allclose(vector, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=10)
@given(st.integers(0, 255), st.integers(1, 200), st.integers(1, 200))
def test_a_picture_of_one_grey_has_nothing_but_its_brightness(level, height, width):
    vector = wavelet_texture(np.full((height, width), level, np.uint8))
    assert np.isclose(vector[0], np.log1p(level), rtol=1e-6)
    assert np.abs(vector[1:]).max() < 1e-5


@pytest.mark.parametrize("fy", range(8))
@pytest.mark.parametrize("fx", range(8))
def test_a_grating_is_in_the_band_of_its_frequency(fx, fy):
    # what passes a high band comes out with its frequencies reversed, so the bands stand in the order of a Gray code
    y, x = np.mgrid[:128, :128]
    cycles_x, cycles_y = (fx + 0.5) / 16, (fy + 0.5) / 16
    grating = np.round(128 + 100 * np.cos(2 * np.pi * (cycles_x * x + cycles_y * y))).astype(np.uint8)
    halves = [[(code ^ (code >> 1)) >> bit & 1 for bit in (2, 1, 0)] for code in (fy, fx)]
    path = ".".join("LH"[along_y] + "LH"[along_x] for along_y, along_x in zip(*halves, strict=True))
    means = dict(zip(BANDS, wavelet_texture(grating)[::2], strict=True))
    del means["LL.LL.LL"]  # which has the brightness of the whole
    if path in means:
        assert max(means, key=means.get) == path
    else:
        deviation = wavelet_texture(grating)[1]
        assert deviation > max(means.values())


def test_rows_and_columns_change_places_with_the_picture():
    picture = np.random.default_rng(1).integers(0, 256, (150, 150), dtype=np.uint8)
    one, other = (wavelet_texture(p).reshape(64, 2) for p in (picture, picture.T))
    swapped = [BANDS.index(".".join(step[::-1] for step in path.split("."))) for path in BANDS]
    np.testing.assert_allclose(other, one[swapped], rtol=1e-5)


def test_a_turned_grating_is_in_the_bands_with_rows_and_columns_swapped():
    # the filter is not symmetric, so a turn changes the coefficients a little, and their order of size not
    y, x = np.mgrid[:128, :128]
    grating = np.round(128 + 80 * np.cos(2 * np.pi * (20 * x + 4 * y) / 128)).astype(np.uint8)
    one, other = (wavelet_texture(p)[::2] for p in (grating, np.rot90(grating)))
    strongest = [BANDS[number] for number in np.argsort(-one)[:3]]
    assert "LH" in strongest[1]
    assert "HL" not in strongest[1]  # it is in the columns before it is turned
    assert [BANDS[number] for number in np.argsort(-other)[:3]] == [
        ".".join(step[::-1] for step in path.split(".")) for path in strongest
    ]
