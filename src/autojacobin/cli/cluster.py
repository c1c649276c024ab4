"""``autojacobin cluster``: work on data too large for one machine, with many processes or machines."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from autojacobin.cli import options
from autojacobin.cli.console import kept_in, progress_bar, stoppable
from autojacobin.cli.opening import opened
from autojacobin.cli.outputs import check_output, report_output, write_neighbours
from autojacobin.datasets import write_vectors
from autojacobin.hashers import load

app = typer.Typer(help="Work on many files with many processes or machines.", no_args_is_help=True)

_ROWS = 2**20
_TRUTH_ENDINGS = (".npy", ".ivecs", ".ibin", ".npz", ".csv")

_Inputs = Annotated[list[str], Argument(metavar="INPUTS", help="Files of vectors: paths, patterns or addresses.")]
_Cluster = Annotated[str, Option(metavar="ADDRESS", help="local:N for N processes, or tcp://scheduler:8786.")]
_Rows = Annotated[int, Option("--rows", min=1, help="Vectors per task, rounded up to blocks of 65,536.")]


@app.command()
def build(
    context: typer.Context,
    model: options.ModelPath,
    inputs: _Inputs,
    index: Annotated[Path, Argument(metavar="INDEX", help="Folder to make; all workers need access to it.")],
    cluster: _Cluster = "local:2",
    keep_vectors: options.KeepVectors = True,
    rows: _Rows = _ROWS,
) -> None:
    """Make an index of the vectors in many files. Ids count the rows of all files in the order of their paths.

    The index appears when it is complete. If the command is interrupted, the same command continues.

    Example: autojacobin cluster build model.safetensors 'base/*.fbin' my-index --cluster local:4
    """
    from autojacobin.jobs import build_index, connect

    hasher, start = load(model), time.perf_counter()
    with stoppable(kept_in(f"{index}.building")), progress_bar() as progress, connect(cluster) as workers:
        n = build_index(
            inputs, hasher, index, workers, keep_vectors=keep_vectors, rows_per_chunk=rows, progress=progress
        )
    _report(context, index, start, f"Made {index}: {n:,} vectors", {"index": index, "vectors": n})


@app.command()
def encode(
    context: typer.Context,
    model: options.ModelPath,
    inputs: _Inputs,
    out: Annotated[Path, Argument(metavar="OUT", help="Folder for the codes; all workers need access to it.")],
    cluster: _Cluster = "local:2",
    rows: _Rows = _ROWS,
) -> None:
    """Encode the vectors in many files into files of codes, one per chunk, named after its first row.

    If the command is interrupted, the same command continues.

    Example: autojacobin cluster encode model.safetensors 'base/*.npy' codes --cluster tcp://scheduler:8786
    """
    from autojacobin.jobs import connect, encode_files

    hasher, start = load(model), time.perf_counter()
    with stoppable(kept_in(out)), progress_bar() as progress, connect(cluster) as workers:
        paths = encode_files(inputs, hasher, out, workers, rows_per_chunk=rows, progress=progress)
    _report(context, out, start, f"Wrote {len(paths)} files to {out}", {"out": out, "files": len(paths)})


@app.command()
def search(
    context: typer.Context,
    index: Annotated[Path, Argument(metavar="INDEX", help="Folder of the index; all workers need access to it.")],
    queries: options.QueriesPath,
    out: options.NeighboursPath,
    k: options.K = 10,
    candidates: options.Candidates = None,
    recall: options.Recall = None,
    distance: options.ByDistance = None,
    rerank: options.Rerank = None,
    probes: options.Probes = None,
    cluster: _Cluster = "local:2",
    overwrite: options.Overwrite = False,
) -> None:
    """Find the nearest vectors of an index for every query, with a task for each of its segments.

    The result is the same as that of `autojacobin search`, ties included.

    Example: autojacobin cluster search my-index queries.npy found.npz -k 10 --cluster local:4
    """
    from autojacobin.jobs import connect, search_index

    check_output(out, "OUT", overwrite, inputs=[queries])
    how = dict[str, Any](distance=distance, candidates=candidates, recall=recall, rerank=rerank, probes=probes)
    start = time.perf_counter()
    with opened(queries) as asked, progress_bar() as progress, connect(cluster) as workers:
        distances, ids = search_index(index, asked, k, workers, progress=progress, **how)
    write_neighbours(out, distances, ids)
    _report_neighbours(context, out, start, k, len(ids))


@app.command()
def truth(
    context: typer.Context,
    base: _Inputs,
    queries: options.QueriesPath,
    out: Annotated[Path, Argument(metavar="OUT", help=f"Ids to write: {', '.join(_TRUTH_ENDINGS)}.")],
    k: options.K = 100,
    cluster: _Cluster = "local:2",
    rows: _Rows = _ROWS,
    overwrite: options.Overwrite = False,
) -> None:
    """Find the true Euclidean neighbours of every query, exactly, among the vectors in many files.

    Example: autojacobin cluster truth 'base/*.fbin' queries.fbin truth.ivecs -k 100 --cluster local:4
    """
    from autojacobin.jobs import connect, true_neighbours

    check_output(out, "OUT", overwrite, inputs=[*base, queries], endings=_TRUTH_ENDINGS)
    start = time.perf_counter()
    with opened(queries) as asked, progress_bar() as progress, connect(cluster) as workers:
        ids = true_neighbours(base, asked, k, workers, rows_per_chunk=rows, progress=progress)
    write_vectors(out, ids)
    _report_neighbours(context, out, start, k, len(ids))


def _report_neighbours(context: typer.Context, out: Path, start: float, k: int, n: int) -> None:
    done = f"Wrote {out}: {k} neighbours of each of {n:,} queries"
    _report(context, out, start, done, {"out": out, "queries": n, "k": k})


def _report(context: typer.Context, out: Path, start: float, done: str, facts: dict[str, Any]) -> None:
    seconds = time.perf_counter() - start
    report_output(context, out, f"{done} in {seconds:.1f} s.", {**facts, "seconds": round(seconds, 3)})
