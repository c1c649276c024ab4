"""``autojacobin search``: neighbours of queries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from autojacobin.cli import options
from autojacobin.cli.console import progress_bar, report_blocks, wrong
from autojacobin.cli.opening import Ids, all_opened, as_ids, blocks_for, check_streams, open_index, read_ids
from autojacobin.cli.outputs import check_output, report_output, write_neighbours
from autojacobin.core.counts import count_of
from autojacobin.core.parallel import Progress

if TYPE_CHECKING:
    from autojacobin.datasets import Vectors
    from autojacobin.index.index import Index

_QUERIES_PER_BLOCK = 1024

_Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Search among vectors whose payload meets it: \"price < 10 and lang = 'de'\".",
    ),
]
_Among = Annotated[str | None, typer.Option("--among", metavar="FILE", help="Ids to search among: text, .npy, or -.")]


def search(
    context: typer.Context,
    index: options.IndexPath,
    *,
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="QUERIES", help="File of queries, PATH::PART, or -.")
    ] = None,
    out: options.NeighboursPath,
    like: Annotated[
        list[str] | None, typer.Option("--like", metavar="ID", help="A vector of the index as query.")
    ] = None,
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
    check_streams("--among", *queries, among)
    how: dict[str, Any] = {"distance": distance, "candidates": candidates, "recall": recall, "rerank": rerank}
    how |= {"probes": probes, "where": where, "columns": options.split_columns(columns)}
    with progress_bar() as progress, open_index(index) as opened_index, all_opened(queries, format) as files:
        kind = opened_index.info()["ids"]
        if among is not None:
            how["among"] = read_ids(among, kind)
        asked = files[0] if files else as_ids(like or [], kind)
        start = time.perf_counter()
        distances, ids, payload, found = run_search(opened_index, asked, k, how, progress)
        seconds = time.perf_counter() - start
        n = len(opened_index)
    write_neighbours(out, distances, ids, payload)
    facts = {"out": out, "queries": len(ids), "k": k, "vectors": n, **found, "seconds": round(seconds, 3)}
    asked_for = "the query" if len(ids) == 1 else f"each of {len(ids):,} queries"
    searched = ("those allowed of " if where is not None or among is not None else "") + count_of(n, "vector")
    sentence = f"Wrote {out}: {count_of(k, 'neighbour')} of {asked_for} among {searched} in {seconds:.2f} s."
    report_output(context, out, sentence, facts)


def run_search(
    index: Index, queries: Vectors | Ids, k: int, how: dict[str, Any], progress: Progress
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Any, dict[str, Any]]:
    """Search for all queries or ids, block by block; ``how`` has arguments of ``Index.search``.

    Give distances, ids, the columns if there are any, and facts about the search.
    """
    plan = index.plan(k, **{name: value for name, value in how.items() if name != "columns"})
    found, row = [], 0
    if isinstance(queries, list | np.ndarray):
        found = [index.search(ids=queries, k=k, **how)]
    else:
        blocks = blocks_for(index.hasher, queries, _QUERIES_PER_BLOCK)
        for block in report_blocks(blocks, len(queries), progress, "searching"):
            index.metric.queries(block, row)  # reports a wrong number with its row in the file
            found.append(index.search(block, k, **how))
            row += len(block)
    distances, ids = (np.concatenate([part[place] for part in found]) for place in (0, 1))
    payload = None
    if how.get("columns") is not None:
        import pyarrow

        payload = pyarrow.concat_tables([part[2] for part in found])
    facts = {name: getattr(plan, name) for name in ("distance", "rerank", "recall", "candidates")}
    facts |= {"probes": how["probes"], "lists": round(plan.lists, 1) or None, "where": how.get("where")}
    facts["among"] = None if how.get("among") is None else len(how["among"])
    return distances, ids, payload, {name: value for name, value in facts.items() if value is not None}
