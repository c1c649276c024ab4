"""``autojacobin evaluate``: how many of the true neighbours a model or an index finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from autojacobin.cli import console, options
from autojacobin.cli.console import progress_bar, report_blocks, wrong
from autojacobin.cli.opening import check_streams, load_model, metric_for, open_index, opened
from autojacobin.cli.search import run_search
from autojacobin.core.arrays import to_host
from autojacobin.core.counts import count_of
from autojacobin.core.parallel import Progress
from autojacobin.errors import DataError

if TYPE_CHECKING:
    from autojacobin.datasets import Vectors
    from autojacobin.index.index import Index

# ids found, true ids, numbers of true neighbours that count, facts about the search
_Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[int], dict[str, Any]]

_USUAL_KS = (1, 10, 100)
_K_OF_SEARCH = 10
_SHARE_RETRIEVED = 100  # the paper retrieves one in a hundred of the base


def evaluate(
    path: Annotated[Path, typer.Argument(metavar="MODEL_OR_INDEX", help="Model, or folder of an index.")],
    queries: options.QueriesPath,
    base: Annotated[str | None, typer.Option(metavar="VECTORS", help="Vectors to search among, for a model.")] = None,
    truth: Annotated[
        str | None, typer.Option(metavar="FILE", help="True neighbours, one row of ids per query.")
    ] = None,
    counted: Annotated[
        list[int] | None,
        typer.Option(
            "-k", min=1, metavar="N", help="True neighbours per query; by default 10, or 1, 10 and 100 for a model."
        ),
    ] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option("--measure", metavar="NAME", help="Measure, such as recall@10, m-recall@100 or map@100."),
    ] = None,
    distance: options.ByDistance = None,
    candidates: options.Candidates = None,
    recall: options.Recall = None,
    rerank: options.Rerank = None,
    probes: options.Probes = None,
    device: options.SearchDevice = "cpu",
) -> None:
    """Measure how many of the true neighbours a model's codes, or an index, find.

    True neighbours are the nearest by the metric of the model or the index. A model is measured by its
    codes alone. An index is measured by what a search for the largest k finds, by default with re-ranking. More
    candidates find more neighbours; the number used is printed.

    Example: autojacobin evaluate model.safetensors queries.npy --base base.npy -k 1 -k 10

    Example: autojacobin evaluate my-index queries.npy -k 10 --candidates 50 --json
    """
    check_streams("QUERIES", queries, base, truth)
    wanted = _Wanted(truth, counted, measures)
    with progress_bar() as progress, opened(queries) as asked:
        from autojacobin.evaluation import evaluate as measured

        if path.is_dir():
            if base is not None:
                raise wrong("--base", "an index has its own vectors; leave --base out")
            how = dict[str, Any](distance=distance, candidates=candidates, recall=recall, rerank=rerank, probes=probes)
            ids, true, ks, about = _from_index(path, asked, wanted, how, device, progress)
        else:
            if candidates is not None or recall is not None:
                name = "--candidates" if recall is None else "--recall"
                raise wrong(name, "a model has no vectors to re-rank by")
            if base is None:
                raise wrong("--base", "a model needs --base, the vectors to search among")
            ids, true, ks, about = _from_model(path, asked, base, wanted, distance, device, progress)
    n, retrieved = ids.shape
    # An index retrieves few points, and m-recall, an average over their numbers, could then not come near 1.
    averaged = [] if path.is_dir() else [f"m-recall@{retrieved}"]
    usual = {k: [f"recall@{min(k, retrieved)}", *([f"recall@{retrieved}"] * (k < retrieved)), *averaged] for k in ks}
    results = {k: measured(ids, true, measures or usual[k], k) for k in ks}
    if console.output.as_json:
        means = {
            k: {name: {"mean": value.mean, "standard_error": value.standard_error} for name, value in row.items()}
            for k, row in results.items()
        }
        console.print_json({**about, "depth": retrieved, "queries": n, "k": means})
        return
    described = ", ".join(f"{name} {console.as_text(value)}" for name, value in about.items() if value is not None)
    typer.echo(f"{count_of(n, 'query', 'queries')}, {retrieved:,} retrieved; {described}")
    at_depth = [f"recall@{retrieved}"] if min(ks) < retrieved else []
    titles = measures or ["recall@k", *at_depth, *averaged]
    table = console.table_of("k", *titles)
    for k, row in results.items():
        names = measures or [f"recall@{min(k, retrieved)}", *titles[1:]]
        table.add_row(str(k), *(str(row[name]) for name in names))
    console.print_table(table)


def _from_model(
    path: Path, asked: Vectors, base: str, wanted: _Wanted, distance: str | None, device: str, progress: Progress
) -> _Found:
    from autojacobin.evaluation import ground_truth
    from autojacobin.search.distances import DISTANCES, as_distance

    hasher = load_model(path)
    comparison = DISTANCES[as_distance(distance, hasher.distances)]
    with opened(base) as vectors:
        ks, retrieved = wanted.numbers(len(vectors), _USUAL_KS, lambda k: max(len(vectors) // _SHARE_RETRIEVED, 10 * k))
        true = wanted.read_truth(asked)
        searched: Any = vectors
        measure = metric_for(None, [vectors], hasher)
        if measure.name != "euclidean":
            searched, asked = measure.prepare(np.asarray(vectors)), measure.queries(asked)
        if true is None:
            true = ground_truth(searched, asked, ks[-1], progress=progress)
        blocks = vectors.blocks() if searched is vectors else iter((searched,))
        codes = hasher.encode(report_blocks(blocks, len(vectors), progress, "encoding"))
        progress("searching", 0, 0)
        _, ids = comparison.topk(comparison.encode(hasher, asked), codes.to_device(device), retrieved)
    about = {"model": path, "method": hasher.trained_as, "bits": hasher.n_bits, "vectors": len(codes)}
    return to_host(ids), true, ks, {**about, "metric": measure.name, "distance": comparison.name}


def _true_neighbours(
    index: Index, ids: npt.NDArray[Any], asked: Vectors, k: int, progress: Progress
) -> npt.NDArray[np.int64]:
    """Places in ``ids`` of the nearest vectors of each query by the metric of the index."""
    from autojacobin.evaluation import ground_truth
    from autojacobin.index.metric import Metric

    progress("ground truth", 0, 0)
    vectors = index.vectors(ids)
    metric = Metric.of(index.info()["metric"], vectors)
    return ground_truth(metric.prepare(vectors), metric.queries(asked), k, progress=progress)


def _from_index(
    path: Path, asked: Vectors, wanted: _Wanted, how: dict[str, Any], device: str, progress: Progress
) -> _Found:
    with open_index(path) as index:
        method = index.hasher.trained_as
        if wanted.truth is not None and index.info()["ids"] != "integer":
            raise wrong("--truth", "it holds whole numbers, but this index has names")
        ks, retrieved = wanted.numbers(len(index), (_K_OF_SEARCH,), lambda k: k)  # more would re-rank more candidates
        searched = index if device == "cpu" else index.to(device)
        _, ids, _, found = run_search(searched, asked, retrieved, how, progress)
        true, names = wanted.read_truth(asked), index.ids
        if names.dtype == object:  # measures compare whole numbers
            numbers = {name: number for number, name in enumerate(names)}
            ids = np.array([[numbers[name] for name in row] for row in ids])
            true = _true_neighbours(index, names, asked, ks[-1], progress)
        elif true is None:
            true = names[_true_neighbours(index, names, asked, ks[-1], progress)]
        figures = index.info()
    about = {"index": path, "method": method, "bits": figures["bits"], "vectors": figures["vectors"]}
    return ids, true, ks, about | found


@dataclass(frozen=True)
class _Wanted:
    """What to measure, and against which truth."""

    truth: str | None
    k: list[int] | None
    measures: list[str] | None

    def numbers(self, n: int, usual: tuple[int, ...], depth: Callable[[int], int]) -> tuple[list[int], int]:
        """How many true neighbours count, and how many of ``n`` vectors to retrieve, by default ``depth(largest k)``.

        Wrong measures raise BadParameter here, before any work.
        """
        from autojacobin.evaluation import evaluate as measured

        if not n:
            raise DataError("there are no vectors to search among; add some first")
        ks = sorted(set(self.k)) if self.k else [number for number in usual if number <= n] or [n]
        named = [int(number) for name in self.measures or [] if (number := name.rpartition("@")[2]).isdigit()]
        retrieved = max([min(n, depth(ks[-1])), *named])
        if retrieved > n:
            raise DataError(f"no more than the {n} vectors there are can be retrieved, got {retrieved}; ask for fewer")
        try:
            measured(np.arange(retrieved)[None], [[0]], self.measures or [], 1)
        except DataError as error:
            raise wrong("--measure", str(error)) from None
        return ks, retrieved

    def read_truth(self, asked: Vectors) -> npt.NDArray[np.int64] | None:
        """Read the true neighbours, one row of ids per query; None if no file was given."""
        if self.truth is None:
            return None
        with opened(self.truth) as truth:
            ids: npt.NDArray[Any] = np.asarray(truth)
        if len(ids) != len(asked):
            wrong = f"{self.truth} must have a row for each of the {len(asked)} queries, got {len(ids)}"
            raise DataError(f"{wrong}; give another")
        if ids.dtype.kind == "f" and (ids == np.trunc(ids)).all():
            return ids.astype(np.int64)  # text is read as floats
        return ids
