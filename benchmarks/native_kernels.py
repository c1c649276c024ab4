"""Times the kernels of one level against those of another, or against numba's where they still exist, in turns.

    python benchmarks/native_kernels.py                      # the best level against numba
    python benchmarks/native_kernels.py --against x86-64-v3  # against another level

Each line is a case: microseconds of both, and the ratio, the median over pairs of runs that follow each other. Answers
are compared first. AUTOJACOBIN_LEVEL names the level that is measured; NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= lets
numba compile for AVX2.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autojacobin import _native

NO_PLANES = np.empty((0, 0, 0), dtype=np.uint64)
ALL_ALLOWED = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", default="numba", help="numba, or a level")
    parser.add_argument("--seconds", type=float, default=4, help="for each case")
    parser.add_argument("--only", default="", help="a part of the names of the cases")
    options = parser.parse_args()
    print(f"{_native.LEVEL} against {options.against}; one thread")
    print(f"{'case':<44}{'µs':>9}{'other':>9}{'ratio':>8}")
    other = _numba() if options.against == "numba" else _native.load(options.against)
    for name, call in cases():
        if options.only not in name or not (there := call(other)):
            continue
        here = call(_native.kernels)
        for mine, theirs in zip(in_order(here()), in_order(there()), strict=True):
            assert np.array_equal(mine, theirs), f"{name}: answers differ"
        times = measure(here, there, options.seconds)
        ratio = statistics.median(mine / theirs for mine, theirs in times)
        best = [min(run[i] for run in times) * 1e6 for i in (0, 1)]
        print(f"{name:<44}{best[0]:9.0f}{best[1]:9.0f}{ratio:8.2f}", flush=True)


def in_order(results: Any) -> Any:
    distances, positions = results
    order = np.lexsort((positions, distances), axis=1)
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(positions, order, axis=1)


def measure(one: Callable[[], Any], other: Callable[[], Any], seconds: float) -> list[list[float]]:
    """Times of both, which take turns to be the first of a pair."""
    times: list[list[float]] = []
    end, calls = time.perf_counter() + seconds, (one, other)
    while len(times) < 6 or time.perf_counter() < end:
        pair, first = [0.0, 0.0], len(times) % 2
        for i in (first, 1 - first):
            begun = time.perf_counter()
            calls[i]()
            pair[i] = time.perf_counter() - begun
        times.append(pair)
    return times


def cases() -> Iterator[tuple[str, Callable[[Any], Callable[[], Any] | None]]]:
    """Names of cases, and what makes a call of the kernels that are given; None where these have no such kernel."""
    rng = np.random.default_rng(0)
    for n_bytes, k in ((16, 100), (16, 400), (8, 100), (48, 60)):
        for n_queries in (256, 1):
            yield f"lists, {n_bytes} bytes, k = {k}, {n_queries} queries", lists(rng, n_bytes, k, n_queries)
    for n_bits in (64, 128, 256, 384, 512):
        yield f"slices, {n_bits} bits, Hamming", slices(rng, n_bits, 0)
    for n_bits in (64, 128, 256):
        yield f"slices, {n_bits} bits, weighted", slices(rng, n_bits, 4)


def lists(rng: Any, n_bytes: int, k: int, n_queries: int) -> Callable[[Any], Callable[[], Any] | None]:
    n_lists, n_probes = 600, 40
    bounds = np.concatenate([[0], np.cumsum(rng.integers(100, 400, n_lists))]).astype(np.int64)
    n = int(bounds[-1])
    n_blocks = -(-n // 64)
    blocks = rng.integers(0, 256, (n_blocks, n_bytes, 64), dtype=np.uint8)
    offsets = rng.integers(0, 256, 64 * n_blocks, dtype=np.uint8)
    positions = rng.permutation(n).astype(np.int32)
    tables = rng.integers(0, min(127, 2**14 // n_bytes), (n_queries, n_bytes, 2, 16), dtype=np.uint8)
    factors = rng.integers(20, 60, n_queries)
    probes = np.stack([rng.permutation(n_lists)[:n_probes] for _ in range(n_queries)]).astype(np.int32)
    starts = np.sort(rng.integers(0, 40 * n_bytes, probes.shape), axis=1).astype(np.int32)

    def call(kernels: Any) -> Callable[[], Any] | None:
        if kernels is not _native.kernels and hasattr(kernels, "scan_lists_of_numba"):
            found, nearest = np.empty((n_queries, k), dtype=np.int32), np.empty((n_queries, k), dtype=np.int64)

            def run() -> Any:
                kernels.scan_lists_of_numba(
                    (blocks, offsets),
                    bounds,
                    positions,
                    ALL_ALLOWED,
                    tables,
                    factors,
                    probes,
                    starts,
                    k,
                    found,
                    nearest,
                )
                return found, nearest

            return run
        codes = kernels.ListCodes(blocks, offsets, bounds, positions)
        return lambda: kernels.scan_lists(codes, *ALL_ALLOWED, tables, factors, probes, starts, k)

    return call


def slices(rng: Any, n_bits: int, n_planes: int) -> Callable[[Any], Callable[[], Any] | None]:
    n_words, n_queries, k, n = n_bits // 64, 256, 10, 2**17
    lanes, codes = (8, 2048) if n_words <= 2 else (4, 1024 if n_words <= 4 else 512)
    some = rng.integers(0, 2**64, (2, n // codes, n_words, lanes, codes // lanes), dtype=np.uint64)
    words = some[0] & some[1]
    queries = rng.integers(0, 2**64, (2, n_queries, n_words), dtype=np.uint64)
    asked = queries[0] & queries[1]
    planes = rng.integers(0, 2**64, (n_queries, n_planes, n_words), dtype=np.uint64) if n_planes else NO_PLANES
    n_levels = (2**n_planes - 1 if n_planes else 1) * n_bits + 1
    allowed = np.full(n // 64, 2**64 - 1, dtype=np.uint64)

    def call(kernels: Any) -> Callable[[], Any] | None:
        if hasattr(kernels, "scan_lists_of_numba"):
            by_slices = kernels.by_slices
            return by_slices and (lambda: by_slices(words, n, asked, planes, k, allowed, n_levels))

        def run() -> Any:
            radii = kernels.estimate_radii(words, n, asked, planes, n_levels, allowed, k, 2 * k + 512)
            return kernels.scan_slices(words, asked, planes, n_levels, allowed, radii, k)

        return run

    return call


class _numba:  # noqa: N801
    """Numba's kernels. Those that are gone from the sources come from a copy of older ones, named numbajacobin."""

    def __init__(self) -> None:
        from autojacobin.search.kernels.list_scan import scan_lists

        self.scan_lists_of_numba, self.by_slices = scan_lists, None
        try:
            from numbajacobin.search.kernels.scan import _by_slices
        except ImportError:
            return
        self.by_slices = _by_slices


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
