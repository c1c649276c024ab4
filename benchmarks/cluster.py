"""Cost of the batch jobs on a cluster of two workers: processor seconds per million vectors, and overhead per task.

    python benchmarks/cluster.py [--quick] [--json PATH] [--data DIR] [--workers 2]

The base is made of the SIFT vectors of --data (or AUTOJACOBIN_DATA), copied with jitter until there are 4M x 128 bytes,
or of random bytes without such a set. It takes 0.5 GB in the temporary folder, and as much again while an index is
there. Besides the clock, processor seconds are told, which other programs on the machine disturb less: those of the
workers, and those of this process, which is client and scheduler.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from timing import write_results

from autojacobin import ITQ
from autojacobin.datasets import load_set, write_vectors
from autojacobin.jobs import build_index, connect, encode_files, search_index, true_neighbours
from autojacobin.jobs.inputs import draw_sample
from autojacobin.search.kernels.selection import merge_topk

BITS, K, QUERIES = 64, 10, 1000
FILES = 8

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="512k vectors instead of 4M, and fewer empty tasks")
parser.add_argument("--json", metavar="PATH")
parser.add_argument("--data", metavar="DIR", default=os.environ.get("AUTOJACOBIN_DATA"))
parser.add_argument("--workers", type=int, default=2)


def nothing(number: int) -> int:
    return number


def small_answer(number: int) -> tuple[Any, Any]:
    return np.array([[number]]), np.array([[number]])


def write_base(folder: Path, data: str | None, n: int) -> np.ndarray:
    """Write the base as files, and return queries."""
    rng = np.random.default_rng(0)
    if data is None:
        seeds = rng.integers(0, 128, size=(10_000, 128)).astype(np.uint8)
    else:
        seeds = np.clip(np.asarray(load_set("sift", data).base, dtype=np.float32), 0, 255).astype(np.uint8)

    def jittered(count: int) -> np.ndarray:
        rows = seeds[rng.integers(0, len(seeds), count)].astype(np.int16)
        return np.clip(rows + rng.integers(-8, 9, size=rows.shape, dtype=np.int16), 0, 255).astype(np.uint8)

    for number in range(FILES):
        write_vectors(folder / f"part-{number}.u8bin", jittered(n // FILES))
    return jittered(QUERIES)


def main() -> None:
    arguments = parser.parse_args()
    n = 2**19 if arguments.quick else 2**22
    tasks = 200 if arguments.quick else 2000
    cut = {"rows_per_chunk": n // 8}
    results: dict[str, Any] = {"vectors": n, "dimension": 128, "bits": BITS, "queries": QUERIES, "k": K}
    with tempfile.TemporaryDirectory() as place, connect(f"local:{arguments.workers}") as cluster:
        folder = Path(place)
        queries = write_base(folder, arguments.data, n)
        base = str(folder / "part-*.u8bin")
        client = cluster.client

        def timed(name: str, work: Callable[[], Any], per: float, unit: str) -> Any:
            before, start = sum(client.run(time.process_time).values()), time.perf_counter()
            own = time.process_time()
            answer = work()
            wall, own = time.perf_counter() - start, time.process_time() - own
            processor = sum(client.run(time.process_time).values()) - before
            measured = {"workers": processor, "scheduler_and_client": own, "clock": wall}
            results[name] = {"per": unit} | {what: seconds / per for what, seconds in measured.items()}
            told = ", ".join(f"{seconds / per:8.4g} {what}" for what, seconds in measured.items())
            print(f"{name:36} {told}, seconds a {unit}", flush=True)
            return answer

        millions, million = n / 1e6, "million vectors"
        start = time.perf_counter()
        hasher = ITQ(BITS, random_state=0).fit(draw_sample(base, 20_000))
        results["sample_and_train_seconds"] = time.perf_counter() - start
        for name in ("warm up", "encode"):
            work = partial(encode_files, base, hasher, folder / name, cluster, **cut)
            timed(name, work, millions, million)
        timed(
            "build with vectors",
            lambda: build_index(base, hasher, folder / "index", cluster, **cut),
            millions,
            million,
        )
        results["index_bytes"] = sum(file.stat().st_size for file in (folder / "index").iterdir())

        def search(**options: Any) -> Any:
            return search_index(folder / "index", queries, K, cluster, **options)

        for again in ("warm up", ""):
            timed(f"{again} search codes, k = {K}".strip(), lambda: search(rerank=False), millions, million)
            timed(f"{again} search and re-rank".strip(), search, millions, million)
            timed(f"{again} asymmetric search".strip(), lambda: search(distance="asymmetric", rerank=False), millions,
                  million)  # fmt: skip

        def truth(asked: np.ndarray) -> Any:
            return true_neighbours(base, asked, 100, cluster, **cut)

        timed("warm up truth", lambda: truth(queries[:100]), millions, million)
        timed("ground truth, 1,000 queries, k = 100", lambda: truth(queries), millions,
              million)  # fmt: skip

        calls = [(number,) for number in range(tasks)]
        timed("empty tasks", lambda: list(cluster.each("nothing", nothing, calls)), tasks, "task")
        timed("empty tasks with their tree", lambda: cluster.merged("small", small_answer, calls, merge_topk, 1), tasks,
              "task")  # fmt: skip
    if arguments.json:
        write_results(arguments.json, results, arguments)


if __name__ == "__main__":
    main()
