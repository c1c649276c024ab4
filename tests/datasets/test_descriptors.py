"""SIFT against OpenCV itself, its patches against the pixels of the picture, and what all descriptors refuse."""

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image

from autojacobin.datasets.descriptors import (
    MOST_PIXELS,
    as_square,
    cut_patches,
    describe,
    read_picture,
    sift,
)
from autojacobin.errors import DataError, DataTypeError, MissingExtraError


@pytest.fixture(scope="module")
def photograph():
    return load_sample_image("china.jpg")[100:340, 150:430]


@pytest.fixture(scope="module")
def features(photograph):
    return sift(photograph)


def rows_as_set(vectors):
    return {bytes(vector) for vector in np.asarray(vectors, np.uint8)}


def test_the_vectors_are_those_of_opencv(photograph, features):
    grey = cv2.cvtColor(photograph, cv2.COLOR_RGB2GRAY)
    points, vectors = cv2.SIFT_create(enable_precise_upscale=True).detectAndCompute(grey, None)
    assert np.array_equal(
        vectors, vectors.astype(np.uint8)
    )  # whole numbers from 0 to 255, or uint8 would lose something
    assert rows_as_set(features[0]) == rows_as_set(vectors)
    assert len(features[0]) == len(rows_as_set(vectors)) > 300
    assert features[0].dtype == np.uint8
    by_vector = {}
    for point, vector in zip(points, vectors.astype(np.uint8), strict=True):
        by_vector.setdefault(bytes(vector), []).append((*point.pt, point.size, point.angle, point.response))
    for place, vector in zip(features[1], features[0], strict=True):
        assert any(np.allclose(place.tolist(), known) for known in by_vector[bytes(vector)])


def test_order_does_not_depend_on_threads(photograph, features):
    threads = cv2.getNumThreads()
    try:
        for number in (1, 2, 5):
            cv2.setNumThreads(number)
            vectors, places = sift(photograph)
            assert np.array_equal(vectors, features[0])
            assert np.array_equal(places, features[1])
    finally:
        cv2.setNumThreads(threads)
    assert (np.diff(features[1]["size"]) >= 0).all()


def test_a_limit_keeps_the_highest_contrast(photograph, features):
    vectors, places = sift(photograph, limit=50)
    assert len(vectors) == len(places) == 50
    assert places["response"].min() >= np.sort(features[1]["response"])[-50]
    assert rows_as_set(vectors) <= rows_as_set(features[0])
    assert len(sift(photograph, limit=10**6)[0]) == len(features[0])


def test_less_contrast_or_more_layers_give_more(photograph, features):
    assert len(sift(photograph, contrast=0.01)[0]) > len(features[0])
    assert len(sift(photograph, layers=5, contrast=0.01)[0]) > len(sift(photograph, contrast=0.01)[0])


@pytest.mark.parametrize("shape", [(1, 1), (2, 300), (5, 5, 3), (100, 100)])
def test_a_blank_picture_has_no_features(shape):
    vectors, places = sift(np.full(shape, 7, np.uint8))
    assert vectors.shape == (0, 128)
    assert places.shape == (0,)
    assert cut_patches(np.full(shape, 7, np.uint8), places, 32).shape == (0, 32, 32)


def test_patches_show_the_pixels_around_their_place(photograph, features):
    side = 32
    grey = cv2.cvtColor(photograph, cv2.COLOR_RGB2GRAY).astype(float)
    patches = cut_patches(photograph, features[1], side)
    offsets = (np.arange(side) + 0.5) / side - 0.5
    v, u = np.meshgrid(offsets, offsets, indexing="ij")
    fine = 6 * features[1]["size"] < 2 * side  # the others come from a shrunk picture
    assert fine.sum() > 100
    for patch, place in zip(patches[fine], features[1][fine], strict=True):
        width, turn = 6 * float(place["size"]), np.exp(1j * np.radians(float(place["angle"])))
        where = float(place["x"]) + 1j * float(place["y"]) + width * (u + 1j * v) * turn
        expected = scipy.ndimage.map_coordinates(grey, [where.imag, where.real], order=1, mode="nearest")
        # OpenCV 4 rounds places to 1/32 of a pixel, which shows where the picture is steep
        assert np.abs(patch - expected).mean() < 1.5


