"""The program ``autojacobin``: its commands, its help, and how it starts."""

import io
import itertools
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from threadpoolctl import threadpool_limits
from typer import Option
from typer.core import TyperGroup

from autojacobin import __version__
from autojacobin.cli import cluster, data, export, indexes
from autojacobin.cli.console import clear_usage_errors, output, report_failures, wrong
from autojacobin.cli.info import bench, info
from autojacobin.cli.models import encode, train
from autojacobin.cli.options import typed_settings
from autojacobin.cli.reproduce import demo, reproduce
from autojacobin.cli.search import evaluate, search
from autojacobin.cli.serve import explore, serve, warm

_HELP = """Learned binary codes for nearest-neighbour search.

Build an index, search it, and measure how many true neighbours it finds:

  autojacobin index build base.npy my-index
  autojacobin search my-index queries.npy found.parquet -k 10
  autojacobin evaluate my-index queries.npy

Vectors come from fvecs, bvecs, fbin, npy, npz, HDF5, Parquet or text files.
PATH::PART names one matrix of several; - is the standard input or output.
The ending of an output gives its format: npz, npy, Parquet, CSV or JSON lines.
Outputs are written atomically. A file that exists is replaced only with --overwrite.

Options of the program, such as --json, may also stand after the command.

Exit codes: 0 done, 1 failed, 2 wrong use, 129, 130 and 143 stopped by a signal.
The --help of every command shows an example.
"""
_LEARN, _SEARCH, _MEASURE, _SERVE = "Learn and encode", "Index and search", "Measure and look", "Serve and export"
_PANELS = {_LEARN: (train, encode), _SEARCH: (search,), _MEASURE: (evaluate, bench, info, demo, reproduce, explore)}
_GROUPS = {"data": (data, _LEARN), "index": (indexes, _SEARCH)}
_GROUPS |= {"cluster": (cluster, _SERVE), "export": (export, _SERVE)}
_METAVARS = {"int range": "N", "int": "N", "float range": "NUMBER", "str": "NAME", "path": "PATH"}


_FLAGS, _WITH_VALUE = ("--quiet", "-q", "--json", "--debug"), ("--config", "--threads")
_WITHOUT_JSON = ("demo", "explore", "reproduce", "serve", "warm")


class _Program(TyperGroup):
    """All commands. Their help names values by words and not by types, and wraps paragraphs at the terminal's width."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments of the program."""
        _format_help(self, typer.Context(self, **self.context_settings))
        with clear_usage_errors():
            return super().make_context(info_name, _with_settings(self, *_program_options_first(args)), parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of the command, and run it."""
        with clear_usage_errors():
            return super().invoke(ctx)


def _program_options_first(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Give the options of the program, which may also be given after a command, and the other words."""
    first, others, words = list[str](), list[str](), iter(arguments)
    for word in words:
        if word in _FLAGS or word.startswith(tuple(f"{name}=" for name in _WITH_VALUE)):
            first += word.split("=", 1)
        elif word in _WITH_VALUE:
            first += [word, *itertools.islice(words, 1)]
        else:
            others += [word, *words] if word == "--" else [word]
    return first, others


def _with_settings(program: Any, first: list[str], others: list[str]) -> list[str]:
    """Put the settings in the file of ``--config`` behind the names of the command, before what is typed there."""
    command, n_names = program, 0
    while others[n_names:] and others[n_names] in getattr(command, "commands", ()):
        command, n_names = command.commands[others[n_names]], n_names + 1
    settings = list[str]()
    if n_names and "--config" in first[:-1]:
        path = Path(first[first.index("--config") + 1])
        settings = typed_settings(path, others[:n_names], command)
    return [*first, *others[:n_names], *settings, *others[n_names:]]


def _format_help(command: Any, context: typer.Context) -> None:
    command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", command.help or "")
    for parameter in command.get_params(context):
        _name_value(parameter, context)
    for inner in getattr(command, "commands", {}).values():
        _format_help(inner, context)


def _name_value(parameter: Any, context: typer.Context) -> None:
    """Replace what typer would print, such as <bool>, <list[str]>, <int range> [x>=1] and {VECTORS}..."""
    if getattr(parameter, "is_flag", False):
        parameter.metavar = ""
    if getattr(parameter, "multiple", False) and "several times" not in parameter.help:
        parameter.help = f"{parameter.help.removesuffix('.')}; may be given several times."
    if not hasattr(parameter, "display_type_rich"):  # of an older typer, which prints types as INTEGER and TEXT
        return
    parameter._get_number_range_help_str = lambda: None
    if parameter.param_type_name == "argument":
        parameter.display_type_rich = lambda **_: None
        name = parameter.display_name_raw + ("..." if parameter.nargs != 1 else "")
        parameter._usage_display_name = lambda: name if parameter.required else f"[{name}]"
    elif parameter.metavar is None:
        kind = parameter.display_type_rich(ctx=context).strip("<>")
        parameter.metavar = _METAVARS.get(kind, kind)


app = typer.Typer(
    cls=_Program,
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _panel, _commands in {**_PANELS, _SERVE: (serve, warm)}.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
for _name, (_group, _panel) in _GROUPS.items():
    app.add_typer(_group.app, name=_name, rich_help_panel=_panel)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autojacobin {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    _version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Show no progress and no summary.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the outcome as JSON, without progress.")] = False,
    _config: Annotated[Path | None, Option("--config", metavar="FILE", help="TOML settings; options win.")] = None,
    threads: Annotated[int | None, Option(min=1, help="Cores to use; all by default.")] = None,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    output.quiet, output.as_json, output.debug = quiet, as_json, debug
    if as_json and context.invoked_subcommand in _WITHOUT_JSON:
        raise wrong("--json", f"{context.invoked_subcommand} prints no JSON; leave it out")
    if threads is not None:
        context.with_resource(threadpool_limits(threads))  # of the BLAS library that is already loaded
        os.environ["OMP_NUM_THREADS"] = str(threads)


def main() -> None:
    """Run the command line. An error ends it with one sentence and the exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × and ± still gets the numbers
    with report_failures():
        app()
