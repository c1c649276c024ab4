"""Spherical hashing against a direct reading of the paper's algorithm, and what it promises of its spheres."""

import numpy as np
import pytest

from autojacobin import Index, SphericalHashing
from autojacobin.evaluation import ground_truth
from autojacobin.search import spherical_topk
from tests.hashers.methods import digits


def paper(X, centres, tolerances=(0.10, 0.15), most=100):
    """Algorithm 1 of Heo et al., loop by loop. Gives centres, radii, and the numbers of points inside."""
    m, c = len(X), len(centres)
    centres = centres.copy()
    for turn in range(most + 1):
        inside, radii = np.zeros((c, m), dtype=bool), np.zeros(c)
        for i in range(c):
            distances = np.array([np.sqrt(np.sum((x - centres[i]) ** 2)) for x in X])
            radii[i] = np.sort(distances)[m // 2 - 1 : m // 2 + 1].mean()
            inside[i] = distances <= radii[i]
        overlaps = {(i, j): int(np.sum(inside[i] & inside[j])) for i in range(c) for j in range(i + 1, c)}
        error = np.mean([abs(o - m / 4) for o in overlaps.values()])
        spread = np.std(list(overlaps.values()))
        if (error <= tolerances[0] * m / 4 and spread <= tolerances[1] * m / 4) or turn == most:
            return centres, radii, inside, overlaps
        forces = np.zeros_like(centres)
        for (i, j), overlap in overlaps.items():
            force = 0.5 * (overlap - m / 4) / (m / 4) * (centres[i] - centres[j])
            forces[i] += force / c
            forces[j] -= force / c
        centres += forces
    raise AssertionError


@pytest.mark.parametrize("n_iter", [0, 1, 100])
def test_the_spheres_are_those_of_the_paper(n_iter):
    X = digits()[:301, 18:40] + np.random.default_rng(0).random((301, 22))  # no two distances are equal
    start = SphericalHashing(10, n_iter=0, random_state=0).fit(X).centres_
    centres, radii, inside, _ = paper(X, start, most=n_iter)
    hasher = SphericalHashing(10, n_iter=n_iter, random_state=0).fit(X)
    assert np.allclose(hasher.centres_, centres, rtol=1e-9)
    assert np.allclose(hasher.radii_, radii, rtol=1e-9)
    assert np.array_equal(hasher.transform(X), inside.T)
    assert np.allclose(hasher.project(X[:5]), radii - np.linalg.norm(X[:5, None] - centres, axis=2), atol=1e-9)


def test_centres_start_as_means_of_five_training_points():
    X = np.eye(40)
    centres = SphericalHashing(8, n_iter=0, random_state=0).fit(X).centres_
    assert np.allclose(np.sort(centres, axis=1), np.sort([0.2] * 5 + [0.0] * 35))
    assert len(np.unique(centres.round(3), axis=0)) == 8


def test_each_bit_is_on_for_half_of_the_points_and_each_two_share_a_quarter():
    X = digits()[:1200]
    hasher = SphericalHashing(32, random_state=0).fit(X)
    bits = hasher.transform(X).astype(int)
    assert np.array_equal(bits.sum(axis=0), [600] * 32)
    overlaps = (bits.T @ bits)[np.triu_indices(32, 1)]
    assert np.abs(overlaps - 300).mean() <= 0.10 * 300
    assert overlaps.std() <= 0.15 * 300
    assert hasher.overlap_error_[-1] == pytest.approx(np.abs(overlaps - 300).mean() / 300)
    assert hasher.overlap_spread_[-1] == pytest.approx(overlaps.std() / 300)
    assert hasher.overlap_error_[0] > hasher.overlap_error_[-1]


def test_an_index_compares_by_its_own_distance():
    base, queries = digits()[:1400], digits()[1400:]
    hasher = SphericalHashing(64, random_state=0).fit(base)
    codes, asked = hasher.encode(base), hasher.encode(queries)
    index = Index(hasher)
    index.add(base)
    distances, ids = index.search(queries, 20, rerank=False)
    expected = spherical_topk(asked, codes, 20)
    assert np.array_equal(ids, expected[1])
    assert np.array_equal(distances, expected[0])
    removed = expected[1][:, 0]
    index.remove(np.unique(removed))
    kept = np.setdiff1d(np.arange(1400), removed)
    assert np.array_equal(index.search(queries, 5, rerank=False)[1], spherical_topk(asked, codes, 5, subset=kept)[1])
    _, near = index.search(queries, 10, candidates=300)
    assert np.mean(near == kept[ground_truth(base[kept], queries, 10)]) > 0.9
