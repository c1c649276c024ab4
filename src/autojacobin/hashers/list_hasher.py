"""Hashers for inverted lists around centres of k-means: what all share, and the one that takes codes of any hasher."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import to_host
from autojacobin.core.parallel import Progress, slices
from autojacobin.errors import DataError, FormatError
from autojacobin.hashers.base import Hasher, check_fitted
from autojacobin.hashers.data_independent import OwnCodes
from autojacobin.hashers.learning import NO_BLOCK, TRAINING_POINTS, non_empty
from autojacobin.hashers.parameters import Callback, Limit, OrNone, Seed, Whole
from autojacobin.hashers.persistence import Tensor

if TYPE_CHECKING:
    from autojacobin.search.centres import Centres
    from autojacobin.search.lists import Lists, OffsetGrid

_POINTS_PER_LIST = 64
_MOST_TRAINING_POINTS = 20_000  # by default, if there are few lists
_ROWS_PER_BLOCK = 2**12
_TINY = float(np.finfo(np.float32).tiny)
_IN_LISTS = ("asymmetric", "hamming")  # distances that are weighted sums over bits


class ListHasher(Hasher):
    """A hasher whose codes end with the number of a list, that of the centre nearest to the vector.

    An index keeps the codes of such a hasher in inverted lists. A subclass defines what is coded besides the number of
    the list, and how a query is compared with it. With two copies, a code is followed by another one for a second list.
    """

    centres_: npt.NDArray[np.float32]
    origin_: npt.NDArray[np.float32]
    n_lists: int | None
    copies: int = 1
    learned_centres: Centres | None = None  # which the next fit takes, if given

    # What a subclass has to define

    @property
    def n_code_bits(self) -> int:
        """Bits of a code without those of the list."""
        raise NotImplementedError

    def drift(self, vectors: npt.NDArray[Any], codes: Codes) -> float:
        """Error of the lists on these vectors, as a multiple of their error on the training vectors."""
        raise NotImplementedError

    # What a subclass may define

    @property
    def offset_grid(self) -> OffsetGrid:
        """The grid of the offsets of codes in lists."""
        from autojacobin.search.lists import OffsetGrid

        return OffsetGrid(0.0, 0.0)

    def _offsetter(self) -> Callable[[Codes, npt.NDArray[np.int32]], npt.NDArray[np.float32]]:
        """Give the function from codes without the bits of their lists, and the lists, to the offsets of the codes."""
        return lambda _, labels: np.zeros(len(labels), dtype=np.float32)

    def _points_of_lists(self) -> npt.NDArray[np.float32]:
        """The points that decide which lists are nearest to a query."""
        return self.centres_

    # What every such hasher can do

    def split(self, codes: Codes, copy: int = 0) -> tuple[Codes, npt.NDArray[np.int32]]:
        """Codes of one copy without the bits of the list, and the number of the list of each."""
        length, n_coded = codes.n_bits // self.copies, self.n_code_bits
        first, skipped = divmod(copy * length, 8)
        some = np.unpackbits(codes.packed[:, first:], axis=1, count=skipped + length, bitorder="little")[:, skipped:]
        labels = (some[:, n_coded:] @ (1 << np.arange(length - n_coded))).astype(np.int32)
        return Codes(np.packbits(some[:, :n_coded], axis=1, bitorder="little"), n_coded), labels

    def lists(self, codes: Codes) -> Lists:
        """Group codes by their lists, as the kernels read them."""
        from autojacobin.search.lists import Lists

        n_lists, offsets_of = len(self.centres_), self._offsetter()
        parts = []
        for rows in slices(len(codes), _ROWS_PER_BLOCK):
            copies = [self.split(codes[rows], copy) for copy in range(self.copies)]
            packed = np.stack([coded.packed for coded, _ in copies], axis=1)
            labels = np.stack([labels for _, labels in copies], axis=1).ravel()
            if int(labels.max()) >= n_lists:
                raise FormatError(
                    f"there are codes in list {labels.max()} of {n_lists}, so they are damaged; make them anew with "
                    "encode, or save what is whole of an index with: autojacobin index repair"
                )
            coded = Codes(packed.reshape(len(labels), -1), self.n_code_bits)
            parts.append((coded, labels, offsets_of(coded, labels)))
        coded = Codes.concatenate([part[0] for part in parts])
        labels, offsets = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        return Lists.build(coded, labels, n_lists, offsets, self.offset_grid, self.copies)

    def search_centres(self) -> Centres:
        """The centres as a search needs them."""
        return self._kept_centres("_centres_of_search", self._points_of_lists)

    def _own_centres(self) -> Centres:
        """The centres that vectors are assigned to."""
        return self._kept_centres("_centres", lambda: self.centres_)

    def _kept_centres(self, name: str, points: Callable[[], npt.NDArray[np.float32]]) -> Centres:
        """Centres that are kept with the hasher until it is fitted again, because to prepare them takes time."""
        from autojacobin.search.centres import Centres

        kept = self.__dict__.get(name)
        if kept is None or kept[0] is not self.centres_:
            kept = self.__dict__[name] = self.centres_, Centres(np.asarray(points(), np.float32))
        return kept[1]

    def default_training_points(self) -> int | None:
        """How many rows ``fit`` draws from a matrix by default: enough for the lists, whose number all rows decide."""
        return None if self.n_lists is None else max(_MOST_TRAINING_POINTS, _POINTS_PER_LIST * self.n_lists)

    def _learn_centres(self, X: npt.NDArray[Any], rng: np.random.RandomState, progress: Progress | None) -> Centres:
        from autojacobin.search.kmeans import kmeans

        wanted = self._wanted_lists(len(X))
        if wanted > len(X):
            raise DataError(
                f"there must be at least as many training vectors as lists, got {len(X)} for n_lists={wanted}; pass "
                "more vectors, or ask for fewer lists"
            )
        centres: Centres | None = vars(self).pop("learned_centres", None)
        if centres is None:
            centres = kmeans(X, wanted, random_state=rng, device=self._device(), progress=progress)
        self.centres_, self.origin_ = centres.points, centres.origin
        return centres

    def _wanted_lists(self, n: int) -> int:
        return self.n_lists or 1 << max(0, (n // _POINTS_PER_LIST).bit_length() - 1)

    def _n_list_bits(self) -> int:
        return (len(self.centres_) - 1).bit_length()

    def _list_bits(self, xp: Any, labels: Any) -> Any:
        """The numbers of lists as bits, shape (n, bits of a number)."""
        return (labels[:, None] & xp.asarray(1 << np.arange(self._n_list_bits(), dtype=np.int32))) > 0


class PartitionedHasher(ListHasher):
    """Codes of any hasher, in inverted lists around centres of k-means.

    A code is that of the hasher, followed by the number of the list: that of the centre nearest to the vector. An index
    over such codes keeps a list of codes for each centre, and a search scans the lists whose centres are nearest to the
    query: a few per cent of all codes. Codes are compared as without lists, so a search of all lists is the exhaustive
    search.

    An index with ``partitions`` makes such a hasher by itself. For codes of a BinaryAutoencoder it makes a
    :class:`PartitionedAutoencoder`, which codes the residual to the centre instead.

    Parameters
    ----------
    hasher : Hasher
        The hasher. If it is fitted, it stays as it is and ``fit`` learns only the centres. Otherwise a copy of it is
        fitted too. Its first distance must be ``"asymmetric"`` or ``"hamming"``.
    n_lists : int, optional
        Number of centres; by default one for every 64 training vectors, rounded down to a power of two. A search is
        fastest with about four times the square root of the number of vectors in the index.
    random_state : int, RandomState or None
        Draws the first centres.
    progress : callable, optional
        Called as ``progress("partitioning", done, total)`` after each iteration of k-means.

    Attributes
    ----------
    hasher_ : Hasher
        The fitted hasher.
    centres_ : array of float32, shape (lists, n_features)
        Centres.
    origin_ : array of float32, shape (n_features,)
        Their mean.
    spread_ : float
        Mean squared distance of the training vectors to their centres.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import ITQ, Index, PartitionedHasher
    >>> X = load_digits().data
    >>> hasher = PartitionedHasher(ITQ(n_bits=32, random_state=0), n_lists=16, random_state=0).fit(X)
    >>> hasher.n_bits, hasher.distances
    (36, ('asymmetric', 'hamming'))
    >>> index = Index(hasher)
    >>> index.add(X)
    >>> distances, ids = index.search(X[:3], k=1, probes=4)
    >>> ids.ravel()
    array([0, 1, 2])
    """

    hasher_: Hasher

    codes_are_signs: ClassVar[bool] = False  # nor is the number of the list
    _wraps_hasher: ClassVar[bool] = True
    _limits: ClassVar[dict[str, Limit]] = {
        "hasher": Limit(lambda value: isinstance(value, Hasher), "a hasher"),
        "n_lists": OrNone(Whole(1)),
        "random_state": Seed(),
        "progress": OrNone(Callback()),
    }
    _tensors: ClassVar[dict[str, Tensor]] = {
        "centres_": Tensor("f", ("lists", "n_features")),
        "origin_": Tensor("f", ("n_features",)),
        "spread_": Tensor("f", power=2),
    }

    def __init__(
        self,
        hasher: Hasher,
        *,
        n_lists: int | None = None,
        random_state: Any = None,
        progress: Progress | None = None,
    ) -> None:
        self.hasher = hasher
        self.n_lists = n_lists
        self.random_state = random_state
        self.progress = progress

    @property
    def n_bits(self) -> Any:  # type: ignore[override]
        """Length of the codes: the bits of the hasher and of the number of the list; None before a fit."""
        return self.n_code_bits + self._n_list_bits() if hasattr(self, "centres_") else None

    @property
    def n_code_bits(self) -> int:
        """Bits of the hasher."""
        return int(self.hasher_.n_bits)

    @property
    def distances(self) -> tuple[str, ...]:  # type: ignore[override]
        """Distances of the hasher by which lists are searched, the best first."""
        return tuple(name for name in self._inner.distances if name in _IN_LISTS)

    @property
    def device(self) -> str:
        """Where the hasher computes."""
        return self._inner._device()

    @property
    def trained_name(self) -> str:
        """The name of the hasher, and the number of lists."""
        return f"{self.hasher_.trained_name} in {len(self.centres_)} lists"

    @property
    def trained_as(self) -> str:
        """The name of the hasher with its settings, and the number of lists."""
        return f"{self.hasher_.trained_as} in {len(self.centres_)} lists"

    def encode(self, X: Any) -> Codes:
        """Codes of the hasher, followed by the bits of the numbers of the lists."""
        check_fitted(self)
        blocks = non_empty(X) if isinstance(X, Iterator) else iter((X,))
        codes = [self.with_lists(self.hasher_.encode(block), block) for block in blocks]
        if not codes:
            raise DataError(NO_BLOCK)
        return Codes.concatenate(codes)

    def with_lists(self, codes: Codes, X: Any) -> Codes:
        """Codes that the hasher gave for the rows of ``X``, followed by the bits of the numbers of the lists."""
        parts, start = [], 0
        for labels in self._walk(X, lambda _: self._own_centres().assign):
            for first in range(0, len(labels), _ROWS_PER_BLOCK):
                bits = self._list_bits(np, to_host(labels[first : first + _ROWS_PER_BLOCK]))
                some = codes[start : start + len(bits)].to_bits()
                parts.append(Codes.from_bits(np.concatenate([some, bits.astype(np.uint8)], axis=1)))
                start += len(bits)
        return Codes.concatenate(parts)

    def project(self, X: Any) -> npt.NDArray[Any]:
        """Projections of the hasher, and a zero for each bit of the list, so that these bits do not count."""
        check_fitted(self)
        projections = to_host(self.hasher_.project(X))
        return np.pad(projections, ((0, 0), (0, self._n_list_bits())))

    def decode(self, codes: Codes) -> npt.NDArray[Any]:
        """Reconstruct vectors as the hasher does, where it has a decoder."""
        check_fitted(self)
        return self.hasher_.decode(self.split(codes)[0])

    def score(self, X: Any, y: Any = None, *, k: int = 10, depth: int | None = None) -> float:
        """Score of the hasher."""
        check_fitted(self)
        return self.hasher_.score(X, y, k=k, depth=depth)

    # What an index needs

    def drift(self, vectors: npt.NDArray[Any], codes: Codes) -> float:
        """Mean squared distance of vectors to their centres, as a multiple of that of the training vectors."""
        return self._spread(vectors, self.split(codes)[1]) / max(self.spread_, _TINY)

    @property
    def _inner(self) -> Hasher:
        return self.hasher_ if hasattr(self, "hasher_") else self.hasher

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        check_can_have_lists(self.hasher)
        if self.hasher.__sklearn_is_fitted__():
            self.hasher_ = copy.copy(self.hasher)
            if self.hasher_.n_features_in_ != X.shape[1]:
                raise DataError(
                    f"the {type(self.hasher).__name__} was fitted on {self.hasher_.n_features_in_} features, got "
                    f"{X.shape[1]} for its lists; pass vectors like those that it was fitted on"
                )
            if hasattr(self.hasher_, "feature_names_in_"):
                self.feature_names_in_ = self.hasher_.feature_names_in_
        else:
            rows = self.hasher.default_training_points() or TRAINING_POINTS
            self.hasher_ = self.hasher.unfitted().fit(X, training_points=min(rows, len(X)))
            if hasattr(self, "feature_names_in_"):
                self.hasher_.feature_names_in_ = self.feature_names_in_
        centres = self._learn_centres(X, rng, self.progress)
        self.spread_ = self._spread(X, centres.assign(X, self._device()))

    def _spread(self, vectors: npt.NDArray[Any], labels: npt.NDArray[np.int32]) -> float:
        total = 0.0
        for rows in slices(len(vectors), _ROWS_PER_BLOCK):
            total += float(((vectors[rows] - self.centres_[labels[rows]]) ** 2).sum(dtype=np.float64))
        return total / len(vectors)

    def _check_unchanged(self) -> None:
        super()._check_unchanged()
        if hasattr(self, "hasher_"):
            self.hasher_._check_unchanged()

    def _check_learned(self) -> None:
        check_can_have_lists(self.hasher_)
        if self.hasher_.n_features_in_ != self.n_features_in_:
            raise ValueError(f"a hasher of {self.hasher_.n_features_in_} features in lists of {self.n_features_in_}")
        if not self.spread_ >= 0:
            raise ValueError(f"a spread of {self.spread_}")


def check_can_have_lists(hasher: Hasher) -> None:
    """Raise a DataError if codes of a hasher cannot be put into lists as they are."""
    if isinstance(hasher, ListHasher):
        raise DataError(f"a {type(hasher).__name__} has inverted lists already; pass the hasher that is in it")
    if isinstance(hasher, OwnCodes) or hasher.distances[0] not in _IN_LISTS:
        raise DataError(
            "inverted lists are learned from vectors, and hold codes that are best compared by the asymmetric or the "
            f"Hamming distance, got codes of {type(hasher).__name__}; leave out the lists, or use a method such as ITQ"
        )
