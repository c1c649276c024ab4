"""The scan of lists against sums of table entries in NumPy, at every level."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

NONE_ALLOWED = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
MISSING = 2**31 - 1


class Case:
    """Codes in lists of very different lengths, and queries with tables."""

    def __init__(self, rng, n_bytes, n_lists, n_queries, n_probes, longest, used=None, spread=200):
        lengths = rng.integers(0, longest, n_lists) * (rng.random(n_lists) < 0.8)
        self.bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        n = int(self.bounds[-1])
        n_blocks = -(-n // 64)
        # an odd address
        self.blocks = odd(rng.integers(0, 256, (n_blocks, n_bytes, 64), dtype=np.uint8))
        self.offsets = odd(rng.integers(0, 256, 64 * n_blocks, dtype=np.uint8))
        self.positions = rng.permutation(n).astype(np.int32)
        used = used or n_bytes
        self.tables = odd(rng.integers(0, 128, (n_queries, used, 2, 16), dtype=np.uint8))
        self.factors = rng.integers(0, 40_000, n_queries)  # entries and offset together fit 16 bits
        some = [rng.permutation(n_lists)[:n_probes] for _ in range(n_queries)]
        self.probes = np.array(some, dtype=np.int32).reshape(n_queries, -1)
        self.probes[rng.random(self.probes.shape) < 0.1] = -1
        self.starts = np.sort(rng.integers(0, spread, self.probes.shape), axis=1).astype(np.int32)

    def codes(self, kernels):
        return kernels.ListCodes(self.blocks, self.offsets, self.bounds, self.positions)

    def distances(self, q):
        """Distances and slots of all codes of the lists that a query probes."""
        slots = np.concatenate(
            [np.arange(*self.bounds[number : number + 2]) for number in self.probes[q] if number >= 0] + [np.empty(0)]
        ).astype(np.int64)
        lists = [number for number in self.probes[q] if number >= 0]
        starts = np.repeat(self.starts[q][self.probes[q] >= 0].astype(np.int64), np.diff(self.bounds)[lists])
        inside = slots % 64
        packed = self.blocks[slots // 64, :, np.where(inside < 32, 2 * inside, 2 * inside - 63)]
        packed = packed[:, : self.tables.shape[1]]
        rows = np.arange(packed.shape[1])
        sums = self.tables[q, rows, 0, packed & 15].sum(axis=1, dtype=np.int64)
        sums += self.tables[q, rows, 1, packed >> 4].sum(axis=1, dtype=np.int64)
        return starts + sums + (self.offsets[slots].astype(np.int64) * self.factors[q] >> 8), slots

    def expected(self, q, k, allowed=None):
        distances, slots = self.distances(q)
        if allowed is not None:
            distances, slots = distances[allowed[slots]], slots[allowed[slots]]
        order = np.lexsort((self.positions[slots], distances))[:k]
        return distances[order], self.positions[slots[order]]


def odd(array):
    """The same array at an odd address."""
    memory = np.empty(array.nbytes + 1, dtype=np.uint8)
    memory[1:] = array.ravel()
    result = memory[1:].reshape(array.shape)
    result.flags.writeable = False
    return result


def check(kernels, case, k, allowed=None):
    slots = NONE_ALLOWED
    if allowed is not None:
        bits = np.zeros(64 * len(case.blocks), dtype=bool)
        bits[: len(allowed)] = allowed
        counts = np.array([allowed[start:end].sum() for start, end in zip(case.bounds, case.bounds[1:], strict=False)])
        slots = np.packbits(bits, bitorder="little").view(np.uint64), counts.astype(np.int64)
    found, nearest = kernels.scan_lists(
        case.codes(kernels), *slots, case.tables, case.factors, case.probes, case.starts, k
    )
    for q in range(len(found)):
        distances, positions = case.expected(q, k, allowed)
        order = np.lexsort((nearest[q], found[q]))
        assert np.array_equal(found[q][order][: len(distances)], distances)
        assert np.array_equal(nearest[q][order][: len(distances)], positions)
        assert np.all(found[q][order][len(distances) :] == MISSING)
        assert np.all(nearest[q][order][len(distances) :] == -1)


@given(
    seed=st.integers(0, 2**32), n_bytes=st.integers(1, 70), n_lists=st.integers(1, 40), n_queries=st.integers(1, 3),
    n_probes=st.integers(1, 40), longest=st.sampled_from([3, 70, 700]), k=st.sampled_from([1, 7, 130, 900]),
    spread=st.sampled_from([1, 200, 10**5, 2**30]), share=st.sampled_from([0.02, 0.6, None]),
)  # fmt: skip
def test_the_nearest_are_those_of_numpy(
    kernels, seed, n_bytes, n_lists, n_queries, n_probes, longest, k, spread, share
):  # fmt: skip
    rng = np.random.default_rng(seed)
    case = Case(
        rng, n_bytes, n_lists, n_queries, n_probes, longest, used=int(rng.integers(1, n_bytes + 1)), spread=spread
    )
    check(kernels, case, k, None if share is None else rng.random(len(case.positions)) < share)


@pytest.mark.parametrize("k", [1, 100, 3000])
def test_of_many_equal_distances_the_lower_positions_stay(kernels, k):
    case = Case(np.random.default_rng(0), 2, 30, 2, 30, 700)
    case.tables = np.zeros_like(case.tables)
    case.factors[:] = 0
    case.starts[:] = 5
    check(kernels, case, k)


@pytest.mark.parametrize("k", [1, 900, 3000])
def test_starts_that_leave_sums_of_more_than_16_bits(kernels, k):
    case = Case(np.random.default_rng(1), 250, 10, 2, 10, 400, spread=65000)
    case.tables = np.full_like(case.tables, 65)
    case.factors[:] = 30_000
    check(kernels, case, k)


def test_two_codes_of_a_vector_have_one_position(kernels):
    case = Case(np.random.default_rng(2), 1, 20, 3, 20, 300)
    case.positions //= 2
    for k in (1, 50, 400):
        found, nearest = kernels.scan_lists(
            case.codes(kernels), *NONE_ALLOWED, case.tables, case.factors, case.probes, case.starts, k
        )
        for q in range(3):
            distances, positions = case.expected(q, k)
            order = np.lexsort((nearest[q], found[q]))[: len(distances)]
            assert np.array_equal(found[q][order], distances)
            assert np.array_equal(nearest[q][order], positions)


def test_lists_keep_their_arrays_and_refuse_copies(kernels):
    lists = Case(np.random.default_rng(3), 4, 10, 1, 5, 100).codes(kernels)  # whose arrays nobody else has
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(
            TypeError, match="ListCodes refers to memory and cannot be copied or pickled; make it again"
        ):
            copied(lists)


def test_lists_that_do_not_fit_are_an_error(kernels):
    case = Case(np.random.default_rng(4), 4, 10, 1, 5, 100)
    for name, wrong in [
        ("bounds", case.bounds[:3]),
        ("offsets", case.offsets[1:]),
        ("bounds", case.bounds[::-1].copy()),
    ]:
        broken = copy.copy(case)
        setattr(broken, name, wrong)
        with pytest.raises(ValueError, match="wrong argument of a kernel"):
            broken.codes(kernels)
    case.probes[0, 0] = 10
    with pytest.raises(ValueError, match="probes must be numbers of lists"):
        check(kernels, case, 5)
