"""``decode`` of every method that has a decoder: against formulas of its own, and against the data."""

import numpy as np
import pytest

import autojacobin
from autojacobin import ITQ, AutoBin, Codes, DataError, NotFittedError
from autojacobin.errors import DataTypeError
from tests.hashers.methods import AUTO_ENCODERS, METHODS, digits, fitted

WITHOUT = ["LSH", "SpectralHashing", "Sign", "SphericalHashing", "SGH"]
DECODERS = [name for name in METHODS if name not in WITHOUT]
decoders = pytest.mark.parametrize("name", DECODERS)
auto_encoders = pytest.mark.parametrize("name", AUTO_ENCODERS)


def signs_and_vectors(name, rows=slice(300, 400)):
    hasher = fitted(name)
    codes = hasher.encode(digits()[rows])
    return hasher, codes.to_signs().astype(np.float64), hasher.decode(codes)


def test_itq_rotates_the_corners_of_a_cube_back():
    hasher, signs, vectors = signs_and_vectors("ITQ")
    rotated = (vectors - hasher.mean_) @ hasher.weights_.T.astype(np.float64)
    assert np.allclose(rotated, signs * hasher.scale_, atol=1e-4)
    # nothing of the reconstruction lies outside the principal frame
    assert np.allclose((rotated**2).sum(axis=1), ((vectors - hasher.mean_) ** 2).sum(axis=1), rtol=1e-4)


def test_the_cube_of_itq_has_the_size_that_fits_the_training_data_best():
    X = digits()[:300].astype(np.float64)
    hasher = ITQ(16, random_state=0).fit(X)
    corners = hasher.encode(X).to_signs() @ hasher.weights_
    best = (corners * (X - hasher.mean_)).sum() / (corners**2).sum()
    assert hasher.scale_ == pytest.approx(best, rel=1e-9)


def test_okmeans_gives_the_corners_of_its_box():
    hasher, signs, vectors = signs_and_vectors("OKMeans")
    rotated = (vectors - hasher.mean_) @ hasher.weights_.T.astype(np.float64)
    assert np.allclose(rotated, signs * hasher.scales_, atol=1e-4)


@pytest.mark.parametrize("name", ["OKMeans", "NOKMeans"])
def test_the_decoder_leaves_the_quantisation_error_of_the_training(name):
    X = digits()[:300].astype(np.float64)
    hasher = METHODS[name]().fit(X)
    error = ((X - hasher.decode(hasher.encode(X))) ** 2).sum() / len(X)
    assert error == pytest.approx(hasher.quantization_error_[-1], rel=1e-6)


def test_nokmeans_gives_the_corners_of_its_parallelepiped():
    hasher, signs, vectors = signs_and_vectors("NOKMeans")
    for row, vector in zip(signs, vectors, strict=True):
        corner = hasher.mean_ + sum(sign * edge for sign, edge in zip(row, hasher.edges_, strict=True))
        assert np.allclose(vector, corner, atol=1e-3)


@auto_encoders
def test_auto_encoders_send_the_code_through_their_output_layer(name):
    hasher, signs, vectors = signs_and_vectors(name)
    outputs = np.tanh(hasher.W2_ @ (hasher.hidden_scales_ * signs).T + hasher.b2_[:, None]).T
    assert np.allclose(vectors * hasher.scale_, outputs, atol=1e-5)


@pytest.mark.parametrize("threshold", ["bias", "origin"])
def test_a_bit_stands_for_the_value_that_fits_its_hidden_unit_best(threshold):
    X = digits()[:300].astype(np.float64)
    hasher = AutoBin(16, threshold=threshold, random_state=0).fit(X)
    hidden = np.tanh(hasher.scale_ * X @ hasher.W1_.T + hasher.b1_)
    signs = hasher.encode(X).to_signs()
    assert np.allclose(hasher.hidden_scales_, (hidden * signs).mean(axis=0), rtol=1e-6)


@decoders
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reconstructions_are_closer_than_the_mean_in_the_units_of_the_data(name, dtype):
    shift = 0 if name in AUTO_ENCODERS else 1000  # auto-encoders expect centred data
    X = 50 * digits().astype(dtype) + shift
    hasher = METHODS[name]().fit(X[:600])
    unseen = X[600:1200]
    vectors = hasher.decode(hasher.encode(unseen))
    assert vectors.dtype == dtype
    assert vectors.shape == unseen.shape
    variance = ((unseen - unseen.mean(axis=0)) ** 2).sum()
    assert ((unseen - vectors) ** 2).sum() < 0.8 * variance


@decoders
def test_many_codes_are_decoded_as_one_by_one(name):
    hasher = fitted(name)
    bits = np.random.default_rng(0).integers(0, 2, size=(5000, 16), dtype=np.uint8)
    vectors = hasher.decode(Codes.from_bits(bits))
    for row in (0, 2047, 2048, 4999):
        assert np.allclose(vectors[row], hasher.decode(Codes.from_bits(bits[row : row + 1]))[0], rtol=1e-4, atol=1e-4)
    assert hasher.decode(Codes.from_bits(bits[:0])).shape == (0, 64)


@decoders
def test_a_saved_hasher_decodes_as_before(name, tmp_path):
    hasher, codes = fitted(name), fitted(name).encode(digits()[:20])
    hasher.save(tmp_path / "model.safetensors")
    assert np.array_equal(autojacobin.load(tmp_path / "model.safetensors").decode(codes), hasher.decode(codes))


@decoders
def test_what_is_not_a_code_of_the_method_is_refused(name):
    hasher, codes = fitted(name), Codes.from_bits(np.ones((2, 9), dtype=bool))
    with pytest.raises(DataError, match=rf"the codes have 9 bits, but this {type(hasher).__name__} gives codes of 16"):
        hasher.decode(codes)
    with pytest.raises(DataTypeError, match="expected Codes, got ndarray; use Codes.from_bits"):
        hasher.decode(np.ones((2, 16), dtype=np.uint8))
    with pytest.raises(NotFittedError):
        METHODS[name]().decode(codes)


@pytest.mark.parametrize("name", WITHOUT)
def test_methods_without_a_decoder_say_so(name):
    with pytest.raises(DataError, match=f"{name} has no decoder.* such as BinaryAutoencoder"):
        fitted(name).decode(fitted(name).encode(digits()[:2]))
