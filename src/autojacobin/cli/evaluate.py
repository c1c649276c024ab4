"""``autojacobin evaluate``: how well a model or an index finds the true neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.table import Table

from autojacobin.cli._inputs import STREAM, load_model, opened
from autojacobin.cli._options import AsJson, Config, Debug, Quiet, Threads
from autojacobin.cli._progress import Tell, progress_bar, told_blocks
from autojacobin.cli._report import print_json, print_table
from autojacobin.cli.search import ByDistance, Candidates, Distance, Recall, Rerank, SearchOptions
from autojacobin.errors import DataError
from autojacobin.search.distances import DISTANCES

if TYPE_CHECKING:
    from autojacobin.datasets import Vectors
    from autojacobin.evaluation import Measured

__all__ = ["evaluate"]

_USUAL_KS = (1, 10, 100)
_K_OF_SEARCH = 10
_SHARE_RETRIEVED = 100  # the paper retrieves one in a hundred of the base


@dataclass(frozen=True)
class _Wanted:
    """What to measure, and against which truth."""

    truth: str | None
    k: list[int] | None
    depth: int | None
    measures: list[str] | None

    def ks(self, n: int, usual: tuple[int, ...]) -> list[int]:
        """Numbers of true neighbours that count, among ``n`` vectors."""
        if not n:
            raise DataError("there is nothing to find: no vectors to search among; add some first")
        return sorted(set(self.k)) if self.k else [number for number in usual if number <= n] or [n]

    def retrieved(self, n: int, usual: int) -> int:
        """How much to retrieve; measures that cannot be had are refused here, before any work is done."""
        from autojacobin.evaluation import evaluate as measured

        numbers = [int(number) for name in self.measures or [] if (number := name.rpartition("@")[2]).isdigit()]
        depth = self.depth or max([min(n, usual), *numbers])
        if depth > n:
            raise DataError(f"no more than the {n} vectors there are can be retrieved, got {depth}; ask for fewer")
        try:
            measured(np.arange(depth)[None], [[0]], self.measures or [], 1)
        except DataError as error:
            raise typer.BadParameter(str(error), param_hint="'--measure'") from None
        return depth


@dataclass(frozen=True)
class _Found:
    """What a search retrieved, what is true, and what was searched."""

    ids: npt.NDArray[np.int64]
    truth: npt.NDArray[np.int64]
    ks: list[int]
    depth: int
    about: dict[str, Any]


def evaluate(
    path: Annotated[
        Path, typer.Argument(metavar="MODEL_OR_INDEX", help="Model that `train` wrote, or folder of an index.")
    ],
    queries: Annotated[str, typer.Argument(metavar="QUERIES", help="File of query vectors, PATH::PART, or -.")],
    base: Annotated[
        str | None, typer.Option("--base", metavar="VECTORS", help="Vectors to search among; an index has its own.")
    ] = None,
    truth: Annotated[
        str | None,
        typer.Option("--truth", metavar="FILE", help="True neighbours, a row of ids a query; computed by default."),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(
            "-k",
            min=1,
            help="True neighbours that count; may be given several times. 1, 10, 100 of a model, 10 of an index.",
        ),
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", min=1, help="Points retrieved; one in a hundred, or the largest k.")
    ] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option("--measure", metavar="NAME", help="Such as recall@10, precision@5, m-recall@100, map@100."),
    ] = None,
    distance: ByDistance = Distance.hamming,
    candidates: Candidates = None,
    recall: Recall = None,
    rerank: Rerank = True,
    _threads: Threads = None,
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Measure how many of the true Euclidean neighbours a model's codes, or an index, find.

    A model retrieves in the order of its codes alone; an index as a search for the largest k does, by default with
    re-ranking. More candidates find more: the number that was used is told.

    Example: autojacobin evaluate model.safetensors queries.npy --base base.npy -k 1 -k 10

    Example: autojacobin evaluate my-index queries.npy -k 10 --candidates 50 --json
    """
    from autojacobin.evaluation import evaluate as measured

    if [queries, base, truth].count(STREAM) > 1:
        raise typer.BadParameter("the standard input can be read once; give - once at most", param_hint="'QUERIES'")
    wanted = _Wanted(truth, k, depth, measures)
    with opened(queries) as asked, progress_bar(quiet=quiet or as_json) as tell:
        if path.is_dir():
            if base is not None:
                raise typer.BadParameter("an index has its own vectors; leave --base out", param_hint="'--base'")
            options = SearchOptions(distance, candidates, recall, rerank)
            found = _from_index(path, asked, wanted, options, tell)
        else:
            if candidates is not None or recall is not None:
                name = "--candidates" if recall is None else "--recall"
                raise typer.BadParameter("a model has no vectors to re-rank by", param_hint=f"'{name}'")
            if base is None:
                raise typer.BadParameter("a model needs --base, the vectors to search among", param_hint="'--base'")
            found = _from_model(path, asked, base, wanted, distance, tell)
    results = {
        number: measured(found.ids, found.truth, measures or _usual(number, found.depth), number) for number in found.ks
    }
    if as_json:
        means = {number: {name: _as_facts(value) for name, value in row.items()} for number, row in results.items()}
        print_json({**found.about, "depth": found.depth, "queries": len(found.ids), "k": means})
    else:
        _print(results, found, measures)


