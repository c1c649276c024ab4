"""Arguments and options that several commands have, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from autojacobin.codes import BitOrder
from autojacobin.search.distances import DISTANCES, METRICS

Device = Literal["cpu", "cuda"]
if TYPE_CHECKING:  # mypy takes no computed Literal
    Distance: TypeAlias = str
    Metric: TypeAlias = str
else:
    Distance, Metric = Literal[tuple(DISTANCES)], Literal[tuple(METRICS)]


def split_columns(names: str | None) -> list[str] | None:
    """Give the names that an option lists, separated by commas."""
    return None if names is None else [name.strip() for name in names.split(",")]


ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="Model that `autojacobin train` wrote.")]
IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")]
QueriesPath = Annotated[str, typer.Argument(metavar="QUERIES", help="File of query vectors, PATH::PART, or -.")]
NeighboursPath = Annotated[
    Path, typer.Argument(metavar="OUT", help="Neighbours to write: .npz, .npy, .parquet, .csv, .jsonl, or -.")
]

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists already.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of all random numbers.")]
OnDevice = Annotated[Device, typer.Option("--device", help="Where to compute; cuda is for the auto-encoders.")]
SearchDevice = Annotated[Device, typer.Option("--device", help="Where to search; cuda is an NVIDIA GPU.")]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Format of the vectors if the name does not show it, such as fvecs."),
]
Bits = Annotated[int, typer.Option("--bits", "-b", min=1, help="Length of a code.")]
BitOrderOption = Annotated[
    BitOrder,
    typer.Option(
        "--bitorder",
        help="First bit of a byte: the least significant (little), or the most significant (big), as in NumPy.",
    ),
]
K = Annotated[int, typer.Option("-k", min=1, help="Neighbours of each query.")]
ByDistance = Annotated[
    Distance | None,
    typer.Option(
        "--distance",
        "-d",
        metavar="NAME",
        help=f"How codes are compared: {', '.join(DISTANCES)}; by default the best way for the method.",
    ),
]
Candidates = Annotated[
    int | None,
    typer.Option("--candidates", "-c", min=1, help="Nearest codes to re-rank; by default as many as the recall takes."),
]
Recall = Annotated[
    float | None,
    typer.Option(
        "--recall",
        min=0,
        max=1,
        metavar="SHARE",
        help="Share of the true neighbours to find; 0.95 by default, 1 for an exact search. It sets the candidates.",
    ),
]
Rerank = Annotated[
    bool | None,
    typer.Option(
        "--rerank/--no-rerank",
        help="Sort the candidates by the distances of their vectors; the default if the index has vectors.",
    ),
]
MetricOption = Annotated[
    Metric,
    typer.Option(
        "--metric",
        metavar="NAME",
        help=f"How vectors are compared: {', '.join(METRICS)}. The model keeps it.",
    ),
]
Partitions = Annotated[
    str | None,
    typer.Option(
        "--partitions",
        metavar="N",
        help="Number of inverted lists; auto makes about 4 √n, from 65,536 vectors on.",
    ),
]
Probes = Annotated[
    int | None,
    typer.Option("--probes", min=1, help="Inverted lists to scan; by default as many as the recall takes."),
]
KeepVectors = Annotated[
    bool, typer.Option("--vectors/--no-vectors", help="Keep the vectors too; re-ranking needs them.")
]
Columns = Annotated[
    str | None, typer.Option("--columns", metavar="NAMES", help="Columns of the payload, separated by commas.")
]
SetName = Annotated[str, typer.Option("--set", help="Name of a data set, or path of your own.")]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder of sets; default: $AUTOJACOBIN_DATA, else the cache."),
]
