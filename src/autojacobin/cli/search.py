"""``autojacobin search``: an index and queries in, neighbours out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from autojacobin.cli._inputs import opened
from autojacobin.cli._options import AsJson, Config, Debug, Format, Quiet, Threads
from autojacobin.cli._outputs import check_output, is_stream, write_neighbours
from autojacobin.cli._progress import Tell, progress_bar, told_blocks
from autojacobin.cli._report import print_sentence
from autojacobin.cli._settings import write_settings
from autojacobin.search.distances import DISTANCES

if TYPE_CHECKING:
    from autojacobin.datasets import Vectors
    from autojacobin.index.index import Index

__all__ = ["ByDistance", "Candidates", "Distance", "Recall", "Rerank", "SearchOptions", "search"]

_QUERIES_AT_A_TIME = 1024


if TYPE_CHECKING:  # mypy takes no computed Enum

    class Distance(str, Enum):
        """How codes are compared."""

        hamming = "hamming"

else:
    Distance = Enum("Distance", {name: name for name in DISTANCES}, type=str)

ByDistance = Annotated[
    Distance,
    typer.Option(
        "--distance",
        "-d",
        help=f"Compare codes {', or '.join(f'{entry.summary} ({name})' for name, entry in DISTANCES.items())}.",
    ),
]
Candidates = Annotated[
    int | None,
    typer.Option("--candidates", "-c", min=1, help="Nearest codes to re-rank; 10 times k by default, 100 at least."),
]
Recall = Annotated[
    float | None,
    typer.Option(
        "--recall",
        metavar="SHARE",
        min=0,
        max=0.999,
        help="Share of the true neighbours to find, such as 0.95; chooses the candidates.",
    ),
]
Rerank = Annotated[
    bool, typer.Option("--rerank/--no-rerank", help="Order candidates by the Euclidean distance of their vectors.")
]


@dataclass
class SearchOptions:
    """How an index is searched, as ``search`` and ``evaluate`` are asked to."""

    distance: Distance
    candidates: int | None
    recall: float | None
    rerank: bool

    def __post_init__(self) -> None:
        for name, given in (("--candidates", self.candidates), ("--recall", self.recall)):
            if given is not None and not self.rerank:
                raise typer.BadParameter("candidates are for re-ranking; leave out --no-rerank", param_hint=f"'{name}'")
        if self.candidates is not None and self.recall is not None:
            raise typer.BadParameter("it chooses the candidates; leave out --candidates", param_hint="'--recall'")

    def run(self, index: Index, asked: Vectors, k: int, tell: Tell) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Search for all queries, some at a time; ``candidates`` becomes what ``recall`` chose."""
        from autojacobin.core.vectors import as_floats

        if self.recall is not None:
            tell("choosing candidates", 0, 0)
            self.candidates = index.calibrated(k, self.recall, distance=self.distance.value).candidates
        found, row = [], 0
        for block in told_blocks(asked.blocks(_QUERIES_AT_A_TIME), len(asked), tell, "searching"):
            as_floats(block, row)  # names the row of a NaN as it stands in the file
            found.append(
                index.search(block, k, candidates=self.candidates, distance=self.distance.value, rerank=self.rerank)
            )
            row += len(block)
        distances, ids = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return distances, ids

    def facts(self, k: int, n: int) -> dict[str, Any]:
        """Give what was asked for, and what was chosen for it, in a search for ``k`` among ``n`` vectors."""
        from autojacobin.search.arguments import checked_candidates

        used = min(checked_candidates(self.candidates, k), n) if self.rerank else None
        asked = {"distance": self.distance, "rerank": self.rerank, "recall": self.recall, "candidates": used}
        return {name: value for name, value in asked.items() if value is not None}


def search(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")],
    queries: Annotated[str, typer.Argument(metavar="QUERIES", help="File of query vectors, PATH::PART, or -.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Neighbours to write: .npz, .npy, .parquet, .csv, .jsonl, or -.")
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours of each query.")] = 10,
    candidates: Candidates = None,
    recall: Recall = None,
    distance: ByDistance = Distance.hamming,
    rerank: Rerank = True,
    format: Format = None,
    _threads: Threads = None,
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Find the nearest vectors of an index for every query.

    The ending of OUT tells the format. An .npz file holds ids and distances, an .npy file the ids.

    Example: autojacobin search my-index queries.npy found.parquet -k 5 --distance asymmetric

    Example: autojacobin search my-index queries.npy found.csv --recall 0.95

    Example: autojacobin search my-index queries.npy - -k 3 --no-rerank
    """
    from autojacobin.index.index import Index

    check_output(out, "OUT", inputs=[queries])
    options = SearchOptions(distance, candidates, recall, rerank)
    with Index.open(index) as opened_index, opened(queries, format) as asked:
        with progress_bar(quiet=quiet or as_json) as tell:
            start = time.perf_counter()
            distances, ids = options.run(opened_index, asked, k, tell)
            seconds = time.perf_counter() - start
        n = len(opened_index)
    write_neighbours(out, distances, ids)
    if is_stream(out):  # whose reader wants neighbours and nothing else
        return
    write_settings(context, out)
    facts = {"out": out, "queries": len(ids), "k": k, "vectors": n, **options.facts(k, n), "seconds": round(seconds, 3)}
    sentence = f"Wrote {out}: {k} neighbours of each of {len(ids):,} queries among {n:,} vectors in {seconds:.2f} s."
    print_sentence(sentence, facts, quiet=quiet, as_json=as_json)
