"""An index on a GPU finds what the index finds: with a stand-in for CuPy, and on a GPU where there is one."""

import numpy as np
import pytest

from autojacobin import ITQ, BinaryAutoencoder, Codes, DataError, Index, SphericalHashing
from autojacobin.core.arrays import to_host
from autojacobin.core.vectors import float_blocks
from autojacobin.evaluation import ground_truth
from autojacobin.search import asymmetric_topk, decoded_topk, hamming_topk
from autojacobin.search.centres import Centres
from autojacobin.search.distances import DistanceTerms
from tests.search.gpu_kernels import gpu_arrays, use_fake_cupy

N, D = 20_000, 16


@pytest.fixture(params=["stand-in", "gpu"])
def cupy(request, monkeypatch):
    return gpu_arrays() if request.param == "gpu" else use_fake_cupy(monkeypatch)


def vectors(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(n, 5)) @ np.random.default_rng(9).normal(size=(5, D)) + rng.normal(size=(n, D)) / 4
    ).astype(np.float32)


@pytest.fixture(scope="module")
def index():
    X = vectors()
    index = Index.from_vectors(X[:15_000], BinaryAutoencoder(32, n_iterations=4, random_state=0), metric="cosine")
    index.add(X[15_000:])
    index.remove(np.arange(0, N, 7))
    return index


def same(found, expected, rtol=1e-6):
    assert np.array_equal(to_host(found[1]), expected[1])
    assert np.allclose(to_host(found[0]), expected[0], rtol=rtol, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"recall": 1},
        {"recall": 0.8},
        {"candidates": 60},
        {"candidates": 60, "distance": "asymmetric"},
        {"rerank": False},
    ],
)
def test_it_finds_what_the_index_finds(cupy, index, how):
    there, asked = index.to("cuda"), vectors(40, seed=5)
    same(there.search(asked, 10, **how), index.search(asked, 10, **how))


def test_filters_names_and_payload(cupy):
    pytest.importorskip("pyarrow")
    X, names = vectors(3_000), [f"v{number}" for number in range(3_000)]
    payload = {"price": list(range(3_000))}
    index = Index.from_vectors(X, ITQ(16, random_state=0), ids=names, payload=payload)
    there, asked = index.to("cuda"), vectors(5, seed=3)
    for how in (
        {"where": "price < 700"},
        {"among": names[5:9]},
        {"among": [names[:50], None, names[:3], [], names[7:]]},
    ):
        same(there.search(asked, 6, **how), index.search(asked, 6, **how))
    same(
        there.search(asked, 6, distance="hamming", rerank=False),
        index.search(asked, 6, distance="hamming", rerank=False),
    )
    found, expected = (one.search(asked, 4, where="price > 10", columns=["price"]) for one in (there, index))
    assert found[2].equals(expected[2])
    assert found[1].tolist() == expected[1].tolist()


def test_answers_come_in_kind(cupy, index):
    there, asked = index.to("cuda"), vectors(4, seed=5)
    assert type(there.search(asked, 3)[1]) is np.ndarray
    assert type(there.search(asked.tolist(), 3)[0]) is np.ndarray
    distances, ids = there.search(cupy.asarray(asked), 3)
    assert isinstance(ids, cupy.ndarray)
    assert isinstance(distances, cupy.ndarray)
    same((distances, ids), index.search(asked, 3))


def test_answers_to_tensors_are_tensors(index):
    gpu_arrays()
    torch = pytest.importorskip("torch")
    asked = torch.from_numpy(vectors(4, seed=5)).cuda()
    distances, ids = index.to("cuda").search(asked, 3)
    assert ids.is_cuda
    same((distances.cpu().numpy(), ids.cpu().numpy()), index.search(vectors(4, seed=5), 3))


def test_a_copy_cannot_be_changed_and_shows_the_state_of_its_start(cupy):
    X = vectors(500)
    index = Index.from_vectors(X, ITQ(16, random_state=0))
    there = index.to("cuda")
    index.remove([0])
    assert there.search(X[:1], 1)[1].tolist() == [[0]]
    assert "on a GPU" in repr(there)
    for change in (lambda: there.add(X[:1]), lambda: there.remove([1]), lambda: there.compact()):
        with pytest.raises(DataError, match=r"can only be searched; change the index itself"):
            change()
    assert there.to("cpu").search(X[:1], 1)[1].tolist() == [[0]]
    with pytest.raises(DataError, match="device must be 'cpu' or 'cuda', got 'tpu'"):
        index.to("tpu")