def _from_model(path: Path, asked: Vectors, base: str, wanted: _Wanted, distance: Distance, tell: Tell) -> _Found:
    hasher = load_model(path)
    comparison = DISTANCES[distance.value]
    with opened(base) as vectors:
        ks = wanted.ks(len(vectors), _USUAL_KS)
        retrieved = wanted.retrieved(len(vectors), max(len(vectors) // _SHARE_RETRIEVED, 10 * ks[-1]))
        true = _truth(vectors, asked, ks[-1], wanted.truth, tell)
        codes = hasher.encode(told_blocks(vectors.blocks(), len(vectors), tell, "encoding"))
        tell("searching", 0, 0)
        _, ids = comparison.topk(comparison.encode(hasher, asked), codes, retrieved)
    about = {"model": path, "method": type(hasher).__name__, "bits": hasher.n_bits, "vectors": len(codes)}
    return _Found(ids, true, ks, retrieved, {**about, "distance": distance})


def _from_index(path: Path, asked: Vectors, wanted: _Wanted, options: SearchOptions, tell: Tell) -> _Found:
    from autojacobin.index.index import Index

    with Index.open(path) as index:
        ks = wanted.ks(len(index), (_K_OF_SEARCH,))  # more would be searched for with more candidates
        retrieved = wanted.retrieved(len(index), ks[-1])
        _, ids = options.run(index, asked, retrieved, tell)
        if wanted.truth is None:
            names = index.ids
            true = names[_truth(index.vectors(names), asked, ks[-1], None, tell)]
        else:
            true = _read(wanted.truth, asked)
        figures = index.info()
    about = {"index": path, "method": figures["hasher"], "bits": figures["bits"], "vectors": figures["vectors"]}
    return _Found(ids, true, ks, retrieved, about | options.facts(retrieved, figures["vectors"]))


def _truth(vectors: Any, asked: Vectors, k: int, given: str | None, tell: Tell) -> npt.NDArray[np.int64]:
    from autojacobin.evaluation import ground_truth

    if given is not None:
        return _read(given, asked)
    return ground_truth(vectors, asked, k, progress=tell)


def _read(given: str, asked: Vectors) -> npt.NDArray[np.int64]:
    with opened(given) as truth:
        ids = np.asarray(truth)
    if len(ids) != len(asked):
        raise DataError(f"{given} must have a row for each of the {len(asked)} queries, got {len(ids)}; give another")
    if ids.dtype.kind == "f" and (ids == np.trunc(ids)).all():
        return ids.astype(np.int64)  # text is read as floats
    return ids


def _usual(k: int, depth: int) -> list[str]:
    return list(dict.fromkeys([f"recall@{min(k, depth)}", f"recall@{depth}", f"m-recall@{depth}"]))


def _as_facts(value: Measured) -> dict[str, float | None]:
    return {"mean": value.mean, "standard_error": value.standard_error}


def _print(results: dict[int, dict[str, Measured]], found: _Found, measures: list[str] | None) -> None:
    about = ", ".join(f"{name} {_told(value)}" for name, value in found.about.items() if value is not None)
    typer.echo(f"{len(found.ids):,} queries, {found.depth:,} retrieved; {about}")
    table = Table(box=None, pad_edge=False)
    table.add_column("k", justify="right")
    at_depth = [f"recall@{found.depth}"] if min(found.ks) < found.depth else []
    titles = measures or ["recall@k", *at_depth, f"m-recall@{found.depth}"]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for k, row in results.items():
        names = measures or [f"recall@{min(k, found.depth)}", *titles[1:]]
        table.add_row(str(k), *(str(row[name]) for name in names))
    print_table(table)


def _told(value: Any) -> str:
    if isinstance(value, Distance):
        return value.value
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
