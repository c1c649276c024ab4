"""``autojacobin search`` and ``evaluate``: neighbours of queries, and how many of the true ones are found."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from typer import Argument, Option

from autojacobin.cli import console, opening, options
from autojacobin.cli.console import numbered, progress_bar, report_blocks, wrong
from autojacobin.cli.outputs import check_output, report_output, write_neighbours
from autojacobin.core.arrays import to_host
from autojacobin.core.counts import count_of, typed_number
from autojacobin.core.parallel import Progress
from autojacobin.datasets import Vectors
from autojacobin.errors import DataError
from autojacobin.hashers import load
from autojacobin.search.distances import DISTANCES, as_distance

if TYPE_CHECKING:
    from autojacobin.index.index import Index

_QUERIES_PER_BLOCK = 1024
# ids found, true ids, numbers of true neighbours that count, facts about the search
_Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[int], dict[str, Any]]

_USUAL_KS = (1, 10, 100)
_K_OF_SEARCH = 10
_SHARE_RETRIEVED = 100  # the paper retrieves one in a hundred of the base

_Where = Annotated[
    str | None,
    Option(metavar="CONDITION", help="Search among vectors whose payload meets it: \"price < 10 and lang = 'de'\"."),
]
_Among = Annotated[str | None, Option("--among", metavar="FILE", help="Ids to search among: text, .npy, or -.")]


def search(
    context: typer.Context,
    index: options.IndexPath,
    *,
    queries: Annotated[list[str] | None, Argument(metavar="QUERIES", help="File of queries, PATH::PART, or -.")] = None,
    out: options.NeighboursPath,
    like: Annotated[list[str] | None, Option("--like", metavar="ID", help="A vector of the index as query.")] = None,
    k: options.K = 10,
    candidates: options.Candidates = None,
    recall: options.Recall = None,
    distance: options.ByDistance = None,
    rerank: options.Rerank = None,
    probes: options.Probes = None,
    where: _Where = None,
    among: _Among = None,
    columns: options.Columns = None,
    format: options.Format = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Find the nearest vectors of an index for every query, or for vectors of the index.

    The ending of OUT gives the format. An .npz file holds ids and distances, an .npy file the ids. If `index create`
    made the index, queries are packed codes, or with --distance asymmetric one real value for each bit.

    Example: autojacobin search my-index queries.npy found.parquet -k 5 --distance asymmetric

    Example: autojacobin search my-index queries.npy found.jsonl --among allowed.txt

    Example: autojacobin search my-index found.csv --like 3 --like 14
    """
    queries = queries or []
    if bool(queries) == bool(like) or len(queries) > 1:
        raise wrong("QUERIES", "give one file of queries, or ids of the index by --like")
    check_output(out, "OUT", overwrite, inputs=queries)
    if columns is not None and out.suffix.lower() in (".npy", ".npz"):
        raise wrong("--columns", f"{out} cannot hold them; write .csv, .jsonl or .parquet")
    opening.check_streams("--among", *queries, among)
    how: dict[str, Any] = {"distance": distance, "candidates": candidates, "recall": recall, "rerank": rerank}
    how |= {"probes": probes, "where": where, "columns": options.split_columns(columns)}
    with (
        progress_bar() as progress,
        opening.open_index(index) as opened_index,
        opening.all_opened(queries, format) as files,
    ):
        kind = opened_index.info()["ids"]
        if among is not None:
            how["among"] = opening.read_ids(among, kind)
        asked = files[0] if files else opening.as_ids(like or [], kind)
        start = time.perf_counter()
        distances, ids, payload, found = run_search(opened_index, asked, k, how, progress)
        seconds = time.perf_counter() - start
        n = len(opened_index)
    write_neighbours(out, distances, ids, payload)
    facts = {"out": out, "queries": len(ids), "k": ids.shape[1], "vectors": n, **found, "seconds": round(seconds, 3)}
    asked_for = "the query" if len(ids) == 1 else f"each of {len(ids):,} queries"
    searched = ("those allowed of " if where is not None or among is not None else "") + count_of(n, "vector")
    sentence = f"Wrote {out}: {count_of(ids.shape[1], 'neighbour')} of {asked_for} among {searched} in {seconds:.2f} s."
    report_output(context, out, sentence, facts)


