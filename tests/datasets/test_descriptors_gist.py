"""GIST: against a transform written out as sums, and on pictures whose answer is known beforehand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin.datasets.descriptors import even_out, gabor_magnitudes, gabor_transfer, gist

N_ORIENTATIONS = (8, 8, 4)
FILTERS = [(scale, j, n) for scale, n in enumerate(N_ORIENTATIONS) for j in range(n)]


def by_blocks(vector):
    return vector.reshape(3, 20, 4, 4)


def noise(side, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def smooth_picture(side=128):
    y, x = np.mgrid[:side, :side] / side
    colours = [np.sin(9 * x + 4 * y**2), np.cos(7 * x * y + 1), np.sin(30 * np.hypot(x - 0.4, y - 0.6))]
    return np.round(127.5 * (1 + np.stack(colours, axis=2))).astype(np.uint8)


class Sums:
    """The definition, with Fourier transforms as products with the matrix of all waves."""

    @staticmethod
    def waves(n):
        return np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)

    @classmethod
    def filtered(cls, image, transfer):
        W = cls.waves(len(image))
        return W.conj() @ ((W @ image @ W.T) * transfer) @ W.conj().T / image.size

    @staticmethod
    def signed(n):
        return np.array([k if k < n / 2 else k - n for k in range(n)])

    @classmethod
    def mirrored(cls, image, margin):
        n = len(image)
        places = [-1 - k if k < 0 else (2 * n - 1 - k if k >= n else k) for k in range(-margin, n + margin)]
        return image[np.ix_(places, places)]

    @classmethod
    def evened_out(cls, colours):
        logs = [cls.mirrored(np.log(1.0 + colour), 5) for colour in colours]
        k = cls.signed(len(logs[0]))
        low = 2.0 ** -((k[:, None] ** 2 + k[None] ** 2) / 16)  # a half at 4 cycles
        detail = [log - cls.filtered(log, low).real for log in logs]
        contrast = np.sqrt(np.abs(cls.filtered((sum(detail) / 3) ** 2, low).real))
        return [(d / (0.2 + contrast))[5:-5, 5:-5] for d in detail]

    @classmethod
    def gabor(cls, n, scale, j, orientations):
        k = cls.signed(n) / n
        centre, direction = 0.3 / 1.85**scale, np.exp(1j * np.pi * j / orientations)
        frequency = k[None] + 1j * k[:, None]
        angle = np.angle(frequency * direction.conj())
        transfer = np.exp(-3.5 * (np.abs(frequency) / centre - 1) ** 2) * np.exp(
            -np.pi / 32 * orientations**2 * angle**2
        )
        transfer[n // 2], transfer[:, n // 2], transfer[0, 0] = 0, 0, 0
        return transfer

    @classmethod
    def gist(cls, picture):
        numbers = []
        for colour in cls.evened_out(np.moveaxis(picture.astype(float), 2, 0)):
            padded = cls.mirrored(colour, 32)
            for scale, j, n in FILTERS:
                answer = abs(cls.filtered(padded, cls.gabor(len(padded), scale, j, n)))[32:-32, 32:-32]
                numbers += [answer[r : r + 32, c : c + 32].mean() for r in range(0, 128, 32) for c in range(0, 128, 32)]
        return np.array(numbers)


@pytest.mark.parametrize("picture", [noise(128), smooth_picture()], ids=["noise", "smooth"])
def test_it_is_what_the_sums_say(picture):
    vector = gist(picture)
    assert vector.shape == (960,)
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector, Sums.gist(picture), rtol=1e-5, atol=1e-7)


@settings(max_examples=10)
@given(st.tuples(*[st.integers(0, 255)] * 3), st.integers(1, 200), st.integers(1, 200))
def test_a_picture_of_one_colour_has_nothing(colour, height, width):
    assert np.abs(gist(np.full((height, width, 3), colour, np.uint8))).max() < 1e-6


def test_a_grey_picture_is_one_with_three_equal_colours():
    grey = noise(150)[:, :, 0]
    vector = gist(grey)
    assert np.array_equal(vector, gist(np.repeat(grey[:, :, None], 3, axis=2)))
    assert np.array_equal(by_blocks(vector)[0], by_blocks(vector)[2])


@given(st.tuples(st.integers(-31, 31), st.integers(-31, 31)).filter(any), st.floats(0.1, 10.0), st.floats(0, 2 * np.pi))
def test_the_answer_to_a_wave_is_flat_and_has_the_height_of_the_filter(cycles, amplitude, phase):
    side = 64
    y, x = np.mgrid[:side, :side]
    wave = amplitude * np.cos(2 * np.pi * (cycles[0] * x + cycles[1] * y) / side + phase)
    # half of a real wave runs each way, and the half that runs against a filter all but vanishes in it
    with_it = [Sums.gabor(side, *of)[cycles[1] % side, cycles[0] % side] for of in FILTERS]
    against = [Sums.gabor(side, *of)[-cycles[1] % side, -cycles[0] % side] for of in FILTERS]
    magnitudes = gabor_magnitudes(wave, margin=0)
    for flat, a, b in zip(magnitudes, with_it, against, strict=True):
        assert amplitude / 2 * abs(a - b) - 1e-9 <= flat.min()
        assert flat.max() <= amplitude / 2 * (a + b) + 1e-9


@pytest.mark.parametrize("number", range(20))
def test_a_grating_is_answered_most_by_the_filter_of_its_orientation_and_scale(number):
    scale, j, n = FILTERS[number]
    frequency, direction = 0.3 / 1.85**scale, np.pi * j / n
    y, x = np.mgrid[:128, :128]
    grating = np.cos(2 * np.pi * frequency * (x * np.cos(direction) + y * np.sin(direction)))
    answers = by_blocks(gist(np.round(128 + 50 * grating).astype(np.uint8))).mean(axis=0)
    assert (answers.argmax(axis=0) == number).all()


@pytest.mark.parametrize("side", [128, 97, 200])
@pytest.mark.parametrize(
    ("change", "new_orientation"),
    [(np.rot90, lambda j, n: (j - n // 2) % n), (np.fliplr, lambda j, n: -j % n), (np.flipud, lambda j, n: -j % n)],
    ids=["turned", "mirrored", "upside down"],
)
def test_a_turned_or_mirrored_picture_has_the_same_numbers_elsewhere(side, change, new_orientation):
    picture = noise(side)
    before, after = by_blocks(gist(picture)), by_blocks(gist(change(picture)))
    start = 0
    for n in N_ORIENTATIONS:
        for j in range(n):
            for colour in range(3):
                expected = change(before[colour, start + j])
                np.testing.assert_allclose(after[colour, start + new_orientation(j, n)], expected, rtol=1e-5)
        start += n


def test_brighter_light_changes_little():
    # the logarithm turns a factor into a constant, which is taken off; what is left is rounding and the 1 in ln(1 + x)
    picture = smooth_picture() // 4 + 60
    even, brighter = (even_out(np.moveaxis(p.astype(float), 2, 0)) for p in (picture, picture * 2.0))
    np.testing.assert_allclose(even, brighter, atol=0.02)


def test_the_shared_filters_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        gabor_transfer(192)[0, 0, 0] = 1


def in_the_order_of_lmgist(picture):
    """Filters at t + πj/n, means of blocks as MATLAB stores a matrix, one colour after the other."""
    side = 128 + 2 * 32
    f = np.fft.fftfreq(side)
    fx, fy = np.meshgrid(f, f)
    directed = (np.hypot(fx, fy) > 0) & (np.abs(fx) < 0.5) & (np.abs(fy) < 0.5)
    numbers = []
    for colour in even_out(np.moveaxis(picture.astype(np.float64), 2, 0)):
        spectrum = np.fft.fft2(np.pad(colour, 32, mode="symmetric"))
        for scale, j, n in FILTERS:
            t = np.arctan2(fy, fx) + np.pi / n * j
            t = np.where(t > np.pi, t - 2 * np.pi, t)
            radial = (np.hypot(fx, fy) / (0.3 / 1.85**scale) - 1) ** 2
            transfer = directed * np.exp(-10 * 0.35 * radial - 2 * (16 * n**2 / 32**2) * np.pi * t**2)
            response = np.abs(np.fft.ifft2(spectrum * transfer))[32:-32, 32:-32]
            means = np.array(
                [[response[32 * y : 32 * y + 32, 32 * x : 32 * x + 32].mean() for x in range(4)] for y in range(4)]
            )
            numbers.extend(means.ravel(order="F"))
    return np.array(numbers)


def test_the_order_of_other_programs():
    """Blocks column by column, and number j of n orientations is our number n − j, as docs/descriptors.md says."""
    picture = smooth_picture()
    expected = in_the_order_of_lmgist(picture)
    filters = [start + -j % n for start, n in ((0, 8), (8, 8), (16, 4)) for j in range(n)]
    reordered = gist(picture).reshape(3, 20, 4, 4)[:, filters].swapaxes(2, 3).ravel()
    assert np.allclose(reordered, expected, atol=1e-5 * expected.max())
    assert not np.allclose(gist(picture), expected, atol=0.1 * expected.max())
