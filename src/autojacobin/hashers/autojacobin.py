"""Auto-JacoBin, the method of the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from autojacobin._arrays import namespace, to_host
from autojacobin._parallel import one_blas_thread
from autojacobin.autoencoder import Network, Objective, TangentsOnDemand, TangentSpaces, tangents_for_training, train
from autojacobin.errors import DataError
from autojacobin.hashers._autoencoder import AutoEncoderHasher
from autojacobin.hashers._choosing import Options, Recipe, choose, held_out_score, split
from autojacobin.hashers._parameters import Limit, Number, OrAuto, OrNone, Whole
from autojacobin.hashers._persistence import Tensor
from autojacobin.hashers._starts import possible_starts, starting_network
from autojacobin.hashers._warnings import warn_caller

__all__ = ["AutoJacoBin"]

_PUBLISHED = Recipe(init="random", alpha=0.1, jacobian_weight=1.0, energy=0.98)
_ALPHAS = (0.01, 0.1, 1.0)
_ALPHAS_WITHOUT_JACOBIAN = (0.003, 0.03, 0.3)
_EPOCHS_WITHOUT_JACOBIAN = 3  # times as many, since they cost a fraction
_ENERGIES = (0.98, 0.8)
_Plan = tuple[Recipe, int, Network, TangentSpaces | TangentsOnDemand | None]
"""What to train with, for how many epochs, from where, and with which tangent spaces."""
_RESULTS = {"init": "U", "n_epochs": "i", "chosen": "i"} | dict.fromkeys(
    ("alpha", "jacobian_weight", "energy", "m_recall"), "f"
)
_FEWEST_TO_CHOOSE = 500  # fewer leave too few queries to tell candidates apart
_MOST_TO_CHOOSE = 10_000


class AutoJacoBin(AutoEncoderHasher):
    """Auto-encoder Jacobian binary hashing.

    A three-layer tanh auto-encoder, z = tanh(W2 y + b2) with y = tanh(W1 x + b1), is trained to lower

        Σᵢ ‖zᵢ − xᵢ‖²  +  w Σᵢ ‖Jᵢ − TᵢTᵢ'‖²  +  α ‖YY' − nI‖₁ᵋ

    over mini-batches of n points. J is the Jacobian ∂z/∂x and T a basis of the tangent space of the data at
    x, found by local PCA: the function that sends noisy points to the nearest point of a manifold has
    the Jacobian TT', and the network should do the same to first order. The last term is the
    1-norm with |u| smoothed to √(u² + ε); it asks for features near ±1 that are uncorrelated. The bits are the
    signs of the hidden features y.

    What suits the data is found out on the training set alone: where ``alpha``, ``init``, ``energy`` or
    ``jacobian_weight`` is ``"auto"``, candidates are compared by the m-Recall that a held-out tenth of the training
    points (a quarter of few) has in the rest, and the best is trained on all of them. The candidates include the
    starting points themselves, so that on held-out points the codes are no worse than those of ITQ, OKMeans or
    NOKMeans.
    :meth:`as_published` gives the paper's settings, which choose nothing.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes; may exceed the number of features.
    alpha : float or "auto", default="auto"
        Weight α of the binary term; 0.1 in the paper.
    epsilon : float, default=1e-4
        Smoothing ε of its 1-norm.
    energy : float or "auto", default="auto"
        Share of the local variance that a tangent space keeps, with at most ``n_bits`` dimensions; 0.98 in the paper.
    n_neighbors : int, optional
        Nearest training points, the point itself among them, that a tangent space is estimated from; by default
        n_features + n_bits. Cut down, with a warning, when there are fewer training points.
    tangent_sample : int or None, default=100_000
        The neighbours are looked for among this many training points, drawn at random, if there are more; None looks
        among all of them, which takes a time that grows with the square of their number.
    batch_size : int or None, default=1000
        Points a step; None takes the whole set every step.
    n_epochs : int, default=5
        Passes over the training set; when something is chosen, the most passes, or three times as many where there is
        no Jacobian term.
    jacobian_weight : float or "auto", default="auto"
        Weight w of the Jacobian term, which the paper leaves at 1. Without the term (0) training takes a fraction of
        the time.
    scale : float, default=0.8
        The training data are divided by their largest norm and multiplied by this before they enter the network.
    threshold : {"bias", "origin"}, default="bias"
        ``"bias"`` takes the sign of W1 x + b1, that of the hidden feature. ``"origin"`` takes the sign of W1 x,
        as the paper prints it; on SIFT that loses about 0.11 m-Recall.
    init : {"auto", "random", "itq", "okmeans", "nokmeans"}, default="auto"
        Hyperplanes that W1 starts from: the PCA frame in a random rotation, as in the paper, or in the one that ITQ
        finds; or the hyperplanes of OKMeans or NOKMeans.
    selection_k : int, default=10
        True neighbours a held-out query in the m-Recall by which candidates are compared; fewer than nine tenths of the
        training points.
    selection_depth : int, optional
        Points that are retrieved for it, no more than there are; by default one in a hundred of those searched, and no
        fewer than twice ``selection_k``, which suits a search whose candidates are then re-ranked.
    tol : float, default=0.0
        Stop after an epoch that lowers the cost by less than this share; 0 runs all epochs.
    random_state : int, RandomState or None
        Draws the held-out points, the rotation and the mini-batches.
    device : {"cpu", "cuda"}, default="cpu"
        Where to compute; ``"cuda"`` needs CuPy. Data that are on a GPU already stay there.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` during ``fit``; it is not copied into a saved model.

    Attributes
    ----------
    W1_, b1_ : arrays of shape (n_bits, n_features) and (n_bits,)
        Weights from the (scaled) input to the hidden layer.
    W2_, b2_ : arrays of shape (n_features, n_bits) and (n_features,)
        Weights from the hidden layer to the output.
    scale_ : float
        Factor that the data are multiplied by.
    tangent_rank_ : array of int, shape (n_samples,)
        Dimension of the tangent space at each training point; only where the Jacobian term was trained with.
    history_ : dict of arrays
        A row a step: ``epoch``, ``n_points``, ``cost_before`` and ``cost`` of the batch before and after the
        step, the weighted terms ``reconstruction``, ``jacobian`` and ``binary`` that add up to ``cost``, the
        ``step`` length and the number of ``evaluations`` of the objective.
    search_results_ : dict of arrays
        Only where something was chosen. A row for everything that was looked at: ``init``, ``alpha``,
        ``jacobian_weight`` and ``energy`` (NaN where they have no part in it), ``n_epochs`` trained so far, the
        ``m_recall`` of the held-out points, and ``chosen``, 1 for the best row. ``figures.choice`` draws it.

    Notes
    -----
    At least 500 training points are needed to choose, and they must differ; else the paper's settings are taken. Of
    more than 10,000, so many are drawn to choose with; all are trained on in the end.

    References
    ----------
    X. Fu, B. McCane, S. Mills, M. Albert and L. Szymanski, "Auto-JacoBin: Auto-encoder Jacobian binary hashing".

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import AutoJacoBin
    >>> X = load_digits().data
    >>> hasher = AutoJacoBin(n_bits=32, n_neighbors=40, random_state=0).fit(X)
    >>> hasher.encode(X)
    Codes(1797 codes of 32 bits)
    >>> sorted(hasher.chosen_)
    ['alpha', 'energy', 'init', 'jacobian_weight', 'n_epochs']
    """

    tangent_rank_: npt.NDArray[np.int32]
    search_results_: dict[str, npt.NDArray[Any]]

    _limits: ClassVar[dict[str, Limit]] = {
        **AutoEncoderHasher._limits,
        "alpha": OrAuto(AutoEncoderHasher._limits["alpha"]),
        "init": OrAuto(AutoEncoderHasher._limits["init"]),
        "energy": OrAuto(Number(0, 1, above_low=True)),
        "n_neighbors": OrNone(Whole(2)),
        "tangent_sample": OrNone(Whole(2)),
        "jacobian_weight": OrAuto(Number(0)),
        "selection_k": Whole(1),
        "selection_depth": OrNone(Whole(1)),
    }
    _tensors: ClassVar[dict[str, Tensor]] = {
        **AutoEncoderHasher._tensors,
        "tangent_rank_": Tensor("i", ("n_samples",), optional=True),
        "search_results_": Tensor("f", ("tried",), columns=True, optional=True, required=_RESULTS),
    }

    def __init__(
        self,
        n_bits: int = 64,
        *,
        alpha: float | str = "auto",
        epsilon: float = 1e-4,
        energy: float | str = "auto",
        n_neighbors: int | None = None,
        tangent_sample: int | None = 100_000,
        batch_size: int | None = 1000,
        n_epochs: int = 5,
        jacobian_weight: float | str = "auto",
        scale: float = 0.8,
        threshold: str = "bias",
        init: str = "auto",
        selection_k: int = 10,
        selection_depth: int | None = None,
        tol: float = 0.0,
        random_state: Any = None,
        device: str = "cpu",
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        super().__init__(
            n_bits,
            alpha=alpha,
            epsilon=epsilon,
            batch_size=batch_size,
            n_epochs=n_epochs,
            scale=scale,
            threshold=threshold,
            init=init,
            tol=tol,
            random_state=random_state,
            device=device,
            progress=progress,
        )
        self.energy = energy
        self.n_neighbors = n_neighbors
        self.tangent_sample = tangent_sample
        self.jacobian_weight = jacobian_weight
        self.selection_k = selection_k
        self.selection_depth = selection_depth

    @classmethod
    def as_published(cls, n_bits: int = 64, **parameters: Any) -> AutoJacoBin:
        """Give the method with the paper's settings: α = 0.1, w = 1, 98 % of the energy, a random rotation, 5 epochs.

        ``parameters`` are those of the class; they go before the paper's.
        """
        return cls(n_bits, **{**vars(_PUBLISHED), **parameters})

    @property
    def chosen_(self) -> dict[str, Any]:
        """Settings that the network was trained with: the best of ``search_results_``, else the parameters."""
        check_is_fitted(self)
        if not hasattr(self, "search_results_"):
            return {**vars(self._given()), "n_epochs": self.n_epochs}
        row = int(self.search_results_["chosen"].argmax())
        names = ("init", "alpha", "jacobian_weight", "energy", "n_epochs")
        return {name: self.search_results_[name][row].item() for name in names}

    # How it is done

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        for name in ("search_results_", "tangent_rank_"):
            self.__dict__.pop(name, None)
        X = self._scaled(X)
        options = self._options(X.shape[1])
        if self.jacobian_weight and (self.n_epochs or options is None):
            self._warn_of_few_neighbors(X)
        chosen = None if options is None or len(X) < _FEWEST_TO_CHOOSE else self._chosen(X, options, rng)
        recipe, n_epochs, start, tangents = chosen or self._as_given(X, rng)
        self._train(start, X, self._objective_for(recipe), n_epochs, rng, tangents)
        if tangents is not None:
            self.tangent_rank_ = to_host(tangents.ranks)

    def _given(self) -> Recipe:
        """The recipe that the parameters make, with the paper's values for those that are left open."""
        return Recipe(
            **{
                name: value if getattr(self, name) == "auto" else getattr(self, name)
                for name, value in vars(_PUBLISHED).items()
            }
        )

    def _options(self, n_features: int) -> Options | None:
        """What is left open to choose from; None if nothing is."""
        given = {name: (getattr(self, name),) for name in vars(_PUBLISHED) if getattr(self, name) != "auto"}
        if len(given) == len(vars(_PUBLISHED)):
            return None
        return Options(
            inits=given.get("init", possible_starts(self.n_bits, n_features)),
            alphas=given.get("alpha", _ALPHAS),
            light_alphas=given.get("alpha", _ALPHAS_WITHOUT_JACOBIAN),
            jacobian_weights=given.get("jacobian_weight", (0.0, 1.0)),
            energies=given.get("energy", _ENERGIES),
            n_epochs=self.n_epochs,
            light_epochs=_EPOCHS_WITHOUT_JACOBIAN * self.n_epochs,
            always=self._given(),
        )

    def _as_given(self, X: Any, rng: np.random.RandomState) -> _Plan:
        recipe = self._given()
        start = starting_network(X, self.n_bits, recipe.init, rng)
        tangents = self._tangents(X, recipe.energy, rng) if recipe.jacobian_weight else None
        return recipe, self.n_epochs, start, tangents

    @one_blas_thread()  # else the number of threads, which shows in the last digits, could decide between near equals
    def _chosen(self, X: Any, options: Options, rng: np.random.RandomState) -> _Plan | None:
        """What suits the data best, with a start for all of ``X``; None where the points to search hardly differ."""
        of_start, of_batches = (int(seed) for seed in rng.randint(2**31 - 1, size=2))
        few = len(X) <= _MOST_TO_CHOOSE
        looked_at = X if few else X[np.sort(rng.choice(len(X), _MOST_TO_CHOOSE, replace=False))]
        asking, searched = split(len(looked_at), rng)
        base = looked_at[searched]
        if float((base.max(axis=0) - base.min(axis=0)).max()) <= namespace(base).finfo(base.dtype).eps ** 2:
            return None
        if self.selection_k >= len(base):
            raise DataError(
                f"selection_k of AutoJacoBin must be below the {len(base)} points that held-out queries are compared "
                f"with, got {self.selection_k}, which makes all of them true neighbours; 10 is usual"
            )
        held: dict[float, TangentSpaces | TangentsOnDemand] = {}

        def tangents(energy: float) -> TangentSpaces | TangentsOnDemand:
            most = options.energies[0]
            if most not in held:  # only now, since without a Jacobian term nobody asks
                held[most] = self._tangents(looked_at, most, rng)
            if energy not in held:
                held[energy] = held[most].at_energy(energy)
            return held[energy]

        def start(points: Any, init: str) -> Network:
            return starting_network(points, self.n_bits, init, np.random.RandomState(of_start))

        def advance(network: Network, recipe: Recipe, epochs: int, batches: np.random.RandomState) -> Network:
            moved, _ = train(
                network,
                base,
                self._objective_for(recipe),
                rng=batches,
                tangents=tangents(recipe.energy).only(searched) if recipe.jacobian_weight else None,
                batch_size=self.batch_size,
                n_epochs=epochs,
            )
            return moved

        choice = choose(
            options,
            lambda init: start(base, init),
            advance,
            held_out_score(looked_at[asking], base, self.selection_k, self.selection_depth, self._bits_of),
            of_batches,
            self._tell("choosing"),
        )
        self.search_results_ = choice.results
        spaces = None
        if choice.n_epochs and choice.recipe.jacobian_weight:
            energy = choice.recipe.energy
            if not few:
                held.clear()  # before those of all points take as much memory again
            spaces = tangents(energy) if few else self._tangents(X, energy, rng)
        return choice.recipe, choice.n_epochs, start(X, choice.recipe.init), spaces

    def _bits_of(self, network: Network, X: Any) -> Any:
        offsets = network.b1 if self.threshold == "bias" else 0 * network.b1
        return X @ network.W1.T + offsets >= 0

    def _objective_for(self, recipe: Recipe) -> Objective:
        return Objective(
            alpha=float(recipe.alpha), epsilon=float(self.epsilon), jacobian_weight=float(recipe.jacobian_weight)
        )

    def _objective(self) -> Objective:
        return self._objective_for(self._given())

    def _warn_of_few_neighbors(self, X: Any) -> None:
        wanted, available = self._neighbors(*X.shape)
        if wanted > available:
            where = "training points" if available == len(X) else "in tangent_sample"
            warn_caller(
                f"tangent spaces were to be estimated from {wanted} neighbours, but there are {available} {where}; "
                f"all {available} are used for each. Pass more {where}, or n_neighbors={available} or fewer"
            )

    def _neighbors(self, n: int, D: int) -> tuple[int, int]:
        """How many neighbours a tangent space is to be estimated from, and how many there are."""
        available = n if self.tangent_sample is None else min(n, self.tangent_sample)
        return (D + int(self.n_bits) if self.n_neighbors is None else self.n_neighbors), available

    def _tangents(self, X: Any, energy: float, rng: np.random.RandomState) -> TangentSpaces | TangentsOnDemand:
        return tangents_for_training(
            X,
            min(self._neighbors(*X.shape)),
            min(self.n_bits, X.shape[1]),
            energy,
            sample=self.tangent_sample,
            rng=rng,
            progress=self._tell("tangent spaces"),
        )
