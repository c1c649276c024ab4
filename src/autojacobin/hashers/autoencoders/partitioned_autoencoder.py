"""A binary auto-encoder of residuals, for inverted lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import to_host
from autojacobin.errors import DataError
from autojacobin.hashers.autoencoders.binary_autoencoder import BinaryAutoencoder
from autojacobin.hashers.base import check_fitted
from autojacobin.hashers.list_hasher import ListHasher
from autojacobin.hashers.parameters import Bits, Choice, OrNone, Whole, parameter
from autojacobin.hashers.persistence import Tensor
from autojacobin.search.queries import DistanceTerms

if TYPE_CHECKING:
    from autojacobin.search.lists import OffsetGrid

_MOST_TRAINING_POINTS = 20_000  # of the auto-encoder; the centres take all
_SHARE_BEYOND_THE_GRID = 0.0005
_ROWS_PER_BLOCK = 2**12
_TINY = 1e-9


@dataclass(eq=False, repr=False)
class PartitionedAutoencoder(ListHasher, BinaryAutoencoder):
    """Centres of k-means, and a binary auto-encoder of what is left of a vector beside the nearest centre.

    A vector is reconstructed as

        x ≈ c_l + m + C's,

    with c_l the nearest of the centres. An index over such codes keeps a list of codes for each centre, and a search
    scans the lists whose centres are nearest to the query: a few per cent of all codes. The residual x − c_l is shorter
    than x, so its code of the same length reconstructs better. The other parameters are those of the
    :class:`BinaryAutoencoder` of the residuals.

    With two ``copies``, each vector is in two lists, with a code for each. The second list is one whose residual points
    elsewhere, so that a query that misses the vector in the first list finds it in the second. (P. Sun and others,
    "SOAR: improved indexing for approximate nearest neighbor search", NeurIPS 2023.) Fewer lists have to be scanned,
    and codes take twice the memory.
    """

    n_bits: int = parameter(
        80,
        Bits(2),
        "Length of the codes: the bits of the residual, its level and the number of the list, for each copy.",
    )
    _: KW_ONLY
    n_lists: int | None = parameter(None, OrNone(Whole(1)), "As in :class:`PartitionedHasher`.")
    copies: int = parameter(1, Choice(1, 2), "How many lists each vector is in.")

    distances: ClassVar[tuple[str, ...]] = ("decoded",)
    _tensors: ClassVar[dict[str, Tensor]] = {
        **BinaryAutoencoder._tensors,
        "centres_": Tensor("f", ("lists", "n_features"), "Centres."),
        "origin_": Tensor("f", ("n_features",), "Their mean."),
        "grid_": Tensor("f", ("ends",), "Lowest of 256 equal steps of the offsets of codes, and the step.", power=2),
    }

    def decode(self, codes: Codes) -> npt.NDArray[Any]:
        """Reconstruct vectors from their codes: c_l + m + C's, shape (n, n_features)."""
        decoded = super().decode(codes)
        decoded += self.centres_[np.minimum(self.split(codes)[1], len(self.centres_) - 1)]
        return decoded

    def distance_terms(self, X: Any) -> DistanceTerms:  # noqa: ARG002
        """Refuse: the weights of a query differ from list to list, so only an index searches such codes."""
        check_fitted(self)
        raise DataError(
            "codes of PartitionedAutoencoder have other weights in each list, so they cannot be searched as they are; "
            "add the vectors to an Index"
        )

    def projection(self, distance: str) -> None:  # noqa: D102, ARG002
        return None

    # What an index needs

    @property
    def n_code_bits(self) -> int:
        """Bits of a residual and of its level."""
        return self._n_coded()

    @property
    def offset_grid(self) -> OffsetGrid:
        """The grid of the offsets of codes in lists."""
        from autojacobin.search.lists import OffsetGrid

        return OffsetGrid(*self.grid_)

    def query_grid(self) -> OffsetGrid:
        """The grid of what the offsets of codes and the constant of all of them add to distances."""
        from autojacobin.search.lists import OffsetGrid

        low, step = self.grid_
        return OffsetGrid(low + self.offset_, step)

    def code_error(self) -> float:
        """Mean squared error of what codes decode to, about: their bits are nearly uncorrelated."""
        share = min(float(self.reconstruction_error_[-1]), 1.0 - _TINY)
        return share / (1.0 - share) * float(np.square(self.decoder_, dtype=np.float64).sum())

    def drift(self, vectors: npt.NDArray[Any], codes: Codes) -> float:
        """Share of the residuals that codes do not reconstruct, as a multiple of that of the training vectors."""
        residuals = vectors - self.centres_[self.split(codes)[1]] - self.mean_
        error, energy = ((part**2).sum(dtype=np.float64) for part in (vectors - self.decode(codes), residuals))
        trained = float(self.reconstruction_error_[-1]) * energy
        return float(error / max(trained, float(np.finfo(np.float32).tiny)))

    def list_weights(self) -> npt.NDArray[Any]:
        """Weights of the bits that depend on the list alone, shape (lists, coded bits).

        The distance of q to a code s in list l is ‖q − m − c_l‖² + offset_ − (query_weights(q) + list_weights()[l])·s.
        """
        residuals = self.origin_ - self.centres_ - self.mean_
        weights = -np.tile(self.slope_[: self._n_coded()], (len(self.centres_), 1))
        weights[:, : len(self.decoder_)] += 2 * residuals @ self.decoder_.T
        return weights

    def _searcher(self, vectors: Any, codes: Codes) -> Callable[[npt.NDArray[np.int64], int], tuple[Any, Any]]:
        """Order codes by the distance to what they decode to."""
        from autojacobin.search.truth import ground_truth

        decoded = self.decode(codes)
        return lambda rows, k: (None, ground_truth(decoded, vectors[rows].astype(decoded.dtype), k))

    def _n_coded(self) -> int:
        return int(self.n_bits) // self.copies - self._n_list_bits()

    def _n_flips(self, effort: int) -> int:
        """The flips of one code are divided among the copies, so that two take no longer to encode than one."""
        return super()._n_flips(effort) // self.copies

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        from autojacobin.search.lists import OffsetGrid, code_offsets

        host = to_host(X)
        wanted = self._wanted_lists(len(host))
        if self.n_bits % self.copies or wanted < self.copies:
            raise DataError(
                f"two copies need two lists and codes of an even length, got {wanted} lists and n_bits={self.n_bits}; "
                "ask for more, or for one copy"
            )
        if self.n_bits // self.copies - (wanted - 1).bit_length() < 1:
            raise DataError(
                f"{wanted} lists leave no bit for the residuals, got n_bits={self.n_bits}; ask for more bits, or fewer "
                "lists"
            )
        centres = self._learn_centres(host, rng, self.progress)
        chosen = host
        if len(host) > _MOST_TRAINING_POINTS:
            chosen = host[np.sort(rng.choice(len(host), _MOST_TRAINING_POINTS, replace=False))]
        labels = np.empty(len(chosen), dtype=np.int32)
        labels[:: self.copies] = centres.assign(chosen[:: self.copies], self.device)
        if self.copies == 2:  # the auto-encoder learns from residuals of both kinds
            labels[1::2] = centres.first_and_second(chosen[1::2])[1]
        residuals = (chosen - centres.points[labels]).astype(host.dtype)
        super()._fit(self._training_floats(residuals), rng)
        encode, step = self._encoder(np), _ROWS_PER_BLOCK
        bits = np.concatenate([encode(chosen[start : start + step]) > 0 for start in range(0, len(chosen), step)])
        codes, weights = Codes.from_bits(bits), self.list_weights()
        offsets = [code_offsets(*self.split(codes, copy), weights) for copy in range(self.copies)]
        low, high = np.quantile(offsets, [_SHARE_BEYOND_THE_GRID, 1 - _SHARE_BEYOND_THE_GRID])
        self.grid_ = np.array(OffsetGrid.of(np.array([low, high])))

    def _check_learned(self) -> None:
        if self._n_coded() < 1:
            raise ValueError(f"{len(self.centres_)} lists for codes of {self.n_bits} bits")
        if self.grid_.shape != (2,) or self.grid_[1] < 0:
            raise ValueError(f"a grid of {self.grid_}")
        super()._check_learned()

    def _offsetter(self) -> Callable[[Codes, npt.NDArray[np.int32]], npt.NDArray[np.float32]]:
        from autojacobin.search.lists import code_offsets

        return partial(code_offsets, list_weights=self.list_weights())

    def _points_of_lists(self) -> npt.NDArray[np.float32]:
        return (self.centres_ + self.mean_).astype(np.float32)

    def _projector(self, xp: Any, constants: bool = False) -> Callable[[Any], Any]:
        assign, centres = self._own_centres().assign, xp.asarray(self.centres_)
        project = super()._projector(xp, constants)
        return lambda X: project(X - centres[assign(X)].astype(X.dtype))

    def _encoder(self, xp: Any) -> Callable[[Any], Any]:
        own, centres, encode = self._own_centres(), xp.asarray(self.centres_), super()._encoder(xp)

        def encode_with_lists(X: Any) -> Any:
            parts = []
            for labels in own.first_and_second(X) if self.copies == 2 else (own.assign(X),):
                bits = encode(X - centres[labels].astype(X.dtype))
                parts += [bits, self._list_bits(xp, labels).astype(bits.dtype)]
            return xp.concatenate(parts, axis=1)

        return encode_with_lists
