"""What all hashers for inverted lists share: centres of k-means, and codes that end with the number of a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.parallel import Progress
from autojacobin.errors import DataError, FormatError
from autojacobin.hashers.base import Hasher

if TYPE_CHECKING:
    from autojacobin.search.centres import Centres
    from autojacobin.search.lists import Lists, OffsetGrid

_POINTS_PER_LIST = 64
_MOST_TRAINING_POINTS = 20_000  # by default, if there are few lists
_ROWS_PER_BLOCK = 2**12
_PRODUCTS_AT_ONCE = 2**27


class ListHasher(Hasher):
    """A hasher whose codes end with the number of a list, that of the centre nearest to the vector.

    An index keeps the codes of such a hasher in inverted lists. A subclass defines what is coded besides the number of
    the list, and how a query is compared with it.
    """

    centres_: npt.NDArray[np.float32]
    origin_: npt.NDArray[np.float32]
    n_lists: int | None

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

    def split(self, codes: Codes) -> tuple[Codes, npt.NDArray[np.int32]]:
        """Codes without the bits of the list, and the number of the list of each."""
        n_coded = self.n_code_bits
        first = n_coded // 8
        bits = np.unpackbits(codes.packed[:, first:], axis=1, bitorder="little")
        numbers = bits[:, n_coded % 8 : codes.n_bits - 8 * first]
        labels = (numbers @ (1 << np.arange(numbers.shape[1]))).astype(np.int32)
        packed = np.array(codes.packed[:, : -(-n_coded // 8)])
        if n_coded % 8:
            packed[:, -1] &= np.uint8((1 << n_coded % 8) - 1)
        return Codes(packed, n_coded), labels

    def lists(self, codes: Codes) -> Lists:
        """Group codes by their lists, as the kernels read them."""
        from autojacobin.search.lists import Lists

        n_lists, offsets_of = len(self.centres_), self._offsetter()
        parts = []
        for start in range(0, len(codes), _ROWS_PER_BLOCK):
            coded, labels = self.split(codes[start : start + _ROWS_PER_BLOCK])
            if int(labels.max()) >= n_lists:
                raise FormatError(
                    f"there are codes in list {labels.max()} of {n_lists}, so they are damaged; make them anew with "
                    "encode, or save what is whole of an index with: autojacobin index repair"
                )
            parts.append((coded, labels, offsets_of(coded, labels)))
        coded = Codes.concatenate([part[0] for part in parts])
        labels, offsets = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        return Lists.build(coded, labels, n_lists, offsets, self.offset_grid)

    def search_centres(self) -> Centres:
        """The centres as a search needs them, kept with the hasher."""
        from autojacobin.search.centres import Centres

        kept = self.__dict__.get("_centres")
        if kept is None or kept[0] is not self.centres_:
            kept = self.__dict__["_centres"] = self.centres_, Centres(self._points_of_lists())
        centres: Centres = kept[1]
        return centres

    def default_training_points(self) -> int | None:
        """How many rows ``fit`` draws from a matrix by default: enough for the lists, whose number all rows decide."""
        return None if self.n_lists is None else max(_MOST_TRAINING_POINTS, _POINTS_PER_LIST * self.n_lists)

    # How it is done

    def _learn_centres(self, X: npt.NDArray[Any], rng: np.random.RandomState, progress: Progress | None) -> Centres:
        from autojacobin.search.kmeans import kmeans

        wanted = self._wanted_lists(len(X))
        if wanted > len(X):
            raise DataError(
                f"there must be at least as many training vectors as lists, got {len(X)} for n_lists={wanted}; pass "
                "more vectors, or ask for fewer lists"
            )
        centres = kmeans(X, wanted, random_state=rng, device=self._device(), progress=progress)
        self.centres_, self.origin_ = centres.points, centres.origin
        return centres

    def _wanted_lists(self, n: int) -> int:
        return self.n_lists or 1 << max(0, (n // _POINTS_PER_LIST).bit_length() - 1)

    def _n_list_bits(self) -> int:
        return (len(self.centres_) - 1).bit_length()

    def _assigner(self, xp: Any) -> Callable[[Any], Any]:
        """Give the function from vectors to the numbers of their lists."""
        origin, centres = xp.asarray(self.origin_), xp.asarray(self.centres_)
        columns = xp.ascontiguousarray((centres - origin).T)
        norms = xp.einsum("ij,ij->j", columns, columns)
        step = max(1, _PRODUCTS_AT_ONCE // len(centres))

        def assign(X: Any) -> Any:
            labels = xp.empty(len(X), dtype=xp.int32)
            for start in range(0, len(X), step):
                rows = slice(start, start + step)
                labels[rows] = (norms - 2 * ((X[rows] - origin) @ columns)).argmin(axis=1)
            return labels

        return assign

    def _list_bits(self, xp: Any, labels: Any) -> Any:
        """The numbers of lists as bits, shape (n, bits of a number)."""
        return (labels[:, None] & xp.asarray(1 << np.arange(self._n_list_bits(), dtype=np.int32))) > 0
