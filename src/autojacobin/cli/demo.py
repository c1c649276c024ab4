"""``autojacobin demo``: the whole road from pictures to neighbours, on real data, with nothing to download."""

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
from rich.table import Table

from autojacobin.cli._options import Debug, Threads
from autojacobin.cli._progress import single_bar
from autojacobin.cli._report import print_table
from autojacobin.cli._stopping import stoppable

if TYPE_CHECKING:
    from autojacobin.cli._demo_searches import Searched
    from autojacobin.reproduction import Reproduction

__all__ = ["demo"]

_SHOWN = ("quality", "fig9", "fig5")  # m-Recall of all methods, recall curves, and retrieved patches
_WIDEST = 110


def demo(
    name: Annotated[str, typer.Option("--set", help="A set of the catalogue, or the path of one's own.")] = "photos",
    data: Annotated[Path | None, typer.Option(help="Folder of data sets; AUTOJACOBIN_DATA by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for what is made; demo-SET by default.")] = None,
    bits: Annotated[int, typer.Option(min=1, help="Length of the codes.")] = 64,
    train: Annotated[int, typer.Option(min=2, help="Most training points.")] = 4_000,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to average over.")] = 1,
    _threads: Threads = None,
    _debug: Debug = False,
) -> None:
    """Learn codes of real vectors with all methods, keep an index on disk, search it, and write a report.

    Up to two minutes on two idle cores. A second run goes on from what the first has computed.

    Example: autojacobin demo --bits 32 --train 2000 --out first-look
    """
    from autojacobin.cli._demo_searches import build_index, try_searches
    from autojacobin.datasets import load_set
    from autojacobin.reproduction import Settings, reproduce

    started = time.perf_counter()
    typer.echo(f"1. The set {name}")
    chosen = load_set(name, data)
    folder = out or Path(f"demo-{chosen.name}")
    _tell(
        f"{chosen.description.removesuffix('.') or 'Vectors of your own'}. {len(chosen.train):,} vectors to learn "
        f"from, {len(chosen.base):,} to search in, {len(chosen.queries):,} queries, {chosen.base.shape[1]} dimensions."
    )
    settings = Settings.for_set(chosen, seeds=seeds, bits=(bits,), training_points=train)
    with stoppable(f"what was computed is kept in {folder}, and the same command goes on from there"):
        learned_from = min(train, len(chosen.train))
        typer.echo(f"\n2. Eleven ways to learn {bits} bits from {learned_from:,} vectors, and what their codes find")
        with single_bar() as progress:
            made = reproduce(chosen, folder, settings, only=_SHOWN, progress=progress)
        _print_m_recalls(made, settings.depth, seeds)
        typer.echo("\n3. An index on disk, made with Auto-JacoBin")
        with single_bar() as progress, build_index(chosen, settings, folder, progress) as index:
            figures = index.info()
            bytes_a_vector = chosen.base.shape[1] * chosen.base.dtype.itemsize
            _tell(
                f"{figures['vectors']:,} vectors of {bytes_a_vector:,} bytes, codes of {-(-bits // 8)}; "
                f"{figures['bytes'] / 1e6:.1f} MB in {index.path}, every checksum verified."
            )
            searched = try_searches(index, chosen, progress)
    _print_searches(searched)
    _print_farewell(made, time.perf_counter() - started)


def _print_m_recalls(made: Reproduction, depth: int, seeds: int) -> None:
    from autojacobin.reproduction.settings import EVERY

    quality = made.tables["quality"]
    trials = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))["trials"]
    seconds = [statistics.mean(t["seconds"]["fit"] for t in trials if t["method"] == method) for method in EVERY]
    table = Table(box=None, pad_edge=False)
    table.add_column("   m-Recall")
    for row in quality.rows:
        table.add_column(f"k = {row[0].strip('()').partition(',')[0]}", justify="right", no_wrap=True)
    table.add_column("training", justify="right", no_wrap=True)
    for column, (method, training) in enumerate(zip(quality.header[1:], seconds, strict=True), 1):
        marked = [
            f"{row[column]}{'*' if (r, column) in quality.bold else '≈' if (r, column) in quality.level else ' '}"
            for r, row in enumerate(quality.rows)
        ]
        table.add_row(f"   {method}", *marked, f"{training:.1f} s")
    print_table(table)
    averaged = "Seed 0 alone" if seeds == 1 else f"Mean ± deviation of {seeds} seeds"
    _tell(
        f"The share of a query's k true neighbours among the first i codes, averaged over i = 1 … {depth:,}. "
        f"{averaged}. * best, ≈ level with it. Auto-JacoBin has the paper's settings, (chosen) the library's."
    )
    _tell(made.found["quality"])


def _print_searches(searched: Searched) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("   search")
    for title in ("candidates", f"recall@{searched.k}", "queries a second"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in searched.rows:
        candidates = "" if row.candidates is None else f"{row.candidates:,}"
        table.add_row(f"   {row.name}", candidates, f"{row.recall:.3f}", f"{row.rate:,.0f}")
    print_table(table)
    _tell(
        f"recall@{searched.k}: the share of the {searched.k} true neighbours among the {searched.k} found. "
        "All queries are asked at once."
    )


def _print_farewell(made: Reproduction, seconds: float) -> None:
    folder, command = made.folder, _as_called()
    quoted = shlex.quote(str(folder))
    for which, reason in made.left_out.items():
        typer.echo(f"\n{which} was not made: {reason}.")
    typer.echo(
        f"\nMade in {seconds:,.0f} s, in {folder}:\n"
        "   report.html         tables, recall curves and what each method retrieves; open it in a browser\n"
        "   index               codes and vectors on disk, for Index.open and the command line\n"
        "   model.safetensors   what Auto-JacoBin learned, for autojacobin.load\n"
        "   tables, figures     the same as files\n"
        "\nTo try next:"
    )
    for purpose, arguments in (
        ("Look at what each method finds, query by query:", f"explore {quoted}"),
        ("Ask the index with queries of your own:", f"search {quoted}/index queries.npy found.csv -k 10"),
        ("Learn codes for vectors of your own:", "train vectors.npy model.safetensors"),
        ("Make every table and figure of the paper, in a quarter of an hour:", "reproduce"),
    ):
        typer.echo(f"   {purpose}\n      {command} {arguments}")


def _tell(text: str) -> None:
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 0)).columns)
    typer.echo(textwrap.fill(text, width, initial_indent="   ", subsequent_indent="   ", break_long_words=False))


def _as_called() -> str:
    """How this program can be called again: by its name, or by the path of one that is not on the search path."""
    called = Path(sys.argv[0])
    elsewhere = called.name == "autojacobin" and shutil.which("autojacobin") is None
    return shlex.quote(str(called)) if elsewhere else "autojacobin"
