"""Outcomes of trials: kept as files of the output folder, and averaged over seeds."""

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.counts import count_of
from autojacobin.core.files import as_path, clear_os_errors, write_atomically
from autojacobin.datasets import VectorSet
from autojacobin.errors import AutoJacobinError
from autojacobin.evaluation import OverSeeds, mean_and_error, over_seeds, paired_test
from autojacobin.hashers import load
from autojacobin.paper.reproduction.trials import Outcome, Settings, Trial, fingerprint

ASYMMETRICALLY = ", asymmetric"
"""Suffix of a method's name that selects its outcomes by the asymmetric distance."""


@dataclass
class Results:
    """Data, settings, truth and outcomes of a run, and the parameters chosen for the variants."""

    data: VectorSet
    settings: Settings
    truth: npt.NDArray[np.int64]
    outcomes: dict[Trial, Outcome] = field(default_factory=dict)
    chosen: dict[str, dict[str, float]] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the data, under which their outcomes are kept."""
        return fingerprint(self.data)

    @property
    def averaged_over(self) -> str:
        """What curves are means over, for notes."""
        n, seeds = len(self.data.queries), self.settings.seeds
        return f"{count_of(n, 'query', 'queries')}, {'seed 0' if seeds == 1 else f'{seeds} seeds'}"

    def of(self, method: str, bits: int) -> list[Outcome]:
        """Outcomes of a method with its defaults, one per seed, by the asymmetric distance if its name ends so."""
        name = method.removesuffix(ASYMMETRICALLY)
        found = {
            trial.seed: outcome
            for trial, outcome in self.outcomes.items()
            if (trial.method, trial.bits, trial.parameters) == (name, bits, ())
        }
        in_order = [found[seed] for seed in sorted(found)]
        if name == method:
            return in_order
        return [weighted for outcome in in_order if (weighted := outcome.by_asymmetric()) is not None]

    def m_recall(self, method: str, bits: int, k: int) -> OverSeeds:
        """m-Recall: mean and spread over the seeds."""
        return over_seeds([float(outcome.m_recall(k).mean()) for outcome in self.of(method, bits)])

    def curve(self, method: str, bits: int, k: int) -> npt.NDArray[np.float64]:
        """Recall@i, mean over queries and seeds."""
        curves = [outcome.recall_curve(k) for outcome in self.of(method, bits)]
        return np.mean(curves, axis=0)

    def level_with_best(self, methods: Iterable[str], bits: int, k: int) -> tuple[str, list[str]]:
        """Best method by m-Recall, and the methods that are level with it.

        A method is level with the best if they differ by no more than the spread of their seeds, or if a paired test
        over the queries finds no difference (at 5 %). A single query cannot show a difference.
        """
        values = {name: [outcome.m_recall(k) for outcome in self.of(name, bits)] for name in methods}
        seeds = {name: over_seeds([float(one.mean()) for one in found]) for name, found in values.items()}
        means = {name: np.mean(found, axis=0) for name, found in values.items()}
        best, level = max(seeds, key=lambda name: seeds[name].mean), []
        for name in seeds:
            spread = np.hypot(seeds[best].spread or 0.0, seeds[name].spread or 0.0)
            near = seeds[best].mean - seeds[name].mean <= spread
            ahead = len(means[best]) > 1 and paired_test(means[best], means[name]).verdict() == "a better"
            if name != best and (near or not ahead):
                level.append(name)
        return best, level

    def records(self) -> list[dict[str, Any]]:
        """One record for each trial, for JSON."""
        listed = []
        for trial, outcome in self.outcomes.items():
            means = {str(k): mean_and_error(outcome.m_recall(k)) for k in self.settings.ks}
            record: dict[str, Any] = {"method": trial.method, "bits": trial.bits, "seed": trial.seed}
            record["parameters"] = dict(trial.parameters)
            record["m_recall"] = {k: mean for k, (mean, _) in means.items()}
            record["standard_error"] = {k: error for k, (_, error) in means.items()}
            if weighted := outcome.by_asymmetric():
                record["m_recall_asymmetric"] = {str(k): float(weighted.m_recall(k).mean()) for k in self.settings.ks}
            record |= {"seconds": outcome.seconds, "warned": list(outcome.warned), "trained_as": outcome.trained_as}
            listed.append(record)
        return listed


class Store:
    """A folder of finished work. Each piece is an npz file that is written atomically, so runs can be stopped."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = as_path(folder)
        self.work = self.folder / "work"
        with clear_os_errors(f"write results to {self.folder}", "choose another folder with --out"):
            self.work.mkdir(parents=True, exist_ok=True)
            # The folder may exist but be read-only. Find that out before the work, not after it.
            with tempfile.TemporaryFile(dir=self.work):
                pass

    def write(self, name: str, content: bytes | str) -> Path:
        """Write a file of the folder."""
        path = self.folder / name
        with clear_os_errors(f"write {path}", "make room, or choose another folder with --out"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content.encode() if isinstance(content, str) else content)
        return path

    def outcome(self, key: str, with_model: bool = False) -> Outcome | None:
        """Read the outcome of a trial; None if it is missing or damaged, and the trial must be run."""
        arrays, hasher = self._kept(key), None
        if "before" not in arrays or "about" not in arrays:
            return None
        if with_model:
            try:
                hasher = load(self.work / f"{key}.safetensors")
            except AutoJacobinError:
                return None
        about = json.loads(str(arrays["about"]))
        return Outcome(
            before=arrays["before"],
            **{**about, "warned": tuple(about["warned"])},
            pictured=arrays.get("pictured"),
            asymmetric=arrays.get("asymmetric"),
            history={name.removeprefix("history."): a for name, a in arrays.items() if name.startswith("history.")},
            hasher=hasher,
        )

    def keep_outcome(self, key: str, outcome: Outcome, with_model: bool = False) -> None:
        """Write the outcome of a trial."""
        if with_model and outcome.hasher is not None:
            outcome.hasher.save(self.work / f"{key}.safetensors", overwrite=True)
        about = {name: getattr(outcome, name) for name in ("depth", "seconds", "warned", "trained_as")}
        arrays = {name: getattr(outcome, name) for name in ("before", "pictured", "asymmetric")}
        arrays |= {f"history.{name}": column for name, column in outcome.history.items()}
        self._keep(key, about=json.dumps(about), **{name: a for name, a in arrays.items() if a is not None})

    def array(self, key: str, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Read an array, or make and write it."""
        kept = self._kept(key).get("array")
        if kept is None:
            kept = make()
            self._keep(key, array=kept)
        return kept

    def _keep(self, key: str, **arrays: Any) -> None:
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays, names=list(arrays))
        self.write(f"work/{key}.npz", stream.getvalue())

    def _kept(self, key: str) -> dict[str, npt.NDArray[Any]]:
        """Arrays of a finished piece of work; none if it is missing or damaged."""
        try:
            with open(self.work / f"{key}.npz", "rb") as stream, np.load(stream, allow_pickle=False) as file:
                return {str(name): file[name] for name in file["names"]}
        except Exception:  # a damaged archive makes zipfile and NumPy raise almost anything
            return {}
