"""Choice of settings on the training set alone: candidates race, and the m-Recall of held-out points decides.

Candidates without the Jacobian term cost little and race first, from every initialisation. The Jacobian term takes
nearly all of the time, so candidates with it race only from the two best initialisations. A race is successive halving:
candidates are trained for a few steps and compared, and the best go on to the next stage. The initial networks and the
state of every candidate after every stage count too, so the chosen network scores no lower than anything tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder import Network, OutOfTimeError, Step
from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace, to_host
from autojacobin.core.parallel import Progress
from autojacobin.errors import DataError
from autojacobin.hashers.base import Hasher

Found = npt.NDArray[np.float64]  # m-Recall of each query
Train = Callable[[Network, "Recipe", int, np.random.RandomState], Iterator[tuple[Network, Step]]]

_STARTS = {"random": "a random rotation", "itq": "ITQ", "okmeans": "OKMeans", "nokmeans": "NOKMeans"}

# What tunes the choice
_POINTS_PER_QUERY, _FEWEST_POINTS_PER_QUERY = 10, 4
_ENOUGH_QUERIES, _MOST_QUERIES = 1000, 2000
_FEW_DISTANCES = 2**20  # arrays compute so few as fast as kernels, which would have to be compiled first
_REDUCTION = 3  # one in three candidates goes on to the next stage
_STEPS_OF_FIRST_STAGE = 3
_INITS_WITH_JACOBIAN = 2
_STANDARD_ERRORS = 3.0  # a difference beyond this many standard errors is beyond the noise


def split(
    n: int, rng: np.random.RandomState, enough: int | None = None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Draw the rows that are queries, and return them and the rest.

    A tenth of the rows are queries, at most 2,000. In a small set up to a quarter are, until there are ``enough``:
    fewer than 1,000 queries can hardly distinguish candidates that differ by 0.01.
    """
    order = rng.permutation(n)
    number = min(
        max(n // _POINTS_PER_QUERY, min(enough or _ENOUGH_QUERIES, n // _FEWEST_POINTS_PER_QUERY)), _MOST_QUERIES
    )
    return np.sort(order[:number]), np.sort(order[number:])


def held_out_score(
    queries: Any,
    base: Any,
    k: int,
    depth: int | None,
    bits: Callable[[Any, Any], Any],
    originals: tuple[Any, Any] | None = None,
) -> Callable[[Any], Found]:
    """Return the function that rates a model: the m-Recall of each of ``queries`` in ``base``.

    ``bits(model, points)`` gives bits. ``depth`` points are retrieved; by default one in a hundred of the base, and at
    least twice ``k``. True neighbours are found among ``originals``, the same queries and base in all dimensions.
    """
    from autojacobin.evaluation import ground_truth, measure  # only here: loading numba takes a second
    from autojacobin.search import hamming_topk

    n = len(base)
    by_arrays = namespace(base) is not np or n * len(queries) <= _FEW_DISTANCES
    depth = min(n, max(2 * k, n // 100) if depth is None else depth)
    all_queries, all_base = originals or (queries, base)
    truth = ground_truth(to_host(all_base), to_host(all_queries), k)

    def score(model: Any) -> Found:
        query_bits, base_bits = (bits(model, points) for points in (queries, base))
        if by_arrays:
            return m_recall_of_bits(query_bits, base_bits, truth, depth)
        _, ids = hamming_topk(Codes.from_bits(query_bits), Codes.from_bits(base_bits), depth)
        return measure(f"m-recall@{depth}", ids, truth, k).values

    return score


def m_recall_of_bits(query_bits: Any, base_bits: Any, truth: npt.NDArray[np.int64], depth: int) -> Found:
    """m-Recall of each query from bits, in few large array operations, for a GPU or for few points.

    A point is found at the rank that counts the points that are nearer, or as near and have a lower number.
    """
    xp = namespace(base_bits)
    (n, d), rows = base_bits.shape, xp.arange(len(query_bits))
    products = (2 * query_bits - xp.float32(1)) @ (2 * base_bits - xp.float32(1)).T  # d − 2 × Hamming distance
    number = xp.int32 if 2 * (d + 1) * n < 2**31 else xp.int64
    order = (d - products).astype(number) * n + xp.arange(n, dtype=number)
    found = xp.zeros(len(rows), dtype=xp.int64)
    for neighbour in xp.asarray(truth).T:
        ranks = xp.count_nonzero(order < order[rows, neighbour][:, None], axis=1)
        found += xp.maximum(depth - ranks, 0)
    return np.asarray(to_host(found) / truth.shape[1] / depth)


def behind(found: Found, best: Found, standard_errors: float = _STANDARD_ERRORS) -> bool:
    """Whether the score ``found`` of the queries is lower than ``best`` by more than the noise of the difference."""
    gaps = best - found
    return bool(gaps.mean() > standard_errors * gaps.std() / len(gaps) ** 0.5)


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

    The tuples have at least one value each, and the first energy is the largest. ``baseline`` is a recipe with the
    Jacobian term that is tried unless its initialisation is behind beyond the noise.
    """

    inits: tuple[str, ...]
    alphas: tuple[float, ...]
    alphas_without_jacobian: tuple[float, ...]
    jacobian_weights: tuple[float, ...]
    energies: tuple[float, ...]
    n_epochs: int
    n_epochs_without_jacobian: int
    baseline: Recipe | None = None

    def without_jacobian(self) -> list[Recipe]:
        """Recipes without the Jacobian term, if the options include them."""
        alphas = self.alphas_without_jacobian if self.n_epochs and 0.0 in self.jacobian_weights else ()
        return [Recipe(init, alpha, 0.0, np.nan) for init, alpha in itertools.product(self.inits, alphas)]

    def with_jacobian(self, inits: list[str]) -> list[Recipe]:
        """Recipes with the term and the largest energy, from the first ``inits``, which come best first."""
        weights = [weight for weight in self.jacobian_weights if self.n_epochs and weight > 0]
        pairs = itertools.product(inits[:_INITS_WITH_JACOBIAN], self.alphas, weights)
        recipes = [Recipe(init, alpha, weight, self.energies[0]) for init, alpha, weight in pairs]
        if weights and self.baseline is not None and self.baseline.init in inits and self.baseline not in recipes:
            recipes.append(self.baseline)
        return recipes


@dataclass
class Trial:
    """A network in training, its score when it was last rated, and whether that was no lower than the time before."""

    recipe: Recipe
    network: Network
    training: Iterator[tuple[Network, Step]]
    steps: list[Step] = field(default_factory=list)
    found: Found = field(default_factory=lambda: np.full(1, -np.inf))
    improved: bool = True

    @property
    def score(self) -> float:
        """Mean over the queries."""
        return float(self.found.mean())


RESULTS = {
    "init": "U", "alpha": "f", "jacobian_weight": "f", "energy": "f", "n_epochs": "i", "n_steps": "i", "m_recall": "f",
    "chosen": "i",
}  # fmt: skip
"""Columns of the table of networks that were scored, and their kinds: words, real or whole numbers."""


def results_table(kinds: Mapping[str, str], rows: Iterable[tuple[Any, ...]]) -> dict[str, npt.NDArray[Any]]:
    """Give a row for each that was scored as columns, which have names and kinds."""
    dtypes = {"U": np.str_, "f": np.float64, "i": np.int64}
    columns = zip(kinds.items(), zip(*rows, strict=True), strict=True)
    return {name: np.array(column, dtype=dtypes[kind]) for (name, kind), column in columns}


class Selected(NamedTuple):
    """The best candidate: its recipe, the network that was compared, its steps, and a row for each that was scored."""

    recipe: Recipe
    network: Network
    steps: tuple[Step, ...]
    found: Found
    best_start: float
    rows: list[tuple[Any, ...]]

    def accepts(self, found: Found, start: Found) -> bool:
        """Whether a network of score ``found`` may replace the one that was compared, from a start of score ``start``.

        It may not be behind any start, nor behind the compared network by more than the noise.
        """
        lowest = max(float(start.mean()), self.best_start)
        return float(found.mean()) >= lowest and not behind(found, self.found)

    def with_row(self, found: Found, n_epochs: int, n_steps: int, *, chosen: bool) -> list[tuple[Any, ...]]:
        """The rows, and one for a network that was trained by the same recipe on more points."""
        before = [(*row[:-1], row[-1] and not chosen) for row in self.rows]
        return [*before, (*vars(self.recipe).values(), n_epochs, n_steps, float(found.mean()), chosen)]


@dataclass
class Selection:
    """Finds the best of the options.

    ``train`` gives the network after each step of a training with a recipe, for a number of epochs. ``score`` rates a
    network, with one value for each query. ``seed`` is that of the mini-batches, the same for every candidate.
    ``progress("choosing", done, total)`` counts steps of all candidates, and the total is an upper bound. If it raises
    OutOfTimeError, the best network so far is selected.
    """

    options: Options
    train: Train
    score: Callable[[Network], Found]
    seed: int
    steps_per_epoch: int
    progress: Progress | None = None

    def run(self, initialise: Callable[[str], Network]) -> Selected:
        """Select a recipe, and the network that was trained by it; ``initialise`` makes a first one, given its name."""
        options, self._rated, self._done = self.options, list[Trial](), 0
        heavy = options.with_jacobian(list(options.inits))
        self._total = self._most_steps(len(options.without_jacobian()), options.n_epochs_without_jacobian)
        self._total += self._most_steps(len(heavy), options.n_epochs)
        self._total += (len(options.energies) - 1) * options.n_epochs * self.steps_per_epoch if heavy else 0
        with suppress(OutOfTimeError):
            self._rate_initial_networks(initialise)
            self._race(options.without_jacobian(), options.n_epochs_without_jacobian)
            self._race(options.with_jacobian(self._promising_inits()), options.n_epochs)
            self._try_other_energies()
        with suppress(OutOfTimeError):
            self._advance(self._total - self._done)
        best = self._best(self._rated)
        best_start = max(trial.score for trial in self._rated if not trial.steps)
        rows = [
            (*vars(t.recipe).values(), -(-len(t.steps) // self.steps_per_epoch), len(t.steps), t.score, t is best)
            for t in self._rated
        ]
        return Selected(best.recipe, self._best_network, tuple(best.steps), best.found, best_start, rows)

    def _rate_initial_networks(self, initialise: Callable[[str], Network]) -> None:
        self._initial: dict[str, Network] = {}
        with suppress(OutOfTimeError):  # one network at least is rated
            self._advance(0)
        for init in self.options.inits:
            self._initial[init] = initialise(init)
            self._rate(Trial(Recipe(init, np.nan, np.nan, np.nan), self._initial[init], iter(())))
            self._advance(0)

    def _race(self, recipes: list[Recipe], n_epochs: int) -> None:
        """Train in stages. Drop the weak, those that get worse, and with the Jacobian term those that are behind."""
        trials = [self._trial(recipe) for recipe in recipes]
        for until in stages(n_epochs, self.steps_per_epoch):
            for trial in trials:
                self._train_and_rate(trial, until)
            kept = sorted(trials, key=lambda trial: -trial.score)[: -(-len(trials) // _REDUCTION)]
            best = self._best(self._rated).found
            trials = [t for t in kept if t.improved and not (t.recipe.jacobian_weight and behind(t.found, best))]

    def _try_other_energies(self) -> None:
        """Train the best trial with the Jacobian term at the other energies, unless it is behind."""
        heavy = [trial for trial in self._rated if trial.recipe.jacobian_weight > 0]
        if not heavy or behind(self._best(heavy).found, self._best(self._rated).found):
            return
        best = self._best(heavy)
        for energy in self.options.energies[1:]:
            self._train_and_rate(self._trial(replace(best.recipe, energy=energy)), len(best.steps))

    def _promising_inits(self) -> list[str]:
        """Initialisations from the best to the worst, without those that are behind beyond the noise."""
        first = stages(self.options.n_epochs, self.steps_per_epoch)[0]  # up to which all have had the same training
        equals = [trial for trial in self._rated if len(trial.steps) <= first]
        best = {init: self._best(t for t in equals if t.recipe.init == init) for init in self._initial}
        lead = self._best(equals).found
        promising = [init for init, trial in best.items() if not behind(trial.found, lead)]
        return sorted(promising, key=lambda init: (-best[init].score, init))

    def _trial(self, recipe: Recipe) -> Trial:
        options, network = self.options, self._initial[recipe.init]
        most = options.n_epochs if recipe.jacobian_weight else options.n_epochs_without_jacobian
        return Trial(recipe, network, self.train(network, recipe, most, np.random.RandomState(self.seed)))

    def _train_and_rate(self, trial: Trial, n_steps: int) -> None:
        """Train until ``n_steps`` steps have been taken."""
        for network, step in itertools.islice(trial.training, n_steps - len(trial.steps)):
            trial.network = network
            trial.steps.append(step)
            self._advance(1)
        self._rate(trial)

    def _rate(self, trial: Trial) -> None:
        before, trial.found = trial.score, self.score(trial.network)
        trial.improved = trial.score >= before
        if not self._rated or trial.score > self._best(self._rated).score:
            self._best_network = trial.network
        # of the networks in training, only the best is kept
        self._rated.append(replace(trial, network=self._initial[trial.recipe.init], steps=[*trial.steps]))

    def _best(self, trials: Iterable[Trial]) -> Trial:
        return max(trials, key=lambda trial: trial.score)  # of equals the first, which took the least work

    def _advance(self, n_steps: int) -> None:
        self._done += n_steps
        if self.progress is not None:
            self.progress("choosing", self._done, self._total)

    def _most_steps(self, n_trials: int, n_epochs: int) -> int:
        """Steps of all trials of a race together, if none is dropped early."""
        total = before = 0
        for until in stages(n_epochs, self.steps_per_epoch):
            total += n_trials * (until - before)
            before, n_trials = until, -(-n_trials // _REDUCTION)
        return total


def stages(n_epochs: int, steps_per_epoch: int) -> list[int]:
    """Numbers of steps after which candidates are compared: three, 1 epoch, 2, 4, … and ``n_epochs``."""
    epochs = [2**i for i in range(n_epochs.bit_length()) if 2 ** (i + 1) <= n_epochs] + [n_epochs]
    return [_STEPS_OF_FIRST_STAGE] * (steps_per_epoch > _STEPS_OF_FIRST_STAGE) + [steps_per_epoch * n for n in epochs]


class ChoosesSettings(Hasher):
    """A method that may choose settings by itself; ``search_results_`` then has a row for each that was compared."""

    search_results_: dict[str, npt.NDArray[Any]]
    selection_k: int

    def _given_settings(self) -> dict[str, Any]:
        """The settings that the parameters stand for, if nothing is chosen."""
        raise NotImplementedError

    @property
    def chosen_(self) -> dict[str, Any]:
        """Settings of the training: those of the best of ``search_results_``, or else the parameters."""
        self._check_fitted()
        given = self._given_settings()
        if not hasattr(self, "search_results_"):
            return given
        row = int(self.search_results_["chosen"].argmax())
        return {name: self.search_results_[name][row].item() for name in given}

    @property
    def trained_as(self) -> str:
        """The name of what was trained, and the settings that were chosen."""
        chosen = f" (chosen: {settings_text(self.chosen_)})" if hasattr(self, "search_results_") else ""
        return self.trained_name + chosen

    def __repr__(self) -> str:
        shown = super().__repr__()
        return f"{shown}, trained as {self.trained_as}" if hasattr(self, "search_results_") else shown

    def _check_selection_k(self, n_base: int) -> None:
        if self.selection_k >= n_base:
            raise DataError(
                f"selection_k of {type(self).__name__} must be below {n_base}, the number of points that held-out "
                f"queries are compared with, got {self.selection_k}; {type(self).selection_k} is usual"
            )


def recipe_name(settings: Mapping[str, Any]) -> str:
    """Name what training with some settings makes, such as "AutoBin from ITQ" without the Jacobian term."""
    start = _STARTS[settings["init"]]
    if not settings["n_epochs"]:
        return f"the hyperplanes of {start}"
    return f"{'Auto-JacoBin' if settings['jacobian_weight'] > 0 else 'AutoBin'} from {start}"


def settings_text(settings: Mapping[str, Any]) -> str:
    """Write settings in one line, without those that were not used, which are NaN."""
    used = {name: value for name, value in settings.items() if value == value}  # NaN: not used
    return ", ".join(f"{name} {value if isinstance(value, str) else f'{value:g}'}" for name, value in used.items())
