"""Settings that suit the data, found on the training set alone: a tenth of it asks, the rest is searched.

Candidates are compared by the m-Recall of their codes. Those without the Jacobian term cost next to nothing and are
tried first, from every start; the Jacobian term, which takes tangent spaces and nearly all of the time, is then tried
from the starts that did best. In both rounds the weaker candidates are dropped as the training goes on (successive
halving), those with the Jacobian term also if they are far behind the best of all. Every stage of every candidate
counts: the starting points themselves, and networks that were better when they had been trained for less time. What is
chosen therefore scores no lower than anything that was looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin._arrays import to_host
from autojacobin.autoencoder import Network
from autojacobin.codes import Codes

__all__ = ["Choice", "Options", "Recipe", "choose", "held_out_score", "split"]

_KEPT = 3  # one in so many goes on after each stage
_STARTS_WITH_JACOBIAN = 2
_LIGHT, _HEAVY = 1, 20  # what an epoch without and with a Jacobian term takes, in the same unit, for the progress
_HOPELESS = 0.01  # m-Recall behind the best at which training with the Jacobian term is no longer worth its time
_HELD_OUT, _MOST_HELD_OUT = 10, 4  # one in so many
_ENOUGH_QUERIES, _MOST_QUERIES = 1000, 2000


@dataclass(frozen=True)
class Recipe:
    """What a network is trained with."""

    init: str
    alpha: float
    jacobian_weight: float
    energy: float


@dataclass(frozen=True)
class Options:
    """What may be chosen from, each at least one; the first energy is the largest.

    ``light_alphas`` are the weights of the binary term where there is no Jacobian term beside it, ``light_epochs`` the
    passes that are affordable there.
    """

    inits: tuple[str, ...]
    alphas: tuple[float, ...]
    light_alphas: tuple[float, ...]
    jacobian_weights: tuple[float, ...]
    energies: tuple[float, ...]
    n_epochs: int
    light_epochs: int
    always: Recipe | None = None


@dataclass(frozen=True)
class Choice:
    """The best recipe, for how many epochs, and all that was looked at, a row each."""

    recipe: Recipe
    n_epochs: int
    results: dict[str, npt.NDArray[Any]]


@dataclass
class _Runner:
    recipe: Recipe
    network: Network
    rng: np.random.RandomState
    epochs: int = 0
    score: float = float("-inf")


@dataclass
class _Looked:
    """Everything that was looked at so far, in the order in which it was."""

    score_of: Callable[[Network], float]
    rows: list[tuple[Recipe, int, float]] = field(default_factory=list)

    def at(self, runner: _Runner) -> None:
        runner.score = self.score_of(runner.network)
        self.rows.append((runner.recipe, runner.epochs, runner.score))

    def best(self) -> tuple[Recipe, int, float]:
        return max(self.rows, key=lambda row: row[2])  # the earlier, cheaper one of equals

    def best_starts(self) -> list[str]:
        best: dict[str, float] = {}
        for recipe, _, score in self.rows:
            best[recipe.init] = max(score, best.get(recipe.init, score))
        return sorted(best, key=lambda init: -best[init])


def choose(
    options: Options,
    start: Callable[[str], Network],
    advance: Callable[[Network, Recipe, int, np.random.RandomState], Network],
    score: Callable[[Network], float],
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Choice:
    """Find the best of the options.

    Parameters
    ----------
    options : Options
    start : callable
        Network to start from, by its name.
    advance : callable
        Train a network with a recipe for some epochs more.
    score : callable
        How good a network is; more is better.
    seed : int
        Of the mini-batches, which are the same for every candidate.
    progress : callable, optional
        Called with the work done so far and how much there will be at most.
    """
    done, total = 0, _most_work(options)
    if progress is not None:
        progress(done, total)  # the starts take their time already
    looked = _Looked(score)
    starts = {init: start(init) for init in options.inits}
    for init, network in starts.items():
        looked.at(_Runner(Recipe(init, np.nan, np.nan, np.nan), network, np.random.RandomState(seed)))

    def told(network: Network, recipe: Recipe, epochs: int, rng: np.random.RandomState) -> Network:
        nonlocal done
        moved = advance(network, recipe, epochs, rng)
        done += epochs * (_HEAVY if recipe.jacobian_weight else _LIGHT)
        if progress is not None:
            progress(done, total)
        return moved

    def compete(recipes: list[Recipe], n_epochs: int, behind: float = np.inf) -> None:
        """Train the recipes in stages; who is more than ``behind`` the best of all is dropped as well."""
        runners = [_Runner(recipe, starts[recipe.init], np.random.RandomState(seed)) for recipe in recipes]
        for epochs in _stages(n_epochs):
            for runner in runners:
                runner.network = told(runner.network, runner.recipe, epochs - runner.epochs, runner.rng)
                runner.epochs = epochs
                looked.at(runner)
            runners = sorted(runners, key=lambda runner: -runner.score)[: -(-len(runners) // _KEPT)]
            runners = [runner for runner in runners if runner.score >= looked.best()[2] - behind]

    light, heavy = _by_cost(options)
    if options.n_epochs and light:
        compete([Recipe(init, alpha, 0.0, np.nan) for init in options.inits for alpha in light], options.light_epochs)
    if options.n_epochs and heavy:
        inits = looked.best_starts()[:_STARTS_WITH_JACOBIAN]
        recipes = [
            Recipe(init, alpha, weight, options.energies[0])
            for init, alpha, weight in itertools.product(inits, options.alphas, heavy)
        ]
        if options.always is not None and options.always not in recipes:
            recipes.append(options.always)
        compete(recipes, options.n_epochs, _HOPELESS)
        trained = [row for row in looked.rows if row[0].jacobian_weight > 0]
        best, epochs, score_of_best = max(trained, key=lambda row: row[2])
        near = score_of_best >= looked.best()[2] - _HOPELESS
        for energy in options.energies[1:] if near else ():
            other = _Runner(replace(best, energy=energy), starts[best.init], np.random.RandomState(seed), epochs)
            other.network = told(other.network, other.recipe, epochs, other.rng)
            looked.at(other)
    if progress is not None:
        progress(total, total)
    recipe, epochs, _ = looked.best()
    return Choice(recipe, epochs, _table(looked))


def split(n: int, rng: np.random.RandomState) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows that ask and rows that are searched.

    A tenth asks, but no more than some thousands; of a small set up to a quarter, since few queries cannot tell
    candidates apart that differ by a hundredth.
    """
    order = rng.permutation(n)
    n_queries = min(max(n // _HELD_OUT, min(_ENOUGH_QUERIES, n // _MOST_HELD_OUT)), _MOST_QUERIES)
    return np.sort(order[:n_queries]), np.sort(order[n_queries:])


def held_out_score(
    queries: Any, base: Any, k: int, depth: int | None, bits: Callable[[Network, Any], Any]
) -> Callable[[Network], float]:
    """Give the function that scores a network: m-Recall of ``queries`` in ``base``.

    ``depth`` points are retrieved; by default one in a hundred of the base, and twice ``k`` at least.
    """
    from autojacobin.evaluation import ground_truth, m_recall  # a look upwards, as in Hasher.score
    from autojacobin.search import hamming_topk

    n = len(base)
    deep = min(n, max(2 * k, n // 100) if depth is None else depth)
    truth = ground_truth(to_host(base), to_host(queries), k)

    def score(network: Network) -> float:
        asking, there = (Codes.from_bits(to_host(bits(network, points))) for points in (queries, base))
        _, ids = hamming_topk(asking, there, deep)
        return float(m_recall(ids, truth, k, deep))

    return score


def _by_cost(options: Options) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Weights α to try without a Jacobian term, and weights of the Jacobian term."""
    light = options.light_alphas if 0.0 in options.jacobian_weights else ()
    return light, tuple(weight for weight in options.jacobian_weights if weight > 0)


def _stages(n_epochs: int) -> Iterator[int]:
    """Numbers of epochs after which candidates are compared: 1, 2, 4, … and ``n_epochs``."""
    epochs = 1
    while epochs < n_epochs:
        yield epochs
        epochs = n_epochs if 4 * epochs > n_epochs else 2 * epochs
    yield n_epochs


def _most_work(options: Options) -> int:
    light, heavy = _by_cost(options)
    n_heavy = min(_STARTS_WITH_JACOBIAN, len(options.inits)) * len(options.alphas) * len(heavy)
    n_heavy += bool(heavy) and options.always is not None
    total = (len(options.energies) - 1) * options.n_epochs * bool(heavy) * _HEAVY
    for runners, n_epochs, cost in (
        (len(options.inits) * len(light), options.light_epochs, _LIGHT),
        (n_heavy, options.n_epochs, _HEAVY),
    ):
        before = 0
        for epochs in _stages(n_epochs) if n_epochs else ():
            total += runners * (epochs - before) * cost
            before, runners = epochs, -(-runners // _KEPT)
    return total


def _table(looked: _Looked) -> dict[str, npt.NDArray[Any]]:
    chosen = looked.best()
    rows = looked.rows
    return {
        "init": np.array([recipe.init for recipe, _, _ in rows]),
        "alpha": np.array([recipe.alpha for recipe, _, _ in rows], dtype=np.float64),
        "jacobian_weight": np.array([recipe.jacobian_weight for recipe, _, _ in rows], dtype=np.float64),
        "energy": np.array([recipe.energy for recipe, _, _ in rows], dtype=np.float64),
        "n_epochs": np.array([epochs for _, epochs, _ in rows], dtype=np.int64),
        "m_recall": np.array([score for _, _, score in rows], dtype=np.float64),
        "chosen": np.array([row is chosen for row in rows], dtype=np.int64),
    }
