"""``autojacobin demo`` and ``reproduce``: a first result on real data, and every table and figure of the paper."""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from typer import Option

from autojacobin.cli.console import kept_in, output, print_table, progress_bar, stoppable, table_of
from autojacobin.cli.options import DataFolder, SetName, split_columns, write_settings
from autojacobin.datasets import load_set
from autojacobin.errors import StorageError
from autojacobin.hashers import find_command

if TYPE_CHECKING:
    from autojacobin.paper.reproduction import Reproduction, Table

# m-Recall of all methods and by several distances, recall curves, and retrieved patches.
_SHOWN = ("quality", "distances", "fig9", "fig5")
_WIDEST = 110


def demo(
    name: SetName = "photos",
    data: DataFolder = None,
    out: Annotated[Path | None, Option(help="Folder for the results; demo-SET by default.")] = None,
    bits: Annotated[int, Option(min=1, help="Length of the codes.")] = 64,
    train: Annotated[int, Option(min=2, help="Most training points.")] = 4_000,
    seeds: Annotated[int, Option(min=1, help="Seeds to average over.")] = 1,
) -> None:
    """Learn codes of real vectors with all methods, build indexes, search them, and write a report.

    Takes about a minute on two idle cores. A second run reuses what the first has computed.

    Example: autojacobin demo --bits 32 --train 2000 --out first-look
    """
    from autojacobin.index.index import Index
    from autojacobin.paper.reproduction import Settings, reproduce
    from autojacobin.paper.reproduction.searches import search_table
    from autojacobin.paper.reproduction.trials import AUTOENCODER, NEIGHBOUR, SHOWN, every_method

    started = time.perf_counter()
    typer.echo(f"1. The set {name}")
    chosen = load_set(name, data)
    folder = out or Path(f"demo-{chosen.name}")
    _print(
        f"{chosen.description.removesuffix('.') or 'Vectors of your own'}. {len(chosen.train):,} vectors to learn "
        f"from, {len(chosen.base):,} to search in, {len(chosen.queries):,} queries, {chosen.base.shape[1]} dimensions."
    )
    there = [folder / name for name in ("model.safetensors", "index") if (folder / name).exists()]
    if there and not (folder / "results.json").exists():
        raise StorageError(f"this would replace {there[0]}, which no demo has made; choose another folder with --out")
    settings = Settings.for_set(chosen, seeds=seeds, bits=(bits,), training_points=train)
    with stoppable(kept_in(folder)):
        learned_from = min(train, len(chosen.train))
        ways = len(every_method()) + 1  # and the binary auto-encoder
        typer.echo(f"\n2. {ways} ways to learn {bits} bits from {learned_from:,} vectors, and what their codes find")
        with progress_bar() as progress:
            made = reproduce(
                chosen, folder, settings, only=_SHOWN, models={*SHOWN, NEIGHBOUR, AUTOENCODER}, progress=progress
            )
        _print_m_recalls(made, settings.depth, seeds)
        typer.echo(
            "\n3. An index on disk with codes of neighbour hashing, one in memory with codes of the binary auto-encoder"
        )
        with progress_bar() as progress:
            progress("index", 0, 0)
            own, decoded = made.models[NEIGHBOUR], made.models[AUTOENCODER]
            own.save(folder / "model.safetensors", overwrite=True)  # in place of that of an earlier demo
            first, other = Index(own), Index(decoded)
            for one in (first, other):
                one.add(chosen.base)
            first.save(folder / "index", overwrite=True)
            index = Index.open(folder / "index")
            index.verify()
    with stoppable(kept_in(folder)), progress_bar() as progress, index:  # nothing else runs while this is timed
        figures = index.info()
        bytes_per_vector = chosen.base.shape[1] * chosen.base.dtype.itemsize
        _print(
            f"{figures['vectors']:,} vectors of {bytes_per_vector:,} bytes, codes of {-(-bits // 8)}; "
            f"{figures['bytes'] / 1e6:.1f} MB in {index.path}, every checksum verified."
        )
        _print(f"The first has what suits the data best, {own.trained_as}.")
        searches = search_table({own.trained_name: index, "binary auto-encoder": other}, chosen, progress)
        made = made.add_table(searches)
    table = table_of("   search", *searches.header[1:])
    for search, *cells in searches.rows:
        table.add_row(f"   {search}", *cells)
    print_table(table)
    _print(searches.note)
    _print_next_steps(made, time.perf_counter() - started)


