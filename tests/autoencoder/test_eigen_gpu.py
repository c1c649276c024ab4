"""Leading eigenvectors by matrix products against a whole decomposition in double precision."""

import numpy as np
import pytest

from autojacobin.autoencoder.eigenvectors import block_size, leading_eigenvectors


def stack(spectra, seed=0, dtype=np.float32):
    """Matrices with given spectra (s, D) and random eigenvectors."""
    rng = np.random.default_rng(seed)
    D = spectra.shape[1]
    frames = [np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in spectra]
    return np.stack([(frame * values) @ frame.T for frame, values in zip(frames, spectra, strict=True)]).astype(dtype)


def start(D, r, seed=1):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(D, block_size(r))))[0].astype(np.float32)


def largest_angles(rows, matrices, r):
    _, vectors = np.linalg.eigh(matrices.astype(np.float64))
    cosines = np.linalg.svd(rows.astype(np.float64) @ vectors[:, :, ::-1][:, :, :r], compute_uv=False)
    return np.sqrt(np.maximum(0, 1 - cosines[:, -1] ** 2))


@pytest.mark.parametrize("decay", [0.9, 0.97])
def test_a_smooth_spectrum_with_a_gap(decay):
    D, r = 200, 12
    spectra = np.tile(decay ** np.arange(D), (3, 1))
    spectra[:, r:] *= 0.85
    matrices = stack(spectra)
    values, rows = leading_eigenvectors(matrices, r, start(D, r))
    assert np.allclose(values, spectra[:, :r], rtol=1e-5)
    assert np.allclose(rows @ rows.transpose(0, 2, 1), np.eye(r), atol=5e-6)
    assert largest_angles(rows, matrices, r).max() < 1e-3


def test_a_matrix_that_does_not_converge_is_decomposed_by_eigh(monkeypatch):
    """Of nearly two hundred equal eigenvalues some are inside the block, and the iteration cannot separate them."""
    D, r = 200, 12
    spectra = np.concatenate([np.ones(r), np.full(D - r, 0.85)])[None]
    matrices, asked = stack(spectra), []
    whole = np.linalg.eigh

    def watched(matrix):
        asked.append(matrix.shape)
        return whole(matrix)

    monkeypatch.setattr(np.linalg, "eigh", watched)
    _, rows = leading_eigenvectors(matrices, r, start(D, r))
    assert asked == [(1, block_size(r), block_size(r)), (1, D, D)]
    monkeypatch.undo()
    assert largest_angles(rows, matrices, r).max() < 1e-3


def test_without_a_gap_the_space_still_keeps_the_variance():
    D, r = 220, 16
    spectra = np.tile(0.985 ** np.arange(D), (2, 1))
    matrices = stack(spectra)
    values, rows = leading_eigenvectors(matrices, r, start(D, r))
    kept = np.einsum("ska,sab,skb->s", rows, matrices, rows)
    assert np.allclose(kept, spectra[:, :r].sum(axis=1), rtol=1e-3)
    assert np.all(np.diff(values, axis=1) <= 0)


def test_matrices_of_low_rank_and_of_zeros():
    D, r = 200, 12
    spectra = np.zeros((2, D))
    spectra[0, :5] = [5, 4, 3, 2, 1]
    matrices = stack(spectra)
    values, rows = leading_eigenvectors(matrices, r, start(D, r))
    assert np.allclose(values, spectra[:, :r], atol=1e-4)
    assert np.all(np.isfinite(rows))
    assert largest_angles(rows[:1, :5], matrices[:1], 5).max() < 1e-3
