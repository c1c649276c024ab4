"""The command line: composed from the library, with no logic of its own."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from autojacobin import __version__
from autojacobin.cli import cluster, data, export, index
from autojacobin.cli._failures import Group, told_in_sentences
from autojacobin.cli._options import Debug
from autojacobin.cli.bench import bench
from autojacobin.cli.demo import demo
from autojacobin.cli.encode import encode
from autojacobin.cli.evaluate import evaluate
from autojacobin.cli.explore import explore
from autojacobin.cli.info import info
from autojacobin.cli.reproduce import reproduce
from autojacobin.cli.search import search
from autojacobin.cli.serve import serve
from autojacobin.cli.train import train

__all__ = ["app", "main"]

_HELP = """Learned binary codes for nearest-neighbour search.

From vectors to neighbours, and how many of the true ones were found:

  autojacobin train base.npy model.safetensors --bits 64
  autojacobin index build model.safetensors base.npy my-index
  autojacobin search my-index queries.npy found.parquet -k 10
  autojacobin evaluate my-index queries.npy

Vectors come from fvecs, bvecs, fbin, npy, npz, HDF5, Parquet or text files.
PATH::PART names one matrix of several, and - the standard input or output.
Outputs are npz, npy, Parquet, CSV or JSON lines, as their ending says.
They are whole or not there, and the settings of the run stand beside them.

Exit codes: 0 done, 1 failed, 2 wrong use; 130 and 143 stopped.
The --help of every command shows an example.
"""
_LEARN, _SEARCH = "Learn and encode", "Index and search"
_SERVE, _MEASURE = "Serve and move elsewhere", "Measure and look"

app = typer.Typer(
    cls=Group,
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command(rich_help_panel=_LEARN)(train)
app.command(rich_help_panel=_LEARN)(encode)
app.command(rich_help_panel=_SEARCH)(search)
app.command(rich_help_panel=_MEASURE)(evaluate)
app.command(rich_help_panel=_MEASURE)(bench)
app.command(rich_help_panel=_MEASURE)(info)
app.command(rich_help_panel=_MEASURE)(demo)
app.command(rich_help_panel=_MEASURE)(reproduce)
app.command(rich_help_panel=_MEASURE)(explore)
app.command(rich_help_panel=_SERVE)(serve)
app.add_typer(data.app, name="data", rich_help_panel=_LEARN)
app.add_typer(index.app, name="index", rich_help_panel=_SEARCH)
app.add_typer(cluster.app, name="cluster", rich_help_panel=_SERVE)
app.add_typer(export.app, name="export", rich_help_panel=_SERVE)


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
    _debug: Debug = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; an error ends in one sentence and the exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × and ± still gets the numbers
    with told_in_sentences():
        app()
