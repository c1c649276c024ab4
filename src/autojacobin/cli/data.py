"""``autojacobin data``: list, fetch and describe data sets, and build them from pictures."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.table import Table
from typer import Argument, Option

from autojacobin.cli import console
from autojacobin.cli.options import DataFolder
from autojacobin.datasets import CATALOGUE, Entry, VectorSet, data_folder, fetch_set, is_here, load_set

app = typer.Typer(help="List, fetch and build data sets.", no_args_is_help=True)

_PARTS = ("train", "base", "queries", "truth", "base_patches", "query_patches")
_FIRST_ROWS = 1_000


@app.command("list")
def list_sets(data: DataFolder = None) -> None:
    """List the named sets with their sizes, kinds, licences, and whether they are on this machine.

    Example: autojacobin data list
    """
    sets: list[dict[str, Any]] = [
        {"name": entry.name, "kind": entry.kind, "sizes": _sizes(entry)}
        | {"download": entry.download, "licence": entry.licence, "here": is_here(entry.name, data)}
        for entry in CATALOGUE.values()
    ]
    if console.output.as_json:
        console.print_json(sets)
        return
    table = Table(box=None, pad_edge=False)
    for title in sets[0]:
        table.add_column(title, no_wrap=title != "licence")
    for facts in sets:
        table.add_row(*map(str, (facts | {"here": "yes" if facts["here"] else "no"}).values()))
    console.print_table(table)
    typer.echo(f"Sizes are train / base / queries × width. Fetched sets are kept in {data_folder(data)}.")


@app.command()
def fetch(
    name: Annotated[str, Argument(metavar="NAME", help="A name that `autojacobin data list` shows.")],
    data: DataFolder = None,
) -> None:
    """Download a named set, check and unpack it. Does nothing if the set is here.

    Example: autojacobin data fetch siftsmall --data my-data
    """
    kept = "complete files are kept, and the same command fetches the others"
    with console.stoppable(kept), console.progress_bar() as progress:
        found = fetch_set(name, data, progress)
    sizes = f"{len(found.train):,} to learn from, a base of {len(found.base):,}, {len(found.queries):,} queries"
    sentence = f"{name} is here: {sizes}, {found.base.shape[1]} values each"
    console.print_sentence(sentence, {"name": name, **_parts_of(found)})


@app.command()
def info(
    name: Annotated[str, Argument(metavar="NAME_OR_PATH", help="A named set, or a folder or file of vectors.")],
    data: DataFolder = None,
) -> None:
    """Describe a set: shapes, types, the range of its first values, source, licence, citation.

    Example: autojacobin data info digits
    """
    found = load_set(name, data)
    about = {name: getattr(found, name) or None for name in ("source", "licence", "citation")}
    console.print_facts({"name": found.name, "holds": found.description, **_parts_of(found), **about})


@app.command()
def build(
    images: Annotated[Path, Argument(metavar="IMAGES", help="Folder of pictures, with its subfolders.")],
    out: Annotated[Path, Argument(metavar="SET", help="Folder for the set; it must not exist, or be empty.")],
    descriptor: Annotated[Literal["sift", "gist", "wavelet"], Option(help="What to compute.")] = "sift",
    seed: Annotated[int, Option(min=0, help="Seed of the split.")] = 0,
    limit: Annotated[int | None, Option(min=1, help="Most vectors per picture.")] = None,
) -> None:
    """Make a set from your own pictures: SIFT (128-D), GIST (960-D) or wavelet texture (128-D), split by picture.

    Example: autojacobin data build --descriptor gist my-photos my-set
    """
    from autojacobin.datasets.pictures import build_set  # which needs OpenCV

    with console.progress_bar() as progress:
        built = build_set(images, out, descriptor, seed=seed, limit=limit, progress=progress)
    parts = (f"{part} {built.vectors[part]:,} from {built.pictures[part]:,}" for part in built.vectors)
    lines = [f"Wrote {built.folder}: {built.descriptor} vectors, {', '.join(parts)} pictures."]
    if built.skipped:
        lines.append(f"{len(built.skipped)} were skipped; {built.folder / 'build.json'} says why.")
    lines.append(f"Look at it with: autojacobin data info {shlex.quote(str(built.folder.absolute()))}")
    skipped = [{"picture": str(name), "why": why} for name, why in built.skipped]
    facts = {"folder": built.folder, "descriptor": built.descriptor, **built.vectors, "skipped": skipped}
    console.print_sentence("\n".join(lines), facts)


def _sizes(entry: Entry) -> str:
    split = entry.split
    if not split.base:
        return f"split by photo × {entry.dimension}"
    train = entry.rows - split.base - split.queries if split.train is None else split.train
    return f"{train or split.base:,} / {split.base:,} / {split.queries:,} × {entry.dimension}"


def _parts_of(found: VectorSet) -> dict[str, Any]:
    """Shape, type and range of the first values of each part."""
    facts: dict[str, Any] = {}
    for part in _PARTS:
        if (array := getattr(found, part)) is not None:
            first = np.asarray(array[:_FIRST_ROWS])
            values = f"from {first.min():.6g} to {first.max():.6g} in the first {len(first):,}"
            facts[part] = {"shape": list(array.shape), "type": str(array.dtype), "values": values}
    return facts
