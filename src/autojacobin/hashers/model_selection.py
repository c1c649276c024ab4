"""Choice of settings on the training set alone, by scores of held-out points (``held_out.py``).

Candidates are compared by the m-Recall of their codes. Candidates without the Jacobian term cost little and are tried
first, from every initialisation. The Jacobian term needs tangent spaces and takes nearly all of the time, so it is
tried only from the two best initialisations, and not from one that is behind beyond the noise of the queries. In both
rounds, candidates race (successive halving): they are trained for a few steps and compared, and only the best go on to
the next stage. A candidate is also dropped when more training has lowered its score. One with the Jacobian term is
dropped when it is behind the best of all beyond the noise, so that where the term cannot win, it costs three steps for
each candidate and the tangent spaces of these steps.

The initial networks and the state of every candidate after every stage count too. So the chosen network never scores
lower than anything that was tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder import Network, OutOfTimeError, Step
from autojacobin.hashers.held_out import Found

__all__ = [
    "Found", "Options", "Recipe", "Selected", "behind", "recipe_name", "select_recipe",
    "settings_text",
]  # fmt: skip

_STARTS = {"random": "a random rotation", "itq": "ITQ", "okmeans": "OKMeans", "nokmeans": "NOKMeans"}

_REDUCTION = 3  # one in three candidates is kept after each stage
_STEPS_OF_FIRST_STAGE = 3
_INITS_WITH_JACOBIAN = 2
_COST, _COST_WITH_JACOBIAN = 1, 20  # of a step, in the same unit, for the progress
_STANDARD_ERRORS = 3.0  # a score that is behind by more than this many standard errors is behind beyond the noise


@dataclass(frozen=True)
class Recipe:
    """The settings that a network is trained with."""

    init: str
    alpha: float
    jacobian_weight: float
    energy: float


@dataclass(frozen=True)
class Options:
    """The settings to choose from.

    Attributes
    ----------
    inits, alphas, jacobian_weights, energies : tuples
        At least one value each. The first energy is the largest.
    alphas_without_jacobian : tuple of float
        Weights of the binary term for candidates without the Jacobian term.
    n_epochs, n_epochs_without_jacobian : int
        Largest numbers of epochs, with and without the Jacobian term.
    baseline : Recipe, optional
        A recipe with the Jacobian term that is tried unless its initialisation is behind beyond the noise.
    """

    inits: tuple[str, ...]
    alphas: tuple[float, ...]
    alphas_without_jacobian: tuple[float, ...]
    jacobian_weights: tuple[float, ...]
    energies: tuple[float, ...]
    n_epochs: int
    n_epochs_without_jacobian: int
    baseline: Recipe | None = None

    @property
    def light_alphas(self) -> tuple[float, ...]:
        """Weights α to try without the Jacobian term; none if the options do not include that."""
        return self.alphas_without_jacobian if 0.0 in self.jacobian_weights else ()

    @property
    def positive_weights(self) -> tuple[float, ...]:
        """Weights of the Jacobian term to try."""
        return tuple(weight for weight in self.jacobian_weights if weight > 0)


@dataclass(frozen=True)
class Selected:
    """The best candidate: its recipe, the network that was compared, its steps, and a table of all that was scored."""

    recipe: Recipe
    network: Network
    steps: tuple[Step, ...]
    found: Found
    best_start: float
    results: dict[str, npt.NDArray[Any]]

    def accepts(self, found: Found, start: Found) -> bool:
        """Whether a network trained on more points may replace the one that was compared.

        ``found`` is its score and ``start`` that of the network it was trained from. It may not be behind any start,
        nor behind the compared network by more than the noise.
        """
        lowest = max(float(start.mean()), self.best_start)
        return float(found.mean()) >= lowest and not behind(found, self.found)

    def with_result(self, found: Found, n_epochs: int, n_steps: int, *, chosen: bool) -> dict[str, npt.NDArray[Any]]:
        """The table with a row for a network that was trained by the same recipe on more points."""
        values = [*vars(self.recipe).values(), n_epochs, n_steps, float(found.mean()), int(chosen)]
        table = {
            name: np.append(column, value) for (name, column), value in zip(self.results.items(), values, strict=True)
        }
        if chosen:
            table["chosen"][:-1] = 0
        return table


class _Scored(NamedTuple):
    recipe: Recipe
    n_epochs: int
    n_steps: int
    found: Found
    score: float


class _Candidate:
    """A network in training, and the steps it has taken."""

    def __init__(self, recipe: Recipe, network: Network, training: Iterator[tuple[Network, Step]]) -> None:
        self.recipe, self.network, self._training = recipe, network, training
        self.steps: list[Step] = []
        self.found: Found = np.empty(0)
        self.score = self.last_score = float("-inf")

    def step(self) -> bool:
        """Train for one step; False if there is none left."""
        taken = next(self._training, None)
        if taken is not None:
            self.network, row = taken
            self.steps.append(row)
        return taken is not None


def behind(found: Found, best: Found) -> bool:
    """Whether the score ``found`` is lower than ``best`` by more than the noise of the queries.

    Both have one value for each query. The noise is that of their difference, which is far smaller than that of either.
    """
    gaps = best - found
    return bool(gaps.mean() > _STANDARD_ERRORS * gaps.std() / len(gaps) ** 0.5)


def select_recipe(
    options: Options,
    initialise: Callable[[str], Network],
    train: Callable[[Network, Recipe, int, np.random.RandomState], Iterator[tuple[Network, Step]]],
    score: Callable[[Network], Found],
    seed: int,
    steps_per_epoch: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> Selected:
    """Find the best of the options.

    Parameters
    ----------
    options : Options
    initialise : callable
        Makes an initial network, given its name.
    train : callable
        Gives the network after each step of a training with a recipe, for a number of epochs.
    score : callable
        Rates a network, with one value for each query; higher is better.
    seed : int
        Seed of the mini-batches, which are the same for every candidate.
    steps_per_epoch : int
        Number of mini-batches.
    progress : callable, optional
        Called as ``progress("choosing", done, total)``, in units of work. The total is an upper bound. If it raises
        OutOfTimeError, the best network so far is selected.
    """
    search = _Search(options, train, score, seed, steps_per_epoch, progress)
    with suppress(OutOfTimeError):
        search.score_initial_networks(initialise)
        if options.n_epochs and options.light_alphas:
            search.compete_without_jacobian()
        if options.n_epochs and options.positive_weights:
            search.compete_with_jacobian()
            search.try_other_energies()
    return search.finish()


class _Search:
    """Successive halving over recipes. It keeps a record of every network that was scored."""

    def __init__(
        self,
        options: Options,
        train: Callable[[Network, Recipe, int, np.random.RandomState], Iterator[tuple[Network, Step]]],
        score: Callable[[Network], Found],
        seed: int,
        steps_per_epoch: int,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        self._options, self._train, self._score, self._seed = options, train, score, seed
        self._steps_per_epoch = steps_per_epoch
        self._progress, self._done, self._total = progress, 0, _most_work(options, steps_per_epoch)
        self._initial: dict[str, Network] = {}
        self._scored: list[_Scored] = []
        self._best_network: tuple[Network, tuple[Step, ...]] | None = None

    def score_initial_networks(self, initialise: Callable[[str], Network]) -> None:
        with suppress(OutOfTimeError):  # one network at least is scored
            self.advance(0)
        for init in self._options.inits:
            self._initial[init] = initialise(init)
            self._rate(self._candidate(Recipe(init, np.nan, np.nan, np.nan)))
            self.advance(0)

    def compete_without_jacobian(self) -> None:
        options = self._options
        pairs = itertools.product(options.inits, options.light_alphas)
        recipes = [Recipe(init, alpha, 0.0, np.nan) for init, alpha in pairs]
        self._compete(recipes, options.n_epochs_without_jacobian)

    def compete_with_jacobian(self) -> None:
        options = self._options
        inits = self._promising_inits()
        triples = itertools.product(inits[:_INITS_WITH_JACOBIAN], options.alphas, options.positive_weights)
        recipes = [Recipe(init, alpha, weight, options.energies[0]) for init, alpha, weight in triples]
        if options.baseline is not None and options.baseline not in recipes and options.baseline.init in inits:
            recipes.append(options.baseline)
        self._compete(recipes, options.n_epochs)

    def try_other_energies(self) -> None:
        """Train the best candidate with the Jacobian term at the other energies, unless it is behind."""
        best = self._best(trial for trial in self._scored if trial.recipe.jacobian_weight > 0)
        if behind(best.found, self._best(self._scored).found):
            return
        for energy in self._options.energies[1:]:
            self._train_and_rate(self._candidate(replace(best.recipe, energy=energy)), best.n_steps)

    def finish(self) -> Selected:
        with suppress(OutOfTimeError):
            self.advance(self._total - self._done)
        best = self._best(self._scored)
        assert self._best_network is not None
        best_start = max(trial.score for trial in self._scored if not trial.n_steps)
        return Selected(best.recipe, *self._best_network, best.found, best_start, self._table(best))

    def advance(self, work: int) -> None:
        self._done += work
        if self._progress is not None:
            self._progress("choosing", self._done, self._total)

    def _compete(self, recipes: list[Recipe], n_epochs: int) -> None:
        """Train the recipes in stages, and drop those that are weak, get worse, or cannot win."""
        candidates = [self._candidate(recipe) for recipe in recipes]
        for until in _stages(n_epochs, self._steps_per_epoch):
            for candidate in candidates:
                self._train_and_rate(candidate, until)
            kept = sorted(candidates, key=lambda candidate: -candidate.score)[: _n_kept(len(candidates))]
            candidates = [candidate for candidate in kept if self._goes_on(candidate)]

    def _goes_on(self, candidate: _Candidate) -> bool:
        if candidate.score < candidate.last_score:
            return False
        costly = candidate.recipe.jacobian_weight > 0
        return not (costly and behind(candidate.found, self._best(self._scored).found))

    def _candidate(self, recipe: Recipe) -> _Candidate:
        network, rng = self._initial[recipe.init], np.random.RandomState(self._seed)
        most = self._options.n_epochs if recipe.jacobian_weight else self._options.n_epochs_without_jacobian
        return _Candidate(recipe, network, self._train(network, recipe, most, rng))

    def _train_and_rate(self, candidate: _Candidate, n_steps: int) -> None:
        """Train a candidate until it has taken ``n_steps`` steps."""
        while len(candidate.steps) < n_steps and candidate.step():
            self.advance(_COST_WITH_JACOBIAN if candidate.recipe.jacobian_weight else _COST)
        self._rate(candidate)

    def _rate(self, candidate: _Candidate) -> None:
        found, n_steps = self._score(candidate.network), len(candidate.steps)
        candidate.found, candidate.last_score, candidate.score = found, candidate.score, float(found.mean())
        if not self._scored or candidate.score > self._best(self._scored).score:
            self._best_network = candidate.network, tuple(candidate.steps)
        n_epochs = -(-n_steps // self._steps_per_epoch)
        self._scored.append(_Scored(candidate.recipe, n_epochs, n_steps, found, candidate.score))

    def _best(self, trials: Iterable[_Scored]) -> _Scored:
        return max(trials, key=lambda trial: trial.score)  # of equals the first, which took the least work

    def _promising_inits(self) -> list[str]:
        """Initialisations from the best to the worst, without those that are behind beyond the noise.

        These are behind at their best, and also when all had the same training, at the first stage.
        """
        first = next(_stages(self._options.n_epochs, self._steps_per_epoch))
        promising = set()
        for trials in (self._scored, [trial for trial in self._scored if trial.n_steps <= first]):
            best = self._best(trials)
            of_init = {init: self._best(t for t in trials if t.recipe.init == init) for init in self._initial}
            promising |= {init for init, trial in of_init.items() if not behind(trial.found, best.found)}
        scores = {init: max(t.score for t in self._scored if t.recipe.init == init) for init in promising}
        return sorted(scores, key=lambda init: (-scores[init], init))

    def _table(self, best: _Scored) -> dict[str, npt.NDArray[Any]]:
        trials = self._scored
        return {
            "init": np.array([trial.recipe.init for trial in trials]),
            "alpha": np.array([trial.recipe.alpha for trial in trials], dtype=np.float64),
            "jacobian_weight": np.array([trial.recipe.jacobian_weight for trial in trials], dtype=np.float64),
            "energy": np.array([trial.recipe.energy for trial in trials], dtype=np.float64),
            "n_epochs": np.array([trial.n_epochs for trial in trials], dtype=np.int64),
            "n_steps": np.array([trial.n_steps for trial in trials], dtype=np.int64),
            "m_recall": np.array([trial.score for trial in trials], dtype=np.float64),
            "chosen": np.array([trial is best for trial in trials], dtype=np.int64),
        }


def _stages(n_epochs: int, steps_per_epoch: int) -> Iterator[int]:
    """Numbers of steps after which candidates are compared: three, 1 epoch, 2, 4, … and ``n_epochs``."""
    if steps_per_epoch > _STEPS_OF_FIRST_STAGE:
        yield _STEPS_OF_FIRST_STAGE
    epochs = 1
    while epochs < n_epochs:
        yield epochs * steps_per_epoch
        epochs = n_epochs if 4 * epochs > n_epochs else 2 * epochs
    yield n_epochs * steps_per_epoch


def _n_kept(n_candidates: int) -> int:
    return -(-n_candidates // _REDUCTION)


def _most_work(options: Options, steps_per_epoch: int) -> int:
    """Work of the whole search, if no candidate is dropped for being behind."""
    if not options.n_epochs:
        return 0
    n_light = len(options.inits) * len(options.light_alphas)
    total = _COST * _work_of_stages(n_light, options.n_epochs_without_jacobian, steps_per_epoch)
    if options.positive_weights:
        n_inits = min(_INITS_WITH_JACOBIAN, len(options.inits))
        n_heavy = n_inits * len(options.alphas) * len(options.positive_weights) + (options.baseline is not None)
        other_energies = (len(options.energies) - 1) * options.n_epochs * steps_per_epoch
        heavy = _work_of_stages(n_heavy, options.n_epochs, steps_per_epoch)
        total += _COST_WITH_JACOBIAN * (heavy + other_energies)
    return total


def _work_of_stages(n_candidates: int, n_epochs: int, steps_per_epoch: int) -> int:
    """Steps of all candidates together in one competition."""
    total = before = 0
    for until in _stages(n_epochs, steps_per_epoch):
        total += n_candidates * (until - before)
        before, n_candidates = until, _n_kept(n_candidates)
    return total


def recipe_name(settings: Mapping[str, Any]) -> str:
    """Name what training with some settings makes; without the Jacobian term it is not Auto-JacoBin.

    >>> recipe_name({"init": "itq", "alpha": 0.03, "jacobian_weight": 0.0, "n_epochs": 1})
    'AutoBin from ITQ'
    """
    start = _STARTS[settings["init"]]
    if not settings["n_epochs"]:
        return f"the hyperplanes of {start}"
    return f"{'Auto-JacoBin' if settings['jacobian_weight'] > 0 else 'AutoBin'} from {start}"


def settings_text(settings: Mapping[str, Any]) -> str:
    """Write settings in one line, without those that were not used.

    >>> settings_text({"init": "itq", "alpha": 0.03, "energy": float("nan"), "n_epochs": 1})
    'init itq, alpha 0.03, n_epochs 1'
    """
    used = {name: value for name, value in settings.items() if value == value}  # NaN: not used
    return ", ".join(f"{name} {value if isinstance(value, str) else f'{value:g}'}" for name, value in used.items())
