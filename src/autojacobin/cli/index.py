"""``autojacobin index``: make indexes on disk, change them, and look after them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autojacobin.cli._folders import whole_folder
from autojacobin.cli._inputs import STREAM, chained, load_model, read_ids
from autojacobin.cli._options import AsJson, Config, Debug, Format, Quiet, Threads
from autojacobin.cli._progress import progress_bar
from autojacobin.cli._report import print_facts, print_sentence
from autojacobin.cli._settings import write_settings

__all__ = ["app"]

app = typer.Typer(help="Make indexes on disk, change them, and look after them.", no_args_is_help=True)

_Path = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")]
_Vectors = Annotated[
    list[str], typer.Argument(metavar="VECTORS", help="Files of vectors, each a path, PATH::PART, or -.")
]
_Ids = Annotated[
    str | None,
    typer.Option("--ids", metavar="FILE", help="An id for each vector: a whole number a line, or .npy, or -."),
]


@app.command()
def build(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model that `autojacobin train` wrote.")],
    vectors: _Vectors,
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder to make; not there yet, or empty.")],
    ids: _Ids = None,
    keep_vectors: Annotated[
        bool, typer.Option("--vectors/--no-vectors", help="Keep the vectors too, which re-ranking needs.")
    ] = True,
    format: Format = None,
    _threads: Threads = None,
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Make an index of vectors, which is there as a whole when the command ends, or not at all.

    Example: autojacobin index build model.safetensors base.npy my-index
    """
    from autojacobin.index.index import Index

    _refuse_two_streams(vectors, ids)
    hasher = load_model(model)
    chosen = None if ids is None else read_ids(ids)
    with (
        progress_bar(quiet=quiet or as_json) as tell,
        chained(vectors, format, tell, "adding vectors") as (blocks, _),
        whole_folder(index) as folder,
        Index.create(folder, hasher, keep_vectors=keep_vectors) as made,
    ):
        made.add(blocks, chosen)
        figures = made.info()
    write_settings(context, index)
    sentence = f"Made {index}: {figures['vectors']:,} vectors, {figures['bits']} bits each, {figures['bytes']:,} bytes."
    print_sentence(sentence, {"index": index, **figures}, quiet=quiet, as_json=as_json)


@app.command()
def add(
    index: _Path,
    vectors: _Vectors,
    ids: _Ids = None,
    format: Format = None,
    _threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Add vectors to an index; those whose id is there already take its place. All of them are added, or none.

    Example: autojacobin index add my-index more.npy
    """
    from autojacobin.index.index import Index

    _refuse_two_streams(vectors, ids)
    chosen = None if ids is None else read_ids(ids)
    with Index.open(index) as opened, progress_bar(quiet=quiet or as_json) as tell:
        with chained(vectors, format, tell, "adding vectors") as (blocks, count):
            opened.add(blocks, chosen)
        figures = opened.info()
    sentence = f"Added {count:,} vectors to {index}, which now holds {figures['vectors']:,}."
    print_sentence(sentence, {"index": index, "added": count, **figures}, quiet=quiet, as_json=as_json)


@app.command()
def remove(
    index: _Path,
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", min=0, help="Ids to remove.")] = None,
    listed: Annotated[
        str | None, typer.Option("--ids", metavar="FILE", help="File of ids: a whole number a line, or .npy, or -.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Remove vectors from an index by their ids; if one of them is not there, none is removed.

    Example: autojacobin index remove my-index 3 14 15
    """
    from autojacobin.index.index import Index

    if bool(ids) == (listed is not None):
        raise typer.BadParameter("give the ids either as arguments or by --ids FILE", param_hint="'ID'")
    with Index.open(index) as opened:
        before = len(opened)
        opened.remove(read_ids(listed) if listed is not None else ids or [])
        left = len(opened)
    sentence = f"Removed {before - left:,} vectors from {index}, which now holds {left:,}."
    facts = {"index": index, "removed": before - left, "vectors": left}
    print_sentence(sentence, facts, quiet=quiet, as_json=as_json)


@app.command()
def compact(
    index: _Path, _threads: Threads = None, quiet: Quiet = False, as_json: AsJson = False, _debug: Debug = False
) -> None:
    """Rewrite an index without what was removed, in as few segments as can be, so that it is searched faster.

    Example: autojacobin index compact my-index
    """
    from autojacobin.index.index import Index

    with Index.open(index) as opened:
        before = opened.info()
        opened.compact()
        after = opened.info()
    sizes = f"{before['segments']} → {after['segments']} segments, {before['bytes']:,} → {after['bytes']:,} bytes"
    print_sentence(f"Compacted {index}: {sizes}.", {"index": index, **after}, quiet=quiet, as_json=as_json)


@app.command()
def verify(path: _Path, quiet: Quiet = False, as_json: AsJson = False, _debug: Debug = False) -> None:
    """Read every byte of an index and compare it with its checksums; names the first damaged file.

    Example: autojacobin index verify my-index
    """
    from autojacobin.index.index import Index

    with Index.open(path) as index:
        index.verify()
        figures = index.info()
    sizes = f"{figures['vectors']:,} vectors, {figures['files']} files, {figures['bytes']:,} bytes"
    print_sentence(f"{path} is whole: {sizes}", {"index": path, "whole": True, **figures}, quiet=quiet, as_json=as_json)


@app.command()
def repair(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder of the damaged index; it stays as it is.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to make; not there yet, or empty.")],
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL", help="Model of the index, in case its own copy is damaged."),
    ] = None,
    _threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Save what is whole of a damaged index into a new one, and report what was lost.

    Example: autojacobin index repair my-index repaired
    """
    from autojacobin.index.repair import repair as repair_index

    report = repair_index(source, target, None if model is None else load_model(model))
    sentence = f"Saved {report.saved:,} vectors of {source} to {target}; {report.lost:,} were lost."
    if report.renumbered:
        sentence += f" {report.renumbered:,} lost their ids and got new ones."
    if report.revived:
        sentence += f" {report.revived:,} that were removed may be back."
    print_sentence(
        "\n".join([*report.problems, sentence]), {"target": target, **asdict(report)}, quiet=quiet, as_json=as_json
    )


@app.command()
def info(path: _Path, as_json: AsJson = False, _debug: Debug = False) -> None:
    """Print the figures of an index: vectors, bits, segments, bytes.

    Example: autojacobin index info my-index
    """
    from autojacobin.index.index import Index

    with Index.open(path) as index:
        print_facts(index.info(), as_json=as_json)


def _refuse_two_streams(vectors: list[str], ids: str | None) -> None:
    if [*vectors, ids].count(STREAM) > 1:
        raise typer.BadParameter("the standard input can be read once; give - once at most", param_hint="'VECTORS'")
