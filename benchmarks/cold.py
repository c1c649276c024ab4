"""Searches of an index with inverted lists whose vectors are on the disk: with a cold cache, then with a warm one.

    python benchmarks/cold.py [--data DIR] [--set sift] [--bits 64] [--lists 4096] [--queries 200]

The caches of the system are emptied (which needs root), the index is opened, and its first query is timed, which reads
and checks the lists. Then other queries are asked one at a time: each reads the vectors of its candidates from the
disk. The same queries are asked again when everything is in the cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from autojacobin import BinaryAutoencoder, Index
from autojacobin.datasets import load_set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", default=os.environ.get("AUTOJACOBIN_DATA"))
    parser.add_argument("--set", default="sift")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--lists", type=int, default=4096)
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    data = load_set(options.set, options.data)
    base, queries = np.asarray(data.base), np.asarray(data.queries[: options.queries + 1], dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        hasher = BinaryAutoencoder(options.bits, random_state=0).fit(base[::20][:10_000])
        with Index.create(path, hasher, partitions=options.lists) as index:
            index.add(base)
            index.search(queries[:3], 10, recall=0.95)  # compiles, and learns
            plan = index.plan(10, recall=0.95)
        sizes = {file.name.split("-")[0]: file.stat().st_size for file in path.iterdir()}
        print(f"{len(base):,} vectors, {plan.lists:.1f} lists, {plan.candidates} candidates")
        print(f"MB: { ({kind: round(size / 1e6, 1) for kind, size in sizes.items()}) }")
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        start = time.perf_counter()
        with Index.open(path) as index:
            index.search(queries[:1], 10, recall=0.95)
            print(f"opened, first query: {time.perf_counter() - start:.2f} s")
            for cache in ("cold", "warm"):
                times = []
                for number in range(1, len(queries)):
                    start = time.perf_counter()
                    index.search(queries[number : number + 1], 10, recall=0.95)
                    times.append(1e6 * (time.perf_counter() - start))
                print(f"{cache}: median {np.median(times):,.0f} µs, p99 {np.quantile(times, 0.99):,.0f} µs")


if __name__ == "__main__":
    main()
