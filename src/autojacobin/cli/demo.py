"""``autojacobin demo``: a result on real data, with nothing to download."""

from __future__ import annotations

import statistics
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from autojacobin.datasets import load_set
from autojacobin.evaluation import Trial, ground_truth, run_trial
from autojacobin.hashers import ITQ, AutoJacoBin, Hasher

__all__ = ["demo"]

_KS = (1, 10, 100)
_DEPTH = 150


def demo(
    bits: Annotated[list[int] | None, typer.Option(help="Length of the codes; may be given several times.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to average over.")] = 3,
) -> None:
    """Hash real vectors with Auto-JacoBin and with ITQ, and show how well each finds the true neighbours.

    Example: autojacobin demo --bits 32 --seeds 5
    """
    console = Console()
    data = load_set("digits")
    truth = ground_truth(data.base, data.queries, max(_KS))
    console.print(f"[bold]{data.name}[/]: {data.description}.")
    lengths = list(dict.fromkeys(bits or [32, 64]))
    for length in lengths:
        if not 1 <= length <= data.base.shape[1]:
            raise typer.BadParameter(f"{length} is not from 1 to {data.base.shape[1]}, where both methods are defined")
    makers: dict[str, type[Hasher]] = {"ITQ": ITQ, "Auto-JacoBin": AutoJacoBin}
    cells = [(length, name) for length in lengths for name in makers]
    trials: dict[tuple[int, str], list[Trial]] = {cell: [] for cell in cells}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(cells) * seeds)
        for length, name in cells:
            bar.update(task, description=f"{name}, {length} bits")
            for seed in range(seeds):
                hasher = makers[name](n_bits=length, random_state=seed)
                trials[length, name].append(run_trial(hasher, data, truth, _KS, _DEPTH))
                bar.advance(task)
    console.print(_table(trials, seeds))
    spread = f"Seeds 0 to {seeds - 1}; a difference within the ± is none" if seeds > 1 else "One seed, 0"
    console.print(
        f"m-Recall: share of a query's k true neighbours among the first i codes in Hamming order, averaged over "
        f"i = 1…{_DEPTH} (a tenth of the base). {spread}. The paper's settings."
    )


def _table(trials: dict[tuple[int, str], list[Trial]], seeds: int) -> Table:
    table = Table(title=f"m-Recall on digits, {'one seed' if seeds == 1 else f'mean ± deviation of {seeds} seeds'}")
    table.add_column("bits", justify="right")
    table.add_column("method")
    for k in _KS:
        table.add_column(f"k = {k}", justify="right")
    table.add_column("fit", justify="right")
    for (length, name), outcomes in trials.items():
        recalls = ([trial.m_recall[k] for trial in outcomes] for k in _KS)
        seconds = statistics.mean(trial.fit_seconds for trial in outcomes)
        table.add_row(str(length), name, *map(_mean_and_spread, recalls), f"{seconds:.2f} s")
    return table


def _mean_and_spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"
