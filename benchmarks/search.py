"""Speed of the searches compared with FAISS: ratios of times measured alternately in one process, best of several.

    python benchmarks/search.py [--quick] [--json PATH] [--threads 2] [--large]

The codes are correlated, as hashers make them: signs of random projections of points near a curved surface. Install the
peer with: pip install faiss-cpu. ``--large`` adds the growth from 1M to 100M codes and the add of 10M vectors.

For a CPU without AVX-512, compile for one: ``NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= FAISS_SIMD_LEVEL=AVX2`` before
the command, and ``NUMBA_CPU_NAME=generic FAISS_SIMD_LEVEL=NONE`` for one with SSE2 alone. Without the empty
``NUMBA_CPU_FEATURES``, numba adds the features of this machine to those of the one that is named.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="fewer queries and rounds: under a minute")
parser.add_argument("--json", metavar="PATH")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--large", action="store_true", help="also the growth to 100M codes and the add of 10M vectors")
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before any library reads it

import faiss  # noqa: E402
import numba  # noqa: E402
import numpy as np  # noqa: E402
import timing  # noqa: E402
from vectors import surface  # noqa: E402

from autojacobin import ITQ, Codes, Index  # noqa: E402
from autojacobin.core.compilation import popcount, use_wide_registers  # noqa: E402
from autojacobin.core.parallel import run_tasks  # noqa: E402
from autojacobin.search import asymmetric_topk, hamming_topk, rerank  # noqa: E402
from autojacobin.search.centres import Centres  # noqa: E402
from autojacobin.search.hamming import hamming_queries  # noqa: E402
from autojacobin.search.tiles import Tiles, code_words, tiles_of  # noqa: E402

N = 1_000_000
QUERIES = 200 if arguments.quick else 1000
ROUNDS = 2 if arguments.quick else 4
faiss.omp_set_num_threads(arguments.threads)
results: list[dict[str, Any]] = []


def realistic(n: int, n_bits: int, seed: int) -> tuple[Codes, np.ndarray]:
    planes = np.random.default_rng(5).normal(size=(64, n_bits)).astype(np.float32)
    projections = surface(n, 64, seed) @ planes
    return Codes.from_bits(projections >= 0), projections


def fastest(candidates: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    for call in candidates.values():
        call()
    return timing.fastest(candidates, rounds)


def report(what: str, ratio: float, wanted: str, **details: float) -> None:
    results.append({"what": what, "ratio": ratio, "wanted": wanted, **details})
    print(f"{what:58} {ratio:7.2f}   ({wanted})   {details}", flush=True)


def hamming() -> None:
    for n_bits in (64, 128, 256):
        base, queries = realistic(N, n_bits, 0)[0], realistic(QUERIES, n_bits, 1)[0]
        for k, wanted in ((10, ">= 3"), (100, ">= 5"), (1000, ">= 5"), (10_000, ">= 3")):
            against_faiss(base, queries, k, wanted)
    for n_bits in (64, 256, 512, 128):
        base, queries = realistic(N, n_bits, 0)[0], realistic(QUERIES, n_bits, 1)[0]
        one = queries[:1]
        peer = faiss.IndexBinaryFlat(n_bits)
        peer.add(base.packed)
        calls = {"ours": partial(hamming_topk, one, base, 10), "faiss": partial(peer.search, one.packed, 10)}
        times = fastest(calls, rounds=50)
        ratio = times["faiss"] / times["ours"]
        report(f"one query, 1M x {n_bits} bits, k=10, against FAISS", ratio, ">= 3", **_ms(times))
    tiles, words = tiles_of(base).words, code_words(queries)
    parts = [(part.reshape(-1),) for part in np.array_split(tiles, arguments.threads)]
    times = fastest(
        {"ours": lambda: hamming_topk(one, base, 10), "reading": lambda: run_tasks(_read_alone, parts)}, rounds=200
    )
    rate = round(tiles.nbytes / times["reading"] / 1e9, 1)
    share = times["reading"] / times["ours"]
    report("one query, share of the rate at which codes are read", share, ">= 0.8", gigabytes_a_second=rate)
    halves = np.array_split(words, arguments.threads)
    times = fastest(
        {
            "ours": lambda: hamming_topk(queries, base, 10),
            "loop": lambda: run_tasks(_count_alone, [(tiles, half) for half in halves]),
        },
        rounds=10,
    )
    report("share of the popcount loop alone, 128 bits, k=10", times["loop"] / times["ours"], ">= 0.6", **_ms(times))


def against_faiss(base: Codes, queries: Codes, k: int, wanted: str) -> None:
    peer = faiss.IndexBinaryFlat(base.n_bits)
    peer.add(base.packed)
    times = fastest(
        {
            "ours": lambda: hamming_topk(queries, base, k),
            "flat": lambda: peer.search(queries.packed, k),
            "mc": lambda: faiss.knn_hamming(queries.packed, base.packed, k, variant="mc"),
        },
        rounds=1 if k == 10_000 else ROUNDS,
    )
    ratio = min(times["flat"], times["mc"]) / times["ours"]
    rate = round(N * QUERIES / times["ours"] / 1e9, 2)
    report(f"hamming {base.n_bits} bits, k={k}, against FAISS", ratio, wanted, billion_a_second=rate)


@numba.njit(nogil=True)
def _count_alone(tiles: Any, queries: Any) -> Any:
    """XOR and popcount of all codes and nothing else: the limit of the machine."""
    use_wide_registers()
    total = np.uint64(0)
    for t in range(tiles.shape[0]):
        for q in range(queries.shape[0]):
            a, b = queries[q, 0], queries[q, 1]
            for j in range(tiles.shape[2]):
                for i in range(tiles.shape[3]):
                    total += popcount(tiles[t, 0, j, i] ^ a) + popcount(tiles[t, 1, j, i] ^ b)
    return total


@numba.njit(nogil=True)
def _read_alone(words: Any) -> Any:
    """Read all codes and do next to nothing with them."""
    use_wide_registers()
    total = np.uint64(0)
    for i in range(words.shape[0]):
        total ^= words[i]
    return total


def asymmetric() -> None:
    base, _ = realistic(N, 128, 0)
    queries, projections = realistic(QUERIES, 128, 1)
    vectors, asked = surface(N, 64, 0), surface(QUERIES, 64, 1)
    rabitq = faiss.IndexRaBitQ(128, faiss.METRIC_L2)
    padded = [np.pad(part, ((0, 0), (0, 64))) for part in (vectors, asked)]
    rabitq.train(padded[0][:20_000])
    rabitq.add(padded[0])
    pq = faiss.IndexPQ(64, 16, 8)
    pq.train(vectors[:20_000])
    pq.add(vectors)
    times = fastest(
        {
            "asymmetric": lambda: asymmetric_topk(projections, base, 100),
            "hamming": lambda: hamming_topk(queries, base, 100),
            "rabitq": lambda: rabitq.search(padded[1], 100),
            "pq": lambda: pq.search(asked, 100),
        },
        rounds=1 if arguments.quick else 3,
    )
    ours = times["asymmetric"]
    report("asymmetric 128 bits, its time over that of Hamming", ours / times["hamming"], "<= 6", **_ms(times))
    report("asymmetric 128 bits, against IndexRaBitQ", times["rabitq"] / ours, "> 1")
    report("asymmetric 16 bytes, against IndexPQ", times["pq"] / ours, "> 1")


def vectors() -> None:
    """Steps after and before the codes: re-ranking beside NumPy, and the nearest of many centres beside FAISS."""
    points, asked = surface(100_000, 128, 0), surface(QUERIES, 128, 1)
    candidates = np.random.default_rng(0).integers(0, len(points), (QUERIES, 1000))
    for stored in (points.astype(np.float16), np.rint(255 * (points - points.min()) / np.ptp(points)).astype(np.uint8)):
        given = asked if stored.dtype == np.float16 else stored[:QUERIES]
        times = fastest(
            {
                "ours": partial(rerank, given, candidates, stored, 10),
                "numpy": partial(_rerank_by_numpy, given, candidates, stored),
            }
        )
        report(f"re-ranking by {stored.dtype}, against NumPy", times["numpy"] / times["ours"], "> 1", **_ms(times))
    centres, peer = Centres(points[:4096]), faiss.IndexFlatL2(128)
    peer.add(points[:4096])
    times = fastest({"ours": partial(centres.nearest, asked, 32), "faiss": partial(peer.search, asked, 32)})
    report("32 of 4,096 centres, against IndexFlatL2", times["faiss"] / times["ours"], "> 1", **_ms(times))


def _rerank_by_numpy(queries: np.ndarray, candidates: np.ndarray, stored: np.ndarray) -> None:
    for query, rows in zip(queries.astype(np.float32), candidates, strict=True):
        np.argpartition(((stored[rows] - query) ** 2).sum(axis=1), 10)


def growth() -> None:
    rng = np.random.default_rng(0)
    queries = hamming_queries(realistic(100, 64, 1)[0])
    rates = {}
    for n in (N, 10 * N, 100 * N):
        tiles = Tiles.empty(n, 64)
        for tile in tiles.words:
            tile[:] = rng.integers(0, 2**63, tile.shape, dtype=np.int64).view(np.uint64)
        times = fastest({"ours": lambda tiles=tiles: tiles.nearest(queries, 100)}, rounds=2)
        rates[n] = n * 100 / times["ours"] / 1e9
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        report(
            f"growth: {n // N}M codes of 64 bits, rate against 1M", rates[n] / rates[N], "linear: 1", peak_mb=resident
        )


def add() -> None:
    n = 10 * N
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(n, 128))
        rng = np.random.default_rng(0)
        for start in range(0, n, N):
            mapped[start : start + N] = rng.integers(0, 256, (N, 128), dtype=np.uint8)
        mapped.flush()
        mapped = np.load(path, mmap_mode="r")
        for n_bits in (64, 128):
            hasher = ITQ(n_bits, random_state=0).fit(mapped[:10_000])
            weights = np.ascontiguousarray(hasher.hyperplanes()[0].T)
            block = mapped[:65_536].astype(np.float32)
            product = seconds = float("inf")
            for turn in range(3):  # in turns, best of several, like everything here
                product = min(product, fastest({"product": lambda w=weights, b=block: b @ w}, rounds=10)["product"])
                index = Index.create(Path(folder) / f"index-{n_bits}-{turn}", hasher, keep_vectors=False)
                start = time.perf_counter()
                index.add(mapped)
                seconds = min(seconds, time.perf_counter() - start)
                index.close()
            share = (n / seconds) / (65_536 / product)
            report(f"add 10M x 128 uint8, {n_bits} bits, share of the product's rate", share, ">= 0.6", seconds=seconds)


def _ms(times: dict[str, float]) -> dict[str, float]:
    return {f"{name}_ms": round(1000 * seconds, 3) for name, seconds in times.items()}


def main() -> None:
    hamming()
    asymmetric()
    vectors()
    if arguments.large:
        growth()
        add()
    print("\nratios")
    for result in results:
        print(f"{result['ratio']:8.2f}  {result['wanted']:12} {result['what']}")
    if arguments.json:
        timing.write_results(arguments.json, results, arguments, {"faiss": faiss.__version__})


if __name__ == "__main__":
    main()
