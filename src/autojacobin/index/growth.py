"""When an index makes its inverted lists: once it is large enough, and again when it has changed too much.

Centres are then learned from the stored vectors, and all codes are written again, list by list. Instead of a
BinaryAutoencoder, a PartitionedAutoencoder of the same length is trained; any other hasher stays as it is, in a
PartitionedHasher. Where the centres show that it pays, each vector is in two lists. This happens whenever the index is
four times as large, so that each vector is written again 1.33 times on average.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import to_host
from autojacobin.core.parallel import Progress
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers import BinaryAutoencoder, Hasher, PartitionedAutoencoder, PartitionedHasher
from autojacobin.hashers.autoencoders.code_length import CANDIDATES, NEIGHBOURS, choose_n_bits, sample_size
from autojacobin.hashers.learning import SMALLEST_SPREAD
from autojacobin.hashers.list_hasher import ListHasher, check_can_have_lists
from autojacobin.index.changes import check_rows, encoded_block
from autojacobin.index.folder import Folder
from autojacobin.index.manifest import MOST_CODES
from autojacobin.index.metric import Metric
from autojacobin.index.segment import Part, Segment, write_segments
from autojacobin.index.state import State, codes_at, drawn, fetch, in_id_order
from autojacobin.search.arguments import as_count

if TYPE_CHECKING:
    from autojacobin.search.centres import Centres

_log = logging.getLogger("autojacobin.index")

_FEWEST_VECTORS = 2**16  # of an index with lists; fewer are searched as fast without
_LISTS_PER_ROOT = 4
_MANY_VECTORS = 2**24  # from here on there are twice as many lists: centres are in cells, so their number costs little
_VECTORS_PER_LIST = 32  # at least, where the user gives the number of lists
_SAMPLE_PER_LIST = 128
_SMALL_SAMPLE = 2_000
MOST_TRAINING_POINTS = 20_000  # of a hasher, unless its method asks for more
_FEWEST_COMPARED_LISTS = 100
_COMPARED_QUERIES = 2_000  # of one copy and of two
_COUNTED = 20_000  # vectors that tell how many codes the lists have
_SHARE_IN_LISTS = 0.99  # of the neighbours
_FEWER_CODES = 0.82  # of those with one list; two lists take twice the memory
_ITERATIONS = 10  # of a chosen hasher; at a bit a dimension or more, 30 need no fewer candidates
_LARGEST_DRIFT = 1.5  # of the share of residuals that codes do not reconstruct; held-out points have up to 1.3


def as_partitions(partitions: SupportsIndex | str | None, hasher: Hasher, keep_vectors: bool) -> int | str | None:
    """Give a number of lists, "auto" or None, after a check that the index can have lists."""
    if partitions is None:
        return None
    if not isinstance(hasher, BinaryAutoencoder | ListHasher):
        check_can_have_lists(hasher)
    if not keep_vectors:
        raise DataError(
            f"lists are learned from the stored vectors, got partitions={partitions!r} with keep_vectors=False; keep "
            "the vectors, or pass a PartitionedHasher that is fitted already"
        )
    if isinstance(partitions, str):
        if partitions != "auto":
            raise DataTypeError(f"partitions must be a number of lists, 'auto' or None, got {partitions!r}")
        return partitions
    return as_count("partitions", partitions, MOST_CODES, "the most codes of a segment")


def wanted_lists(partitions: int | str | None, n: int) -> int:
    """How many lists an index of ``n`` vectors should have; 0 if it is better searched without."""
    if partitions is None:
        return 0
    if isinstance(partitions, int):
        return partitions if n >= _VECTORS_PER_LIST * partitions else 0
    if n < _FEWEST_VECTORS:
        return 0
    per_root = _LISTS_PER_ROOT if n < _MANY_VECTORS else 2 * _LISTS_PER_ROOT
    return 1 << round(math.log2(per_root * math.sqrt(n)))


def grown_hasher(
    state: State, incoming: Any = None, *, shrink: bool = False, progress: Progress | None = None
) -> ListHasher | None:
    """Train a hasher on stored and incoming vectors that need more lists, or far fewer if ``shrink``; else None."""
    n_incoming = 0 if incoming is None else len(incoming)
    wanted, present = wanted_lists(state.partitions, state.n_live + n_incoming), state.n_lists
    if wanted <= present and not (shrink and 0 < 4 * wanted <= present):
        return None
    return retrained(state, wanted, incoming, progress)


def retrained(state: State, n_lists: int, incoming: Any = None, progress: Progress | None = None) -> ListHasher | None:
    """Train a hasher with lists on a sample of stored and incoming vectors; None if too many of them are equal."""
    hasher = state.hasher
    if incoming is not None:
        check_rows(incoming, state.metric)
    if not _differ(_sample(state, _SMALL_SAMPLE, incoming), n_lists):
        _log.info("no lists are made, because most of the %s vectors are equal", state.n_live)
        return None
    own = getattr(hasher, "progress", None)
    for report in (progress, own):
        if report is not None:
            report(f"learning {n_lists:,} lists", 0, 0)
    sample = _sample(state, _SAMPLE_PER_LIST * n_lists, incoming)
    new: ListHasher
    if isinstance(hasher, BinaryAutoencoder):
        new = _partitioned_autoencoder(hasher, n_lists, sample, state.partitions)
    else:
        inner = hasher.hasher_ if isinstance(hasher, PartitionedHasher) else hasher
        new = PartitionedHasher(inner, n_lists=n_lists, random_state=0, progress=own)
    new.fit(sample, training_points=None)
    new.metric_, new.radius_, new._takes_unnamed = hasher.metric_, hasher.radius_, True
    if hasattr(hasher, "feature_names_in_"):
        new.feature_names_in_ = hasher.feature_names_in_
    return new


def _partitioned_autoencoder(
    hasher: BinaryAutoencoder, n_lists: int, sample: npt.NDArray[Any], partitions: int | str | None
) -> PartitionedAutoencoder:
    """A hasher with lists and the settings of another one. The centres are learned first: they tell how many copies."""
    from autojacobin.search.kmeans import kmeans

    centres = kmeans(
        sample, n_lists, random_state=hasher.random_state, device=hasher._device(), progress=hasher.progress
    )
    n_bits, copies = int(hasher.n_bits), None
    if isinstance(hasher, PartitionedAutoencoder):
        n_bits, copies = hasher.n_code_bits, None if partitions == "auto" else hasher.copies
    copies = copies or best_copies(centres, sample)
    n_bits = copies * (n_bits + (n_lists - 1).bit_length())
    names = ("effort", "n_iterations", "ridge", "random_state", "device", "progress")
    same = {name: getattr(hasher, name) for name in names}
    new = PartitionedAutoencoder(n_bits, n_lists=n_lists, copies=copies, **same)
    new.learned_centres = centres
    return new


def best_copies(centres: Centres, vectors: npt.NDArray[Any]) -> int:
    """In how many lists each vector should be: two if the lists with most neighbours then hold far fewer codes."""
    from autojacobin.search.truth import ground_truth

    n_lists = len(centres)
    if n_lists < _FEWEST_COMPARED_LISTS:
        return 1
    queries, counted = (
        as_floats(vectors[:: -(-len(vectors) // number)]).astype(np.float32) for number in (_COMPARED_QUERIES, _COUNTED)
    )
    rows, neighbours = np.unique(ground_truth(vectors, queries, NEIGHBOURS + 1)[:, 1:], return_inverse=True)
    neighbours = neighbours.reshape(len(queries), NEIGHBOURS)
    order = centres.nearest(queries, n_lists)[0]
    ranks = np.argsort(order, axis=1)
    sizes, found, scanned = np.zeros(n_lists), np.full(neighbours.shape, n_lists), []
    both = counted, as_floats(vectors[rows])
    for in_list, near in zip(*map(centres.first_and_second, both), strict=True):
        sizes += np.bincount(in_list, minlength=n_lists)
        found = np.minimum(found, np.take_along_axis(ranks, near[neighbours], axis=1))
        probes = int(np.quantile(found, _SHARE_IN_LISTS)) + 1
        scanned.append(sizes[order[:, :probes]].sum())
    return 2 if scanned[1] < _FEWER_CODES * scanned[0] else 1


def _differ(vectors: npt.NDArray[Any], n_lists: int) -> bool:
    """Return whether there are enough different vectors for lists; centres are of float32, and so is what they see."""
    floats = vectors.astype(np.float32)
    if float((floats.max(axis=0) - floats.min(axis=0)).max()) < SMALLEST_SPREAD:
        return False
    return len({row.tobytes() for row in floats}) >= min(n_lists, len(floats) // 2)


def has_drifted(hasher: ListHasher, segments: Sequence[Segment]) -> bool:
    """Return whether the lists suit the stored vectors much worse than they did the training vectors."""
    n = sum(segment.n_live for segment in segments)
    if not n:
        return False
    ids = drawn(segments, min(n, _SMALL_SAMPLE), seed=2)
    vectors, codes = as_floats(fetch(segments, ids)), codes_at(segments, ids, int(hasher.n_bits))
    return hasher.drift(vectors, codes) > _LARGEST_DRIFT


def encode_again(state: State, folder: Folder | None, hasher: ListHasher) -> State:
    """Rewrite all live vectors with the codes of a new hasher with lists, after a check that they are intact."""
    by_dtype: dict[str, list[Segment]] = {}
    for segment in state.segments:
        segment.verify()
        by_dtype.setdefault(segment.vectors.dtype.str, []).append(segment)
    groups = [write_segments(_encoded(state.hasher, hasher, group), folder, hasher) for group in by_dtype.values()]
    new, n_changed = tuple(segment for group in groups for segment in group), state.n_changed + state.n_live
    return replace(state, segments=new, hasher=hasher, n_changed=n_changed)  # so it will learn again


def chosen_hasher(vectors: Any, metric: Metric, progress: Progress) -> BinaryAutoencoder:
    """A BinaryAutoencoder, not fitted, with codes as long as a sample of the vectors needs."""
    size = min(len(vectors), sample_size(as_matrix(vectors, "Index").shape[1]))
    sample = to_host(as_matrix(metric.prepare(*_rows_of(vectors, size, seed=6)), "Index"))
    n_bits, recall = choose_n_bits(sample, progress)
    chosen = f"chose BinaryAutoencoder({n_bits})"
    if recall is not None:
        chosen += f": {CANDIDATES} candidates hold {100 * recall:.0f} % of the {NEIGHBOURS} nearest of held-out vectors"
    _log.info("%s", chosen)
    progress(chosen, 0, 0)
    return BinaryAutoencoder(n_bits, n_iterations=_ITERATIONS, random_state=0)


def with_lists(
    hasher: Hasher, metric: Metric, partitions: int | str | None, n: int, sample: Any, progress: Progress
) -> Hasher:
    """The hasher with which an index of ``n`` vectors begins: one with lists, if there are enough vectors for them."""
    n_lists = wanted_lists(partitions, n)
    state = State(hasher, True, partitions=partitions, metric=metric)
    return (retrained(state, n_lists, sample, progress) if n_lists else None) or hasher


def sample_for_lists(partitions: int | str | None, n: int) -> int:
    """How many of ``n`` vectors the lists are learned from."""
    return _SAMPLE_PER_LIST * wanted_lists(partitions, n)


def training_sample(vectors: Any, hasher: Hasher, partitions: Any = None) -> tuple[Any, Any]:
    """Random rows of a matrix to fit a hasher on, and their numbers: 20,000, or more if the method asks for more."""
    most = max(MOST_TRAINING_POINTS, hasher.default_training_points() or 0)
    if type(hasher) is BinaryAutoencoder and wanted_lists(partitions, len(vectors)):
        most = _SMALL_SAMPLE  # another one is trained with the lists
    if len(vectors) <= most:
        return vectors, 0
    return _rows_of(vectors, most, seed=5)


def _rows_of(vectors: Any, size: int, seed: int) -> tuple[Any, npt.NDArray[np.int64]]:
    """Random rows of a matrix or a data frame, and their numbers."""
    rows = np.sort(np.random.default_rng(seed).choice(len(vectors), size, replace=False))
    return vectors.iloc[rows] if hasattr(vectors, "iloc") else as_matrix(vectors, "Index")[rows], rows


def _encoded(old: Hasher, new: ListHasher, segments: Sequence[Segment]) -> Iterator[Part]:
    """Everything in the segments with the codes of the new hasher. One that wraps the old one keeps its codes."""
    for part in in_id_order(segments):
        kept = None
        if isinstance(new, PartitionedHasher):
            kept = old.split(part.codes)[0] if isinstance(old, ListHasher) else part.codes
        yield replace(part, codes=encoded_block(new, part.vectors, kept))


def _sample(state: State, size: int, incoming: Any) -> npt.NDArray[Any]:
    """Random vectors, stored and incoming ones in proportion."""
    n_incoming = 0 if incoming is None else len(incoming)
    n = state.n_live + n_incoming
    size = min(size, n)
    n_stored = size * state.n_live // n
    parts = [fetch(state.segments, drawn(state.segments, n_stored, seed=3))] if n_stored else []
    if n_incoming:
        taken = state.metric.prepare(*_rows_of(incoming, size - n_stored, seed=4))
        parts.append(to_host(as_matrix(taken, "Index")))
    return np.concatenate(parts)
