"""The whole run: try what is needed, keep it, make the tables and figures, write the report."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autojacobin import __version__, figures
from autojacobin._parallel import usable_cores
from autojacobin.datasets import VectorSet
from autojacobin.errors import DataError
from autojacobin.evaluation import ground_truth
from autojacobin.reproduction.artefacts import ARTEFACTS, Artefact
from autojacobin.reproduction.cells import longest_bits, variant_cells
from autojacobin.reproduction.choosing import choose, grid
from autojacobin.reproduction.report import Section, write_report
from autojacobin.reproduction.results import Results
from autojacobin.reproduction.settings import VARIANTS, Settings, cut
from autojacobin.reproduction.store import Store
from autojacobin.reproduction.tables import Table
from autojacobin.reproduction.trials import Cell, fingerprint, run_cell

__all__ = ["Reproduction", "reproduce"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Reproduction:
    """What a run made: its folder, the tables by name, the page, and what was left out and why."""

    folder: Path
    report: Path
    tables: dict[str, Table]
    left_out: dict[str, str]


def reproduce(
    data: VectorSet,
    folder: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    only: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Regenerate the paper's tables and figures on ``data`` into ``folder``.

    A run that was interrupted goes on where it was, and one with more seeds or lengths computes only what is new.

    Parameters
    ----------
    data : VectorSet
        From :func:`autojacobin.datasets.load_set`.
    folder : path
        Gets ``report.html``, ``results.json``, ``tables/``, ``figures/``, and ``work/`` with what was computed.
    settings : Settings, optional
        ``Settings.for_set(data)`` by default.
    only : iterable of str, optional
        Names of tables and figures to make, keys of ``ARTEFACTS``; all by default.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.
    """
    settings = settings or Settings.for_set(data)
    wanted = _wanted(only)
    started = time.perf_counter()
    run = _Run(cut(data, settings), settings, Store(folder), progress or (lambda *_: None))
    results = run.everything(wanted)
    sections = [_section(name, artefact, results, run.store) for name, artefact in wanted.items()]
    tables = {section.name: section.content for section in sections if isinstance(section.content, Table)}
    left_out = {section.name: section.content for section in sections if isinstance(section.content, str)}
    about = _about(results, time.perf_counter() - started)
    record = {
        "set": {"name": data.name, "description": data.description, "source": data.source, "licence": data.licence},
        "settings": settings.as_dict(),
        "about": about,
        "chosen": results.chosen,
        "trials": results.records(),
        "left_out": left_out,
    }
    run.store.write("results.json", json.dumps(record, indent=1))
    lead = f"{data.description}. {_sizes(results)}"
    page = write_report(f"Auto-JacoBin on {data.name}", lead, sections, about)
    report = run.store.write("report.html", page)
    return Reproduction(Path(folder), report, tables, left_out)


def _wanted(only: Iterable[str] | None) -> dict[str, Artefact]:
    if only is None:
        return ARTEFACTS
    names = [name.strip() for name in only]
    for name in names:
        if name not in ARTEFACTS:
            raise DataError(f"there is no table or figure {name!r}, expected some of: {', '.join(ARTEFACTS)}")
    return {name: artefact for name, artefact in ARTEFACTS.items() if name in names}


class _Run:
    """Work that is under way, with a bar over the whole of it."""

    def __init__(self, data: VectorSet, settings: Settings, store: Store, progress: Progress) -> None:
        self.data, self.settings, self.store, self.progress = data, settings, store, progress
        self.print = fingerprint(data)
        self.done, self.total = 0, 1

    def everything(self, wanted: dict[str, Artefact]) -> Results:
        """Try all that the wanted tables and figures need."""
        cells = list(dict.fromkeys(cell for artefact in wanted.values() for cell in artefact.cells(self.settings)))
        searched = any(artefact.searches_grids for artefact in wanted.values())
        combinations = sum(len(grid(method, self.settings)) for method in VARIANTS) if searched else 0
        longest = self.settings.bits[-1] // 32 + 1
        self.total = 1 + sum(cell.cost for cell in cells) + longest * (combinations + searched * len(VARIANTS))
        self.progress("ground truth", 0, self.total)
        k = min(max(*self.settings.ks, 99), len(self.data.base))
        truth = (
            self.store.array(f"truth-{k}-{self.print}", lambda: ground_truth(self.data.base, self.data.queries, k))
            if cells
            else np.zeros((len(self.data.queries), 0), dtype=np.int64)
        )
        self._advance(1, "ground truth")
        results = Results(self.data, self.settings, truth)
        if searched:
            bits = longest_bits(self.settings)
            for method in VARIANTS:
                stage = f"{method}: search of its parameters on the training set"
                results.chosen[method] = choose(
                    method,
                    bits,
                    self.data,
                    self.print,
                    self.settings,
                    self.store,
                    partial(self._advance, longest, stage),
                )
            cells += variant_cells(self.settings, results.chosen)
        for cell in cells:
            self._try(cell, results)
        return results

    def _try(self, cell: Cell, results: Results) -> None:
        self.progress(str(cell), self.done, self.total)
        key = cell.key(self.print, self.settings.depth)
        outcome = self.store.outcome(key)
        if outcome is None:
            outcome = run_cell(cell, self.data, results.truth, self.settings.depth)
            self.store.keep_outcome(key, outcome)
        results.outcomes[cell] = outcome
        self._advance(cell.cost, str(cell))

    def _advance(self, steps: int, stage: str) -> None:
        self.done += steps
        self.progress(stage, min(self.done, self.total), self.total)


def _section(name: str, artefact: Artefact, results: Results, store: Store) -> Section:
    made: Any = artefact.make(results)
    if isinstance(made, Table):
        for ending, text in (
            ("txt", made.to_text()),
            ("md", made.to_markdown()),
            ("tex", made.to_latex()),
            ("csv", made.to_csv()),
        ):
            store.write(f"tables/{made.name}.{ending}", text)
    elif not isinstance(made, str):
        made = figures.save(made, store.folder / "figures", name)
    return Section(name, artefact.title, artefact.claim, made)


def _sizes(results: Results) -> str:
    data = results.data
    return (
        f"{len(data.train):,} training points, {len(data.base):,} in the base, {len(data.queries):,} queries, "
        f"{data.base.shape[1]} dimensions."
    )


def _about(results: Results, seconds: float) -> dict[str, Any]:
    settings = results.settings
    training = sum(outcome.seconds["fit"] for outcome in results.outcomes.values())
    return {
        "set": f"{results.data.name}: {_sizes(results)}",
        "source": results.data.source or "local files",
        "licence": results.data.licence or "not known",
        "code lengths": ", ".join(map(str, settings.bits)),
        "true neighbours k": ", ".join(map(str, settings.ks)),
        "points retrieved K": f"{settings.depth:,}",
        "seeds": f"0 to {settings.seeds - 1}; the grids over α and over the variants take seed 0 alone",
        "parameters": "the paper's, which are the defaults of the library, unless a table says otherwise",
        "trials": f"{len(results.outcomes)}, of which training took {training:,.0f} s in all",
        "this run took": f"{seconds:,.0f} s; trials that were kept from earlier runs were not run again",
        "date": date.today().isoformat(),
        "machine": f"{usable_cores()} cores, {platform.machine()}, {platform.system()}",
        "software": f"autojacobin {__version__}, Python {platform.python_version()}, NumPy {np.__version__}",
    }
