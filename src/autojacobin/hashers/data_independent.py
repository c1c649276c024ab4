"""What learns a mean at most: random hyperplanes, signs of the numbers, and codes that were made elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.arrays import to_host
from autojacobin.core.linear_algebra import mean_row, random_rotation
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers.base import Hasher, LinearHasher
from autojacobin.hashers.parameters import Bits, Choice, Limit, OrNone, Seed, parameter
from autojacobin.hashers.persistence import Tensor


@dataclass(eq=False, repr=False, kw_only=True)
class LSH(LinearHasher):
    """Random hyperplanes: ``bit_j = [w_j · (x − μ) ≥ 0]`` with w_j drawn from a standard normal.

    Of the hyperplanes, only the mean μ depends on the data. Two vectors that form an angle θ, seen from μ, differ in
    each bit with probability θ/π. In the original method, the hyperplanes pass through the origin (``center=False``).
    That loses about 0.13 m-Recall on SIFT, where no number is negative.

    References
    ----------
    P. Indyk and R. Motwani, "Approximate nearest neighbors: towards removing the curse of dimensionality",
    STOC 1998. M. Charikar, "Similarity estimation techniques from rounding algorithms", STOC 2002.
    """

    center: bool = parameter(
        True, Choice(True, False), "Whether the hyperplanes pass through the mean, not the origin."
    )
    random_state: Any = parameter(None, Seed(), "Draws the hyperplanes.")

    _tensors: ClassVar[dict[str, Tensor]] = {
        "weights_": Tensor("f", ("n_bits", "n_features"), "Normals of the hyperplanes."),
        "mean_": Tensor("f", ("n_features",), "Point through which they pass."),
    }
    _fewest_points: ClassVar[int] = 1
    _training_points: ClassVar[int | None] = None

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        self.weights_ = rng.standard_normal((self.n_bits, X.shape[1])).astype(X.dtype)
        self.mean_ = mean_row(X) if self.center else np.zeros_like(X[0])


class Sign(LinearHasher):
    """The sign of each number of a vector: ``bit_j = [x_j > 0]``, known as binary quantisation.

    These are the bits of ``quantize_embeddings(..., precision="ubinary")`` of sentence-transformers, of Qdrant's binary
    quantisation and of ``vec_quantize_binary`` of sqlite-vec, so that codes made there and here can be compared.
    Nothing is learned unless ``centred`` is set. A zero gives the bit 0. Numbers closer to zero than the smallest
    normal floating-point number count as zeros.

    Parameters
    ----------
    n_bits : int, optional
        Length of the codes. By default there is one bit for each feature, and after ``fit`` the attribute ``n_bits`` is
        their number. A smaller one takes the first numbers of a vector, as suits Matryoshka embeddings. Only with
        ``rotate`` may there be more bits than features.
    centred : bool, default=False
        Whether the mean of the training data is subtracted first. Use it for numbers that have one sign, such as those
        of SIFT.
    rotate : bool, default=False
        Whether vectors are rotated at random first, so that each bit depends on all numbers of a vector.
    random_state : int, RandomState or None
        Draws the rotation.

    Attributes
    ----------
    thresholds_ : array of shape (n_bits,)
        Bit j is 1 where the number j, after the rotation if there is one, is at least ``thresholds_[j]``.
    weights_ : array of shape (n_bits, n_features)
        Rows of the rotation, with ``rotate``. Where there are more bits than features, these are rows of several
        rotations.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin import Sign
    >>> embeddings = np.array([[0.3, -0.1, 0.0, 0.7], [-0.2, 0.4, 0.1, 0.5]])
    >>> Sign().fit(embeddings).transform(embeddings)
    array([[1, 0, 0, 1],
           [0, 1, 1, 1]], dtype=uint8)
    >>> Sign(n_bits=2).fit(embeddings).encode(embeddings)
    Codes(2 codes of 2 bits)
    """

    _limits: ClassVar[dict[str, Limit]] = {
        "n_bits": OrNone(Bits()),
        "centred": Choice(False, True),
        "rotate": Choice(False, True),
        "random_state": Seed(),
    }
    _tensors: ClassVar[dict[str, Tensor]] = {
        "thresholds_": Tensor("f", ("n_bits",)),
        "weights_": Tensor("f", ("n_bits", "n_features"), optional=True),
    }
    _fewest_points: ClassVar[int] = 1
    _training_points: ClassVar[int | None] = None

    def __init__(
        self, n_bits: int | None = None, *, centred: bool = False, rotate: bool = False, random_state: Any = None
    ) -> None:
        self.n_bits = n_bits
        self.centred = centred
        self.rotate = rotate
        self.random_state = random_state

    @property
    def n_bits(self) -> Any:
        """Length of the codes; None before a fit that decides it."""
        given = self.__dict__["n_bits"]
        return getattr(self, "n_features_in_", None) if given is None else given

    @n_bits.setter
    def n_bits(self, value: Any) -> None:
        self.__dict__["n_bits"] = value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Give the parameters as they were set: ``n_bits`` is None where the features decide."""
        return {**super().get_params(deep), "n_bits": self.__dict__["n_bits"]}

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        dtype, D = X.dtype, X.shape[1]
        if self.n_bits > D and not self.rotate:
            raise DataError(
                f"Sign makes one bit of each feature, got n_bits={self.n_bits} for {D} feature(s) (n_features = {D}); "
                f"use n_bits={D} or fewer, or rotate=True"
            )
        offsets = X.mean(axis=0, dtype=np.float64) if self.centred else np.zeros(D)
        self.__dict__.pop("weights_", None)  # of an earlier fit
        if self.rotate:
            rotations = [random_rotation(D, rng) for _ in range(-(-self.n_bits // D))]
            self.weights_ = np.concatenate(rotations)[: self.n_bits].astype(dtype)
            offsets = self.weights_ @ offsets
        # the smallest normal number: a bit is 1 where the projection is not negative, and a zero must give 0
        self.thresholds_ = (offsets[: self.n_bits] + np.finfo(dtype).tiny).astype(dtype)

    def _check_learned(self) -> None:
        if self.rotate != hasattr(self, "weights_"):
            raise ValueError(f"rotate = {self.rotate}, and weights_ are {'not ' if self.rotate else ''}there")
        super()._check_learned()

    def hyperplanes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:  # noqa: D102
        if hasattr(self, "weights_"):
            return self.weights_, -self.thresholds_
        return np.eye(self.n_bits, self.n_features_in_, dtype=self.thresholds_.dtype), -self.thresholds_

    def _projector(self, xp: Any) -> Callable[[Any], Any]:
        if hasattr(self, "weights_"):
            return super()._projector(xp)
        thresholds = xp.asarray(self.thresholds_)

        def project(X: Any) -> Any:
            n_bits = len(thresholds)
            projections = X[:, :n_bits] - thresholds
            if n_bits < X.shape[1]:  # as in a product with zeros: NaN and Inf must be noticed there too
                projections += 0 * X[:, n_bits:].sum(axis=1, dtype="float64", keepdims=True).astype(X.dtype)
            return projections

        return project


class OwnCodes(Hasher):
    """Stands in for the hasher of codes that were made elsewhere: its vectors are the packed codes themselves.

    An index made by :meth:`autojacobin.Index.from_codes` has one. There is nothing to learn.

    Parameters
    ----------
    n_bits : int
        Length of the codes.
    bitorder : {"little", "big"}
        Order of the bits in each byte, as in :func:`numpy.packbits`.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin.hashers import OwnCodes
    >>> OwnCodes(12, bitorder="big").encode(np.array([[255, 128]], dtype=np.uint8)).to_bits()
    array([[1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]], dtype=uint8)
    """

    distances: ClassVar[tuple[str, ...]] = ("hamming", "asymmetric")  # queries are codes unless the caller says so
    _limits: ClassVar[dict[str, Limit]] = {"n_bits": Bits(), "bitorder": Choice("little", "big")}

    def __init__(self, n_bits: int = 64, *, bitorder: BitOrder = "little") -> None:
        self.n_bits = n_bits
        self.bitorder = bitorder
        self.n_features_in_ = -(-n_bits // 8) if isinstance(n_bits, int) else 0

    def fit(self, X: Any = None, y: Any = None, **_: Any) -> OwnCodes:  # noqa: ARG002
        """Do nothing, as there is nothing to learn."""
        return self

    def encode(self, X: Any) -> Codes:
        """Packed codes as :class:`Codes`."""
        return X if isinstance(X, Codes) else Codes.from_packed(self._checked(X), self.n_bits, bitorder=self.bitorder)

    def project(self, X: Any) -> npt.NDArray[Any]:
        """Real values, one for each bit, as an asymmetric search compares them; those of codes are −1 and 1."""
        checked = self._checked(X)
        if checked.dtype == np.uint8:
            return self.encode(checked).to_signs().astype(np.float32)
        return as_floats(checked)

    def _checked(self, X: Any, **_: Any) -> Any:
        """Give packed codes, or a matrix of floats with a column for each bit."""
        array = to_host(as_matrix(X, type(self).__name__))
        if array.dtype == np.uint8 and array.shape[1] == self.n_features_in_:
            return array
        if array.dtype.kind == "f" and array.shape[1] == self.n_bits:
            return array
        if array.dtype != np.uint8 and array.shape[1] == self.n_features_in_:
            raise DataTypeError(f"packed codes must be uint8, got {array.dtype}; convert them with astype(np.uint8)")
        raise DataError(
            f"codes of {self.n_bits} bits are rows of {self.n_features_in_} bytes (uint8), or of {self.n_bits} real "
            f"values for an asymmetric search, got {array.dtype} of shape {array.shape}"
        )
