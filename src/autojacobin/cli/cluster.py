"""``autojacobin cluster``: the work on data that one machine does not hold, on many processes or machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from autojacobin.cli._inputs import load_model, opened
from autojacobin.cli._options import AsJson, Config, Debug, Quiet
from autojacobin.cli._outputs import check_output, is_stream, write_neighbours
from autojacobin.cli._progress import progress_bar
from autojacobin.cli._report import print_sentence
from autojacobin.cli._settings import write_settings
from autojacobin.cli._stopping import stoppable
from autojacobin.cli.search import ByDistance, Candidates, Distance, Rerank

__all__ = ["app"]

app = typer.Typer(
    help="Encode, build, search and find true neighbours over many files, on many processes or machines.",
    no_args_is_help=True,
)

_ROWS = 2**20
_TRUTH_ENDINGS = (".npy", ".ivecs", ".ibin", ".npz", ".csv")

_Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model that `autojacobin train` wrote.")]
_Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUTS", help="Files of vectors: paths, patterns in quotes, or addresses such as s3://…."),
]
_Queries = Annotated[str, typer.Argument(metavar="QUERIES", help="File of query vectors, PATH::PART, or -.")]
_K = Annotated[int, typer.Option("-k", min=1, help="Neighbours of each query.")]
_Cluster = Annotated[
    str,
    typer.Option("--cluster", metavar="ADDRESS", help="local:N for N processes here, or tcp://scheduler:8786."),
]
_Rows = Annotated[
    int, typer.Option("--rows", min=1, help="Vectors of a task and a segment, rounded up to whole blocks of 65,536.")
]


@app.command()
def build(
    context: typer.Context,
    model: _Model,
    inputs: _Inputs,
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder to make, on a path that all workers see.")],
    cluster: _Cluster = "local:2",
    keep_vectors: Annotated[
        bool, typer.Option("--vectors/--no-vectors", help="Keep the vectors too, which re-ranking needs.")
    ] = True,
    rows: _Rows = _ROWS,
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Make an index of the vectors in many files; ids count the rows of all files in the order of their paths.

    The index is there when the command ends. If it is interrupted, the same command goes on.

    Example: autojacobin cluster build model.safetensors 'base/*.fbin' my-index --cluster local:4
    """
    from autojacobin.jobs.cluster import build_index, connect

    hasher = load_model(model)
    comfort = f"what is done is kept in {index}.building, and the same command goes on from there"
    with stoppable(comfort), progress_bar(quiet=quiet or as_json) as tell:
        start = time.perf_counter()
        with connect(cluster) as workers:
            n = build_index(
                inputs, hasher, index, workers, keep_vectors=keep_vectors, rows_per_chunk=rows, progress=tell
            )
        seconds = time.perf_counter() - start
    write_settings(context, index)
    facts = {"index": index, "vectors": n, "seconds": round(seconds, 3)}
    print_sentence(f"Made {index}: {n:,} vectors in {seconds:.1f} s.", facts, quiet=quiet, as_json=as_json)


@app.command()
def encode(
    context: typer.Context,
    model: _Model,
    inputs: _Inputs,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for files of codes, which all workers see.")],
    cluster: _Cluster = "local:2",
    rows: _Rows = _ROWS,
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Encode the vectors in many files into files of codes, a file a chunk, named after its first row.

    If the command is interrupted, the same command goes on.

    Example: autojacobin cluster encode model.safetensors 'base/*.npy' codes --cluster tcp://scheduler:8786
    """
    from autojacobin.jobs.cluster import connect, encode_files

    hasher = load_model(model)
    comfort = f"what is done is kept in {out}, and the same command goes on from there"
    with stoppable(comfort), progress_bar(quiet=quiet or as_json) as tell:
        start = time.perf_counter()
        with connect(cluster) as workers:
            paths = encode_files(inputs, hasher, out, workers, rows_per_chunk=rows, progress=tell)
        seconds = time.perf_counter() - start
    write_settings(context, out)
    facts = {"out": out, "files": len(paths), "seconds": round(seconds, 3)}
    print_sentence(f"Wrote {len(paths)} files to {out} in {seconds:.1f} s.", facts, quiet=quiet, as_json=as_json)


@app.command()
def search(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index, which all workers see.")],
    queries: _Queries,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Neighbours to write: .npz, .npy, .parquet, .csv, .jsonl, or -.")
    ],
    k: _K = 10,
    candidates: Candidates = None,
    distance: ByDistance = Distance.hamming,
    rerank: Rerank = True,
    cluster: _Cluster = "local:2",
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Find the nearest vectors of an index for every query, with a task for each of its segments.

    The answer is that of `autojacobin search`, to the last tie.

    Example: autojacobin cluster search my-index queries.npy found.npz -k 10 --cluster local:4
    """
    from autojacobin.jobs.cluster import connect, search_index

    check_output(out, "OUT", inputs=[queries])
    if candidates is not None and not rerank:
        raise typer.BadParameter("candidates are for re-ranking; leave out --no-rerank", param_hint="'--candidates'")
    with opened(queries) as asked, progress_bar(quiet=quiet or as_json) as tell:
        start = time.perf_counter()
        options: dict[str, Any] = {"candidates": candidates, "distance": distance.value, "rerank": rerank}
        with connect(cluster) as workers:
            distances, ids = search_index(index, asked, k, workers, progress=tell, **options)
        seconds = time.perf_counter() - start
    write_neighbours(out, distances, ids)
    _tell_found(context, out, k, len(ids), seconds, quiet, as_json)


@app.command()
def truth(
    context: typer.Context,
    base: _Inputs,
    queries: _Queries,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help=f"Ids to write: {', '.join(_TRUTH_ENDINGS)}; nearest first.")
    ],
    k: _K = 100,
    cluster: _Cluster = "local:2",
    rows: _Rows = _ROWS,
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Find the true Euclidean neighbours of every query, exactly, among the vectors in many files.

    Example: autojacobin cluster truth 'base/*.fbin' queries.fbin truth.ivecs -k 100 --cluster local:4
    """
    from autojacobin.datasets import write_vectors
    from autojacobin.jobs.cluster import connect, true_neighbours

    check_output(out, "OUT", inputs=[*base, queries], endings=_TRUTH_ENDINGS)
    with opened(queries) as asked, progress_bar(quiet=quiet or as_json) as tell:
        start = time.perf_counter()
        with connect(cluster) as workers:
            ids = true_neighbours(base, asked, k, workers, rows_per_chunk=rows, progress=tell)
        seconds = time.perf_counter() - start
    write_vectors(out, ids)
    _tell_found(context, out, k, len(ids), seconds, quiet, as_json)


def _tell_found(
    context: typer.Context, out: Path, k: int, n_queries: int, seconds: float, quiet: bool, as_json: bool
) -> None:
    if is_stream(out):  # whose reader wants neighbours and nothing else
        return
    write_settings(context, out)
    facts = {"out": out, "queries": n_queries, "k": k, "seconds": round(seconds, 3)}
    sentence = f"Wrote {out}: {k} neighbours of each of {n_queries:,} queries in {seconds:.1f} s."
    print_sentence(sentence, facts, quiet=quiet, as_json=as_json)
