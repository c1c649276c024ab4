"""``autojacobin reproduce``: every table and figure of the paper from one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from autojacobin.cli._options import Config, Debug, Quiet, Threads
from autojacobin.cli._progress import single_bar
from autojacobin.cli._settings import write_settings
from autojacobin.cli._stopping import stoppable

__all__ = ["reproduce"]


def reproduce(
    context: typer.Context,
    name: Annotated[str, typer.Option("--set", help="A set of the catalogue, or the path of one's own.")] = "photos",
    data: Annotated[Path | None, typer.Option(help="Folder of data sets; AUTOJACOBIN_DATA by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; reproduction-SET by default.")] = None,
    only: Annotated[str | None, typer.Option(help="Some tables and figures, such as table2,fig6.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A minute's look: fewer points, lengths and seeds.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds to average over; 3 by default.")] = None,
    bits: Annotated[list[int] | None, typer.Option(help="Length of the codes; may be given several times.")] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Points retrieved, K.")] = None,
    train: Annotated[int | None, typer.Option(min=2, help="Most training points; 10,000 by default.")] = None,
    _threads: Threads = None,
    _config: Config = None,
    quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Regenerate the paper's tables and figures on a data set, and write a report that can be read.

    What was computed is kept in the folder: an interrupted run goes on where it was.

    Example: autojacobin reproduce --quick --only table2,fig6 --out first-look
    """
    from autojacobin.datasets import load_set
    from autojacobin.reproduction import Settings
    from autojacobin.reproduction import reproduce as run

    chosen = load_set(name, data)
    settings = Settings.for_set(
        chosen, quick=quick, seeds=seeds, bits=tuple(bits) if bits else None, depth=depth, training_points=train
    )
    folder = out or Path(f"reproduction-{chosen.name}{'-quick' if quick else ''}")
    comfort = f"what was computed is kept in {folder}, and the same command goes on from there"
    with stoppable(comfort), single_bar(quiet=quiet) as progress:
        made = run(chosen, folder, settings, only=only, progress=progress)
        used = {"seeds": settings.seeds, "bits": settings.bits, "depth": settings.depth}
        write_settings(context, folder, **used, train=settings.training_points, out=None)
    if quiet:
        return
    console = Console()
    if "table2" in made.tables:
        console.print(made.tables["table2"].to_text(), markup=False, highlight=False, soft_wrap=True)
    for name, sentence in made.found.items():
        console.print(f"{name}: {sentence}", markup=False, highlight=False, soft_wrap=True)
    for name, reason in made.left_out.items():
        console.print(f"{name} was not made: {reason}.", markup=False, highlight=False, soft_wrap=True)
    console.print(f"The report is {made.report}; tables and figures are beside it.", markup=False, soft_wrap=True)
