"""Tangent spaces: exact where they can be, converging where they cannot, and the rules for their rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.autoencoder import Objective, tangent, train
from autojacobin.autoencoder.tangent import (
    Candidates,
    TangentsOnDemand,
    TangentSpaces,
    TangentsView,
    tangent_spaces,
)
from tests.autoencoder.manifolds import Affine, Sphere
from tests.autoencoder.test_objective import problem
from tests.hashers.methods import digits


def neighbors_among(X, n_neighbors):
    return Candidates(X).nearest(X, n_neighbors, np.arange(len(X)))


def projectors(spaces):
    return np.einsum("nrj,nrk->njk", spaces.bases, spaces.bases)


def slow_tangent_space(X, i, n_neighbors, max_rank, energy):
    """The definition: sort all distances, centre the neighbours, SVD, count."""
    order = np.argsort(np.linalg.norm(X - X[i], axis=1), kind="stable")[:n_neighbors]
    cloud = X[order] - X[order].mean(axis=0)
    _, singular, vt = np.linalg.svd(cloud)
    shares = np.cumsum(singular**2) / np.sum(singular**2)
    rank = min(int(np.argmax(shares >= energy)) + 1, max_rank)
    return vt[:rank], rank


@pytest.mark.parametrize("p", [1, 3, 6])
@pytest.mark.parametrize(("dtype", "atol"), [(np.float64, 1e-9), (np.float32, 1e-3)])
def test_exact_on_an_affine_subspace(p, dtype, atol):
    plane = Affine(D=7, p=p)
    X = plane.sample(200, np.random.default_rng(0)).astype(dtype)
    spaces = tangent_spaces(X, n_neighbors=30, max_rank=7, energy=1 - 1e-6)
    assert set(spaces.ranks.tolist()) == {p}
    assert spaces.bases.dtype == dtype
    assert np.allclose(projectors(spaces), plane.projector(None), atol=atol)
    assert np.all(spaces.bases[:, p:] == 0)


@pytest.mark.rare
def test_on_a_sphere_the_angle_shrinks_as_points_are_added():
    sphere = Sphere(3)
    angles = []
    for n in (100, 1000, 10000):
        X = sphere.sample(n, np.random.default_rng(0))
        spaces = tangent_spaces(X, n_neighbors=12, max_rank=2, energy=1.0)
        normals = np.cross(spaces.bases[:, 0], spaces.bases[:, 1])
        angles.append(np.degrees(np.mean(np.arccos(np.clip(np.abs(np.sum(normals * X, axis=1)), 0, 1)))))
    assert angles[1] < 0.5 * angles[0]
    assert angles[2] < 0.5 * angles[1]
    assert angles[2] < 1.0


@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(8, 40), st.floats(0.3, 0.999))
def test_equals_the_definition_written_out(seed, D, n, energy):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)) * np.geomspace(1, 0.05, D)
    K, max_rank = int(rng.integers(2, n + 1)), int(rng.integers(1, D + 1))
    spaces = tangent_spaces(X, K, max_rank, energy)
    for i in range(n):
        T, rank = slow_tangent_space(X, i, K, max_rank, energy)
        assert spaces.ranks[i] == rank
        assert np.allclose(spaces.bases[i].T @ spaces.bases[i], T.T @ T, atol=1e-6)


def test_the_energy_rule_and_the_cap_each_bind():
    # all 500 points are neighbours of each, with variances near 100, 25, 1 and three times 0.01
    X = np.random.default_rng(0).normal(size=(500, 6)) * np.array([10, 5, 1, 0.1, 0.1, 0.1])

    def ranks(max_rank, energy):
        return set(tangent_spaces(X, n_neighbors=500, max_rank=max_rank, energy=energy).ranks.tolist())

    assert ranks(max_rank=6, energy=0.9) == {2}
    assert ranks(max_rank=6, energy=0.995) == {3}
    assert ranks(max_rank=2, energy=0.995) == {2}
    assert ranks(max_rank=1, energy=0.995) == {1}


def test_bases_are_orthonormal_and_padded_with_zeros():
    X = np.random.default_rng(0).normal(size=(60, 5)) * np.geomspace(1, 0.2, 5)
    spaces = tangent_spaces(X, n_neighbors=20, max_rank=4, energy=0.9)
    assert len(set(spaces.ranks.tolist())) > 1
    for T, rank in zip(spaces.bases, spaces.ranks, strict=True):
        gram = np.zeros((4, 4))
        gram[:rank, :rank] = np.eye(rank)
        assert np.allclose(T @ T.T, gram, atol=1e-10)


def test_equal_points_have_no_tangent_direction():
    for dtype in (np.float32, np.float64):  # values whose mean is not exact
        X = np.repeat(np.random.default_rng(0).normal(size=(20, 6)), 50, axis=0).astype(dtype)
        spaces = tangent_spaces(X, n_neighbors=20, max_rank=3, energy=0.98)
        assert np.all(spaces.ranks == 0)
        assert np.all(spaces.bases == 0)


def test_neighbours_are_the_nearest_and_include_the_point_itself(monkeypatch):
    X = np.random.default_rng(0).normal(size=(200, 4)) + 1000  # far from the origin, where norms would cancel
    monkeypatch.setattr("autojacobin.autoencoder.tangent._POINTS_PER_TASK", 7)  # several blocks
    neighbors = neighbors_among(X.astype(np.float32), 9)
    for i, found in enumerate(neighbors):
        order = np.argsort(np.linalg.norm(X - X[i], axis=1))[:9]
        assert i in found
        assert len(set(found) & set(order)) >= 8  # float32 may swap the ninth with the tenth
    assert np.array_equal(neighbors_among(X, 500)[3], np.arange(200))


def test_progress_counts_up_to_all_points():
    seen = []
    X = np.random.default_rng(0).normal(size=(100, 3))
    tangent_spaces(X, 10, 2, 0.9, progress=lambda *report: seen.append(report))
    assert seen[-1] == ("tangent spaces", 100, 100)
    assert seen == sorted(seen)


def test_the_number_of_threads_does_not_change_a_bit(monkeypatch):
    X = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    several = tangent_spaces(X, 20, 5, 0.9)
    monkeypatch.setattr("autojacobin.core.parallel.usable_cores", lambda: 3)
    assert np.array_equal(tangent_spaces(X, 20, 5, 0.9).bases, several.bases)


def curved(n=400, p=3, D=40):
    """Points near a curved sheet of p dimensions in D, with noise far below its curvature."""
    rng = np.random.default_rng(1)
    inner = rng.uniform(-1, 1, (n, p))
    return np.tanh(inner @ rng.normal(size=(p, D))) + 0.001 * rng.normal(size=(n, D))


def largest_angle(found, exact):
    """Sine of the largest principal angle between the spans of two orthonormal sets of rows."""
    return np.linalg.norm(found - (found @ exact.T) @ exact, ord=2)


@pytest.mark.parametrize("name", ["digits", "curved"])
@pytest.mark.parametrize("energy", [pytest.param(0.7, marks=pytest.mark.rare), 0.98])
def test_single_precision_gives_the_spaces_of_double_precision(name, energy):
    X = digits()[:400] + np.random.default_rng(0).normal(0, 0.01, (400, 64)) if name == "digits" else curved()
    X = X.astype(np.float32).astype(np.float64)  # both see the same points, no two equally far
    exact, found = (tangent_spaces(X.astype(dtype), 80, 20, energy) for dtype in (np.float64, np.float32))
    neighbors = neighbors_among(X, 80)
    compared = 0
    for i in range(len(X)):
        values = np.linalg.svd(X[neighbors[i]] - X[neighbors[i]].mean(axis=0), compute_uv=False) ** 2
        rank = exact.ranks[i]
        shares = np.cumsum(values) / values.sum()
        if np.abs(shares - energy).min() > 1e-5:
            assert found.ranks[i] == rank
            if values[rank] < 0.9 * values[rank - 1]:  # without a gap no space is better than its neighbours
                assert largest_angle(found.bases[i][:rank].astype(np.float64), exact.bases[i][:rank]) < 1e-3
                compared += 1
    assert compared > 100


def test_sixteen_bits_hold_the_spaces_when_there_are_many(monkeypatch):
    X = curved().astype(np.float32)
    full = tangent_spaces(X, 60, 12, 0.99)
    monkeypatch.setattr(tangent, "_BYTES_IN_FULL", 0)
    compact = tangent_spaces(X, 60, 12, 0.99)
    assert compact.stored.dtype == np.int16
    assert compact.bases.dtype == np.float32
    assert compact.stored.nbytes == full.stored.nbytes // 2
    assert np.array_equal(compact.ranks, full.ranks)
    assert np.all(compact.bases[np.arange(12) >= compact.ranks[:, None]] == 0)
    for found, exact, rank in zip(compact.bases, full.bases, full.ranks, strict=True):
        assert largest_angle(found[:rank], exact[:rank]) < 1e-4
    equal = np.zeros((30, 5), dtype=np.float32)
    assert np.all(tangent_spaces(equal, 10, 3, 0.9).bases == 0)


@pytest.mark.parametrize("compact", [False, True])
def test_some_of_the_spaces_are_a_view_that_blocks_are_read_from(monkeypatch, compact):
    if compact:
        monkeypatch.setattr(tangent, "_BYTES_IN_FULL", 0)
    spaces = tangent_spaces(curved(), 60, 12, 0.9)
    points = np.array([5, 3, 300, 17, 18])
    some = spaces[points]
    assert len(some) == 5
    assert some.stored is spaces.stored
    assert np.array_equal(some.bases, spaces.bases[points])
    assert np.array_equal(some[1:4].bases, spaces.bases[points[1:4]])
    assert np.array_equal(some[1:4].ranks, spaces.ranks[points[1:4]])
    block = some.block(slice(1, 4))
    assert block.shape == (3, spaces.ranks[points[1:4]].max(), 40)
    assert np.array_equal(block, spaces.bases[points[1:4]][:, : block.shape[1]])


def test_a_block_of_points_without_a_direction_is_empty():
    spaces = TangentSpaces(np.zeros((4, 3, 5)), np.zeros(4, dtype=int))
    assert spaces.block(slice(0, 2)).shape == (2, 0, 5)


def test_many_small_problems_at_once_give_the_same_as_one_by_one(as_on_a_gpu):
    X = curved()
    one_by_one = tangent_spaces(X, 60, 12, 0.97)
    as_on_a_gpu("tangent")
    at_once = tangent_spaces(X, 60, 12, 0.97)
    assert np.array_equal(at_once.ranks, one_by_one.ranks)
    assert np.allclose(projectors(at_once), projectors(one_by_one), atol=1e-9)


@pytest.mark.parametrize("energy", [0.8, 0.98])
@pytest.mark.rare
def test_wide_points_on_a_gpu_are_iterated_to_the_same_spaces(as_on_a_gpu, energy):
    """From 192 dimensions on, a GPU computes only the leading directions, by iteration."""
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(300, 9)) * 0.8 ** np.arange(9)
    X = np.concatenate([np.sin(flat), np.cos(flat)], axis=1) @ rng.normal(size=(18, 240))
    X = (X + 0.02 * rng.normal(size=X.shape)).astype(np.float32)
    one_by_one = tangent_spaces(X, 40, 10, energy)
    as_on_a_gpu("tangent", "eigenvectors")
    at_once = tangent_spaces(X, 40, 10, energy)
    same = at_once.ranks == one_by_one.ranks
    assert same.mean() > 0.97  # at the very edge of the energy rule, rounding may decide
    kept = np.einsum("nij,nij->n", projectors(at_once)[same], projectors(one_by_one)[same])
    assert np.median(one_by_one.ranks[same] - kept) < 1e-4


# Tangent spaces of more points than memory holds

SETTINGS = (25, 4, 0.9)


def cloud(n=300, D=6):
    return np.random.default_rng(0).normal(size=(n, D)) * np.geomspace(1, 0.1, D)


def both(monkeypatch, X, sample=None):
    held = TangentsOnDemand(X, *SETTINGS, sample=sample, rng=np.random.RandomState(0))
    monkeypatch.setattr(tangent, "_MOST_BYTES_STORED", 0)
    later = TangentsOnDemand(X, *SETTINGS, sample=sample, rng=np.random.RandomState(0))
    kept = held.estimate_all()
    assert isinstance(kept, TangentSpaces)
    assert later.estimate_all() is None
    return kept, later


@pytest.mark.parametrize("sample", [None, 100, 300, 1000])
def test_a_batch_gets_the_spaces_that_would_have_been_stored(monkeypatch, sample):
    held, later = both(monkeypatch, cloud(), sample)
    points = np.array([3, 17, 18, 251])
    assert np.allclose(later[points].bases, held[points].bases, atol=1e-12)
    assert np.array_equal(later[points].ranks, held.ranks[points])


def test_a_view_has_the_spaces_of_its_rows_at_its_energy(monkeypatch):
    kept, later = both(monkeypatch, cloud())
    rows, points = np.array([4, 9, 11, 200, 299]), np.array([1, 3])
    assert np.allclose(TangentsView(later, rows, 0.9)[points].bases, kept[rows[points]].bases, atol=1e-12)
    lower = kept.at_energy(0.5)[rows[points]]
    assert lower.ranks.max() < kept.ranks[rows[points]].max()
    assert np.array_equal(TangentsView(later, rows, 0.5)[points].ranks, lower.ranks)
    assert np.allclose(TangentsView(later, rows, 0.5)[points].bases, lower.bases, atol=1e-12)


def test_a_space_is_estimated_once_and_only_if_somebody_asks():
    X, reported = cloud(), []
    spaces = TangentsOnDemand(
        X, *SETTINGS, sample=None, rng=np.random.RandomState(0), progress=lambda *words: reported.append(words)
    )
    assert np.all(spaces.known_ranks(0.9) == -1)
    exact = tangent_spaces(X, *SETTINGS)
    first, second = np.array([7, 250, 3]), np.array([3, 8, 7])
    assert np.array_equal(spaces[first].bases, exact[first].bases)
    assert reported == [("tangent spaces", 3, 300)]
    assert np.array_equal(TangentsView(spaces, second, 0.9)[np.array([0, 1])].bases, exact[second[:2]].bases)
    assert reported[1:] == [("tangent spaces", 4, 300)]  # of the three rows of the view, one was new and was asked for
    known = spaces.known_ranks(0.9)
    assert np.array_equal(np.flatnonzero(known >= 0), [3, 7, 8, 250])
    assert np.all(spaces.known_ranks(0.5) == -1)
    assert np.array_equal(spaces.estimate_all().bases, exact.bases)
    assert reported[-1] == ("tangent spaces", 300, 300)


def test_training_is_the_same_with_spaces_on_demand(monkeypatch):
    X = 0.1 * cloud()
    held, later = both(monkeypatch, X)
    network, _ = problem(1, 6, 4, 1)
    options = {"batch_size": 100, "n_epochs": 2}
    objective = Objective(jacobian_weight=1.0)
    trained, history = train(network, X, objective, rng=np.random.RandomState(1), tangents=held, **options)
    same, its_history = train(network, X, objective, rng=np.random.RandomState(1), tangents=later, **options)
    assert np.allclose(trained.to_vector(), same.to_vector(), rtol=1e-9)
    assert its_history["cost"] == pytest.approx(history["cost"])


def test_neighbours_are_searched_in_a_sample_drawn_from_the_generator():
    X = cloud()
    rng = np.random.RandomState(5)
    spaces = TangentsOnDemand(X, *SETTINGS, sample=40, rng=rng).estimate_all()
    chosen = np.sort(np.random.RandomState(5).choice(300, 40, replace=False))
    for i in (0, 100, 299):
        nearest = X[chosen][np.argsort(np.linalg.norm(X[chosen] - X[i], axis=1))[:25]]
        directions = np.linalg.svd(nearest - nearest.mean(axis=0))[2][: spaces.ranks[i]]
        found = spaces.bases[i]
        assert np.allclose(found.T @ found, directions.T @ directions, atol=1e-10)


def test_the_generator_is_not_used_when_nothing_is_drawn():
    rng = np.random.RandomState(5)
    TangentsOnDemand(cloud(50), 20, 3, 0.9, sample=50, rng=rng)
    assert rng.randint(2**31) == np.random.RandomState(5).randint(2**31)


def test_all_candidates_are_neighbours_when_there_are_no_more():
    candidates = Candidates(cloud(10))
    assert np.array_equal(candidates.nearest(cloud(3), 10), [np.arange(10)] * 3)
