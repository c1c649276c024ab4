"""Searches among a share of the vectors, beside the search among all.

    python benchmarks/filtered.py [--data DIR] [--set sift] [--bits 128] [--lists N] [--threads 2] [--rounds 3]

A random share of the vectors is allowed, the same for all queries of a call. All reach a recall@10 of .95 among what is
allowed: ours by ``recall=0.95``, turbovec (allow-list, 2 bits a number) with the fewest candidates that do, re-ranked
by the same function, and LanceDB (prefilter) by exact search. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", metavar="DIR", default=os.environ.get("AUTOJACOBIN_DATA"))
parser.add_argument("--set", default="sift")
parser.add_argument("--bits", type=int, default=128)
parser.add_argument("--lists", type=int, default=None, help="inverted lists of ours; none by default")
parser.add_argument("--queries", type=int, default=200)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--only", nargs="+", default=["ours", "turbovec", "LanceDB"])
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)

import numpy as np  # noqa: E402

from autojacobin import BinaryAutoencoder, Index  # noqa: E402
from autojacobin.datasets import load_set  # noqa: E402
from autojacobin.evaluation import ground_truth  # noqa: E402
from autojacobin.search import rerank  # noqa: E402

K, RECALL = 10, 0.95
SHARES = (1.0, 0.5, 0.1, 0.01, 0.001)
Search = Callable[[Any], Any]


def ours(base: Any, queries: Any) -> Search:
    index = Index(
        BinaryAutoencoder(arguments.bits, random_state=0).fit(base[::20][:20_000]), partitions=arguments.lists
    )
    index.add(base)
    return lambda allowed: index.search(
        queries, K, recall=RECALL, among=None if len(allowed) == len(base) else allowed
    )[1]


def turbovec(base: Any, queries: Any) -> Callable[[Any, int], Any]:
    from turbovec import IdMapIndex

    index = IdMapIndex(base.shape[1], 2)
    index.add_with_ids(base.astype(np.float32), np.arange(len(base), dtype=np.uint64))
    index.prepare()

    def search(allowed: Any, candidates: int) -> Any:
        limit = {} if len(allowed) == len(base) else {"allowlist": allowed.astype(np.uint64)}
        found = index.search(queries, min(candidates, len(allowed)), **limit)[1].astype(np.int64)
        return rerank(queries, found, base, K)[1]

    return search


def lancedb(base: Any, queries: Any) -> Search:
    import lancedb
    import pyarrow

    numbers = pyarrow.array(base.astype(np.float32).ravel())
    vectors = pyarrow.FixedSizeListArray.from_arrays(numbers, base.shape[1])
    order = np.random.default_rng(3).permutation(len(base))  # the share r of the vectors is where order < r n
    table = lancedb.connect(tempfile.mkdtemp()).create_table(
        "vectors", pyarrow.table({"id": np.arange(len(base)), "place": order, "vector": vectors})
    )

    def search(allowed: Any) -> Any:
        where = f"place < {len(allowed)}"
        found = [table.search(query).where(where, prefilter=True).limit(K).to_arrow()["id"] for query in queries]
        return np.array([one.to_numpy() for one in found])

    return search


def recall(found: Any, truth: Any) -> float:
    return float((np.asarray(found)[:, :, None] == truth[:, None, :]).any(2).mean())


def rate(search: Callable[[], Any]) -> float:
    times = []
    for _ in range(arguments.rounds + 1):
        start = time.perf_counter()
        search()
        times.append(time.perf_counter() - start)
    return arguments.queries / min(times[1:])


def main() -> None:
    data = load_set(arguments.set, arguments.data)
    base = np.ascontiguousarray(data.base)
    queries = np.ascontiguousarray(data.queries[: arguments.queries], dtype=np.float32)
    order = np.random.default_rng(3).permutation(len(base))
    makers: dict[str, Callable[..., Any]] = {"ours": ours, "turbovec": turbovec, "LanceDB": lancedb}
    print(f"{data.name}, {len(base):,} vectors, {len(queries)} queries a call, queries a second (recall@10)")
    print(f"{'allowed':12}{''.join(f'{share:>18.1%}' for share in SHARES)}")
    for name in arguments.only:
        make = makers[name]
        try:
            search = make(base, queries)
        except ImportError:
            continue
        cells = []
        for share in SHARES:
            allowed = np.flatnonzero(order < share * len(base))
            truth = allowed[ground_truth(base[allowed], queries, K)]
            one: Callable[[], Any] = lambda search=search, allowed=allowed: search(allowed)  # noqa: E731
            if name == "turbovec":
                sizes = (10, 15, 20, 30, 40, 60, 80, 120, 200, 400, 800, 1600)
                enough = next((size for size in sizes if recall(search(allowed, size), truth) >= RECALL), sizes[-1])
                one = lambda search=search, allowed=allowed, enough=enough: search(allowed, enough)  # noqa: E731
            cells.append(f"{rate(one):>11,.0f} ({recall(one(), truth):.3f})"[:18])
        print(f"{name:12}{''.join(f'{cell:>18}' for cell in cells)}", flush=True)


if __name__ == "__main__":
    main()