def run_search(
    index: Index, queries: Vectors | opening.Ids, k: int, how: dict[str, Any], progress: Progress
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Any, dict[str, Any]]:
    """Search for all queries or ids, block by block; ``how`` has arguments of ``Index.search``.

    Give distances, ids, the columns if there are any, and facts about the search.
    """
    plan = index.plan(k, **{name: value for name, value in how.items() if name != "columns"})
    found = []
    if isinstance(queries, list | np.ndarray):
        found = [index.search(ids=queries, k=k, **how)]
    else:
        blocks = opening.blocks_for(index.hasher, queries, _QUERIES_PER_BLOCK)
        for row, block in numbered(report_blocks(blocks, len(queries), progress, "searching")):
            index.metric.queries(block, row)  # reports a wrong number with its row in the file
            found.append(index.search(block, k, **how))
    distances, ids = (np.concatenate([part[place] for part in found]) for place in (0, 1))
    payload = None
    if how.get("columns") is not None:
        import pyarrow

        payload = pyarrow.concat_tables([part[2] for part in found])
    facts = {name: getattr(plan, name) for name in ("distance", "rerank", "recall", "candidates")}
    facts |= {"probes": how["probes"], "lists": round(plan.lists, 1) or None, "where": how.get("where")}
    facts["among"] = None if how.get("among") is None else len(how["among"])
    return distances, ids, payload, {name: value for name, value in facts.items() if value is not None}


