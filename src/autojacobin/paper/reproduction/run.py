"""The whole run: run the trials, keep their outcomes, make the tables and figures, write the report."""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from autojacobin import __version__
from autojacobin.core.counts import count_of
from autojacobin.core.files import as_path
from autojacobin.core.parallel import Progress, usable_cores
from autojacobin.datasets import VectorSet
from autojacobin.errors import DataError
from autojacobin.evaluation import ground_truth
from autojacobin.hashers import Hasher
from autojacobin.paper import figures
from autojacobin.paper.reproduction import measured, trials
from autojacobin.paper.reproduction.artefacts import ARTEFACTS, SAME, Artefact
from autojacobin.paper.reproduction.report import Report, Section, Table
from autojacobin.paper.reproduction.results import Results, Store
from autojacobin.paper.reproduction.trials import VARIANTS, Settings, Trial, longest_bits, run_trial

_K, _DEPTH, _HELD_OUT_SHARE, _FEWEST = 10, 100, 10, 20  # of the search for the parameters of a variant
_FEWEST_KEPT = 100  # true neighbours of a query: a later run with another k finds the outcomes that are kept


@dataclass(frozen=True)
class Reproduction:
    """Outcome of a run: the folder of the results, the page in it, and its tables by name.

    ``verdict`` tells how often each method is ahead, level with the best or behind, ``left_out`` why tables or figures
    were not made, and ``models`` holds the models that were asked for, by method.
    """

    folder: Path
    report: Path
    verdict: list[Table]
    tables: dict[str, Table]
    left_out: dict[str, str]
    models: dict[str, Hasher]
    _page: Report = field(repr=False)

    def add_table(self, table: Table) -> Reproduction:
        """Write one more table to the folder and to the end of the report; give the same run with this table."""
        store = Store(self.folder)
        _write_table(store, table)
        section = Section(table.name, table.title, "", "", table)
        page = replace(self._page, sections=[*self._page.sections, section])
        store.write(self.report.name, page.to_html())
        return replace(self, tables={**self.tables, table.name: table}, _page=page)


