"""The binary auto-encoder: a linear decoder, and codes that are searched for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace, on_device, to_host
from autojacobin.core.linear_algebra import centre, principal_frame, random_rotation
from autojacobin.core.parallel import map_points, one_blas_thread
from autojacobin.core.vectors import as_floats
from autojacobin.hashers.base import Hasher, check_fitted
from autojacobin.hashers.parameters import Callback, Choice, Limit, Number, OrNone, Seed, Whole
from autojacobin.hashers.persistence import Tensor
from autojacobin.hashers.tabu_search import Decoder, search_codes

__all__ = ["BinaryAutoencoder"]

_ROWS_PER_SLICE = 2**11  # of a product over the points, which should stay in the cache
_ROWS_PER_BLOCK = 2**14  # searched at once
_LEAST_RIDGE = 1e-9  # keeps bits that are copies of each other from making the system singular
_START_RIDGE = 1e-3
# Steps of a search at effort 1. From here on, more bits need hardly more of them: most bits are right from the start.
_MOST_STEPS = 128


class BinaryAutoencoder(Hasher):
    """A linear decoder, and for every vector the code that it is reconstructed best from.

    With C the decoder and m its mean, a vector is reconstructed from a code s ∈ {−1, 1}^n_bits as

        x ≈ m + C's,

    and the code of x is the s with the smallest ‖x − m − C's‖² that a search finds: no hyperplanes, and no sign
    of a projection. Training takes turns: least squares for C and m with the codes held, then a search for
    the codes with the decoder held. The search starts from the signs of a linear regression, and
    flips one bit at a time (tabu search).

    These codes are made for the distance to what they decode to,

        ‖q − m − C's‖² = ‖q − m‖² − w·s + ‖C's‖²,   w = 2 C (q − m),

    in which they need several times fewer candidates than signs of projections do. ``project`` gives w,
    ``squared_norms`` gives ‖C's‖². The plain Hamming distance between them says less than between codes of ITQ.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes; may exceed the number of features.
    effort : int, default=4
        How long to search for a code: ``effort * min(n_bits, 128)`` flips. The time of each grows with ``n_bits``.
        May be changed after the fit.
    n_iterations : int, default=30
        Turns of the training.
    ridge : float, default=0.001
        Ridge penalty of the least squares, as a share of the number of training points.
    random_state : int, RandomState or None
        Draws the rotation of the principal frame that the codes of the training start from.
    device : {"cpu", "cuda"}, default="cpu"
        Where to compute. ``"cuda"`` needs CuPy.
    progress : callable, optional
        Called as ``progress("training", done, total)`` after every turn.

    Attributes
    ----------
    decoder_ : array of shape (n_bits, n_features)
        C.
    mean_ : array of shape (n_features,)
        m.
    start_ : array of shape (n_bits, n_bits)
        The search starts from the signs of ``project(x) @ start_``.
    reconstruction_error_ : array of shape (n_iterations,)
        ‖x − m − C's‖² of the training data at every turn, as a share of their variance.

    References
    ----------
    M. Carreira-Perpiñán and R. Raziperchikolaei, "Hashing with binary autoencoders", CVPR 2015. J. Martinez,
    J. Clement, H. Hoos and J. Little, "Revisiting additive quantization", ECCV 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import BinaryAutoencoder
    >>> X = load_digits().data
    >>> hasher = BinaryAutoencoder(n_bits=32, random_state=0).fit(X)
    >>> codes = hasher.encode(X)
    >>> codes
    Codes(1797 codes of 32 bits)
    >>> hasher.decode(codes).shape
    (1797, 64)
    """

    decoder_: npt.NDArray[Any]
    mean_: npt.NDArray[Any]
    start_: npt.NDArray[Any]
    reconstruction_error_: npt.NDArray[Any]

    codes_are_signs: ClassVar[bool] = False
    _limits: ClassVar[dict[str, Limit]] = {
        "n_bits": Whole(1),
        "effort": Whole(0),
        "n_iterations": Whole(1),
        "ridge": Number(0),
        "random_state": Seed(),
        "device": Choice("cpu", "cuda"),
        "progress": OrNone(Callback()),
    }
    _tensors: ClassVar[dict[str, Tensor]] = {
        "decoder_": Tensor("f", ("n_bits", "n_features")),
        "mean_": Tensor("f", ("n_features",)),
        "start_": Tensor("f", ("n_bits", "n_bits")),
        "reconstruction_error_": Tensor("f", ("iterations",)),
    }

    def __init__(
        self,
        n_bits: int = 64,
        *,
        effort: int = 4,
        n_iterations: int = 30,
        ridge: float = 1e-3,
        random_state: Any = None,
        device: str = "cpu",
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.n_bits = n_bits
        self.effort = effort
        self.n_iterations = n_iterations
        self.ridge = ridge
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def squared_norms(self, codes: Codes) -> npt.NDArray[Any]:
        """‖C's‖² of each code: the part of its distance that is the same for all queries."""
        check_fitted(self)
        gram = self.decoder_ @ self.decoder_.T
        norms = np.empty(len(codes), dtype=gram.dtype)
        for rows, signs in self._sign_blocks(codes, gram.dtype):
            norms[rows] = np.einsum("ij,ij->i", signs @ gram, signs)
        return norms

    def _decoder(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.decoder_, self.mean_

    def _training_floats(self, array: Any) -> Any:
        return on_device(as_floats(array), self.device)

    @one_blas_thread()
    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        origin, X = centre(X)
        xp = namespace(X)
        unit = xp.abs(X).max()
        X /= unit
        signs = _starting_signs(X, self.n_bits, rng)
        codebook = _LeastSquares(X, signs, self.ridge)
        errors = []
        for turn in range(self.n_iterations):
            decoder = Decoder.prepare(codebook.weights, codebook.middle)
            for rows in _slices(X):
                signs[rows] = search_codes(X[rows], decoder, self._n_steps(1), signs=signs[rows])
            codebook = _LeastSquares(X, signs, self.ridge)
            errors.append(codebook.error)
            if self.progress is not None:
                self.progress("training", turn + 1, self.n_iterations)
        self.start_ = to_host(_start_regression(X, signs, Decoder.prepare(codebook.weights, codebook.middle)))
        self.decoder_ = to_host(codebook.weights * unit)
        self.mean_ = to_host(origin + codebook.middle * unit)
        self.reconstruction_error_ = np.array(errors)

    def _n_steps(self, effort: int) -> int:
        return effort * min(self.n_bits, _MOST_STEPS)

    def _projector(self, xp: Any) -> Callable[[Any], Any]:
        mean, columns = xp.asarray(self.mean_), xp.asarray(2 * self.decoder_.T)

        def project(X: Any) -> Any:
            return (X - mean) @ columns

        return project

    def _bits(self, X: Any) -> Iterator[Any]:
        def make(xp: Any) -> Callable[[Any], Any]:
            decoder = Decoder.prepare(xp.asarray(self.decoder_), xp.asarray(self.mean_))
            start = xp.asarray(self.start_)
            return lambda block: search_codes(block, decoder, self._n_steps(self.effort), start=start)

        return (signs > 0 for signs in self._walk(X, make))


class _LeastSquares:
    """The decoder that reconstructs centred points best from their codes, and the error that it leaves.

    Attributes
    ----------
    weights, middle : arrays of shape (d, D) and (D,)
        C and m.
    error : float
        Σ ‖x − m − C's‖² / Σ ‖x‖².
    """

    def __init__(self, X: Any, signs: Any, ridge: float) -> None:
        xp = namespace(X)
        n, d = signs.shape

        def work(rows: slice) -> tuple[Any, Any, Any]:
            s = signs[rows].astype(X.dtype)
            return s.T @ s, s.T @ X[rows], s.sum(axis=0)

        per_task = _ROWS_PER_SLICE if xp is np else len(X)
        parts = list(map_points(work, X, per_task))
        gram, products, sums = (sum(part.astype(xp.float64) for part in column) for column in zip(*parts, strict=True))
        total = X.sum(axis=0, dtype=xp.float64)  # zero, but for rounding
        mean = sums / n
        normal = gram - xp.outer(mean, sums) + (n * (ridge + _LEAST_RIDGE)) * xp.eye(d)
        weights = xp.linalg.solve(normal, products - xp.outer(mean, total))
        middle = total / n - mean @ weights
        energy = float(xp.einsum("ij,ij->i", X, X).sum(dtype=xp.float64))
        left = energy - 2 * float((products * weights).sum() + total @ middle)
        left += float(((gram @ weights) * weights).sum() + 2 * (sums @ weights) @ middle) + n * float(middle @ middle)
        self.error = left / energy
        self.weights, self.middle = weights.astype(X.dtype), middle.astype(X.dtype)


def _starting_signs(X: Any, d: int, rng: np.random.RandomState) -> Any:
    """Codes to start from: signs in randomly rotated principal frames, as many frames as the bits take."""
    xp = namespace(X)
    size = min(d, X.shape[1])
    directions = np.concatenate([random_rotation(size, rng) for _ in range(-(-d // size))])[:d]
    origin = xp.zeros_like(X[0])
    rotated = xp.asarray(directions.astype(X.dtype)) @ principal_frame(X, origin, size)
    parts = [xp.where(X[rows] @ rotated.T >= 0, xp.int8(1), xp.int8(-1)) for rows in _slices(X)]
    return xp.concatenate(parts)


def _start_regression(X: Any, signs: Any, decoder: Decoder) -> Any:
    """Regress the codes on C (x − m), which is all that the best code depends on."""
    xp = namespace(X)

    def work(rows: slice) -> tuple[Any, Any]:
        b = decoder.products(X[rows])
        return b.T @ b, b.T @ signs[rows].astype(X.dtype)

    per_task = _ROWS_PER_SLICE if xp is np else len(X)
    parts = list(map_points(work, X, per_task))
    gram, products = (sum(part.astype(xp.float64) for part in column) for column in zip(*parts, strict=True))
    d = len(gram)
    largest = float(xp.trace(gram)) / d or 1.0
    return xp.linalg.solve(gram / largest + _START_RIDGE * xp.eye(d), products / largest).astype(xp.float32)


def _slices(X: Any) -> list[slice]:
    rows = _ROWS_PER_BLOCK if namespace(X) is np else len(X)
    return [slice(start, start + rows) for start in range(0, len(X), rows)]
