"""Auto-JacoBin, the method of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder import (
    LineBuffer,
    Network,
    Objective,
    PrincipalCoordinates,
    Step,
    TangentsOnDemand,
    TangentsView,
    TimeLimit,
    batches_per_epoch,
    history,
    steps,
)
from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace, to_host
from autojacobin.core.linear_algebra import centre
from autojacobin.core.parallel import one_blas_thread
from autojacobin.hashers.autoencoders.autobin import INITS, AutoEncoderHasher, initial_network
from autojacobin.hashers.learning import warn_caller
from autojacobin.hashers.model_selection import (
    RESULTS,
    ChoosesSettings,
    Options,
    Recipe,
    Selected,
    Selection,
    held_out_score,
    recipe_name,
    results_table,
    split,
)
from autojacobin.hashers.parameters import Choice, Number, OrAuto, OrNone, Whole, parameter
from autojacobin.hashers.persistence import Tensor

PUBLISHED = Recipe(init="random", alpha=0.1, jacobian_weight=1.0, energy=0.98)
PUBLISHED_PARAMETERS: dict[str, Any] = {**vars(PUBLISHED), "pca_energy": None}
FROM_ITQ_PARAMETERS: dict[str, Any] = {
    "init": "itq", "centred": True, "jacobian_weight": 0.1, "energy": 0.98, "pca_energy": 0.9,
}  # fmt: skip
_ALPHAS = (0.01, 0.1, 1.0)
_ALPHAS_CENTRED = (0.03, 0.1, 0.3, 1.0)
_ALPHAS_WITHOUT_JACOBIAN = (0.003, 0.03, 0.3)
_EPOCHS_WITHOUT_JACOBIAN = 3  # times as many epochs, because they take a fraction of the time
_ENERGIES = (0.98, 0.8)
_SHARE = Number(0, 1, above_low=True)
_FEWEST_FEATURES_TO_REDUCE = 257  # fewer train fast as they are
_FEWEST_TO_CHOOSE = 500  # fewer points leave too few queries to compare candidates
_MOST_TO_CHOOSE = 10_000
_ENOUGH_TO_DELIVER = 0.9  # share of the points from which on more points do not make a better network


@dataclass(eq=False, repr=False, kw_only=True)
class AutoJacoBin(ChoosesSettings, AutoEncoderHasher):
    """Auto-encoder Jacobian binary hashing.

    A three-layer tanh auto-encoder, z = tanh(W2 y + b2) with y = tanh(W1 x + b1), is trained to minimise

        Σᵢ ‖zᵢ − xᵢ‖²  +  w Σᵢ ‖Jᵢ − TᵢTᵢ'‖²  +  α ‖YY' − nI‖₁ᵋ

    over mini-batches of n points. J is the Jacobian ∂z/∂x, and T is a basis of the tangent space of the data at x,
    estimated by local PCA. The last term is the 1-norm with |u| smoothed to √(u² + ε), which favours features near ±1
    that are uncorrelated. The bits are the signs of the hidden features y.

    Settings that are ``"auto"`` (``alpha``, ``init``, ``energy``, ``jacobian_weight``) are chosen by the m-Recall of
    held-out training points. The initial networks are candidates too, so that on held-out points the codes are no
    worse than those of ITQ, OKMeans or NOKMeans. :meth:`as_published` uses the settings of the paper instead.

    Notes
    -----
    A tenth of the training points (up to a quarter in small sets) are held out. If that leaves fewer than nine tenths,
    the best training is repeated on all points, and its result is delivered unless it is worse on those held out. With
    fewer than 500 points, or if they hardly differ, nothing is chosen and the paper's settings are used. With more than
    10,000, settings are chosen on 10,000 of them, and batches for the last training are drawn from all. ``n_epochs`` is
    the largest number of passes with the Jacobian term. Without it, passes take a fraction of the time, and three times
    as many are tried.

    References
    ----------
    X. Fu, B. McCane, S. Mills, M. Albert and L. Szymanski, "Auto-JacoBin: Auto-encoder Jacobian binary hashing".

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import AutoJacoBin
    >>> X = load_digits().data
    >>> hasher = AutoJacoBin(n_bits=16, n_neighbors=40, random_state=0).fit(X[:600])
    >>> hasher.encode(X)
    Codes(1797 codes of 16 bits)
    >>> sorted(hasher.chosen_)
    ['alpha', 'energy', 'init', 'jacobian_weight', 'n_epochs']
    """

    alpha: float | str = parameter("auto", OrAuto(Number(0)), "Weight α of the binary term; 0.1 in the paper.")
    energy: float | str = parameter(
        "auto", OrAuto(_SHARE), "Share of the local variance that a tangent space keeps; 0.98 in the paper."
    )
    n_neighbors: int | None = parameter(
        None,
        OrNone(Whole(2)),
        "Nearest training points, including the point itself, from which a tangent space is estimated; by default "
        "``n_bits`` more than there are features, or directions that ``pca_energy`` keeps. If there are fewer training "
        "points, all are used, with a warning.",
    )
    tangent_sample: int | None = parameter(
        100_000, OrNone(Whole(2)), "Search neighbours among this many training points, drawn at random; None for all."
    )
    jacobian_weight: float | str = parameter(
        "auto", OrAuto(Number(0)), "Weight w of the Jacobian term; 1 in the paper."
    )
    init: str = parameter("auto", OrAuto(Choice(*INITS)), "Initial hyperplanes, as in :class:`AutoBin`.")
    centred: bool = parameter(
        False,
        Choice(True, False),
        "Subtract the mean of the training data, and scale what is left. Off in the paper.",
    )
    selection_k: int = parameter(
        10, Whole(1), "True neighbours per query in the m-Recall by which settings are chosen."
    )
    selection_depth: int | None = parameter(
        None,
        OrNone(Whole(1)),
        "Points retrieved per query in it; by default one in a hundred of those searched, and at least twice "
        "``selection_k``. The default suits a search with re-ranking.",
    )
    pca_energy: float | None = parameter(
        0.95,
        OrNone(_SHARE),
        "With more than 256 features, train in the principal directions that keep this share of the variance, at least "
        "twice ``n_bits`` of them. The network that results takes all features. None trains on all features, as in the "
        "paper; so does ``threshold='origin'``.",
    )

    _tensors: ClassVar[dict[str, Tensor]] = {
        **AutoEncoderHasher._tensors,
        "mean_": Tensor("f", ("n_features",), "Mean that is subtracted; only if ``centred``.", optional=True),
        "tangent_rank_": Tensor(
            "i",
            ("n_samples",),
            "Dimension of the tangent space at each training point, −1 for points that no step has used; only if the "
            "network was trained with the Jacobian term.",
            optional=True,
        ),
        "search_results_": Tensor(
            "f",
            ("tried",),
            "Only if settings were chosen. Columns with one entry for each network that was scored: ``init``, "
            "``alpha``, ``jacobian_weight`` and ``energy`` (NaN if not used), ``n_steps`` so far and the ``n_epochs`` "
            "that they belong to, the ``m_recall`` of the held-out queries, and ``chosen``, which is 1 for the network "
            "that was delivered. If training was repeated on all points, that is the last entry.",
            columns={name: kind for name, kind in RESULTS.items() if name != "n_steps"},  # which old files lack
            optional=True,
        ),
    }

    @classmethod
    def as_published(cls, n_bits: int = 64, **parameters: Any) -> AutoJacoBin:
        """Make a hasher with the paper's settings: α = 0.1, w = 1, 98 % of the energy, a random rotation, 5 epochs.

        It trains on all features. ``parameters`` are those of the class, and take precedence.
        """
        return cls(n_bits, **{**PUBLISHED_PARAMETERS, **parameters})

    @classmethod
    def from_itq(cls, n_bits: int = 64, **parameters: Any) -> AutoJacoBin:
        """Make a hasher that trains with all terms of the cost, w = 0.1, from ITQ's rotation of the centred data.

        α and the number of epochs are chosen on held-out training points; ITQ's own rotation is one of the candidates.
        ``parameters`` are those of the class, and take precedence.
        """
        return cls(n_bits, **{**FROM_ITQ_PARAMETERS, **parameters})

    def hyperplanes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:  # noqa: D102
        weights, offsets = super().hyperplanes()
        return weights, offsets - weights @ self.mean_ if "mean_" in vars(self) else offsets

    def decode(self, codes: Codes) -> npt.NDArray[Any]:  # noqa: D102
        out = super().decode(codes)
        return out + self.mean_ if "mean_" in vars(self) else out

    @property
    def trained_name(self) -> str:
        """The name of what was trained, such as "AutoBin from ITQ" without the Jacobian term."""
        return recipe_name(self.chosen_) if hasattr(self, "W1_") else type(self).__name__

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        """Fit as published, by :meth:`_fit_given`; :meth:`_fit_chosen` does it with settings that suit the data."""
        for name in ("search_results_", "tangent_rank_", "mean_"):
            self.__dict__.pop(name, None)
        report = TimeLimit(self.max_seconds, self.progress)
        originals = self._scaled(X)
        principal = self._principal_coordinates(originals)
        X = originals if principal is None else principal.reduce(originals)
        options = self._options(X.shape[1])
        if self.jacobian_weight and (self.n_epochs or options is None):
            self._warn_of_few_neighbors(X)
        if options is None or len(X) < _FEWEST_TO_CHOOSE:
            self._fit_given(X, rng, report)
        else:
            self._fit_chosen(X, originals, options, rng, report)
        if principal is not None:
            network = principal.expand(Network(self.W1_, self.b1_, self.W2_, self.b2_))
            self.W1_, self.b1_, self.W2_, self.b2_ = network.W1, network.b1, network.W2, network.b2

    def _scaled(self, X: Any) -> Any:
        if self.centred:
            mean, X = centre(X)
            self.mean_ = to_host(mean)
        return super()._scaled(X)

    def _fit_given(self, X: Any, rng: np.random.RandomState, report: TimeLimit) -> None:
        """Algorithm 1: initialise θ, estimate the tangent spaces, and take the steps of all epochs."""
        recipe = self._given()
        network = initial_network(X, self.n_bits, recipe.init, rng)
        tangents = self._tangents(X, recipe.energy, rng, report) if recipe.jacobian_weight else None
        if tangents is not None and self.max_seconds is None:
            tangents.estimate_all()
        objective = self._objective_for(recipe)
        trained = self._trained(network, X, objective, rng, n_epochs=self.n_epochs, tangents=tangents, progress=report)
        self._keep(X, *trained)
        if tangents is not None:
            self.tangent_rank_ = to_host(tangents.known_ranks(recipe.energy))

    def _principal_coordinates(self, X: Any) -> PrincipalCoordinates | None:
        """The coordinates to train in; None for those of the data."""
        if self.pca_energy is None or X.shape[1] < _FEWEST_FEATURES_TO_REDUCE or self.threshold == "origin":
            return None
        return PrincipalCoordinates.of(X, self.pca_energy, 2 * self.n_bits)

    def _given_settings(self) -> dict[str, Any]:
        return {**vars(self._given()), "n_epochs": self.n_epochs}

    def _given(self) -> Recipe:
        """The recipe of the parameters, with the paper's value for each that is "auto"."""
        given = {name: getattr(self, name) for name in vars(PUBLISHED)}
        return Recipe(**{name: vars(PUBLISHED)[name] if value == "auto" else value for name, value in given.items()})

    def _options(self, n_features: int) -> Options | None:
        """The settings to choose from; None if no parameter is "auto"."""
        given = {name: (getattr(self, name),) for name in vars(PUBLISHED) if getattr(self, name) != "auto"}
        if len(given) == len(vars(PUBLISHED)):
            return None
        possible = tuple(name for name in INITS if name != "okmeans" or self.n_bits <= n_features)
        return Options(
            inits=given.get("init", possible),
            alphas=given.get("alpha", _ALPHAS_CENTRED if self.centred else _ALPHAS),
            alphas_without_jacobian=given.get("alpha", _ALPHAS_WITHOUT_JACOBIAN),
            jacobian_weights=given.get("jacobian_weight", (0.0, 1.0)),
            energies=given.get("energy", _ENERGIES),
            n_epochs=self.n_epochs,
            n_epochs_without_jacobian=_EPOCHS_WITHOUT_JACOBIAN * self.n_epochs,
            baseline=self._given(),
        )

    @one_blas_thread()  # otherwise the number of threads, through rounding, could decide between near equals
    def _fit_chosen(
        self, X: Any, originals: Any, options: Options, rng: np.random.RandomState, report: TimeLimit
    ) -> None:
        """Choose the settings that suit the data best, and fit with them; as published if the points hardly differ."""
        init_seed, batch_seed = (int(seed) for seed in rng.randint(2**31 - 1, size=2))
        all_points = len(X) <= _MOST_TO_CHOOSE
        rows = np.arange(len(X)) if all_points else np.sort(rng.choice(len(X), _MOST_TO_CHOOSE, replace=False))
        points = X if all_points else X[rows]
        query_rows, base_rows = split(len(points), rng)
        base = points[base_rows]
        if float((base.max(axis=0) - base.min(axis=0)).max()) <= namespace(base).finfo(base.dtype).eps ** 2:
            self._fit_given(X, rng, report)
            return
        self._check_selection_k(len(base))
        estimate = partial(self._tangents, energy=options.energies[0], rng=rng, report=report)
        spaces = cache(partial(estimate, points))  # prepared when a candidate with the Jacobian term needs them
        true_places = originals[rows[query_rows]], originals[rows[base_rows]]  # in all dimensions
        wanted = self.selection_k, self.selection_depth
        score = held_out_score(points[query_rows], base, *wanted, self._bits_of, true_places)
        buffer, steps_per_epoch = LineBuffer(), batches_per_epoch(len(base), self.batch_size)

        def train(
            network: Network, recipe: Recipe, n_epochs: int, rng: np.random.RandomState
        ) -> Iterator[tuple[Network, Step]]:
            objective, on_base = self._objective_for(recipe), namespace(base).asarray(base_rows)
            tangents = TangentsView(spaces(), on_base, recipe.energy) if recipe.jacobian_weight else None
            yield from steps(
                network, base, objective, rng=rng, tangents=tangents, batch_size=self.batch_size, n_epochs=n_epochs,
                buffer=buffer,
            )  # fmt: skip

        start = partial(self._initial_network, base, init_seed)
        selected = Selection(options, train, score, batch_seed, steps_per_epoch, report).run(start)
        self.search_results_ = results_table(RESULTS, selected.rows)
        if report.expired or len(base) >= _ENOUGH_TO_DELIVER * len(X):
            self._keep(X, selected.network, history(selected.steps))
        else:
            if not all_points:
                spaces.cache_clear()  # both may not fit into memory
                spaces, rows = cache(partial(estimate, X)), np.arange(len(X))
            self._deliver(X, selected, spaces, init_seed, score, rng, report)
        if spaces.cache_info().currsize and self.progress is not None:
            self.progress("tangent spaces", len(rows), len(rows))
        if selected.steps and selected.recipe.jacobian_weight:
            self.tangent_rank_ = np.full(len(X), -1, dtype=np.int32)
            self.tangent_rank_[rows] = to_host(spaces().known_ranks(selected.recipe.energy))

    def _deliver(
        self, X: Any, selected: Selected, spaces: Any, init_seed: int, score: Any, rng: Any, report: TimeLimit
    ) -> None:
        """Train as long on all points, and keep that network unless it is worse than the one that was compared."""
        recipe, n_steps = selected.recipe, len(selected.steps)
        start = self._initial_network(X, init_seed, recipe.init)
        of_start = score(start)
        tangents = None
        if n_steps and recipe.jacobian_weight:
            tangents = TangentsView(spaces(), namespace(X).arange(len(X)), recipe.energy)
        n_epochs = -(-n_steps // batches_per_epoch(len(X), self.batch_size))
        objective = self._objective_for(recipe)
        trained, steps_taken = self._trained(
            start, X, objective, rng, n_epochs=n_epochs, n_steps=n_steps, tangents=tangents, progress=report
        )
        found = score(trained) if n_steps else of_start
        accepted = not n_steps or selected.accepts(found, of_start)
        rows = selected.with_row(found, n_epochs, len(steps_taken.get("cost", ())), chosen=accepted)
        self.search_results_ = results_table(RESULTS, rows)
        self._keep(X, *((trained, steps_taken) if accepted else (selected.network, history(selected.steps))))

    def _initial_network(self, points: Any, seed: int, init: str) -> Network:
        return initial_network(points, self.n_bits, init, np.random.RandomState(seed))

    def _bits_of(self, network: Network, X: Any) -> Any:
        offsets = network.b1 if self.threshold == "bias" else 0 * network.b1
        return X @ network.W1.T + offsets >= 0

    def _objective_for(self, recipe: Recipe) -> Objective:
        return Objective(float(recipe.alpha), float(self.epsilon), float(recipe.jacobian_weight))

    def _warn_of_few_neighbors(self, X: Any) -> None:
        wanted, available = self._neighbors(*X.shape)
        if wanted > available:
            where = "training points" if available == len(X) else "in tangent_sample"
            warn_caller(
                f"tangent spaces were to be estimated from {wanted} neighbours, but there are {available} {where}; "
                f"all {available} are used for each. Pass more {where}, or n_neighbors={available} or fewer"
            )

    def _neighbors(self, n: int, D: int) -> tuple[int, int]:
        """The number of neighbours for a tangent space that was asked for, and the number that there are."""
        available = n if self.tangent_sample is None else min(n, self.tangent_sample)
        return (D + int(self.n_bits) if self.n_neighbors is None else self.n_neighbors), available

    def _tangents(self, X: Any, energy: float, rng: np.random.RandomState, report: TimeLimit) -> TangentsOnDemand:
        n_neighbors, max_rank = min(self._neighbors(*X.shape)), min(self.n_bits, X.shape[1])
        return TangentsOnDemand(X, n_neighbors, max_rank, energy, sample=self.tangent_sample, rng=rng, progress=report)
