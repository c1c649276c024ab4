"""``autojacobin index``: what is in an index on disk, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autojacobin.search.index import Index

__all__ = ["app"]

app = typer.Typer(help="Look after indexes on disk.", no_args_is_help=True)

_PATH = Annotated[Path, typer.Argument(help="Folder of the index.")]


@app.command()
def verify(path: _PATH) -> None:
    """Read every byte of an index and compare it with its checksums; names the first damaged file.

    Example: autojacobin index verify my-index
    """
    with Index.open(path) as index:
        index.verify()
        figures = index.info()
    typer.echo(f"{path} is whole: {figures['vectors']:,} vectors, {figures['files']} files, {figures['bytes']:,} bytes")


@app.command()
def info(path: _PATH) -> None:
    """Print the figures of an index: vectors, bits, segments, bytes.

    Example: autojacobin index info my-index
    """
    with Index.open(path) as index:
        for name, value in index.info().items():
            number = isinstance(value, int) and not isinstance(value, bool)
            typer.echo(f"{name.replace('_', ' '):<14}{f'{value:,}' if number else value}")
