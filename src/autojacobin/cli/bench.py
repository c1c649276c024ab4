"""``autojacobin bench``: how fast this machine encodes and searches, and how that compares with FAISS."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.table import Table

from autojacobin.cli._options import AsJson, Config, Debug, Quiet, Seed, Threads
from autojacobin.cli._progress import Tell, progress_bar
from autojacobin.cli._report import print_json, print_table
from autojacobin.errors import DataError

__all__ = ["bench"]

_INNER_DIMENSIONS = 12
_TRAINING_POINTS = 10_000

Work = Callable[[], Any]


def bench(
    bits: Annotated[int, typer.Option("--bits", "-b", min=1, help="Length of a code.")] = 64,
    points: Annotated[int, typer.Option("--points", min=100, help="Vectors to encode and to search among.")] = 200_000,
    features: Annotated[int, typer.Option("--features", min=1, help="Numbers a vector.")] = 128,
    queries: Annotated[int, typer.Option("--queries", min=1, help="Queries at once.")] = 200,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours of each query.")] = 10,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds; the best of each counts.")] = 5,
    seed: Seed = 0,
    _threads: Threads = None,
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how fast this machine encodes and searches, beside FAISS if that is installed.

    All take turns on the same codes in this process, after a first call that does not count.

    Example: autojacobin bench --points 5000 --queries 20 --rounds 2
    """
    from autojacobin.core.parallel import usable_cores

    if k > points:
        raise typer.BadParameter(f"{k} is more than the {points} points", param_hint="'-k'")
    with progress_bar(quiet=quiet or as_json) as tell:
        tell("making points near a curved surface", 0, 0)
        base, asked = _surface(points, features, seed, 0), _surface(queries, features, seed, 1)
        works = _works(base, asked, bits, k, seed)
        best = _fastest(works, rounds, tell)
    rows = {name: _row(name, seconds, best, points, queries) for name, seconds in best.items()}
    settings = {"bits": bits, "points": points, "features": features, "queries": queries, "k": k, "rounds": rounds}
    settings |= {"seed": seed, "cores": usable_cores()}
    if as_json:
        print_json({**settings, "measured": rows})
    else:
        _print(rows, settings)


def _surface(n: int, features: int, seed: int, part: int) -> npt.NDArray[np.float32]:
    """Points near a curved surface of few dimensions, so that bits depend on each other as those of real data do."""
    mixing = np.random.default_rng(seed).normal(size=(2, _INNER_DIMENSIONS, features)).astype(np.float32)
    inner = np.random.default_rng([seed, part]).normal(size=(n, _INNER_DIMENSIONS)).astype(np.float32)
    points: npt.NDArray[np.float32] = np.tanh(inner @ mixing[0]) + np.float32(0.3) * (inner @ mixing[1])
    return points


def _works(base: Any, asked: Any, bits: int, k: int, seed: int) -> dict[str, Work]:
    """What is timed, by name; FAISS is asked for the same, and its answer is compared before anything is timed."""
    from autojacobin.hashers import LSH
    from autojacobin.search import asymmetric_topk, hamming_topk

    hasher = LSH(bits, random_state=seed).fit(base[:_TRAINING_POINTS])
    codes, query_codes, projections = hasher.encode(base), hasher.encode(asked), hasher.project(asked)
    works: dict[str, Work] = {
        "encode": lambda: hasher.encode(base),
        "hamming": lambda: hamming_topk(query_codes, codes, k),
        "asymmetric": lambda: asymmetric_topk(projections, codes, k),
    }
    try:
        import faiss
    except ImportError:
        return works
    if bits % 8:  # FAISS has codes of whole bytes only
        return works
    from autojacobin.core.parallel import usable_cores

    faiss.omp_set_num_threads(usable_cores())
    peer = faiss.IndexBinaryFlat(bits)
    peer.add(codes.packed)
    works["faiss flat"] = lambda: peer.search(query_codes.packed, k)
    works["faiss counting"] = lambda: faiss.knn_hamming(query_codes.packed, codes.packed, k, variant="mc")
    if not np.array_equal(works["hamming"]()[0], works["faiss flat"]()[0]):
        raise DataError("FAISS found other distances than this library, so nothing was timed; please report it")
    return works


def _fastest(works: dict[str, Work], rounds: int, tell: Tell) -> dict[str, float]:
    """Best time of each, taken in turns so that all of them meet the same noise."""
    best = dict.fromkeys(works, float("inf"))
    for turn in range(rounds + 1):
        for name, work in works.items():
            tell("measuring", turn, rounds + 1)
            start = time.perf_counter()
            work()
            if turn:  # the first call compiles, and lays out the codes
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def _row(name: str, seconds: float, best: dict[str, float], points: int, queries: int) -> dict[str, Any]:
    row: dict[str, Any] = {"seconds": seconds}
    if name == "encode":
        return row | {"vectors_per_second": points / seconds}
    row |= {"queries_per_second": queries / seconds, "codes_per_second": points * queries / seconds}
    peers = [best[peer] for peer in best if peer.startswith("faiss")]
    return row | ({"times_as_fast_as_faiss": min(peers) / seconds} if name == "hamming" and peers else {})


def _print(rows: dict[str, dict[str, Any]], settings: dict[str, Any]) -> None:
    typer.echo(", ".join(f"{name} {value:,}" for name, value in settings.items()))
    table = Table(box=None, pad_edge=False)
    for title in ("what", "best time", "a second", "codes a second"):
        table.add_column(title, justify="left" if title == "what" else "right")
    for name, row in rows.items():
        if name == "encode":
            table.add_row(name, _ms(row), f"{row['vectors_per_second']:,.0f} vectors", "")
        else:
            table.add_row(name, _ms(row), f"{row['queries_per_second']:,.0f} queries", f"{row['codes_per_second']:.3g}")
    print_table(table)
    ratio = rows["hamming"].get("times_as_fast_as_faiss")
    if ratio is None and settings["bits"] % 8:
        beside = "FAISS, whose codes are whole bytes, was not measured; give --bits 64, say."
    elif ratio is None:
        beside = "FAISS is not installed, and was not measured: pip install 'autojacobin[faiss]'."
    else:
        beside = f"Hamming search ran {ratio:.2f} times as fast as the faster of FAISS's two exact searches."
    typer.echo(f"{beside} Made-up points, LSH codes; other programs on this machine slow all of it down.")


def _ms(row: dict[str, Any]) -> str:
    return f"{1000 * row['seconds']:,.2f} ms"
