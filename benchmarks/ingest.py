"""How many vectors a second an index on disk takes in: plain, with names, and with names and five columns.

python benchmarks/ingest.py [--vectors 300000] [--features 128] [--bits 64] [--rounds 3]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from autojacobin import ITQ, Index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=300_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    n, rng = options.vectors, np.random.default_rng(0)
    X = rng.normal(size=(n, options.features)).astype(np.float32)
    hasher = ITQ(options.bits, random_state=0).fit(X[:5000])
    names = [f"document {number}" for number in range(n)]
    columns = pyarrow.table({
        "price": rng.random(n), "count": rng.integers(0, 100, n), "lang": rng.choice(["de", "en", "fr"], n),
        "title": [f"title {number}" for number in range(n)], "old": rng.random(n) < 0.5,
    })  # fmt: skip
    ways: dict[str, dict[str, Any]] = {
        "plain": {}, "names": {"ids": names}, "names, five columns": {"ids": names, "payload": columns}
    }  # fmt: skip
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(options.rounds):
        for name, given in ways.items():
            with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index", hasher) as index:
                start = time.perf_counter()
                index.add(X, **given)
                best[name] = min(best[name], time.perf_counter() - start)
    for name, seconds in best.items():
        print(f"{name:22}{n / seconds:12,.0f} vectors a second{best['plain'] / seconds:8.2f} of plain")


if __name__ == "__main__":
    main()