def evaluate(
    path: Annotated[Path, Argument(metavar="MODEL_OR_INDEX", help="Model, or folder of an index.")],
    queries: options.QueriesPath,
    base: Annotated[str | None, Option(metavar="VECTORS", help="Vectors to search among, for a model.")] = None,
    truth: Annotated[str | None, Option(metavar="FILE", help="True neighbours, one row of ids per query.")] = None,
    counted: Annotated[
        list[int] | None,
        Option(
            "-k", min=1, metavar="N", help="True neighbours per query; by default 10, or 1, 10 and 100 for a model."
        ),
    ] = None,
    measures: Annotated[
        list[str] | None,
        Option("--measure", metavar="NAME", help="Measure, such as recall@10, m-recall@100 or map@100."),
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
    opening.check_streams("QUERIES", queries, base, truth)
    numbers = partial(_numbers, counted, measures)
    with progress_bar() as progress, opening.opened(queries) as asked:
        from autojacobin.evaluation import evaluate as measured

        if path.is_dir():
            if base is not None:
                raise wrong("--base", "an index has its own vectors; leave --base out")
            how = dict[str, Any](distance=distance, candidates=candidates, recall=recall, rerank=rerank, probes=probes)
            ids, true, ks, about = _from_index(path, asked, truth, numbers, how, device, progress)
        else:
            if candidates is not None or recall is not None:
                name = "--candidates" if recall is None else "--recall"
                raise wrong(name, "a model has no vectors to re-rank by")
            if base is None:
                raise wrong("--base", "a model needs --base, the vectors to search among")
            known = _read_truth(truth, asked)
            ids, true, ks, about = _from_model(path, asked, base, known, numbers, distance, device, progress)
    n, retrieved = ids.shape
    # An index retrieves few points, and m-recall, an average over their numbers, could then not come near 1.
    averaged = [] if path.is_dir() else [f"m-recall@{retrieved}"]
    deep = [f"recall@{retrieved}"] if min(ks) < retrieved else []
    names = {k: measures or [f"recall@{min(k, retrieved)}", *deep, *averaged] for k in ks}
    results = {k: measured(ids, true, names[k], k) for k in ks}
    if console.output.as_json:
        means = {
            k: {name: {"mean": value.mean, "standard_error": value.standard_error} for name, value in row.items()}
            for k, row in results.items()
        }
        console.print_json({**about, "depth": retrieved, "queries": n, "k": means})
        return
    described = ", ".join(f"{name} {console.as_text(value)}" for name, value in about.items() if value is not None)
    typer.echo(f"{count_of(n, 'query', 'queries')}, {retrieved:,} retrieved; {described}")
    table = console.table_of("k", *(measures or ["recall@k", *deep, *averaged]))
    for k, row in results.items():
        table.add_row(str(k), *(str(row[name]) for name in names[k]))
    console.print_table(table)


def _from_model(
    path: Path,
    asked: Vectors,
    base: str,
    true: Any,
    numbers: Any,
    distance: str | None,
    device: str,
    progress: Progress,
) -> _Found:
    from autojacobin.evaluation import ground_truth

    hasher = load(path)
    comparison = DISTANCES[as_distance(distance, hasher.distances)]
    with opening.opened(base) as vectors:
        ks, retrieved = numbers(len(vectors), _USUAL_KS, lambda k: max(len(vectors) // _SHARE_RETRIEVED, 10 * k))
        searched: Any = vectors
        measure = opening.metric_for(None, [vectors], hasher)
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


def _from_index(
    path: Path, asked: Vectors, truth: str | None, numbers: Any, how: dict[str, Any], device: str, progress: Progress
) -> _Found:
    from autojacobin.evaluation import ground_truth
    from autojacobin.index.metric import Metric

    with opening.open_index(path) as index:
        names, figures = index.ids, index.info()
        if truth is not None and names.dtype == object:
            raise wrong("--truth", "it holds whole numbers, but this index has names")
        true = _read_truth(truth, asked)
        ks, retrieved = numbers(len(index), (_K_OF_SEARCH,), lambda k: k)  # more would re-rank more candidates
        searched = index if device == "cpu" else index.to(device)
        _, ids, _, found = run_search(searched, asked, retrieved, how, progress)
        if true is None:
            progress("ground truth", 0, 0)
            vectors = index.vectors(names)
            metric = Metric.of(figures["metric"], vectors)
            true = ground_truth(metric.prepare(vectors), metric.queries(asked), ks[-1], progress=progress)
            if names.dtype == object:  # measures compare whole numbers
                places = {name: place for place, name in enumerate(names)}
                ids = np.array([[places[name] for name in row] for row in ids])
            else:
                true = names[true]
        method = index.hasher.trained_as
    about = {"index": path, "method": method, "bits": figures["bits"], "vectors": figures["vectors"]}
    return ids, true, ks, about | found


def _numbers(
    counted: list[int] | None, measures: list[str] | None, n: int, usual: tuple[int, ...], depth: Callable[[int], int]
) -> tuple[list[int], int]:
    """How many true neighbours count, and how many of ``n`` vectors to retrieve, by default ``depth(largest k)``.

    Wrong measures raise BadParameter here, before any work.
    """
    from autojacobin.evaluation import evaluate as measured

    if not n:
        raise DataError("there are no vectors to search among; add some first")
    ks = sorted(set(counted)) if counted else [number for number in usual if number <= n] or [n]
    named = [typed_number(name.rpartition("@")[2]) or 0 for name in measures or []]
    retrieved = max([min(n, depth(ks[-1])), *named])
    if retrieved > n:
        raise DataError(f"no more than the {n} vectors there are can be retrieved, got {retrieved}; ask for fewer")
    try:
        measured(np.arange(retrieved)[None], [[0]], measures or [], 1)
    except DataError as error:
        raise wrong("--measure", str(error)) from None
    return ks, retrieved


def _read_truth(path: str | None, asked: Vectors) -> npt.NDArray[np.int64] | None:
    """Read the true neighbours, one row of ids per query; None if no file was given."""
    if path is None:
        return None
    with opening.opened(path) as truth:
        ids: npt.NDArray[Any] = np.asarray(truth)
    if len(ids) != len(asked):
        problem = f"{path} must have a row for each of the {len(asked)} queries, got {len(ids)}"
        raise DataError(f"{problem}; give another")
    if ids.dtype.kind == "f" and (ids == np.trunc(ids)).all():
        return ids.astype(np.int64)  # text is read as floats
    return ids
