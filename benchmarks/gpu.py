"""Speed of searches on a GPU, with codes and vectors there: best and median of several runs, beside the goals.

    python benchmarks/gpu.py [--quick] [--large 100000000] [--index] [--json PATH]

Every result is compared with a brute force of CuPy on some of the queries before it is timed. ``--large`` adds a base
of that many codes. ``--index`` adds a whole index against all CPU cores, and encoding.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from timing import write_results

from autojacobin.codes import Codes
from autojacobin.search.gpu import DeviceCodes, DeviceProjection, DeviceQueries, DeviceVectors, RerankedSearch
from autojacobin.search.queries import Projection

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="20,000 codes and vectors instead of a million")
parser.add_argument("--large", type=int, default=0)
parser.add_argument("--index", action="store_true")
parser.add_argument("--json", metavar="PATH")
arguments = parser.parse_args()

QUERIES, BITS, WIDTH, ROUNDS = 1_000, 128, 128, 20
N = 20_000 if arguments.quick else 1_000_000
results: list[dict[str, Any]] = []


def report(what: str, goal: float | None, run: Callable[[], Any], rounds: int = ROUNDS) -> None:
    """Print the time of a call in milliseconds, until its results are on the GPU."""
    run()
    times = []
    for _ in range(rounds):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        run()
        cupy.cuda.Device().synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    best, median = min(times), float(np.median(times))
    results.append({"what": what, "goal_ms": goal, "best_ms": best, "median_ms": median})
    print(f"{what:58} {best:9.3f} best {median:9.3f} median ms   goal {goal}", flush=True)


def random_codes(n: int, seed: int) -> Codes:
    """Codes near random centres, so that some are nearer than others."""
    rng = cupy.random.RandomState(seed)
    centres = cupy.random.RandomState(0).randint(0, 256, (4_096, BITS // 8), dtype=cupy.uint8)
    packed = cupy.empty((n, BITS // 8), dtype=cupy.uint8)
    for start in range(0, n, 10**7):
        rows = slice(start, min(start + 10**7, n))
        shape = (rows.stop - start, BITS // 8)
        noise = rng.randint(0, 256, shape, dtype=cupy.uint8) & rng.randint(0, 256, shape, dtype=cupy.uint8)
        packed[rows] = centres[rng.randint(0, len(centres), shape[0])] ^ noise
    return Codes(packed, BITS)


def check(keys: Any, distances: Any, k: int) -> None:
    """Compare hits of the first queries with all their distances, in order and with ties by position."""
    rows = distances.astype(cupy.uint64) << np.uint64(32) | cupy.arange(distances.shape[1], dtype=cupy.uint64)
    assert bool((keys[: len(rows)] == cupy.sort(rows, axis=1)[:, :k]).all()), "wrong answers"


def bits_of(codes: Codes) -> Any:
    return cupy.unpackbits(codes.packed.ravel(), bitorder="little").reshape(len(codes), -1)


def hamming_and_weighted(n: int, goals: dict[int, float | None]) -> None:
    base, asked = random_codes(n, 1), random_codes(QUERIES, 2)
    store, queries = DeviceCodes(base), DeviceQueries.of_codes(asked)
    weights = cupy.random.RandomState(3).randint(0, 16, (QUERIES, BITS)).astype(cupy.uint8)
    ones = cupy.ones_like(weights)
    bits = bits_of(asked) > 0
    scales = cupy.ones(QUERIES)
    weighted = DeviceQueries.weighted(bits, weights, scales)
    as_products = DeviceQueries.weighted(bits, ones, scales)  # the Hamming distance by tensor cores
    some = bits_of(base[: min(n, 2_000_000)]) if n <= 2_000_000 else None
    for k, goal in goals.items():
        if some is not None:
            differing = (bits[:3, None] != some[None]).astype(cupy.float32)
            check(store.lowest(queries, k), differing.sum(axis=2), k)
            check(store.lowest(as_products, k), differing.sum(axis=2), k)
            check(store.lowest(weighted, k), (differing * weights[:3, None]).sum(axis=2), k)
            del differing
        rounds = ROUNDS if n <= 10**7 else 5
        report(f"Hamming {BITS} bits, {n:,}, k = {k}", goal, lambda k=k: store.lowest(queries, k), rounds)
        report(f"  the same by tensor cores, k = {k}", goal, lambda k=k: store.lowest(as_products, k), rounds)
        report(f"weighted {BITS} bits, {n:,}, k = {k}", None, lambda k=k: store.lowest(weighted, k), rounds)
    if n <= 10**7:
        for number in (1, 10, 100):
            some_queries = weighted[slice(0, number)]
            report(f"weighted, {n:,}, {number} queries, k = 100", None, lambda q=some_queries: store.lowest(q, 100))


def vectors(n: int) -> None:
    rng = cupy.random.RandomState(4)
    X = rng.standard_normal((n, WIDTH), dtype=cupy.float32)
    Q = rng.standard_normal((QUERIES, WIDTH), dtype=cupy.float32)
    store = DeviceVectors(X)
    distances, ids = store.nearest(Q, 100)
    for row in range(2):
        squared = ((X.astype(cupy.float64) - Q[row]) ** 2).sum(axis=1)
        expected = cupy.argsort(squared)[:100]
        assert bool((ids[row] == expected).all()), "wrong neighbours"
        assert bool(cupy.allclose(distances[row] ** 2, squared[expected], rtol=1e-10))
    report(f"true neighbours, {n:,} × {WIDTH}, k = 100", 15, lambda: store.nearest(Q, 100))
    report(f"true neighbours of one query, {n:,} × {WIDTH}, k = 100", None, lambda: store.nearest(Q[:1], 100))
    candidates = rng.randint(0, n, (QUERIES, 100))
    report("re-ranking 100 candidates to 10", None, lambda: store.among(Q, candidates, 10))
    planes = np.random.default_rng(5).normal(size=(BITS, WIDTH))
    bits = cupy.concatenate([part @ cupy.asarray(planes.T) >= 0 for part in cupy.array_split(X, 20)])
    projection = DeviceProjection(Projection(planes, np.zeros(WIDTH), np.zeros(BITS)), 15, decoded=True)
    search, asked = RerankedSearch(DeviceCodes(Codes.from_bits(bits)), store, projection), cupy.asnumpy(Q)
    for number, goal in ((1, 0.15), (8, None), (9, None), (QUERIES, 4.0)):
        few = asked[:number]
        report(
            f"decoded, 100 candidates, re-ranked, {number} queries", goal, lambda few=few: search.nearest(few, 100, 10)
        )


def index(n: int) -> None:
    from autojacobin import BinaryAutoencoder, Index, PartitionedAutoencoder  # which load numba

    rng = np.random.default_rng(0)
    latent = rng.normal(size=(24, WIDTH)).astype(np.float32)
    X = rng.normal(size=(n, 24)).astype(np.float32) @ latent + rng.normal(size=(n, WIDTH)).astype(np.float32)
    Q = rng.normal(size=(QUERIES, 24)).astype(np.float32) @ latent + rng.normal(size=(QUERIES, WIDTH)).astype(
        np.float32
    )
    made = Index.from_vectors(X, BinaryAutoencoder(BITS, n_iterations=10, random_state=0, device="cuda"))
    there = made.to("cuda")
    exact = there.search(Q, 10, recall=1)[1]
    for name, one in (("the CPU", made), ("the GPU", there)):
        found = one.search(Q, 10, recall=0.95)[1]
        recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, exact, strict=True)])
        report(f"index on {name}, recall {recall:.3f}", 4 if one is there else None, lambda one=one: one.search(Q, 10))
    report("index on the GPU, one query", 0.15, lambda: there.search(Q[:1], 10))
    report("index on the GPU, 100 candidates", 4, lambda: there.search(Q, 10, candidates=100))
    hasher, block = there._state.hasher, cupy.asarray(X)
    report(f"encode {n:,} on the GPU", n / 5e6 * 1e3, lambda: hasher.encode(block), 3)
    report(f"encode {n:,} from the host", n / 5e6 * 1e3, lambda: hasher.encode(X), 3)
    for copies in (1, 2):
        n_bits = copies * (BITS + 12)
        lists = PartitionedAutoencoder(n_bits, n_lists=4_096, copies=copies, random_state=0, device="cuda")
        lists.fit(X[: 64 * 4_096])
        report(f"encode {n:,} in {copies} list(s) each", n / 5e6 * 1e3, lambda lists=lists: lists.encode(block), 3)


if __name__ == "__main__":
    print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), "CuPy", cupy.__version__, flush=True)
    hamming_and_weighted(N, {10: 1.6, 100: 1.8, 1_000: 3.0})
    vectors(N)
    if arguments.large:
        hamming_and_weighted(arguments.large, {10: 110.0})
    if arguments.index:
        index(N)
    if arguments.json:
        write_results(arguments.json, results, arguments)
