"""LSH, Spectral Hashing, ITQ, OKMeans and NOKMeans: each against what defines it."""

import numpy as np
import pytest

from autojacobin import ITQ, LSH, NOKMeans, OKMeans, SpectralHashing
from autojacobin.core.linear_algebra import (
    coordinates,
    corners,
    mean_row,
    nearest_frame,
    principal_frame,
    random_rotation,
)
from autojacobin.hashers.itq import itq_rotation
from autojacobin.hashers.kmeans_hashing import _Hyperplanes, _Signs
from tests.hashers.methods import digits


def blob(n=2000, D=20, seed=0):
    """Correlated points off the origin."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)) @ (rng.normal(size=(D, D)) * np.geomspace(1, 0.1, D)) + 5


def test_the_principal_frame_does_not_depend_on_blocks(monkeypatch):
    X = blob()
    centred = X - X.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    for rows in (2**14, 300, 2000):
        monkeypatch.setattr("autojacobin.core.linear_algebra._ROWS_PER_BLOCK", rows)
        frame = principal_frame(X, mean_row(X), 5)
        assert np.allclose(np.abs(frame @ directions[:5].T), np.eye(5), atol=1e-9)
        assert np.all(frame[np.arange(5), np.abs(frame).argmax(axis=1)] > 0)
        assert np.allclose(coordinates(X, mean_row(X), frame), centred @ frame.T, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_corners_count_zero_of_either_sign_as_one(dtype):
    values = np.array([[-2.5, -0.0, 0.0, 1e-30], [3.0, -1e-30, 7.0, -0.0]], dtype=dtype)
    before = values.copy()
    assert np.array_equal(corners(values), np.where(before >= 0, 1, -1))
    assert corners(values).dtype == dtype
    assert np.array_equal(np.signbit(values), np.signbit(before))  # the values themselves stay as they are


@pytest.mark.parametrize("condition", [1, 1e3, 1e6, 1e12])
def test_the_nearest_frame_is_the_polar_factor_however_ill_conditioned(condition):
    rng = np.random.default_rng(0)
    left, right = np.linalg.qr(rng.normal(size=(40, 12)))[0], random_rotation(12, np.random.RandomState(1))
    frame = nearest_frame((left * np.geomspace(1, 1 / condition, 12)) @ right)
    assert np.allclose(frame.T @ frame, np.eye(12), atol=1e-9)
    assert np.allclose(frame, left @ right, atol=1e-15 * condition + 1e-9)


def test_the_nearest_frame_of_a_singular_matrix_is_orthonormal():
    matrix = np.outer(np.arange(1.0, 10), [1.0, 2.0, 3.0])
    frame = nearest_frame(matrix)
    assert np.allclose(frame.T @ frame, np.eye(3), atol=1e-12)
    assert float((frame * matrix).sum()) == pytest.approx(np.linalg.norm(matrix))


@pytest.mark.parametrize("method", ["itq", "okmeans"])
def test_slices_of_points_and_cores_do_not_change_the_fit(monkeypatch, method):
    X = blob()
    cls = {"itq": ITQ, "okmeans": OKMeans}[method]
    whole = cls(8, random_state=0).fit(X)
    module = {"itq": "itq", "okmeans": "kmeans_hashing"}[method]
    monkeypatch.setattr(f"autojacobin.hashers.{module}._NUMBERS_PER_TASK", 333 * 8)
    several = []
    for cores in (1, 3):
        monkeypatch.setattr("autojacobin.core.parallel.usable_cores", lambda cores=cores: cores)
        several.append(cls(8, random_state=0).fit(X))
        assert several[-1].quantization_error_ == pytest.approx(whole.quantization_error_, rel=1e-9)
    assert np.array_equal(several[0].weights_, several[1].weights_)


class TestLSH:
    def test_bits_differ_with_the_probability_of_the_angle(self):
        rng = np.random.default_rng(0)
        hasher = LSH(20000, center=False, random_state=0).fit(rng.normal(size=(10, 6)))
        for _ in range(5):
            pair = rng.normal(size=(2, 6))
            angle = np.arccos(pair[0] @ pair[1] / np.linalg.norm(pair[0]) / np.linalg.norm(pair[1]))
            bits = hasher.transform(pair)
            assert np.mean(bits[0] != bits[1]) == pytest.approx(angle / np.pi, abs=0.015)

    def test_the_hyperplanes_pass_through_the_mean_or_the_origin(self):
        X = digits()
        centred = LSH(64, random_state=0).fit(X)
        assert np.allclose(centred.project(X.mean(axis=0, keepdims=True)), 0, atol=1e-3)
        literal = LSH(64, center=False, random_state=0).fit(X)
        assert np.all(literal.project(np.zeros((1, 64), np.float32)) == 0)
        assert np.array_equal(literal.weights_, centred.weights_)
        assert centred.score(X) > literal.score(X)


class TestSpectralHashing:
    def test_the_modes_are_the_smoothest_of_a_box(self):
        rng = np.random.default_rng(0)
        X = rng.uniform(-0.5, 0.5, (20000, 3)) * np.array([8.0, 5.0, 1.0])
        hasher = SpectralHashing(6).fit(X, training_points=None)
        # eigenvalues (m / length)²: lengths 8, 5, 1 give 1/8, 1/5, 2/8, 3/8, 2/5, 4/8 in this order
        assert hasher.axis_.tolist() == [0, 1, 0, 0, 1, 0]
        assert hasher.mode_.tolist() == [1, 1, 2, 3, 2, 4]

    def test_a_bit_counts_half_waves_along_its_axis(self):
        X = np.linspace(0, 1, 1000)[:, None] * np.array([[1.0, 0.0]])
        hasher = SpectralHashing(5).fit(X)
        bits = hasher.transform(X)
        assert np.array_equal(np.abs(np.diff(bits.astype(int), axis=0)).sum(axis=0), hasher.mode_)
        assert sorted(hasher.mode_) == [1, 2, 3, 4, 5]

    def test_projections_solve_the_eigenproblem_on_a_uniform_interval(self):
        """The bits come from eigenfunctions of the Laplacian: f'' = −(mπ/range)² f."""
        X = np.linspace(0, 3, 20001)[:, None]
        hasher = SpectralHashing(3).fit(X, training_points=None)
        f = hasher.project(X)
        h = X[1, 0] - X[0, 0]
        second = (f[2:] - 2 * f[1:-1] + f[:-2]) / h**2
        assert np.allclose(second, -((hasher.mode_ * np.pi / 3) ** 2) * f[1:-1], atol=1e-3)


class TestITQ:
    def test_the_quantisation_error_is_the_definition_and_never_rises(self):
        X = blob()
        hasher = ITQ(12, random_state=0).fit(X)
        errors = hasher.quantization_error_
        assert len(errors) == 50
        assert np.all(np.diff(errors) <= 1e-12 * errors[0])
        assert errors[-1] < errors[0]
        V = X - X.mean(axis=0)
        frame = np.linalg.svd(V, full_matrices=False)[2][:12]
        rotation, history = itq_rotation(V @ frame.T, 7, np.random.RandomState(3))
        signs = np.sign(V @ frame.T @ itq_rotation(V @ frame.T, 6, np.random.RandomState(3))[0])
        assert history[-1] == pytest.approx(np.mean((signs - V @ frame.T @ rotation) ** 2))
        assert np.allclose(rotation.T @ rotation, np.eye(12), atol=1e-12)

    def test_the_hyperplanes_are_an_orthonormal_frame_of_the_principal_space(self):
        X = blob()
        hasher = ITQ(8, random_state=0).fit(X)
        assert np.allclose(hasher.weights_ @ hasher.weights_.T, np.eye(8), atol=1e-10)
        principal = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:8]
        assert np.allclose(hasher.weights_.T @ hasher.weights_, principal.T @ principal, atol=1e-8)

    def test_a_turned_cube_is_turned_back(self):
        rng = np.random.default_rng(0)
        corners = rng.choice([-1.0, 1.0], (4000, 6)) + rng.normal(0, 0.05, (4000, 6))
        turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
        best = min(ITQ(6, random_state=seed).fit(corners @ turn).quantization_error_[-1] for seed in range(5))
        assert best < 0.01  # the noise that was put in, 0.0025, and what a turn too few leaves


class TestOKMeans:
    def test_the_quantisation_error_is_the_definition_and_never_rises(self):
        X = blob()
        hasher = OKMeans(10, random_state=0).fit(X)
        errors = hasher.quantization_error_
        assert np.all(np.diff(errors) <= 1e-12 * errors[0])
        assert errors[-1] < errors[0]
        one = OKMeans(10, n_iter=1, random_state=0).fit(X)
        # one turn by hand, from the same rotated PCA frame
        mean = X.mean(axis=0)
        frame = np.linalg.svd(X - mean, full_matrices=False)[2][:10]
        frame *= np.where(np.take_along_axis(frame, np.abs(frame).argmax(1)[:, None], 1) < 0, -1, 1)
        R = frame.T @ random_rotation(10, np.random.RandomState(0))
        P = (X - mean) @ R
        corners = np.sign(P) * np.abs(P).mean(axis=0)
        U, _, Vt = np.linalg.svd((X - mean).T @ corners, full_matrices=False)
        R = U @ Vt
        mu = (X - corners @ R.T).mean(axis=0)
        assert np.allclose(one.weights_, R.T, atol=1e-8)
        assert np.allclose(one.mean_, mu, atol=1e-8)
        assert errors[0] == pytest.approx(np.mean(np.sum((X - mu - corners @ R.T) ** 2, axis=1)))

    def test_the_frame_is_orthonormal_and_the_scales_are_mean_distances(self):
        hasher = OKMeans(10, random_state=0).fit(blob())
        assert np.allclose(hasher.weights_ @ hasher.weights_.T, np.eye(10), atol=1e-10)
        assert np.all(hasher.scales_ > 0)

    @pytest.mark.parametrize("share", [0.0, 1.0])
    def test_sums_and_products_follow_few_and_many_changed_signs(self, monkeypatch, share):
        monkeypatch.setattr("autojacobin.hashers.kmeans_hashing._FEW_CHANGES", share)
        X, rng = blob(), np.random.default_rng(0)
        signs = _Signs(X, 8)
        frame, offsets = rng.normal(size=(20, 8)), rng.normal(size=8)
        for _ in range(3):
            signs.update(frame, offsets)
            expected = corners(X @ frame - offsets)
            assert np.array_equal(signs.sums, expected.sum(axis=0))
            assert np.allclose(signs.products, X.T @ expected, rtol=1e-12, atol=1e-8)
            frame = frame + 0.01 * rng.normal(size=frame.shape)

    def test_a_box_of_unequal_edges_is_found(self):
        rng = np.random.default_rng(0)
        edges = np.array([4.0, 2.0, 1.0])
        corners = rng.choice([-1.0, 1.0], (3000, 3)) * edges + rng.normal(0, 0.02, (3000, 3)) + 7
        turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        runs = [OKMeans(3, random_state=seed).fit(corners @ turn) for seed in range(10)]
        best = min(runs, key=lambda run: run.quantization_error_[-1])
        assert np.allclose(np.sort(best.scales_)[::-1], edges, rtol=0.02)
        assert best.quantization_error_[-1] < 0.01


class TestNOKMeans:
    @pytest.mark.parametrize(("make", "n_bits"), [(digits, 32), (digits, 64), (blob, 12), (blob, 30)])
    def test_the_quantisation_error_falls(self, make, n_bits):
        X = make().astype(np.float64)
        hasher = NOKMeans(n_bits, random_state=0).fit(X)
        errors = hasher.quantization_error_
        assert len(errors) == 51
        assert np.all(np.diff(errors) <= 1e-10 * errors[0])
        assert np.all(np.diff(errors[:5]) < 0)  # strictly, as long as there is something to gain
        assert errors[-1] < 0.95 * errors[0]

    def test_the_quantisation_error_is_the_definition(self):
        X = blob()
        hasher = NOKMeans(12, random_state=0).fit(X)
        signs = 2.0 * hasher.transform(X) - 1
        centres = hasher.mean_ + signs @ hasher.edges_
        assert hasher.quantization_error_[-1] == pytest.approx(np.mean(np.sum((X - centres) ** 2, axis=1)))

    @pytest.mark.parametrize("n_bits", [16, 32, 64])
    def test_the_hyperplanes_do_not_collapse(self, n_bits):
        X = digits()
        hasher = NOKMeans(n_bits, random_state=0).fit(X)
        W = hasher.weights_
        assert np.allclose(np.linalg.norm(W, axis=1), 1, atol=1e-5)
        alike = np.abs(W @ W.T - np.eye(n_bits))
        assert alike.max() <= 0.96  # no near-duplicate pair
        signs = 2.0 * hasher.transform(X) - 1
        agreement = np.abs(signs.T @ signs / len(X) - np.eye(n_bits))
        assert agreement.max() <= 0.96  # in their bits neither
        variances = hasher.project(X).var(axis=0)
        total = X.var(axis=0).sum()
        assert variances.min() >= 1e-3 * total / X.shape[1]  # no direction with vanishing variance

    @pytest.mark.parametrize(("D", "n_bits"), [(1, 3), (1, 8), (2, 3), (2, 12), (3, 16)])
    def test_nor_in_few_dimensions_where_they_start_as_twins(self, D, n_bits):
        X = np.random.default_rng(0).normal(size=(1000, D))
        hasher = NOKMeans(n_bits, random_state=0).fit(X)
        signs = 2.0 * hasher.transform(X) - 1
        assert np.abs(signs.T @ signs / len(X) - np.eye(n_bits)).max() <= 0.96
        assert len(np.unique(signs, axis=0)) > n_bits
        assert hasher.quantization_error_[-1] <= hasher.quantization_error_[0]

    def test_a_step_that_would_make_twins_is_refused(self):
        X = np.random.default_rng(0).normal(size=(500, 4))
        planes = _Hyperplanes(X, np.eye(4), np.eye(4))

        def replace(direction):
            signs = np.where(X @ direction >= 0, 1.0, -1.0)
            moved = np.flatnonzero(signs != planes.signs[0])
            return planes._replace(0, direction, 0.0, moved, 2 * signs[moved])

        assert not replace(np.eye(4)[1])  # bit 0 would become bit 1
        assert np.array_equal(planes.directions, np.eye(4))
        slanted = np.array([0.8, 0.6, 0, 0])
        assert replace(slanted)
        assert np.array_equal(planes.directions[0], slanted)

    def test_a_step_into_a_flat_direction_is_refused(self):
        X = np.random.default_rng(0).normal(size=(500, 3)) * np.array([1, 1, 1e-3])
        planes = _Hyperplanes(X, np.eye(3), np.eye(3)[:2])
        for axis, refused in ((1, False), (2, True)):
            wanted = X[:, axis]
            assert (planes._better(0, wanted, wanted @ X / len(X)) is None) == refused

    def test_a_round_does_what_its_definition_says(self):
        X = digits()[:500] - digits()[:500].mean(axis=0)
        frame = np.linalg.svd(X, full_matrices=False)[2][:24]
        planes = _Hyperplanes(X, frame, np.eye(24))
        for _ in range(3):
            middle, edges, error = planes.centres((X * X).sum())
            B = planes.signs.T.copy()
            assert error == pytest.approx(((X - middle - B @ edges) ** 2).sum() / len(X))
            planes.improve(edges @ (X - middle).T, edges @ edges.T)
            n_replaced = 0
            for j in range(24):  # one hyperplane at a time, with all others as they are then
                B[:, :j] = planes.signs.T[:, :j]
                others = np.delete(np.arange(24), j)
                wanted = (X - middle - B[:, others] @ edges[others]) @ edges[j]
                coordinates = np.column_stack([X @ frame.T, np.ones(len(X))])
                fit = coordinates @ np.linalg.lstsq(coordinates, wanted, rcond=None)[0]
                signs = np.where(fit >= 0, 1.0, -1.0)
                if not np.array_equal(planes.signs[j], B[:, j]):
                    n_replaced += 1
                    assert np.array_equal(planes.signs[j], signs)
                    assert signs @ wanted > B[:, j] @ wanted
            assert n_replaced > 0
        assert np.array_equal(planes.products, planes.signs @ planes.signs.T)
        assert np.array_equal(planes.sums, planes.signs.sum(axis=1))
        assert np.allclose(planes.products_with_X, planes.signs @ X)

    def test_the_hyperplanes_are_not_orthogonal(self):
        W = NOKMeans(16, random_state=0).fit(digits()).weights_
        assert np.abs(W @ W.T - np.eye(16)).max() > 0.1

    def test_a_slanted_box_is_quantised_better_than_by_orthogonal_edges(self):
        rng = np.random.default_rng(0)
        edges = np.array([[1.0, 0.0], [0.8, 0.6]])
        X = rng.choice([-1.0, 1.0], (2000, 2)) @ edges + rng.normal(0, 0.02, (2000, 2))
        free = min(NOKMeans(2, random_state=seed).fit(X).quantization_error_[-1] for seed in range(5))
        orthogonal = min(OKMeans(2, random_state=seed).fit(X).quantization_error_[-1] for seed in range(5))
        assert free < 0.01
        assert orthogonal > 10 * free

    def test_its_docstring_says_that_it_is_a_reconstruction(self):
        assert "reconstruction" in NOKMeans.__doc__
        assert "E = Σᵢ ‖xᵢ − m − C bᵢ‖²" in NOKMeans.__doc__


def test_itq_warns_of_fewer_points_than_it_needs():
    X = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
    with pytest.warns(UserWarning, match="learns 16 directions from 10 training points, which vary in at most 9"):
        ITQ(16, random_state=0).fit(X[:10])
    ITQ(16, random_state=0).fit(X[:17])  # enough; a warning would be an error here