def reproduce(
    data: VectorSet,
    folder: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    only: Iterable[str] | None = None,
    models: Iterable[str] = (),
    progress: Progress | None = None,
) -> Reproduction:
    """Regenerate the paper's tables and figures on ``data`` into ``folder``.

    A run that was interrupted continues where it stopped. One with more seeds or lengths computes only what is new.

    Parameters
    ----------
    data : VectorSet
        From :func:`autojacobin.datasets.load_set`.
    folder : path
        For ``report.html``, ``results.json``, ``tables/``, ``figures/``, and ``work/`` with the kept outcomes.
    settings : Settings, optional
        ``Settings.for_set(data)`` by default.
    only : iterable of str, optional
        Names of tables and figures to make, keys of ``ARTEFACTS``; all by default. The report contains only these.
        ``fig10`` is another name of ``fig9``: they show the same for two data sets of the paper.
        Files of others stay as an earlier run left them; ``results.json`` lists the files of the last run.
    models : iterable of str
        Methods whose models are kept as well, those with seed 0 and the code length of figure 5, so that they need not
        be trained again. The tables and figures must need these methods.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.
    """
    settings = settings or Settings.for_set(data)
    settings.check_against(data)
    parts = trials.cut(data, settings)
    settings = replace(settings, training_points=len(parts.train))
    wanted = _wanted(only, settings)
    _check_folder(as_path(folder), data.name)
    if any(artefact.caption for artefact in wanted.values()):
        figures.require_matplotlib()  # before the work, not after it
    started = time.perf_counter()
    run = _Run(parts, settings, Store(folder), tuple(models), progress or (lambda *_: None))
    results = run.everything(wanted)
    sections = [run.section(name, artefact, results) for name, artefact in wanted.items()]
    tables = {section.name: section.content for section in sections if isinstance(section.content, Table)}
    left_out = {section.name: section.content for section in sections if isinstance(section.content, str)}
    about = _about(results, time.perf_counter() - started)
    verdict = measured.standings(results, tables)
    record = {
        "set": {"name": data.name, "description": data.description, "source": data.source, "licence": data.licence},
        "settings": asdict(settings),
        "about": about,
        "verdict": {table.name: [table.header, *table.rows] for table in verdict},
        "models": run.model_files,
        "claims": {section.name: section.claim for section in sections if section.claim},
        "left_out": left_out,
        "files": run.files,
        "chosen": results.chosen,
        "trials": results.records(),
    }
    run.store.write("results.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    lead = " ".join([f"{data.description.removesuffix('.')}."] * bool(data.description) + [_sizes(results)])
    page = Report(f"Auto-JacoBin on {data.name}", lead, verdict, sections, about)
    report = run.store.write("report.html", page.to_html())
    return Reproduction(Path(folder), report, verdict, tables, left_out, run.trained, page)


def _check_folder(folder: Path, name: str) -> None:
    """Raise DataError if the folder holds the results of another set."""
    try:
        other = json.loads((folder / "results.json").read_text(encoding="utf-8"))["set"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if other != name:
        raise DataError(
            f"{folder} holds the results of the set {other!r}, and those of {name!r} cannot go beside them; "
            "choose another folder with --out"
        )


def _wanted(only: Iterable[str] | None, settings: Settings) -> dict[str, Artefact]:
    given = [name.strip() for name in (only.split(",") if isinstance(only, str) else only or ARTEFACTS)]
    names = [SAME.get(name, name) for name in given]
    for name in names:
        if name not in ARTEFACTS:
            raise DataError(f"there is no table or figure {name!r}, expected some of: {', '.join(ARTEFACTS)}")
    return {name: artefact.among(settings) for name, artefact in ARTEFACTS.items() if name in names}


class _Run:
    """A run in progress, with one progress bar for all of it."""

    def __init__(
        self, data: VectorSet, settings: Settings, store: Store, models: tuple[str, ...], progress: Progress
    ) -> None:
        self.data, self.settings, self.store, self.progress = data, settings, store, progress
        self.models = models
        self.done, self.total = 0, 1
        self.files: dict[str, list[str]] = {}
        self.trained: dict[str, Hasher] = {}  # the models that the caller asked for, by method
        self.model_files: dict[str, str] = {}

    def everything(self, wanted: dict[str, Artefact]) -> Results:
        """Run all trials that the wanted tables and figures need."""
        needed = list(dict.fromkeys(trial for artefact in wanted.values() for trial in artefact.trials(self.settings)))
        searched = any(artefact.searches_grids for artefact in wanted.values())
        bits = longest_bits(self.settings)
        tries = sum(1 + len(grid(method, self.settings)) for method in VARIANTS) if searched else 0
        self.total = 1 + sum(trial.cost for trial in needed) + tries * Trial(VARIANTS[0], bits, 0).cost + len(wanted)
        self.progress("ground truth", 0, self.total)
        k = max(self.settings.ks[-1], _FEWEST_KEPT) if needed else 0
        results = self._results(self.data, self.settings, k)
        self._advance(1, "ground truth")
        if searched:
            results.chosen = {method: self._choose(method, bits) for method in VARIANTS}
            needed += trials.variant_trials(self.settings, results.chosen)
        for trial in needed:
            self._try(trial, results, str(trial))
        return results

    def _results(self, data: VectorSet, settings: Settings, k: int) -> Results:
        """Results without outcomes, with up to ``k`` true neighbours of each query."""
        k = min(k, len(data.base))
        results = Results(data, settings, np.zeros((len(data.queries), 0), dtype=np.int64))
        if k:
            key = f"truth-{k}-{results.fingerprint}"
            results.truth = self.store.array(key, lambda: ground_truth(data.base, data.queries, k))
        return results

    def _choose(self, method: str, bits: int) -> dict[str, float]:
        """Search the grid of a variant: the best m-Recall of held-out training points wins."""
        held_out = self._held_out
        tried = [Trial(method, bits, 0, tuple(parameters.items())) for parameters in grid(method, self.settings)]
        for trial in tried:
            self._try(trial, held_out, f"{method}: search of its parameters on the training set")
        best = max(tried, key=lambda trial: float(held_out.outcomes[trial].m_recall(_K).mean()))
        return dict(best.parameters)

    @cached_property
    def _held_out(self) -> Results:
        """A tenth of the training set as queries, and the rest of it to learn from and to search in."""
        train = np.asarray(self.data.train)
        if len(train) < _FEWEST:
            raise DataError(
                f"the parameters of the variants are searched on at least {_FEWEST} training points, got {len(train)}; "
                "pass more, or leave fig8 and variants out with --only"
            )
        order = np.random.default_rng(0).permutation(len(train))
        queries, rest = (train[part] for part in np.split(order, [len(order) // _HELD_OUT_SHARE]))
        data = replace(self.data, train=rest, base=rest, queries=queries)
        return self._results(data, replace(self.settings, depth=min(_DEPTH, len(rest))), _K)

    def _try(self, trial: Trial, results: Results, stage: str) -> None:
        self.progress(stage, self.done, self.total)
        depth = results.settings.depth
        key = trial.key(results.fingerprint, depth, results.truth.shape[1])
        usual = (trial.bits, trial.seed, trial.parameters) == (longest_bits(self.settings), 0, ())
        has_model = usual and trial.method in self.models
        outcome = self.store.outcome(key, has_model)
        if outcome is None:
            outcome = run_trial(trial, results.data, results.truth, depth)
            self.store.keep_outcome(key, outcome, has_model)
        if has_model and outcome.hasher is not None:
            self.trained[trial.method], self.model_files[trial.method] = outcome.hasher, f"{key}.safetensors"
        results.outcomes[trial] = outcome
        self._advance(trial.cost, stage)

    def _advance(self, steps: int, stage: str) -> None:
        self.done += steps
        self.progress(stage, min(self.done, self.total), self.total)

    def section(self, name: str, artefact: Artefact, results: Results) -> Section:
        """Make a table or a figure, and write its files."""
        self.progress("tables and figures", self.done, self.total)
        made: Any = artefact.make(results)
        if isinstance(made, Table):
            paths = _write_table(self.store, made)
        elif isinstance(made, str):
            paths = []
        else:
            made = figures.save(made, self.store.folder / "figures", name)
            paths = list(made)
        self.files[name] = [path.relative_to(self.store.folder).as_posix() for path in paths]
        self._advance(1, "tables and figures")
        return Section(name, artefact.title, artefact.claim, artefact.caption, made)


def _write_table(store: Store, table: Table) -> list[Path]:
    texts = {"txt": table.to_text(), "md": table.to_markdown(), "tex": table.to_latex(), "csv": table.to_csv()}
    return [store.write(f"tables/{table.name}.{ending}", text) for ending, text in texts.items()]


def grid(method: str, settings: Settings) -> list[dict[str, float]]:
    """All combinations of parameters that are tried for a variant; only its weight α unless the grids are full."""
    axes = {name: values for name, values in trials.GRIDS[method].items() if settings.full_grids or name == "alpha"}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _sizes(results: Results) -> str:
    data = results.data
    return (
        f"{count_of(len(data.train), 'training point')}, {len(data.base):,} in the base, "
        f"{count_of(len(data.queries), 'query', 'queries')}, {count_of(data.base.shape[1], 'dimension')}."
    )


def _about(results: Results, seconds: float) -> dict[str, Any]:
    settings = results.settings
    seeds = "0;" if settings.seeds == 1 else f"0 to {settings.seeds - 1};"
    warned = [f"{trial}: {text}" for trial, outcome in results.outcomes.items() for text in outcome.warned]
    training = sum(outcome.seconds["fit"] for outcome in results.outcomes.values())
    return {
        "set": f"{results.data.name}: {_sizes(results)}",
        "source": results.data.source or "local files",
        "licence": results.data.licence or "not known",
        "code lengths": ", ".join(map(str, settings.bits)),
        "true neighbours k": ", ".join(map(str, settings.ks)),
        "points retrieved K": f"{settings.depth:,}",
        "seeds": f"{seeds} the grids over α and over the variants take seed 0 alone",
        "parameters": "the paper's, unless a table says otherwise",
        "trials": f"{len(results.outcomes)}, of which training took {training:,.0f} s in all",
        "this run took": f"{seconds:,.0f} s; trials that were kept from earlier runs were not run again",
        "date": date.today().isoformat(),
        "warnings of the fits": "; ".join(warned) or "none",
        "machine": f"{count_of(usable_cores(), 'core')}, {platform.machine()}, {platform.system()}",
        "software": f"autojacobin {__version__}, Python {platform.python_version()}, NumPy {np.__version__}",
    }