def test_vectors_that_do_not_fit_stay_on_the_host(index, monkeypatch):
    cupy = use_fake_cupy(monkeypatch)
    cupy.free = 100_000
    there, asked = index.to("cuda"), vectors(10, seed=5)
    assert there._state.device.vectors is None
    for how in ({"candidates": 50}, {"recall": 1}):
        same(there.search(asked, 5, **how), index.search(asked, 5, **how))


def test_an_index_with_lists_compares_all_vectors(cupy):
    X = vectors(6_000)
    index = Index.from_vectors(X, BinaryAutoencoder(32, n_iterations=4, random_state=0), partitions=40)
    there, asked = index.to("cuda"), vectors(10, seed=5)
    same(there.search(asked, 5), index.search(asked, 5, recall=1))
    with pytest.raises(DataError, match="with lists compares vectors on a GPU"):
        there.search(asked, 5, rerank=False)


def test_own_codes_and_spherical_codes(cupy):
    packed = np.random.default_rng(0).integers(0, 256, (20_000, 8), dtype=np.uint8)
    index = Index.from_codes(packed)
    same(index.to("cuda").search(packed[:5], 20), index.search(packed[:5], 20))
    X = vectors(2_500)
    spherical = Index.from_vectors(X, SphericalHashing(16, random_state=0))
    same(spherical.to("cuda").search(X[:5], 7, candidates=30), spherical.search(X[:5], 7, candidates=30))


def test_searches_of_codes_give_what_those_on_the_cpu_give(cupy):
    rng = np.random.default_rng(0)
    base = Codes.from_bits(rng.random((20_000, 40)) < 0.5)
    projections = rng.normal(size=(6, 40)) * 1e-310  # whose fractions need care
    terms = DistanceTerms(projections, np.ones(6), 4)
    there, subset = base.to_device("cuda"), np.arange(0, 20_000, 3)
    queries = Codes.from_bits(projections >= 0)
    for search, asked in ((hamming_topk, queries), (asymmetric_topk, projections), (decoded_topk, terms)):
        for how in ({}, {"subset": subset}) if search is hamming_topk else ({}, {"subset": subset}, {"exact": True}):
            found = search(asked, there, 15, **how)
            assert isinstance(found[1], cupy.ndarray)
            expected = search(asked, base, 15, **how)
            assert np.array_equal(to_host(found[1]), expected[1])
            assert np.array_equal(to_host(found[0]), expected[0])


def test_without_cupy_a_sentence_says_what_to_install(index, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(Exception, match=r"pip install 'autojacobin\[gpu\]'"):
        index.to("cuda")


def test_codes_are_packed_on_the_gpu(cupy):
    X = vectors(300)
    for n_bits in (13, 16):
        hasher = ITQ(n_bits, random_state=0).fit(X)
        assert hasher.encode(cupy.asarray(X)) == hasher.encode(X)
    bits = np.random.default_rng(0).random((50, 21)) < 0.5
    there = Codes.from_bits(cupy.asarray(bits))
    assert isinstance(there.packed, cupy.ndarray)
    assert there.to_device("cpu") == Codes.from_bits(bits)


def test_a_gpu_gets_larger_blocks():
    X = np.zeros((5_000, 128), dtype=np.float32)
    assert len(list(float_blocks(X, "cuda"))) == 1
    assert len(list(float_blocks(X))) > 1


def test_true_neighbours(cupy):
    X, asked = vectors(), vectors(20, seed=4)
    found = ground_truth(cupy.asarray(X), asked, 15)
    assert isinstance(found, cupy.ndarray)
    assert np.array_equal(to_host(found), ground_truth(X, asked, 15))
    X[7, 3] = np.nan
    with pytest.raises(DataError, match="row 7"):
        ground_truth(cupy.asarray(X), asked, 15)


@pytest.mark.parametrize("n_centres", [1, 2, 150])
def test_centres_of_vectors_on_a_gpu(cupy, n_centres):
    X, points = vectors(700), vectors(n_centres, seed=1)
    centres, squared = Centres(points), ((X[:, None] - points) ** 2).sum(axis=2)
    nearest = squared.argmin(axis=1)
    assert np.mean(to_host(centres.assign(cupy.asarray(X))) == nearest) > 0.99
    first, second = map(to_host, centres.first_and_second(cupy.asarray(X)))
    assert np.mean(first == nearest) > 0.99
    if n_centres == 1:
        assert not second.any()
        return
    assert np.all(second != first)
    for row, x in enumerate(X):
        left, gaps = x - points[first[row]], x - points
        costs = squared[row] + (gaps @ left) ** 2 / (left @ left)
        costs[first[row]] = np.inf
        assert costs[second[row]] == pytest.approx(costs.min(), rel=1e-3)
