"""The command line: composed from the library, with no logic of its own."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from autojacobin import AutoJacobinError, __version__
from autojacobin.cli import data, index
from autojacobin.cli.demo import demo
from autojacobin.cli.reproduce import reproduce

__all__ = ["app", "main"]

app = typer.Typer(
    help="Learned binary codes for nearest-neighbour search.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(reproduce)
app.add_typer(data.app, name="data")
app.add_typer(index.app, name="index")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autojacobin {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; an error of the library ends in one sentence and the exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × and ± still gets the numbers
    try:
        app()
    except AutoJacobinError as error:
        typer.echo(f"autojacobin: {error}", err=True)
        sys.exit(1)
