"""Arrays that live elsewhere: PyTorch through DLPack, CuPy on a GPU. Skipped where they are not installed."""

import sys

import numpy as np
import pytest

from autojacobin import (
    ITQ,
    AutoBin,
    AutoJacoBin,
    Codes,
    DataError,
    MissingExtraError,
    NeighbourHashing,
    PartitionedAutoencoder,
)
from autojacobin.search import asymmetric_topk, decoded_topk, hamming_topk
from autojacobin.search.distances import DistanceTerms
from autojacobin.search.kmeans import kmeans
from tests.hashers.methods import AUTO_ENCODERS, METHODS, digits, fitted


def cupy_with_a_gpu():
    cupy = pytest.importorskip("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        pytest.skip("no GPU")
    return cupy


def test_without_cupy_the_pip_line_is_told(monkeypatch):
    X = digits()[:100]
    monkeypatch.setitem(sys.modules, "cupy", None)  # which makes the import fail
    with pytest.raises(MissingExtraError, match=r"pip install 'autojacobin\[gpu\]'"):
        AutoBin(8, device="cuda").fit(X)


@pytest.mark.parametrize("name", METHODS)
def test_torch_tensors_come_and_go_without_a_copy(name):
    torch = pytest.importorskip("torch")
    X = digits()[:100].copy()
    tensor = torch.from_numpy(X)
    assert METHODS[name]().fit(tensor).encode(tensor) == METHODS[name]().fit(X).encode(X)
    projections = fitted(name).project(tensor)
    assert isinstance(projections, torch.Tensor)
    assert np.array_equal(projections.numpy(), fitted(name).project(X))


def test_a_tensor_with_a_gradient_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(DataError, match="requires a gradient.*X.detach"):
        fitted("ITQ").encode(torch.zeros((2, 64), requires_grad=True))
    with pytest.raises(DataError, match="X.float"):
        fitted("ITQ").encode(torch.zeros((2, 64), dtype=torch.bfloat16))


@pytest.mark.parametrize("n_bits", [24, 64, 128, 200])
def test_searches_on_a_gpu_give_what_those_on_the_cpu_give(n_bits):
    cupy = cupy_with_a_gpu()
    rng = np.random.default_rng(0)
    planes = rng.normal(size=(6, n_bits))
    base = Codes.from_bits(rng.normal(size=(30_000, 6)) @ planes >= 0)
    projections = rng.normal(size=(50, 6)) @ planes
    queries = Codes.from_bits(projections >= 0)
    there = base.to_device("cuda")
    assert isinstance(there.packed, cupy.ndarray)
    assert there == base
    assert there[5:9].to_device("cpu") == base[5:9]
    for k in (1, 100, 30_000):
        for asked in (queries, queries.to_device("cuda")):
            distances, ids = hamming_topk(asked, there, k)
            expected, expected_ids = hamming_topk(queries, base, k)
            assert np.array_equal(distances.get(), expected)
            assert np.array_equal(ids.get(), expected_ids)
    terms = DistanceTerms(projections, np.ones(50), 3)
    for search, asked in ((asymmetric_topk, projections), (decoded_topk, terms)):
        for exact in (False, True):
            distances, ids = search(asked, there, 100, exact=exact)
            expected, expected_ids = search(asked, base, 100, exact=exact)
            assert np.array_equal(distances.get(), expected)
            assert np.array_equal(ids.get(), expected_ids)
    subset = np.arange(0, 30_000, 3)
    assert np.array_equal(
        hamming_topk(queries, there, 10, subset=subset)[1].get(), hamming_topk(queries, base, 10, subset=subset)[1]
    )


@pytest.mark.parametrize("name", AUTO_ENCODERS)
def test_a_gpu_gives_what_the_cpu_gives(name):
    cupy_with_a_gpu()
    # float64, and no two distances equal, so that rounding has no time to grow into another path
    X = digits()[:500] + np.random.default_rng(0).normal(0, 0.01, (500, 64))
    cpu = METHODS[name]().fit(X)
    gpu = METHODS[name]().set_params(device="cuda").fit(X)
    assert isinstance(gpu.W1_, np.ndarray)
    assert np.allclose(gpu.history_["cost"], cpu.history_["cost"], rtol=1e-6)
    assert np.mean(gpu.transform(X) == cpu.transform(X)) > 0.999
    single = METHODS[name]().set_params(device="cuda", n_epochs=1).fit(X.astype(np.float32))
    assert np.allclose(single.history_["cost"][0], cpu.history_["cost"][0], rtol=1e-3)


def test_neighbours_on_a_gpu_are_those_of_the_cpu_but_for_rounding():
    cupy_with_a_gpu()
    X = digits()[:1200] + np.random.default_rng(0).normal(0, 0.01, (1200, 64))
    cpu, gpu = (NeighbourHashing(24, n_steps=120, random_state=0, device=device).fit(X) for device in ("cpu", "cuda"))
    assert isinstance(gpu.weights_, np.ndarray)
    assert gpu.trained_as == cpu.trained_as
    assert np.allclose(gpu.search_results_["m_recall"], cpu.search_results_["m_recall"], atol=0.01)
    assert np.mean(gpu.transform(X) == cpu.transform(X)) > 0.95


def test_training_in_principal_directions_gives_a_network_on_the_host():
    cupy_with_a_gpu()
    X = np.random.default_rng(0).normal(size=(600, 8)) @ np.random.default_rng(1).normal(size=(8, 300))
    hasher = AutoJacoBin.as_published(8, n_neighbors=40, pca_energy=0.95, random_state=0)
    cpu, gpu = (hasher.set_params(device=device).fit(X).transform(X) for device in ("cpu", "cuda"))
    assert isinstance(hasher.W1_, np.ndarray)
    assert np.mean(cpu == gpu) > 0.99


@pytest.mark.parametrize("name", METHODS)
def test_cupy_arrays_stay_on_the_gpu(name):
    cupy = cupy_with_a_gpu()
    X = digits()[:200]
    projections = fitted(name).project(cupy.asarray(X))
    assert isinstance(projections, cupy.ndarray)
    expected = fitted(name).project(X)
    assert np.allclose(projections.get(), expected, atol=1e-4 * np.abs(expected).max())
    assert METHODS[name]().fit(cupy.asarray(X)).encode(cupy.asarray(X)).n_bits == 16


def test_torch_tensors_on_a_gpu_come_and_go():
    cupy_with_a_gpu()
    torch = pytest.importorskip("torch")
    X = torch.from_numpy(digits()[:200].copy()).cuda()
    hasher = AutoJacoBin.as_published(16, n_neighbors=40, random_state=0).fit(X)
    projections = hasher.project(X)
    assert projections.is_cuda
    assert np.array_equal((projections >= 0).cpu().numpy(), hasher.transform(digits()[:200]))
    assert ITQ(8, random_state=0).fit(X).project(X).is_cuda


def test_centres_on_a_gpu_are_those_of_the_cpu_but_for_rounding():
    cupy_with_a_gpu()
    X = np.random.default_rng(0).normal(size=(5000, 16)).astype(np.float32)
    cpu, gpu = (kmeans(X, 20, n_iterations=1, random_state=0, device=device) for device in ("cpu", "cuda"))
    assert np.allclose(cpu.points, gpu.points, atol=0.05)
    assert np.mean(cpu.assign(X) == cpu.assign(X, "cuda")) > 0.999


def test_codes_in_two_lists_are_those_of_the_cpu_but_for_rounding():
    cupy = cupy_with_a_gpu()
    X = np.random.default_rng(0).normal(size=(5000, 16)).astype(np.float32)
    hasher = PartitionedAutoencoder(2 * (16 + 4), n_lists=16, copies=2, n_iterations=2, random_state=0).fit(X)
    assert np.mean(hasher.encode(cupy.asarray(X)).to_bits() == hasher.encode(X).to_bits()) > 0.99
