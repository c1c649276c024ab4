"""The binary auto-encoder: a linear decoder, and codes that are searched for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import device_of, namespace, to_host
from autojacobin.core.linear_algebra import centre, principal_frame, random_rotation
from autojacobin.core.parallel import Progress, map_points, one_blas_thread, slices
from autojacobin.hashers.autoencoders.tabu_search import ERROR_SHARE, Decoder, Offsets, search_codes
from autojacobin.hashers.base import Hasher, check_fitted
from autojacobin.hashers.parameters import Bits, Callback, Choice, Number, OrNone, Seed, Whole, parameter
from autojacobin.hashers.persistence import Tensor
from autojacobin.search.queries import DistanceTerms, Projection

# What correctness needs
_LEAST_RIDGE = 1e-9  # keeps bits that are copies of each other from making the system singular
_START_RIDGE = 1e-3
_MOST_LEVEL_BITS = 8

# What tunes the training
_ROWS_PER_SLICE = 2**11  # of a product over the points, which should stay in the cache
_ROWS_PER_BLOCK = 2**14  # searched at once
_MOST_FLIPS = 128  # of a bit of effort; longer codes hardly gain by more
_ROUNDING_SHARE = 0.15  # of the error, which rounding offsets to levels may lose
_SHARES_BEYOND_THE_LEVELS = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


@dataclass(eq=False, repr=False)
class BinaryAutoencoder(Hasher):
    """A linear decoder, and for every vector the code that it is reconstructed best from.

    With C the decoder and m its mean, a vector is reconstructed from a code s ∈ {−1, 1}^d as

        x ≈ m + C's,

    and the code of x is the s with the smallest ‖x − m − C's‖² that a search finds: no hyperplanes, and no sign of a
    projection. Training takes turns: least squares for C and m with the codes held, then a search for the codes with
    the decoder held. The search starts from the signs of a linear regression, and flips one bit at a time (tabu
    search).

    These codes are made for the distance ``"decoded"``, by which they need several times fewer candidates than signs
    of projections do. It is the squared distance to what a code decodes to, plus 0.6 times the code's own error:

        ‖q − m − C's‖² + 0.6 ‖x − m − C's‖² = ‖q − m‖² − w·s + r,   w = 2 C (q − m)

    The offset r is the same for all queries. A part of it is linear in the bits and joins w. The rest is rounded to
    2^b levels, whose numbers are the last b of the ``n_bits`` bits; training chooses b. The plain Hamming distance
    between these codes says less than between codes of ITQ.

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

    n_bits: int = parameter(64, Bits(), "Length of the codes, with the bits of the level; may exceed the features.")
    _: KW_ONLY
    effort: int = parameter(
        4, Whole(0, 1_000), "Flips per bit, of 128 bits at most, in the search for a code; may be changed after a fit."
    )
    n_iterations: int = parameter(30, Whole(1, 10**6), "Turns of the training.")
    ridge: float = parameter(1e-3, Number(0), "Ridge penalty of the least squares, as a share of the training points.")
    random_state: Any = parameter(None, Seed(), "Draws the rotation that the codes of the training start from.")
    device: str = parameter("cpu", Choice("cpu", "cuda"), "Where to compute; ``'cuda'`` needs CuPy.")
    progress: Progress | None = parameter(None, OrNone(Callback()), "Called as ``progress('training', done, total)``.")

    codes_are_signs: ClassVar[bool] = False
    distances: ClassVar[tuple[str, ...]] = ("decoded", "asymmetric", "hamming")
    _tensors: ClassVar[dict[str, Tensor]] = {
        "decoder_": Tensor("f", ("searched", "n_features"), "C. The first ``n_bits`` − b bits are searched."),
        "mean_": Tensor("f", ("n_features",), "m."),
        "start_": Tensor(
            "f", ("searched", "searched"), "A search starts from the signs of ``(x - mean_) @ decoder_.T @ start_``."
        ),
        "slope_": Tensor(
            "f", ("n_bits",), "The offset of a code is ``offset_ + slope_ @ s``, with all its bits.", power=2
        ),
        "offset_": Tensor("f", (), "The mean offset.", power=2),
        "reconstruction_error_": Tensor(
            "f", ("n_iterations",), "‖x − m − C's‖² of the training data at every turn, as a share of their variance."
        ),
    }

    def distance_terms(self, X: Any) -> DistanceTerms:
        """Terms of the distance ``"decoded"`` of the rows of ``X`` to codes."""
        check_fitted(self)
        parts = list(self._walk(X, partial(self._projector, constants=True)))
        terms = parts[0] if len(parts) == 1 else namespace(parts[0]).concatenate(parts)
        if device_of(X) == "cpu":
            terms = to_host(terms)
        return DistanceTerms(terms[:, :-1], terms[:, -1].astype(np.float64), self._n_coded() - len(self.decoder_))

    def projection(self, distance: str) -> Projection | None:  # noqa: D102
        if distance not in ("decoded", "asymmetric"):
            return None
        levels = int(self.n_bits) - len(self.decoder_) if distance == "decoded" else 0
        return Projection(self.decoder_, self.mean_, -self.slope_, levels, float(self.offset_))

    def _decoder(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.decoder_, self.mean_

    @one_blas_thread()
    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        origin, X = centre(X)
        xp = namespace(X)
        unit = xp.abs(X).max() or X.dtype.type(1)  # all residuals may be zero
        X /= unit
        n_coded = self._n_coded()
        signs = _starting_signs(X, n_coded, rng)
        codebook = _LeastSquares(X, signs, self.ridge)
        offsets: Offsets | None = None
        errors = []
        for turn in range(self.n_iterations):
            if turn == self.n_iterations // 3:
                n_level_bits = codebook.level_bits(X, signs)
                signs = signs[:, codebook.strongest(n_coded - n_level_bits)]
                codebook = _LeastSquares(X, signs, self.ridge)
                offsets = codebook.offsets(X, signs, n_level_bits)
            decoder = Decoder.prepare(codebook.weights, codebook.middle, offsets)
            for rows in _slices(X):
                signs[rows] = search_codes(X[rows], decoder, self._n_flips(1), signs=signs[rows])[0]
            codebook = _LeastSquares(X, signs, self.ridge)
            if offsets is not None:
                offsets = codebook.offsets(X, signs, offsets.n_bits)
            errors.append(codebook.error)
            if self.progress is not None:
                self.progress("training", turn + 1, self.n_iterations)
        assert offsets is not None
        self.start_ = to_host(_start_regression(X, signs, Decoder.prepare(codebook.weights, codebook.middle)))
        self.decoder_ = to_host(codebook.weights * unit)
        self.mean_ = to_host(origin + codebook.middle * unit)
        square = float(unit) ** 2
        levels = offsets.step / 2 * 2.0 ** np.arange(offsets.n_bits)
        slope = np.concatenate([to_host(offsets.slope), levels]) * square
        self.slope_ = np.append(slope, np.zeros(self.n_bits - n_coded)).astype(X.dtype)
        self.offset_ = (offsets.low + float(levels.sum())) * square
        self.reconstruction_error_ = np.array(errors)

    def _n_coded(self) -> int:
        """Bits of a code that are searched, or the number of a level."""
        return int(self.n_bits)

    def _n_flips(self, effort: int) -> int:
        return int(effort * min(self.n_bits, _MOST_FLIPS))

    def _offsets(self) -> Offsets:
        """Give the offsets as the search takes them; with one level, the size of the step does not matter."""
        d = len(self.decoder_)
        n_bits = self._n_coded() - d
        step = 2 * float(self.slope_[d]) if n_bits else 1.0
        return Offsets(self.slope_[:d], self.offset_ - step * (2**n_bits - 1) / 2, step, n_bits)

    def _check_learned(self) -> None:
        d, n_coded = len(self.decoder_), self._n_coded()
        if not n_coded - _MOST_LEVEL_BITS <= d <= n_coded:
            raise ValueError(f"a decoder of {d} bits for codes of {n_coded}")
        levels = self.slope_[d:n_coded].astype(np.float64)
        if len(levels) and not (levels[0] > 0 and np.allclose(levels, levels[0] * 2.0 ** np.arange(len(levels)))):
            raise ValueError(f"levels of {levels}, expected each to be twice the one before")

    def _projector(self, xp: Any, constants: bool = False) -> Callable[[Any], Any]:
        """Give the function from vectors to w − slope, to which it may append ‖x − m‖² + offset_ as a column."""
        mean, columns = xp.asarray(self.mean_), xp.asarray(2 * self.decoder_.T)
        d, slope, offset = len(self.decoder_), xp.asarray(self.slope_), self.offset_

        def project(X: Any) -> Any:
            centred = X - mean
            out = xp.zeros((len(X), self.n_bits + constants), dtype=centred.dtype)
            out[:, :d] = centred @ columns
            out[:, : self.n_bits] -= slope
            if constants:
                out[:, -1] = xp.einsum("ij,ij->i", centred, centred) + offset
            return out

        return project

    def _encoder(self, xp: Any) -> Callable[[Any], Any]:
        """Give the function from vectors to the searched bits and those of the level, above 0 for a one."""
        offsets = self._offsets()
        on_device = replace(offsets, slope=xp.asarray(offsets.slope))
        decoder = Decoder.prepare(xp.asarray(self.decoder_), xp.asarray(self.mean_), on_device)
        start, powers = xp.asarray(self.start_), xp.asarray(2 ** np.arange(offsets.n_bits, dtype=np.int32))

        def encode(block: Any) -> Any:
            signs, levels = search_codes(block, decoder, self._n_flips(self.effort), start=start)
            level_bits = (levels.astype(xp.int32)[:, None] & powers) > 0
            return xp.concatenate([signs, level_bits.astype(signs.dtype)], axis=1)

        return encode

    def _bits(self, X: Any) -> Iterator[Any]:
        return (bits > 0 for bits in self._walk(X, self._encoder))


class _LeastSquares:
    """The decoder that reconstructs centred points best from their codes, and the error that it leaves.

    ``weights`` (d, D) and ``middle`` (D,) are C and m; ``error`` is Σ ‖x − m − C's‖² / Σ ‖x‖².
    """

    def __init__(self, X: Any, signs: Any, ridge: float) -> None:
        xp = namespace(X)
        n, d = signs.shape

        def work(rows: slice) -> tuple[Any, Any, Any]:
            s = signs[rows].astype(X.dtype)
            return s.T @ s, s.T @ X[rows], s.sum(axis=0)

        gram, products, sums = (sum(part.astype(xp.float64) for part in column) for column in _columns(work, X))
        total = X.sum(axis=0, dtype=xp.float64)  # zero, but for rounding
        mean = sums / n
        self._mean = mean
        self._normal = gram - xp.outer(mean, sums) + (n * (ridge + _LEAST_RIDGE)) * xp.eye(d)
        weights = xp.linalg.solve(self._normal, products - xp.outer(mean, total))
        middle = total / n - mean @ weights
        energy = float(xp.einsum("ij,ij->i", X, X).sum(dtype=xp.float64))
        left = energy - 2 * float((products * weights).sum() + total @ middle)
        left += float(((gram @ weights) * weights).sum() + 2 * (sums @ weights) @ middle) + n * float(middle @ middle)
        self.error = left / energy if energy else 0.0
        self.weights, self.middle = weights.astype(X.dtype), middle.astype(X.dtype)
        self.mean_error = left / n

    def strongest(self, d: int) -> Any:
        """Give the ``d`` bits with the longest rows of C, in their order."""
        xp = namespace(self.weights)
        return xp.sort(xp.argsort(-(self.weights**2).sum(axis=1))[:d])

    def level_bits(self, X: Any, signs: Any) -> int:
        """Choose how many bits to give to the levels of the offsets: rounding should lose little beside the error."""
        most = min(_MOST_LEVEL_BITS, len(self.weights) // 4)
        rest = self._rest_of_offsets(X, signs)[1]
        for n_bits in range(most):
            if _equal_steps(rest, n_bits)[2] <= _ROUNDING_SHARE * self.mean_error:
                return n_bits
        return most

    def offsets(self, X: Any, signs: Any, n_bits: int) -> Offsets:
        """Fit the slope and the levels of the offsets to the training points."""
        slope, rest = self._rest_of_offsets(X, signs)
        low, step, _ = _equal_steps(rest, n_bits)
        return Offsets(slope, low, step, n_bits)

    def _rest_of_offsets(self, X: Any, signs: Any) -> tuple[Any, Any]:
        """Regress the offsets of the training points on their bits; give the slope and what it leaves."""
        xp = namespace(X)

        def work(rows: slice) -> tuple[Any, Any]:
            s = signs[rows].astype(X.dtype)
            decoded = s @ self.weights
            error = X[rows] - self.middle - decoded
            r = xp.einsum("ij,ij->i", decoded, decoded) + ERROR_SHARE * xp.einsum("ij,ij->i", error, error)
            return r.astype(xp.float64), s.T @ r

        parts, sums = _columns(work, X)
        offsets = xp.concatenate(parts)
        products = sum(part.astype(xp.float64) for part in sums) - self._mean * offsets.sum()
        slope = xp.linalg.solve(self._normal, products)
        return slope, offsets - xp.concatenate([signs[rows].astype(X.dtype) @ slope for rows in _slices(X)])


def _equal_steps(values: Any, n_bits: int) -> tuple[float, float, float]:
    """Lowest of 2^n_bits levels at equal steps, their step, and the mean distance of the values to them."""
    xp = namespace(values)
    ordered = xp.sort(values)
    best = (float(ordered.mean()), 1.0, np.inf)
    for share in _SHARES_BEYOND_THE_LEVELS:  # of the values, at either end; the best is taken
        beyond = int(share * (len(ordered) - 1))
        first, last = float(ordered[beyond]), float(ordered[-1 - beyond])
        step = (last - first) / 2**n_bits
        if step > 0:
            low = first + step / 2
            levels = xp.clip(xp.rint((ordered - low) / step), 0, 2**n_bits - 1)
            best = min(best, (low, step, float(xp.abs(ordered - (low + step * levels)).mean())), key=lambda fit: fit[2])
    return best if np.isfinite(best[2]) else (best[0], best[1], 0.0)


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

    gram, products = (sum(part.astype(xp.float64) for part in column) for column in _columns(work, X))
    d = len(gram)
    largest = float(xp.trace(gram)) / d or 1.0
    return xp.linalg.solve(gram / largest + _START_RIDGE * xp.eye(d), products / largest).astype(xp.float32)


def _columns(work: Callable[[slice], tuple[Any, ...]], X: Any) -> Iterator[tuple[Any, ...]]:
    """Each result of ``work`` for all slices of the points: the first ones, the second ones and so on."""
    return zip(*map_points(work, X, _ROWS_PER_SLICE if namespace(X) is np else len(X)), strict=True)


def _slices(X: Any) -> list[slice]:
    return slices(len(X), _ROWS_PER_BLOCK if namespace(X) is np else len(X))