def reproduce(
    context: typer.Context,
    name: SetName = "photos",
    data: DataFolder = None,
    out: Annotated[Path | None, Option(help="Folder for the results; reproduction-SET by default.")] = None,
    only: Annotated[str | None, Option(help="Some tables and figures, such as table2,fig6.")] = None,
    quick: Annotated[bool, Option("--quick", help="Fewer points, lengths and seeds.")] = False,
    seeds: Annotated[int | None, Option(min=1, help="Seeds to average over; 3 by default.")] = None,
    bits: Annotated[list[int] | None, Option(metavar="N", help="Length of the codes.")] = None,
    k: Annotated[list[int] | None, Option("--k", "-k", min=1, metavar="N", help="True neighbours of a query.")] = None,
    methods: Annotated[str | None, Option(metavar="NAMES", help="Methods to compare, such as itq,lsh.")] = None,
    alpha: Annotated[list[float] | None, Option(min=0, metavar="A", help="Weight α in figure 7.")] = None,
    depth: Annotated[int | None, Option(min=1, help="Points retrieved, K.")] = None,
    train: Annotated[int | None, Option(min=2, help="Most training points; 10,000 by default.")] = None,
) -> None:
    """Make the paper's tables and figures for a data set, and write a report.

    The outcomes are kept in the folder, so that the same command continues a run where it stopped, and a run with other
    methods, seeds, lengths or k computes only what is new. What needs other methods than the given ones is left out.

    Example: autojacobin reproduce --quick --only table2,fig6 --out first-look
    """
    from autojacobin.paper.reproduction import Settings
    from autojacobin.paper.reproduction import reproduce as run

    chosen = load_set(name, data)
    names = split_columns(methods) or ()
    settings = Settings.for_set(
        chosen, quick=quick, seeds=seeds, bits=bits or None, ks=k or None, alphas=alpha or None, depth=depth,
        training_points=train, methods=[find_command(name).name for name in names],
    )  # fmt: skip
    folder = out or Path(f"reproduction-{chosen.name}{'-quick' if quick else ''}")
    used = {"seeds": settings.seeds, "bits": settings.bits, "depth": settings.depth, "k": settings.ks}
    used |= {"alpha": settings.alphas, "train": settings.training_points, "out": None}
    with stoppable(kept_in(folder)), progress_bar() as progress:

        def report(stage: str, done: int, total: int) -> None:
            if done == 0:  # the run begins; should it be stopped, --config with these settings continues it
                write_settings(context, folder, **used)
            progress(stage, done, total)

        made = run(chosen, folder, settings, only=only, progress=report)
    if output.quiet:
        return
    lines = [made.tables["table2"].to_text()] if "table2" in made.tables else []
    lines += [table.to_text() for table in made.verdict]
    lines += [f"{name} was not made: {reason}." for name, reason in made.left_out.items()]
    for line in (*lines, f"The report is {made.report}; tables and figures are beside it."):
        Console().print(line, markup=False, highlight=False, soft_wrap=True)


def _print_m_recalls(made: Reproduction, depth: int, seeds: int) -> None:
    from autojacobin.paper.reproduction.trials import AUTOENCODER, every_method

    quality, distances = made.tables["quality"], made.tables["distances"]
    trials = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))["trials"]

    def training(method: str) -> str:
        return f"{statistics.mean(t['seconds']['fit'] for t in trials if t['method'] == method):.1f} s"

    ks = (row[0].strip("()").partition(",")[0] for row in quality.rows)
    table = table_of("   m-Recall", *(f"k = {k}" for k in ks), "training")
    for column, method in enumerate(every_method(), 1):
        table.add_row(f"   {quality.header[column]}", *_marked(quality, column), training(method))
    table.add_row()
    for column, name in enumerate(distances.header[1:], 1):
        if not name.endswith("Hamming"):  # these are above
            table.add_row(f"   {name}", *_marked(distances, column), training(AUTOENCODER) if column == 1 else "")
    print_table(table)
    averaged = "Seed 0 alone" if seeds == 1 else f"Mean ± deviation of {seeds} seeds"
    _print(
        f"The share of a query's k true neighbours among the first i codes, averaged over i = 1 … {depth:,}. "
        f"{averaged}. * best, ≈ level with it. Auto-JacoBin has the paper's settings, (chosen) the library's. The "
        "upper rows compare codes with codes, the lower ones keep the real values of the query."
    )


def _marked(table: Table, column: int) -> list[str]:
    """Give a column of a table, with a mark behind the best cells and those level with them."""
    return [
        f"{row[column]}{'*' if (r, column) in table.bold else '≈' if (r, column) in table.level else ' '}"
        for r, row in enumerate(table.rows)
    ]


def _print_next_steps(made: Reproduction, seconds: float) -> None:
    folder, quoted = made.folder, shlex.quote(str(made.folder))
    for which, reason in made.left_out.items():
        typer.echo(f"\n{which} was not made: {reason}.")
    typer.echo(
        f"\nMade in {seconds:,.0f} s, in {folder}:\n"
        "   report.html         a verdict, tables, recall curves, pictures; open it in a browser\n"
        "   index               codes and vectors on disk, for Index.open and the command line\n"
        "   model.safetensors   what neighbour hashing learned, for autojacobin.load\n"
        "   tables, figures     the same as files\n"
        "\nTo try next:"
    )
    for purpose, arguments in (
        ("Make a page that shows what each method finds, query by query:", f"explore {quoted} --static {quoted}/page"),
        ("Search the index with queries of your own:", f"search {quoted}/index queries.npy found.csv -k 10"),
        ("Learn codes for vectors of your own:", "train vectors.npy model.safetensors"),
        ("Make every table and figure of the paper, in a quarter of an hour:", "reproduce"),
    ):
        typer.echo(f"   {purpose}\n      {_program_name()} {arguments}")


def _program_name() -> str:
    """Command that calls this program again: its name, or its path if it is not on the search path."""
    called = Path(sys.argv[0])
    elsewhere = called.name == "autojacobin" and shutil.which("autojacobin") is None
    return shlex.quote(str(called)) if elsewhere else "autojacobin"


def _print(text: str) -> None:
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 0)).columns)
    typer.echo(textwrap.fill(text, width, initial_indent="   ", subsequent_indent="   ", break_long_words=False))
