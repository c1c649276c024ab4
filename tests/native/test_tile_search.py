"""The search over tiles of several segments against NumPy, at every level."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.test_slice_scan import NO_PLANES, as_tiles, distances_of, sparse

WIDTH = 19
NO_NUMBERS = np.empty(0)


class Segments:
    """Random segments with their arrays in Python: tiles of 2,048 codes of two words, ids, vectors and their rows."""

    def __init__(self, kernels, rng, n_segments, dtype="float32", checked=None, block_bytes=64):
        self.kernels, self.parts, first = kernels, [], 0
        for _ in range(n_segments):
            n = int(rng.integers(1, 300))
            codes = sparse(rng, (2048, 2))
            ids = None if rng.random() < 0.5 else first + np.sort(rng.choice(3 * n, n, replace=False))
            vectors = rng.integers(0, 9, (n + 5, WIDTH)).astype(dtype)
            rows = None if rng.random() < 0.5 else rng.permutation(n + 5)[:n].astype(np.uint32)
            marks = None if checked is None else rng.random(-(-vectors.nbytes // block_bytes)) < checked
            stored = kernels.Segment(n, first, ids, vectors, rows, marks, block_bytes)
            allowed = None if rng.random() < 0.5 else np.packbits(rng.random(n) < 0.7, bitorder="little")
            tiles = kernels.TileCodes(as_tiles(codes, 2048, 8), n, allowed)
            names = first + np.arange(n) if ids is None else ids
            counts = np.ones(n, bool) if allowed is None else np.unpackbits(allowed, count=n, bitorder="little") > 0
            places = np.arange(n) if rows is None else rows.astype(int)
            self.parts.append((stored, tiles, codes[:n], names, vectors, places, counts, marks))
            first = int(names[-1]) + 1

    def search(self, distance, projection=None):
        return self.kernels.TileSearch(
            [part[0] for part in self.parts], [part[1] for part in self.parts], distance, projection
        )

    def candidates(self, queries, planes, wanted):
        """Whole distances, ids, segments and rows of the nearest codes of each query."""
        found = []
        for q in range(len(queries)):
            some = slice(q, q + 1)
            rows = [
                (int(distance), int(names[i]), number, int(places[i]))
                for number, (_, _, codes, names, _, places, counts, _) in enumerate(self.parts)
                for i, distance in enumerate(distances_of(codes, queries[some], planes[some])[0])
                if counts[i]
            ]
            found.append(sorted(rows)[:wanted])
        return found


def filled(rows, k):
    """Rows of (distance, id) as two arrays, with infinity and -1 where there are too few."""
    distances, ids = np.full((len(rows), k), np.inf), np.full((len(rows), k), -1)
    for q, row in enumerate(rows):
        for i, (distance, number) in enumerate(row[:k]):
            distances[q, i], ids[q, i] = distance, number
    return distances, ids


@given(
    seed=st.integers(0, 2**32), n_segments=st.integers(1, 4), k=st.integers(1, 40), more=st.integers(0, 200),
    dtype=st.sampled_from(["uint8", "float16", "float32", "float64"]), weighted=st.booleans(),
    asked_in=st.sampled_from(["float32", "float64"]),
)  # fmt: skip
def test_what_is_found_is_the_nearest_of_all_segments(kernels, seed, n_segments, k, more, dtype, weighted, asked_in):
    rng = np.random.default_rng(seed)
    segments = Segments(kernels, rng, n_segments, dtype)
    words = sparse(rng, (3, 2))
    planes = sparse(rng, (3, 4, 2)) if weighted else NO_PLANES
    queries = (
        rng.integers(0, 9, (3, WIDTH)).astype(asked_in) if seed % 2 else rng.normal(size=(3, WIDTH)).astype(asked_in)
    )
    scales, constants = rng.random(3) + 0.5, rng.normal(size=3)
    search = segments.search("asymmetric" if weighted else "hamming")
    coding = words, planes, scales, constants

    distances, ids, doubtful = search.search(queries, k, 0, *coding)
    nearest = segments.candidates(words, planes, k)
    expected = filled([[(c + s * row[0], row[1]) for row in rows]
                       for rows, s, c in zip(nearest, scales, constants, strict=True)], k)  # fmt: skip
    assert np.array_equal(ids, expected[1])
    assert np.array_equal(distances, expected[0].astype(np.float32))
    assert doubtful is None

    distances, ids, doubtful = search.search(queries, k, k + more, *coding)
    by_vectors = [
        sorted((np.linalg.norm(query.astype(float) - segments.parts[s][4][row].astype(float)), number)
               for _, number, s, row in rows)
        for query, rows in zip(queries, segments.candidates(words, planes, k + more), strict=True)
    ]  # fmt: skip
    expected = filled(by_vectors, k)
    assert np.array_equal(ids, expected[1])
    assert np.allclose(distances, expected[0], rtol=1e-12)
    assert doubtful is None


@given(
    seed=st.integers(0, 2**32), n_segments=st.integers(1, 3), share=st.sampled_from([0.0, 0.5, 1.0]),
    block_bytes=st.sampled_from([16, 64, 4096]),
)  # fmt: skip
def test_measured_vectors_that_were_not_checked_or_are_not_finite_are_doubtful(
    kernels, seed, n_segments, share, block_bytes
):
    rng = np.random.default_rng(seed)
    segments = Segments(kernels, rng, n_segments, "float32", share, block_bytes)
    for part in segments.parts:
        part[4][rng.random(len(part[4])) < 0.1] = rng.choice([np.nan, np.inf])
    words, queries = sparse(rng, (1, 2)), rng.normal(size=(1, WIDTH))
    search = segments.search("hamming")
    # all candidates are measured if as many are wanted
    found = search.search(queries, 50, 50, words, NO_PLANES, np.ones(1), np.zeros(1))
    expected = set()
    for _, _, number, row in segments.candidates(words, NO_PLANES, 50)[0]:
        vectors, marks = segments.parts[number][4], segments.parts[number][7]
        start = row * vectors.strides[0]
        blocks = np.arange(start // block_bytes, (start + vectors.strides[0] - 1) // block_bytes + 1)
        if not (marks[blocks].all() and np.isfinite(vectors[row]).all()):
            expected.add((number, row))
    doubtful = np.empty((2, 0), int) if found[2] is None else found[2]
    assert {tuple(pair) for pair in doubtful.T.tolist()} == expected


@pytest.mark.parametrize("distance", ["hamming", "asymmetric", "decoded"])
@pytest.mark.parametrize("width", [1, 15, 16, 50])
def test_projected_queries_have_the_rounded_weights_of_numpy(kernels, distance, width):
    rng = np.random.default_rng(width)
    segments, n_bits, n_levels, largest = Segments(kernels, rng, 2), 100, 6, 1 if distance == "hamming" else 15
    # whole numbers, so that sums do not depend on their order
    matrix = rng.integers(-9, 10, (n_bits - n_levels, width)).astype(np.float32)
    start, shift = (rng.integers(-9, 10, size).astype(np.float32) for size in (width, n_bits))
    shift[-n_levels:] *= 50
    queries = rng.integers(-9, 10, (4, width)).astype(np.float32)
    search = segments.search(distance, kernels.Projection(matrix, start, shift, n_levels, 2.5, largest))
    distances, ids, _ = search.search(queries, 30, 0)

    weights = np.concatenate([2 * (queries - start) @ matrix.T, np.zeros((4, n_levels))], axis=1) + shift
    most = np.repeat([largest, 255], [n_bits - n_levels, n_levels])
    units = (np.abs(weights) / most).max(axis=1)
    whole = np.ones(weights.shape, dtype=int)
    if distance != "hamming":
        whole = np.rint(np.abs(weights) / units[:, None]).astype(int)
    bits = np.pad(weights >= 0, [(0, 0), (0, 28)])
    words = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    levels = (np.pad(whole, [(0, 0), (0, 28)])[:, None, :] >> np.arange(8)[:, None]) & 1
    planes = np.packbits(levels.astype(bool), axis=2, bitorder="little").view(np.uint64)
    # bits of the codes beyond those of the projection count for nothing, unless bits are counted
    nearest = segments.candidates(words, NO_PLANES if distance == "hamming" else planes, 30)
    squares = np.square(queries.astype(float) - start).sum(axis=1) + 2.5
    scales = {"hamming": np.ones(4), "asymmetric": units, "decoded": 2 * units}[distance]
    constants = squares - units * whole.sum(axis=1) if distance == "decoded" else np.zeros(4)
    expected = filled([[(c + s * row[0], row[1]) for row in rows]
                       for rows, s, c in zip(nearest, scales, constants, strict=True)], 30)  # fmt: skip
    assert np.array_equal(ids, expected[1])
    assert np.allclose(distances, expected[0], rtol=1e-6, atol=1e-4)


def test_native_objects_are_neither_copied_nor_pickled(kernels):
    segments = Segments(kernels, np.random.default_rng(0), 1)
    for held in (*segments.parts[0][:2], segments.search("hamming")):
        for function in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled; make it again"):
                function(held)


def test_a_search_keeps_its_arrays(kernels):
    """The arrays of Python are gone, and their memory is used again."""
    search = Segments(kernels, np.random.default_rng(5), 3).search("hamming")
    coding = np.zeros((1, 2), dtype=np.uint64), NO_PLANES, np.ones(1), np.zeros(1)
    before = search.search(np.zeros((1, WIDTH)), 20, 40, *coding)
    _ = [np.full(2**14, 255, dtype=np.uint8) for _ in range(200)]
    assert np.array_equal(search.search(np.zeros((1, WIDTH)), 20, 40, *coding)[0], before[0])


def test_wrong_arguments_are_errors(kernels):
    segments = Segments(kernels, np.random.default_rng(0), 2)
    coding = np.zeros((1, 2), dtype=np.uint64), NO_PLANES, np.ones(1), np.zeros(1)
    search, asked = segments.search("hamming"), np.zeros((1, WIDTH), dtype=np.float32)
    search.search(asked, 1, 5, *coding)
    with pytest.raises(ValueError, match="no projection"):
        search.search(asked, 1, 5)
    for wrong in [
        (asked[:, 1:].copy(), 1, 5, *coding), (asked, 0, 5, *coding), (asked.astype(np.uint8), 1, 5, *coding),
        (asked, 1, 5, coding[0][:, :1].copy(), *coding[1:]), (asked, 1, 5, *coding[:2], np.ones(2), coding[3]),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="wrong argument of a kernel"):
            search.search(*wrong)
    vectors, ids = np.zeros((4, WIDTH), dtype=np.float32), np.arange(4)
    for wrong in [
        (5, 0, ids, None, None, None, 1), (5, 0, None, vectors, None, None, 1),
        (4, 0, None, vectors, np.zeros(3, dtype=np.uint32), None, 1), (4, 0, None, vectors, None, None, 3),
        (4, 0, None, vectors, None, np.ones(1, dtype=bool), 64),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="wrong argument of a kernel"):
            kernels.Segment(*wrong)
    beyond = kernels.Segment(4, 0, None, vectors, np.full(4, 4, dtype=np.uint32), None, 1)
    tiles = kernels.TileCodes(np.zeros((1, 2, 8, 256), dtype=np.uint64), 4, None)
    with pytest.raises(IndexError, match="a row that its vectors do not have"):
        kernels.TileSearch([beyond], [tiles], "hamming", None).search(asked, 1, 5, *coding)
    for parts in [
        ([], []),
        ([beyond], []),
        ([beyond], [kernels.TileCodes(np.zeros((1, 2, 8, 256), np.uint64), 3, None)]),
    ]:
        with pytest.raises(ValueError, match="wrong argument of a kernel"):
            kernels.TileSearch(*parts, "hamming", None)
