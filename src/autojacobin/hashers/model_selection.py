"""Choice of settings on the training set alone: some of its points are queries, and the rest is searched.

Candidates are compared by the m-Recall of their codes. Candidates without the Jacobian term cost little and are tried
first, from every initialisation. The Jacobian term needs tangent spaces and takes nearly all of the time, so it is
tried only from the initialisations that scored best. In both rounds, candidates are trained in stages, and the weaker
ones are dropped after each stage (successive halving). Those with the Jacobian term are also dropped if they are far
behind the best of all.

The initial networks and the state of every candidate after every stage count too. So the chosen settings never score
lower than anything that was tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder import Network
from autojacobin.codes import Codes
from autojacobin.core.arrays import to_host

__all__ = [
    "Options", "Recipe", "Selected", "held_out_score", "recipe_name", "select_recipe", "settings_text", "split",
]  # fmt: skip

_STARTS = {"random": "a random rotation", "itq": "ITQ", "okmeans": "OKMeans", "nokmeans": "NOKMeans"}

_REDUCTION = 3  # one in three candidates is kept after each stage
_INITS_WITH_JACOBIAN = 2
_COST, _COST_WITH_JACOBIAN = 1, 20  # of an epoch, in the same unit, for the progress
_LARGEST_DEFICIT = 0.01  # m-Recall behind the best at which a candidate with the Jacobian term is dropped
# One point in ten is a query, within the limits below. In small sets up to one in four is.
_POINTS_PER_QUERY, _FEWEST_POINTS_PER_QUERY = 10, 4
_ENOUGH_QUERIES, _MOST_QUERIES = 1000, 2000


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
        A recipe with the Jacobian term that is tried in any case.
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
    """The best recipe, its number of epochs, and a table of everything that was scored."""

    recipe: Recipe
    n_epochs: int
    results: dict[str, npt.NDArray[Any]]


class _Scored(NamedTuple):
    recipe: Recipe
    n_epochs: int
    score: float


@dataclass
class _Candidate:
    recipe: Recipe
    network: Network
    rng: np.random.RandomState
    n_epochs: int = 0
    score: float = float("-inf")


def select_recipe(
    options: Options,
    initialise: Callable[[str], Network],
    train: Callable[[Network, Recipe, int, np.random.RandomState], Network],
    score: Callable[[Network], float],
    seed: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> Selected:
    """Find the best of the options.

    Parameters
    ----------
    options : Options
    initialise : callable
        Makes an initial network, given its name.
    train : callable
        Trains a network with a recipe for a number of further epochs.
    score : callable
        Rates a network; higher is better.
    seed : int
        Seed of the mini-batches, which are the same for every candidate.
    progress : callable, optional
        Called as ``progress("choosing", done, total)``, in units of work. The total is an upper bound.
    """
    search = _Search(options, train, score, seed, progress)
    search.advance(0)  # report at once, because the initial networks take time
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
        train: Callable[[Network, Recipe, int, np.random.RandomState], Network],
        score: Callable[[Network], float],
        seed: int,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        self._options, self._train, self._score, self._seed = options, train, score, seed
        self._progress, self._done, self._total = progress, 0, _most_work(options)
        self._initial: dict[str, Network] = {}
        self._scored: list[_Scored] = []

    def score_initial_networks(self, initialise: Callable[[str], Network]) -> None:
        self._initial = {init: initialise(init) for init in self._options.inits}
        for init in self._initial:
            self._rate(self._candidate(Recipe(init, np.nan, np.nan, np.nan)))

    def compete_without_jacobian(self) -> None:
        options = self._options
        pairs = itertools.product(options.inits, options.light_alphas)
        recipes = [Recipe(init, alpha, 0.0, np.nan) for init, alpha in pairs]
        self._compete(recipes, options.n_epochs_without_jacobian, np.inf)

    def compete_with_jacobian(self) -> None:
        options = self._options
        triples = itertools.product(self._best_inits(), options.alphas, options.positive_weights)
        recipes = [Recipe(init, alpha, weight, options.energies[0]) for init, alpha, weight in triples]
        if options.baseline is not None and options.baseline not in recipes:
            recipes.append(options.baseline)
        self._compete(recipes, options.n_epochs, _LARGEST_DEFICIT)

    def try_other_energies(self) -> None:
        """Train the best candidate with the Jacobian term at the other energies, unless it is far behind."""
        best = self._best(trial for trial in self._scored if trial.recipe.jacobian_weight > 0)
        if best.score < self._best(self._scored).score - _LARGEST_DEFICIT:
            return
        for energy in self._options.energies[1:]:
            self._train_and_rate(self._candidate(replace(best.recipe, energy=energy)), best.n_epochs)

    def finish(self) -> Selected:
        self.advance(self._total - self._done)
        best = self._best(self._scored)
        return Selected(best.recipe, best.n_epochs, self._table(best))

    def advance(self, work: int) -> None:
        self._done += work
        if self._progress is not None:
            self._progress("choosing", self._done, self._total)

    def _compete(self, recipes: list[Recipe], n_epochs: int, largest_deficit: float) -> None:
        """Train the recipes in stages, and drop those that are weak or too far behind the best of all."""
        candidates = [self._candidate(recipe) for recipe in recipes]
        for until in _stages(n_epochs):
            for candidate in candidates:
                self._train_and_rate(candidate, until)
            lowest = self._best(self._scored).score - largest_deficit
            kept = sorted(candidates, key=lambda candidate: -candidate.score)[: _n_kept(len(candidates))]
            candidates = [candidate for candidate in kept if candidate.score >= lowest]

    def _candidate(self, recipe: Recipe) -> _Candidate:
        return _Candidate(recipe, self._initial[recipe.init], np.random.RandomState(self._seed))

    def _train_and_rate(self, candidate: _Candidate, n_epochs: int) -> None:
        """Train a candidate until it has had ``n_epochs`` epochs."""
        more = n_epochs - candidate.n_epochs
        candidate.network = self._train(candidate.network, candidate.recipe, more, candidate.rng)
        candidate.n_epochs = n_epochs
        self.advance(more * (_COST_WITH_JACOBIAN if candidate.recipe.jacobian_weight else _COST))
        self._rate(candidate)

    def _rate(self, candidate: _Candidate) -> None:
        candidate.score = self._score(candidate.network)
        self._scored.append(_Scored(candidate.recipe, candidate.n_epochs, candidate.score))

    def _best(self, trials: Iterable[_Scored]) -> _Scored:
        return max(trials, key=lambda trial: trial.score)  # of equals the first, which took the least work

    def _best_inits(self) -> list[str]:
        best: dict[str, float] = {}
        for recipe, _, score in self._scored:
            best[recipe.init] = max(score, best.get(recipe.init, score))
        return sorted(best, key=lambda init: -best[init])[:_INITS_WITH_JACOBIAN]

    def _table(self, best: _Scored) -> dict[str, npt.NDArray[Any]]:
        trials = self._scored
        return {
            "init": np.array([trial.recipe.init for trial in trials]),
            "alpha": np.array([trial.recipe.alpha for trial in trials], dtype=np.float64),
            "jacobian_weight": np.array([trial.recipe.jacobian_weight for trial in trials], dtype=np.float64),
            "energy": np.array([trial.recipe.energy for trial in trials], dtype=np.float64),
            "n_epochs": np.array([trial.n_epochs for trial in trials], dtype=np.int64),
            "m_recall": np.array([trial.score for trial in trials], dtype=np.float64),
            "chosen": np.array([trial is best for trial in trials], dtype=np.int64),
        }


def split(n: int, rng: np.random.RandomState) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Draw the rows that are queries, and return them and the rest.

    A tenth of the rows are queries, at most 2,000. In a small set up to a quarter are, because fewer than 1,000 queries
    can hardly distinguish candidates that differ by 0.01.
    """
    order = rng.permutation(n)
    n_queries = min(max(n // _POINTS_PER_QUERY, min(_ENOUGH_QUERIES, n // _FEWEST_POINTS_PER_QUERY)), _MOST_QUERIES)
    return np.sort(order[:n_queries]), np.sort(order[n_queries:])


def held_out_score(
    queries: Any, base: Any, k: int, depth: int | None, bits: Callable[[Network, Any], Any]
) -> Callable[[Network], float]:
    """Return the function that rates a network: the m-Recall of ``queries`` in ``base``.

    ``depth`` points are retrieved; by default one in a hundred of the base, and at least twice ``k``.
    """
    from autojacobin.evaluation import ground_truth, m_recall  # only here: loading numba takes a second
    from autojacobin.search import hamming_topk

    n = len(base)
    depth = min(n, max(2 * k, n // 100) if depth is None else depth)
    truth = ground_truth(to_host(base), to_host(queries), k)

    def score(network: Network) -> float:
        query_codes, base_codes = (Codes.from_bits(to_host(bits(network, points))) for points in (queries, base))
        _, ids = hamming_topk(query_codes, base_codes, depth)
        return float(m_recall(ids, truth, k, depth))

    return score


def _stages(n_epochs: int) -> Iterator[int]:
    """Numbers of epochs after which candidates are compared: 1, 2, 4, … and ``n_epochs``."""
    epochs = 1
    while epochs < n_epochs:
        yield epochs
        epochs = n_epochs if 4 * epochs > n_epochs else 2 * epochs
    yield n_epochs


def _n_kept(n_candidates: int) -> int:
    return -(-n_candidates // _REDUCTION)


def _most_work(options: Options) -> int:
    """Work of the whole search, if no candidate is dropped for being far behind."""
    if not options.n_epochs:
        return 0
    n_light = len(options.inits) * len(options.light_alphas)
    total = _COST * _work_of_stages(n_light, options.n_epochs_without_jacobian)
    if options.positive_weights:
        n_inits = min(_INITS_WITH_JACOBIAN, len(options.inits))
        n_heavy = n_inits * len(options.alphas) * len(options.positive_weights) + (options.baseline is not None)
        other_energies = (len(options.energies) - 1) * options.n_epochs
        total += _COST_WITH_JACOBIAN * (_work_of_stages(n_heavy, options.n_epochs) + other_energies)
    return total


def _work_of_stages(n_candidates: int, n_epochs: int) -> int:
    """Epochs of all candidates together in one competition."""
    total = before = 0
    for epochs in _stages(n_epochs):
        total += n_candidates * (epochs - before)
        before, n_candidates = epochs, _n_kept(n_candidates)
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
