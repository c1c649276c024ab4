"""Hyperplanes whose bits keep the neighbours of a point, and not the point."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import namespace, to_host
from autojacobin.core.linear_algebra import coordinates, corners, mean_row, principal_frame
from autojacobin.core.parallel import Progress, one_blas_thread
from autojacobin.hashers.base import LinearHasher
from autojacobin.hashers.itq import itq_rotation
from autojacobin.hashers.model_selection import ChoosesSettings, behind, held_out_score, results_table, split
from autojacobin.hashers.neighbour_embedding import Weights, draw_batches, train
from autojacobin.hashers.parameters import Bits, Callback, Choice, Number, OrAuto, OrNone, Seed, Whole, parameter
from autojacobin.hashers.persistence import Tensor

# What is tried, from the one that moves farthest from ITQ to the one that stays closest to it.
_CANDIDATES = (Weights(0.003, 0.1), Weights(0.03, 0.3), Weights(0.03, 10.0))
_OF_ITQ = Weights(math.nan, math.nan)
_STEPS_TO_COMPARE = 100
_FEWEST_TO_CHOOSE = 500  # fewer points leave too few queries to compare candidates
_MOST_TO_SCORE, _QUERIES_TO_CHOOSE = 20_000, 2000
_STANDARD_ERRORS_TO_LEAVE_ITQ = 2.0  # text embeddings gain nothing: there the best of three pairs leads by noise alone
_BATCH_SIZE = 1000
_FEWEST_BATCHES, _EPOCHS, _USES_OF_BATCH = 40, 2, 4  # batches are drawn before the training, and used several times
_ITERATIONS_OF_ITQ, _MOST_FOR_ITQ = 50, 20_000
_RIDGE = 1e-3
_RESULTS = {"decorrelation": "f", "pull": "f", "n_steps": "i", "m_recall": "f", "chosen": "i"}


@dataclass(eq=False, repr=False)
class NeighbourHashing(ChoosesSettings, LinearHasher):
    """Hyperplanes trained so that neighbours get similar codes, by stochastic neighbour embedding.

    Most methods keep the vectors: they minimise an error of reconstruction or of quantisation. A search by the Hamming
    distance needs only the neighbours. With bits h = sign(y), y = W x + b, L = ``n_bits``, this method minimises over
    random batches of n points

        −1/n Σᵢⱼ Pᵢⱼ log softmaxⱼ(γ ⟨hᵢ, hⱼ⟩ / L)  +  δ/L ‖offdiag(H'H / n)‖² + δ ‖mean h‖²  +  ρ/L ‖y − y₀‖²

    The first term wants the true neighbours of each point among those with similar codes. P says how near they are:
    Pᵢⱼ = softmax(−3 (dᵢⱼ² − dᵢ₁²) / (dᵢₖ² − dᵢ₁²)), where dᵢⱼ are distances in the batch and dᵢₖ is that of the k-th
    neighbour. γ is learned. The second term, with the weight δ, wants bits that are balanced and not correlated. The
    last one pulls towards y₀, the projections of ITQ with unit variance, where the training starts.

    A sign has no useful derivative. In its place stands that of tanh(βy), with β from 1 to 4 over the training. W acts
    on the ``n_bits`` leading principal components; more components fit the training points better and others worse.
    The training takes steps of AdamW, with a rate that rises and falls once.

    δ and ρ are chosen on the training set. Up to a quarter of the training points, 2,000 at most, are held out
    as queries. ITQ and three pairs (δ, ρ), trained for 100 steps each, are compared by the m-Recall of these queries.
    If the best pair leads ITQ by two standard errors, it is trained for ``n_steps`` steps on all points. The result is
    delivered unless it is worse on the held-out points. Otherwise, and with fewer than 500 points, ITQ is delivered.

    References
    ----------
    G. Hinton and S. Roweis, "Stochastic neighbor embedding", NIPS 2002. R. Salakhutdinov and G. Hinton, "Learning a
    nonlinear embedding by preserving class neighbourhood structure", AISTATS 2007. Y. Bengio, N. Léonard and
    A. Courville, "Estimating or propagating gradients through stochastic neurons for conditional computation", 2013.
    I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", ICLR 2019. L. Smith and N. Topin,
    "Super-convergence: very fast training of neural networks using large learning rates", 2018.
    """

    n_bits: int = parameter(
        64, Bits(), "Length of the codes; beyond the features, several rotations of ITQ are a start."
    )
    _: KW_ONLY
    decorrelation: float | str = parameter("auto", OrAuto(Number(0)), "Weight δ of the correlations between bits.")
    pull: float | str = parameter("auto", OrAuto(Number(0)), "Weight ρ of the pull towards ITQ.")
    n_neighbors: int = parameter(10, Whole(1), "k: the distance of this neighbour in a batch sets the scale of P.")
    n_steps: int = parameter(500, Whole(0, 10**6), "Steps of the training.")
    selection_k: int = parameter(
        2,
        Whole(1),
        "True neighbours per query in the m-Recall by which candidates are compared. Few, because the index will hold "
        "many more points than the training set, and its neighbours will be nearer.",
    )
    random_state: Any = parameter(None, Seed(), "Draws the initial rotation, the held-out points and the batches.")
    device: str = parameter("cpu", Choice("cpu", "cuda"), "Where to train; ``'cuda'`` needs CuPy.")
    progress: Progress | None = parameter(None, OrNone(Callback()), "Called as ``progress(stage, done, total)``.")

    _tensors: ClassVar[dict[str, Tensor]] = {
        "weights_": Tensor("f", ("n_bits", "n_features"), "Normals of the hyperplanes."),
        "offsets_": Tensor("f", ("n_bits",), "Bit j of x is 1 where ``weights_[j] @ x + offsets_[j] >= 0``."),
        "decoder_": Tensor(
            "f", ("n_bits", "n_features"), "C, fitted by least squares: a code s is decoded to m + C's."
        ),
        "mean_": Tensor("f", ("n_features",), "m."),
        "search_results_": Tensor(
            "f",
            ("tried",),
            "What was compared: ``decorrelation`` and ``pull`` (NaN for ITQ), ``n_steps``, ``m_recall`` of the "
            "held-out queries, and ``chosen``, which is 1 for what was delivered. Only if something was chosen.",
            columns=_RESULTS,
            optional=True,
        ),
    }
    _training_points: ClassVar[int | None] = 50_000  # more make better codes

    @property
    def trained_name(self) -> str:
        """The name of what was trained; if the start was better, it is ITQ."""
        return type(self).__name__ if not hasattr(self, "weights_") or self.chosen_["n_steps"] else "ITQ"

    def _decoder(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.decoder_, self.mean_

    @one_blas_thread()
    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        self.__dict__.pop("search_results_", None)
        xp, mean = namespace(X), mean_row(X)
        frame, start = _start(X, mean, self.n_bits, rng)
        Z = xp.concatenate([coordinates(X, mean, frame), xp.ones((len(X), 1), dtype=X.dtype)], axis=1)
        given = self._given()
        if given is not None:
            (found,) = self._trained("training", (X, Z, np.arange(len(X))), start, [given], self.n_steps, rng)
        elif len(X) < _FEWEST_TO_CHOOSE:
            found = start
        else:
            found = self._chosen(X, Z, start, rng)
        self.decoder_, self.mean_ = _least_squares(corners(Z @ found.T), X, mean)
        weights = found[:, :-1] @ frame
        self.weights_, self.offsets_ = to_host(weights), to_host(found[:, -1] - weights @ mean)

    def _given_settings(self) -> dict[str, Any]:
        given = self._given()
        return {**(given or _OF_ITQ)._asdict(), "n_steps": self.n_steps if given else 0}

    def _given(self) -> Weights | None:
        """The weights that are given; None if one is to be chosen."""
        if isinstance(self.decorrelation, str) or isinstance(self.pull, str):
            return None
        return Weights(float(self.decorrelation), float(self.pull))

    def _candidates(self) -> list[Weights]:
        """The pairs to choose from, with a value that is given in place of theirs."""
        given = {name: float(getattr(self, name)) for name in Weights._fields if getattr(self, name) != "auto"}
        return list(dict.fromkeys(pair._replace(**given) for pair in _CANDIDATES))

    def _chosen(self, X: Any, Z: Any, start: Any, rng: np.random.RandomState) -> Any:
        """Choose the weights that suit the data best, and train with them."""
        scored = np.sort(rng.permutation(len(X))[:_MOST_TO_SCORE])
        query_rows, base_rows = (scored[part] for part in split(len(scored), rng, _QUERIES_TO_CHOOSE))
        self._check_selection_k(len(base_rows))
        originals, bits = (X[query_rows], X[base_rows]), lambda hyperplanes, Z: Z @ hyperplanes.T >= 0
        score = held_out_score(Z[query_rows], Z[base_rows], self.selection_k, None, bits, originals)
        candidates, n_steps = self._candidates(), min(_STEPS_TO_COMPARE, self.n_steps)
        rest = np.setdiff1d(np.arange(len(X)), query_rows)
        maps = [start, *self._trained("choosing", (X, Z, rest), start, candidates, n_steps, rng)]
        found = [score(one) for one in maps]
        scores = [float(one.mean()) for one in found]
        best = scores.index(max(scores))
        if not behind(found[0], found[best], _STANDARD_ERRORS_TO_LEAVE_ITQ):
            best = 0
        rows: list[tuple[float, ...]] = [(*_OF_ITQ, 0, scores[0])]
        rows += [(*pair, n_steps, of_pair) for pair, of_pair in zip(candidates, scores[1:], strict=True)]
        chosen, result = best, maps[best]
        if best and self.n_steps > n_steps:
            pair = candidates[best - 1]
            (final,) = self._trained("training", (X, Z, np.arange(len(X))), start, [pair], self.n_steps, rng)
            of_final = score(final)
            rows.append((*pair, self.n_steps, float(of_final.mean())))
            if not behind(of_final, found[best]) and rows[-1][-1] >= scores[0]:
                chosen, result = len(rows) - 1, final
        self.search_results_ = results_table(_RESULTS, [(*row, i == chosen) for i, row in enumerate(rows)])
        return result

    def _trained(
        self, stage: str, points: Any, start: Any, pairs: list[Weights], n_steps: int, rng: np.random.RandomState
    ) -> Any:
        """Train with each pair of weights on some rows of the points, given as X, Z and the rows."""
        X, Z, rows = points
        size = min(_BATCH_SIZE, len(rows))
        n_batches = min(n_steps // _USES_OF_BATCH + 1, max(_FEWEST_BATCHES, _EPOCHS * len(rows) // size))
        batches = draw_batches(X, rows, size, n_batches, self.n_neighbors, rng)
        return train(Z, start, batches, pairs, n_steps, self.progress and partial(self.progress, stage))


def _start(X: Any, mean: Any, n_bits: int, rng: np.random.RandomState) -> tuple[Any, Any]:
    """ITQ's projections with unit variance: the frame F of z = F (x − m), and the map from (z, 1) to them."""
    xp, size = namespace(X), min(n_bits, X.shape[1])
    axes = principal_frame(X, mean, size)
    sample = X if len(X) <= _MOST_FOR_ITQ else X[np.sort(rng.permutation(len(X))[:_MOST_FOR_ITQ])]
    V = coordinates(sample, mean, axes)
    frames = []
    for _ in range(-(-n_bits // size)):  # more bits than features take further rotations, from other random ones
        rotation, _ = itq_rotation(V, _ITERATIONS_OF_ITQ, rng)
        spread = (V @ rotation).std(axis=0)
        frames.append((rotation / xp.where(spread > 0, spread, 1)).T)
    inverse = xp.linalg.pinv(frames[0])
    W = xp.concatenate([xp.eye(size, dtype=X.dtype), *(frame @ inverse for frame in frames[1:])])[:n_bits]
    return frames[0] @ axes, xp.concatenate([W, xp.zeros((n_bits, 1))], axis=1).astype(X.dtype)


def _least_squares(signs: Any, X: Any, mean: Any) -> tuple[Any, Any]:
    """The decoder C and the mean m that reconstruct points best from their codes as m + C's."""
    xp, n = namespace(X), len(X)
    middle = signs.mean(axis=0, dtype=xp.float64)
    gram = (signs.T @ signs).astype(xp.float64) - n * xp.outer(middle, middle)
    gram += _RIDGE * n * xp.eye(len(gram))
    decoder = xp.linalg.solve(gram, (signs.T @ (X - mean)).astype(xp.float64))
    return to_host(decoder.astype(X.dtype)), to_host((mean - middle @ decoder).astype(X.dtype))