def test_large_patches_are_shrunk_without_skipping_pixels():
    x = np.tile(np.arange(400), (400, 1))
    fine_stripes = np.where(x % 2 == 0, 0, 200).astype(np.uint8)
    place = np.zeros(1, sift(fine_stripes[:1])[1].dtype)
    place[0] = (200, 200, 320 / 6, 0, 0)
    patch = cut_patches(fine_stripes, place, 32)[0]
    assert np.abs(patch.astype(int) - 100).max() <= 2
    slope = (x // 2).astype(np.uint8)
    expected = (200 + 320 * ((np.arange(32) + 0.5) / 32 - 0.5)) / 2
    assert np.abs(cut_patches(slope, place, 32)[0] - expected).max() < 2


def test_patches_are_turned_so_that_it_grows_brighter_to_the_right(photograph, features):
    patches = cut_patches(photograph, features[1], 32).astype(float)
    brighter_right = patches[:, 8:24, 16:24].mean(axis=(1, 2)) - patches[:, 8:24, 8:16].mean(axis=(1, 2))
    assert (brighter_right > 0).mean() > 0.8  # a place may have several angles, and only one can be the steepest


def test_patches_turn_with_the_picture(photograph, features):
    width = photograph.shape[1]
    turned = features[1].copy()
    turned["x"], turned["y"] = features[1]["y"], width - 1 - features[1]["x"]
    turned["angle"] -= 90
    before = cut_patches(photograph, features[1], 32).astype(int)
    after = cut_patches(np.rot90(photograph), turned, 32).astype(int)
    small = 6 * features[1]["size"] < 64  # halving keeps every other pixel, not the same from the other end
    assert np.abs(after - before)[small].mean() < 1


@pytest.mark.parametrize("kind", ["sift", "gist", "wavelet"])
def test_rows_are_vectors_and_transparency_does_not_count(kind, photograph):
    rows = describe(photograph, kind)
    assert rows.ndim == 2
    assert rows.shape[1] == {"sift": 128, "gist": 960, "wavelet": 128}[kind]
    assert len(rows) == 1 or kind == "sift"
    seen_through = np.dstack([photograph, np.random.default_rng(0).integers(0, 256, photograph.shape[:2], np.uint8)])
    assert np.array_equal(describe(seen_through, kind), rows)
    one_channel = photograph[:, :, :1]
    assert np.array_equal(describe(one_channel, kind), describe(one_channel[:, :, 0], kind))


@settings(max_examples=10)
@given(st.data())
def test_small_pictures_of_any_kind_give_finite_vectors(data):
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    seed = data.draw(st.integers(0, 2**32 - 1))
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    for kind in ("sift", "gist", "wavelet"):
        assert np.isfinite(describe(picture, kind)).all()


@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        (np.zeros((8, 8)), DataTypeError, "uint8, got float64"),
        (np.zeros((8, 8), np.uint16), DataTypeError, "uint8, got uint16"),
        ("picture.png", DataTypeError, "must be an array of uint8"),
        (np.zeros(8, np.uint8), DataError, r"got \(8,\)"),
        (np.zeros((2, 8, 8, 3), np.uint8), DataError, "one picture at a time"),
        (np.zeros((8, 8, 2), np.uint8), DataError, r"got \(8, 8, 2\)"),
        (np.zeros((0, 8), np.uint8), DataError, "at least one pixel"),
    ],
)
@pytest.mark.parametrize("kind", ["sift", "gist", "wavelet"])
def test_what_is_no_picture_is_told_so(kind, image, error, words):
    with pytest.raises(error, match=words):
        describe(image, kind)


def test_unknown_descriptors_and_settings_are_told(photograph):
    with pytest.raises(DataError, match="no descriptor is called 'surf', expected one of: sift, gist, wavelet"):
        describe(photograph, "surf")
    for wrong in ({"contrast": -1}, {"contrast": np.nan}, {"layers": 0}, {"limit": 0}, {"limit": 1.5}):
        with pytest.raises(DataError, match=f"{next(iter(wrong))} must be"):
            sift(photograph, **wrong)


def test_without_opencv_the_pip_line_is_given(photograph, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'autojacobin\[data\]'"):
        describe(photograph, "sift")


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_squares_shrink_to_means_of_areas_and_grow_as_pillow_does(side, times, seed):
    picture = np.random.default_rng(seed).integers(0, 256, (side * times, side * times), dtype=np.uint8)
    means = picture.reshape(side, times, side, times).mean(axis=(1, 3))
    np.testing.assert_allclose(as_square(picture, side), means, atol=1e-3)
    grown = Image.fromarray(picture.astype(np.float32)).resize((2 * side * times,) * 2, Image.Resampling.BILINEAR)
    np.testing.assert_allclose(as_square(picture, 2 * side * times), np.asarray(grown), atol=1e-3)


def test_the_square_is_the_middle():
    picture = np.zeros((10, 30), np.uint8)
    picture[:, 10:20] = 200
    assert np.array_equal(as_square(picture, 10), np.full((10, 10), 200.0))
    assert np.array_equal(as_square(picture.T, 10), np.full((10, 10), 200.0))


def test_the_texture_is_that_of_grey_levels_as_opencv_has_them(photograph):
    grey = cv2.cvtColor(photograph, cv2.COLOR_RGB2GRAY)  # which rounds
    np.testing.assert_allclose(describe(photograph, "wavelet"), describe(grey, "wavelet"), atol=0.02)
    red = photograph * np.array([1, 0, 0], np.uint8)
    assert np.abs(describe(red, "wavelet") - describe(grey, "wavelet")).max() > 0.5


def test_pictures_are_read_as_red_green_blue_and_not_too_large(tmp_path):
    red = np.zeros((1600, 2000, 3), np.uint8)
    red[:, :, 0] = 250
    Image.fromarray(red).save(tmp_path / "röd.png")
    picture = read_picture(tmp_path / "röd.png")
    height, width = picture.shape[:2]
    assert MOST_PIXELS * 0.99 < height * width <= MOST_PIXELS
    assert abs(width / height - 2000 / 1600) < 0.01
    assert (picture == [250, 0, 0]).all()


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_files_that_are_no_pictures_are_told(tmp_path, content):
    path = tmp_path / "wrong.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot decode .*wrong.png"):
        read_picture(path)
    with pytest.raises(DataError, match=r"cannot read .*missing.png: No such file"):
        read_picture(Path(tmp_path, "missing.png"))
