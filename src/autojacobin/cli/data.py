"""``autojacobin data``: the sets to work with, named ones and one's own."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from autojacobin.cli._progress import progress_bar
from autojacobin.datasets import CATALOGUE, Entry, VectorSet, data_folder, fetch_set, is_here, load_set

if TYPE_CHECKING:
    from autojacobin.datasets.pictures import BuiltSet

__all__ = ["app"]

app = typer.Typer(help="See, fetch and build data sets.", no_args_is_help=True)

_DATA = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder of sets; default: $AUTOJACOBIN_DATA, else the cache."),
]
_ROWS_LOOKED_AT = 1_000
_SKIPPED_SHOWN = 5
_WIDTH_OF_FILES = 120  # of tables that go into a file or a pipe, which have no edge to keep away from


class Descriptor(str, Enum):
    """What is computed of a picture."""

    sift = "sift"
    gist = "gist"
    wavelet = "wavelet"


@app.command("list")
def list_sets(data: _DATA = None) -> None:
    """List the named sets: how large they are, how they come, under what licence, and whether they are here.

    Example: autojacobin data list
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("train/base/queries × dim.", justify="right", no_wrap=True)
    table.add_column("download", justify="right", no_wrap=True)
    table.add_column("licence")
    table.add_column("here", no_wrap=True)
    for entry in CATALOGUE.values():
        here = "yes" if is_here(entry.name, data) else "no"
        table.add_row(entry.name, entry.kind, _sizes(entry), entry.download, entry.licence, here)
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    console.print(table)
    console.print(f"Fetched sets are kept in {data_folder(data)}.", highlight=False, soft_wrap=True)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A name that `autojacobin data list` shows.")],
    data: _DATA = None,
) -> None:
    """Download a named set, check and unpack it; goes on where it broke off, and does nothing if the set is here.

    Example: autojacobin data fetch siftsmall --data my-data
    """
    with progress_bar() as progress:
        found = fetch_set(name, data, progress)
    typer.echo(f"{name} is here: {_shapes(found)}")


@app.command()
def info(
    name: Annotated[str, typer.Argument(metavar="NAME_OR_PATH", help="A named set, or a folder or file of vectors.")],
    data: _DATA = None,
) -> None:
    """Print what a set holds: shapes, types, the range of its first values, source, licence, what to cite.

    Example: autojacobin data info digits
    """
    found = load_set(name, data)
    lines = {"name": found.name, "holds": found.description}
    for part in ("train", "base", "queries", "truth", "base_patches", "query_patches"):
        if (array := getattr(found, part)) is not None:
            lines[part.replace("_", " ")] = _described(array)
    lines |= {"source": found.source, "licence": found.licence, "citation": found.citation}
    for title, text in lines.items():
        typer.echo(f"{title:<15}{text or 'not known'}")


@app.command()
def build(
    images: Annotated[Path, typer.Argument(help="Folder of pictures; folders in it count too.")],
    out: Annotated[Path, typer.Argument(help="Folder that the set is written to; not there yet, or empty.")],
    descriptor: Annotated[Descriptor, typer.Option(help="What is computed of each picture.")] = Descriptor.sift,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Most vectors of one picture.")] = None,
) -> None:
    """Make a set of your own pictures: SIFT (128-D), GIST (960-D) or wavelet texture (128-D), split by picture.

    Example: autojacobin data build --descriptor gist my-photos my-set
    """
    from autojacobin.datasets.pictures import build_set  # which needs OpenCV

    with progress_bar() as progress:
        built = build_set(images, out, descriptor.value, seed=seed, limit=limit, progress=progress)
    typer.echo(f"Wrote {built.folder}: {_parts(built)}.")
    if built.skipped:
        typer.echo(f"{len(built.skipped)} skipped; {built.folder / 'build.json'} says why:")
        for name, why in built.skipped[:_SKIPPED_SHOWN]:
            typer.echo(f"  {name}: {why}")
        if len(built.skipped) > _SKIPPED_SHOWN:
            typer.echo(f"  and {len(built.skipped) - _SKIPPED_SHOWN} more")
    else:
        typer.echo("No picture was skipped.")
    typer.echo(f"Look at it with: autojacobin data info {shlex.quote(str(built.folder.absolute()))}")


def _sizes(entry: Entry) -> str:
    split = entry.split
    if not split.base:
        return f"split by photo × {entry.dimension}"
    train = entry.rows - split.base - split.queries if split.train is None else split.train
    return " / ".join(map(_shortened, (train or split.base, split.base, split.queries))) + f" × {entry.dimension}"


def _shortened(count: int) -> str:
    for unit, letter in ((10**6, "M"), (10**3, "k")):
        if count % unit == 0:
            return f"{count // unit}{letter}"
    return f"{count:,}"


def _shapes(found: VectorSet) -> str:
    sizes = f"{len(found.train):,} to learn from, a base of {len(found.base):,}, {len(found.queries):,} queries"
    return f"{sizes}, {found.base.shape[1]} values each"


def _parts(built: BuiltSet) -> str:
    told = (f"{part} {built.vectors[part]:,} from {built.pictures[part]:,}" for part in built.vectors)
    return f"{built.descriptor} vectors, {', '.join(told)} pictures"


def _described(array: Any) -> str:
    first = np.asarray(array[:_ROWS_LOOKED_AT])
    shape = " × ".join(f"{length:,}" for length in array.shape)
    return f"{shape} {array.dtype}, the first {len(first):,} from {first.min():.6g} to {first.max():.6g}"
