"""How the time of a query grows with the number of vectors in an index with inverted lists.

    python benchmarks/growth.py [--sizes 1000000 10000000] [--bits 64] [--device cuda] [--threads 2] [--json PATH]

The vectors are synthetic: 64 bytes each, from a smooth function of 12 random numbers, so that they lie near a curved
surface of 12 dimensions. Each size has the lists that an index of this size makes by itself. Lists and candidates are
chosen for a recall of .95, which is then measured on other queries with exact neighbours. Times are of one call with
all queries, best of several.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000, 4_000_000])
parser.add_argument("--bits", type=int, default=64)
parser.add_argument("--queries", type=int, default=2000)
parser.add_argument("--recall", type=float, default=0.95)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where to train and encode")
parser.add_argument("--threads", type=int, default=2, help="of the search")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--json", metavar="PATH")
arguments = parser.parse_args()

import numpy as np  # noqa: E402
from timing import write_results  # noqa: E402

from autojacobin import Index, PartitionedAutoencoder  # noqa: E402
from autojacobin.core import parallel  # noqa: E402
from autojacobin.evaluation import ground_truth  # noqa: E402
from autojacobin.index.growth import wanted_lists  # noqa: E402

K, WIDTH, LATENT, BLOCK = 10, 64, 12, 2**18


def vectors(n: int, seed: int) -> Any:
    """Points near a curved surface, as bytes."""
    shape = np.random.default_rng(0)
    first, second = shape.normal(size=(LATENT, 96)), shape.normal(size=(96, WIDTH)) / math.sqrt(96)

    def block(number: int) -> Any:
        rng = np.random.default_rng([seed, number])
        rows = min(BLOCK, n - number * BLOCK)
        points = np.tanh(rng.normal(size=(rows, LATENT)).astype(np.float32) @ first.astype(np.float32) / 3)
        values = points @ second.astype(np.float32) + 0.02 * rng.standard_normal((rows, WIDTH), dtype=np.float32)
        return np.clip(values * 50 + 128, 0, 255).astype(np.uint8)

    return np.concatenate(list(parallel.run_tasks(block, [(number,) for number in range(-(-n // BLOCK))])))


def main() -> None:
    queries = vectors(arguments.queries, seed=7).astype(np.float32)
    results: list[dict[str, Any]] = []
    print(f"{'vectors':>12}{'lists':>8}{'probes':>8}{'candidates':>12}{'recall':>8}{'µs a query':>12}{'build, s':>10}")
    for n in arguments.sizes:
        base = vectors(n, seed=1)
        lists = wanted_lists("auto", n)
        start = time.perf_counter()
        rows = np.sort(np.random.default_rng(2).choice(n, min(n, 64 * lists), replace=False))
        n_bits = arguments.bits + (lists - 1).bit_length()
        hasher = PartitionedAutoencoder(n_bits, n_lists=lists, random_state=0, device=arguments.device)
        index = Index(hasher.fit(base[rows]))
        index.add(base)
        seconds = time.perf_counter() - start
        chosen = index.plan(K, recall=arguments.recall)
        os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[: arguments.threads]))

        def search(index: Index = index) -> Any:
            return index.search(queries, K, recall=arguments.recall)[1]

        found = search()
        times = []
        for _ in range(arguments.rounds):
            begin = time.perf_counter()
            search()
            times.append(time.perf_counter() - begin)
        os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
        parts = [base[first : first + 2**22] for first in range(0, n, 2**22)]
        near = np.concatenate([ground_truth(part, queries, K) + 2**22 * i for i, part in enumerate(parts)], axis=1)
        gaps = ((base[near].astype(np.int32) - queries[:, np.newaxis].astype(np.int32)) ** 2).sum(axis=2)
        truth = np.take_along_axis(near, np.lexsort((near, gaps), axis=1)[:, :K], axis=1)
        recall = float((found[:, :, None] == truth[:, None, :]).any(2).mean())
        took = 1e6 * min(times) / len(queries)
        print(
            f"{n:12,}{lists:8,}{chosen.lists:8.1f}{chosen.candidates:12,}{recall:8.3f}{took:12.1f}{seconds:10.1f}",
            flush=True,
        )
        results.append({"vectors": n, "lists": lists, "probes": chosen.lists, "candidates": chosen.candidates,
                        "recall": recall, "us": took, "build_seconds": seconds})  # fmt: skip
    if arguments.json:
        write_results(arguments.json, results, arguments)


if __name__ == "__main__":
    main()
