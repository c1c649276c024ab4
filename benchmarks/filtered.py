"""Searches among a share of the vectors, beside the search among all.

    python benchmarks/filtered.py [--data DIR] [--set sift] [--bits 128] [--lists N] [--threads 2] [--rounds 3]
                                  [--json PATH]

A random share of the vectors is allowed, the same for all queries of a call. All reach a recall@10 of .95 among what is
allowed: ours by ``recall=0.95``; turbovec (allow-list, 2 bits a number) with the fewest candidates that do, re-ranked
by the same function; LanceDB (prefilter, IVF-PQ and a scalar index on the filter, re-ranked by itself) with the fewest
lists that do, or by an exact scan of what is allowed if that is little. LanceDB answers queries one by one and gets
``--single-queries`` of them. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", metavar="DIR", default=os.environ.get("AUTOJACOBIN_DATA"))
parser.add_argument("--set", default="sift")
parser.add_argument("--bits", type=int, default=128)
parser.add_argument("--lists", type=int, default=None, help="inverted lists of ours; none by default")
parser.add_argument("--queries", type=int, default=200)
parser.add_argument("--single-queries", type=int, default=20, help="queries for LanceDB, which takes them one by one")
parser.add_argument("--points", type=int, default=None, help="vectors of the base to use; all by default")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--only", nargs="+", default=["ours", "turbovec", "LanceDB"])
parser.add_argument("--json", metavar="PATH")
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)

import numpy as np  # noqa: E402
from timing import write_results  # noqa: E402

from autojacobin import BinaryAutoencoder, Index  # noqa: E402
from autojacobin.datasets import load_set  # noqa: E402
from autojacobin.evaluation import ground_truth  # noqa: E402
from autojacobin.search import rerank  # noqa: E402

K, RECALL = 10, 0.95
SHARES = (1.0, 0.5, 0.1, 0.01, 0.001)
CANDIDATES = (10, 15, 20, 30, 40, 60, 80, 120, 200, 400, 800, 1600)
PROBES = (5, 10, 20, 40, 80, 160, 320, 640)
REFINED = 10  # vectors that LanceDB re-ranks for each neighbour
QUICK_TO_SCAN = 20_000
Search = Callable[[], Any]
Ways = Callable[[Any], list[Search]]  # from what is allowed to searches, each with more effort than the one before


def ours(base: Any, queries: Any) -> Ways:
    index = Index(
        BinaryAutoencoder(arguments.bits, random_state=0).fit(base[::20][:20_000], training_points=None),
        partitions=arguments.lists,
    )
    index.add(base)

    def search(allowed: Any) -> Any:
        return index.search(queries, K, recall=RECALL, among=None if len(allowed) == len(base) else allowed)[1]

    return lambda allowed: [partial(search, allowed)]


def turbovec(base: Any, queries: Any) -> Ways:
    from turbovec import IdMapIndex

    index = IdMapIndex(base.shape[1], 2)
    index.add_with_ids(base.astype(np.float32), np.arange(len(base), dtype=np.uint64))
    index.prepare()

    def search(allowed: Any, candidates: int) -> Any:
        limit = {} if len(allowed) == len(base) else {"allowlist": allowed.astype(np.uint64)}
        found = index.search(queries, min(candidates, len(allowed)), **limit)[1].astype(np.int64)
        return rerank(queries, found, base, K)[1]

    return lambda allowed: [partial(search, allowed, size) for size in CANDIDATES]


def lancedb(base: Any, queries: Any) -> Ways:
    import lancedb
    import pyarrow
    from lancedb.index import BTree, IvfPq

    numbers = pyarrow.array(base.astype(np.float32).ravel())
    vectors = pyarrow.FixedSizeListArray.from_arrays(numbers, base.shape[1])
    order = np.random.default_rng(3).permutation(len(base))  # the share r of the vectors is where order < r n
    table = lancedb.connect(tempfile.mkdtemp()).create_table(
        "vectors", pyarrow.table({"id": np.arange(len(base)), "place": order, "vector": vectors})
    )

    lists, numbers_per_code = round(len(base) ** 0.5), base.shape[1] // 4
    table.create_index("vector", config=IvfPq("l2", num_partitions=lists, num_sub_vectors=numbers_per_code))
    table.create_index("place", config=BTree())

    def search(allowed: Any, probes: int | None) -> Any:
        found = []
        for query in queries[: arguments.single_queries]:
            asked = table.search(query).where(f"place < {len(allowed)}", prefilter=True).limit(K)
            asked = asked.bypass_vector_index() if probes is None else asked.nprobes(probes).refine_factor(REFINED)
            ids = asked.to_arrow()["id"].to_numpy()
            found.append(np.pad(ids, (0, K - len(ids)), constant_values=-1))  # few lists may hold fewer than K
        return np.array(found)

    def ways(allowed: Any) -> list[Search]:
        efforts = (None,) if len(allowed) <= QUICK_TO_SCAN else (*PROBES, None)
        return [partial(search, allowed, effort) for effort in efforts]

    return ways


def recall(found: Any, truth: Any) -> float:
    return float((np.asarray(found)[:, :, None] == truth[: len(found), None, :]).any(2).mean())


def rate(search: Search) -> float:
    times = []
    for _ in range(arguments.rounds):
        start = time.perf_counter()
        found = search()
        times.append(time.perf_counter() - start)
    return len(found) / min(times)


def main() -> None:
    data = load_set(arguments.set, arguments.data)
    base = np.ascontiguousarray(data.base[: arguments.points])
    queries = np.ascontiguousarray(data.queries[: arguments.queries], dtype=np.float32)
    order = np.random.default_rng(3).permutation(len(base))
    makers: dict[str, Callable[[Any, Any], Ways]] = {"ours": ours, "turbovec": turbovec, "LanceDB": lancedb}
    results: list[dict[str, Any]] = []
    print(f"{data.name}, {len(base):,} vectors, {len(queries)} queries a call, queries a second (recall@10)")
    print(f"{'allowed':12}{''.join(f'{share:>18.1%}' for share in SHARES)}")
    for name in arguments.only:
        try:
            ways = makers[name](base, queries)
        except ImportError:
            continue
        cells = []
        for share in SHARES:
            allowed = np.flatnonzero(order < share * len(base))
            truth = allowed[ground_truth(base[allowed], queries, K)]
            for search in ways(allowed):  # the last one stays if none finds enough
                found = recall(search(), truth)
                if found >= RECALL:
                    break
            speed = rate(search)
            results.append({"name": name, "share": share, "per_second": speed, "recall": found})
            cells.append(f"{speed:,.0f} ({found:.3f})")
        print(f"{name:12}{''.join(f'{cell:>18}' for cell in cells)}", flush=True)
    if arguments.json:
        peers = {one["name"].lower() for one in results} - {"ours"}
        write_results(arguments.json, results, arguments, {peer: importlib.metadata.version(peer) for peer in peers})


if __name__ == "__main__":
    main()
