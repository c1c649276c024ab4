"""The search in one call, against the same steps one by one, and against brute force over what it may find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import (
    ITQ,
    BinaryAutoencoder,
    Codes,
    DataError,
    PartitionedAutoencoder,
    Sign,
    SphericalHashing,
)
from autojacobin.search import prepared_search
from autojacobin.search.asymmetric import asymmetric_queries
from autojacobin.search.centres import Centres
from autojacobin.search.decoded import decoded_queries
from autojacobin.search.distances import DISTANCES
from autojacobin.search.hamming import hamming_queries
from autojacobin.search.kernels.selection import merge_topk
from autojacobin.search.lists import Lists, OffsetGrid
from autojacobin.search.prepared_search import (
    ListSearch,
    Projection,
    ResidualWeights,
    Stored,
    TileSearch,
    in_own_type,
)
from autojacobin.search.probing import Probing
from autojacobin.search.queries import DistanceTerms
from autojacobin.search.tiles import Tiles
from tests.hashers.methods import digits
from tests.search.list_steps import (
    MISSING,
    codes_of,
    list_queries,
    nearest_in_lists,
    query_weights,
    rounded_weights,
    weighted_list_queries,
)

DTYPES = ["uint8", "float16", "float32", "float64"]
WIDTH = 12


def held_by(stores):
    """Which lists hold a code that counts."""
    return np.any([(np.diff(lists.bounds) if some is None else some.counts) > 0 for lists, some in stores], axis=0)


class Problem:
    """Segments of random codes in lists, with ids, vectors and removed codes; and random queries."""

    def __init__(self, seed, n_segments=1, dtype="float32", n_lists=7, n_bits=20, n_queries=3, removed=False, most=90):
        self.rng = rng = np.random.default_rng(seed)
        self.n_bits, self.n_lists = n_bits, n_lists
        self.centres = Centres(rng.normal(size=(n_lists, WIDTH)).astype(np.float32) * 3)
        self.weights = ResidualWeights(
            rng.normal(size=(n_bits, WIDTH)).astype(np.float32),
            self.centres.origin,
            OffsetGrid(-3.0, 0.1),
            (1e9, 1e3, 0.0)[seed % 3],
        )
        self.segments, self.alive = [], []
        first = 0
        for _ in range(n_segments):
            n = int(rng.integers(1, most))
            ids = first + np.arange(n) if rng.random() < 0.5 else np.sort(rng.choice(4 * n, n, replace=False)) + first
            first = int(ids[-1]) + 1 + int(rng.integers(5))
            lists = Lists.build(
                Codes.from_bits(rng.integers(0, 2, (n, n_bits))), rng.integers(0, n_lists, n).astype(np.int32), n_lists,
                rng.normal(size=n) * 3, self.weights.grid,
            )  # fmt: skip
            vectors = rng.integers(0, 30, (n + 3, WIDTH)).astype(dtype)
            rows = rng.permutation(n + 3)[:n].astype(np.uint32) if rng.random() < 0.5 else None
            alive = rng.random(n) < 0.7 if removed else np.ones(n, dtype=bool)
            allowed = lists.allow(alive) if removed else None
            consecutive = int(ids[-1]) - int(ids[0]) == n - 1
            self.alive.append(alive)
            self.segments.append(
                Stored(lists, int(ids[0]) if consecutive else 0, None if consecutive else ids, vectors, rows,
                       allowed=allowed)
            )  # fmt: skip
        whole = rng.random() < 0.5
        queries = rng.integers(0, 30, (n_queries, WIDTH)) if whole else rng.normal(size=(n_queries, WIDTH)) * 10
        self.queries = queries.astype(rng.choice(["float32", "float64"]))

    @property
    def floats(self):
        return self.queries.astype(np.float32)

    def ids(self, segment):
        return segment.first_id + np.arange(segment.codes.n) if segment.ids is None else segment.ids

    def filtered(self, share):
        """Random codes that are allowed, one entry for each segment."""
        masks = [alive & (self.rng.random(len(alive)) < share) for alive in self.alive]
        pairs = zip(self.segments, masks, strict=True)
        return [segment.codes.allow(mask) for segment, mask in pairs], masks

    def candidates(self, prepared, number, allowed):
        """Whole distances and ids of the nearest codes, by the steps of a search."""
        parts = []
        for segment, some in zip(self.segments, allowed, strict=True):
            distances, positions = nearest_in_lists(segment.codes, prepared, number, some)
            ids = np.where(positions < 0, -1, self.ids(segment)[np.maximum(positions, 0)])
            parts.append((distances, ids))
        return merge_topk(parts, number)

    def exact(self, ids, k):
        """The nearest of some ids of each query by their vectors."""
        known = {}
        for segment in self.segments:
            rows = np.arange(segment.codes.n) if segment.rows is None else segment.rows
            known.update(zip(self.ids(segment).tolist(), segment.vectors[rows].astype(np.float64), strict=True))
        distances, nearest = np.full((len(ids), k), np.inf), np.full((len(ids), k), -1)
        for q, row in enumerate(ids):
            pairs = [
                (np.linalg.norm(self.queries[q].astype(np.float64) - known[number]), number)
                for number in row.tolist() if number >= 0
            ]  # fmt: skip
            for place, pair in enumerate(sorted(pairs)[:k]):
                distances[q, place], nearest[q, place] = pair
        return distances, nearest


def nearest_lists(problem, probes, allowed):
    stores = [(segment.codes, some) for segment, some in zip(problem.segments, allowed, strict=True)]
    return problem.centres.nearest(problem.floats, probes, held_by(stores), exact=False)


def prepared_for(problem, distance, lists, squared):
    """Queries for the lists, and for the search in one call."""
    if distance == "decoded":
        weights = rounded_weights(problem.floats, problem.weights.origin, problem.weights.decoder)
        return list_queries(weights, lists, squared, problem.weights.grid), None
    projections = problem.floats @ problem.weights.decoder.T
    if distance == "asymmetric":
        asked = asymmetric_queries(projections)
    else:
        asked = hamming_queries(Codes.from_bits(projections >= 0))
    return weighted_list_queries(asked, problem.n_bits, lists), asked


def search_of(problem, distance):
    return ListSearch(problem.centres, problem.segments, problem.weights if distance == "decoded" else None)


@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from(DTYPES), st.integers(1, 9), st.booleans(), st.data())
def test_one_call_gives_what_the_steps_of_a_search_give(seed, n_segments, dtype, n_queries, removed, data):
    problem = Problem(
        seed, n_segments, dtype, n_queries=n_queries, removed=removed, most=data.draw(st.integers(2, 300))
    )
    distance = data.draw(st.sampled_from(["decoded", "asymmetric", "hamming"]))
    k, probes = data.draw(st.integers(1, 12)), data.draw(st.integers(1, problem.n_lists))
    search, allowed = search_of(problem, distance), [segment.allowed for segment in problem.segments]
    if data.draw(st.booleans()):
        allowed, _ = problem.filtered(data.draw(st.sampled_from([0.0, 0.1, 0.6])))
        search = search.restricted(allowed)
    lists, squared = nearest_lists(problem, probes, allowed)
    steps, asked = prepared_for(problem, distance, lists, squared)
    everywhere = nearest_lists(problem, problem.n_lists, allowed)
    steps_everywhere, _ = prepared_for(problem, distance, *everywhere)

    whole, ids = problem.candidates(steps, k, allowed)
    real = steps.real(whole)
    short = np.flatnonzero(ids[:, -1] < 0)
    whole, more = problem.candidates(steps_everywhere, k, allowed)
    real[short], ids[short] = steps_everywhere.real(whole)[short], more[short]
    found = search.search(problem.queries, k, None, Probing(probes), asked)
    assert np.array_equal(found.numbers, ids)
    assert np.array_equal(found.distances, real)
    assert found.distances.dtype == real.dtype

    whole, ids = problem.candidates(steps, k, allowed)
    distances, numbers = search.search_chosen(problem.queries, k, (lists, squared), asked)
    assert np.array_equal(numbers, ids)
    assert np.array_equal(in_own_type(distances, distance == "hamming"), steps.real(whole))

    candidates = k + data.draw(st.integers(0, 60))
    exact = problem.exact(problem.candidates(steps, candidates, allowed)[1], k)
    for part, all_lists in zip(
        exact, problem.exact(problem.candidates(steps_everywhere, candidates, allowed)[1], k), strict=True
    ):
        part[short] = all_lists[short]
    found = search.search(problem.queries, k, candidates, Probing(probes), asked)
    assert np.array_equal(found.numbers, exact[1])
    assert np.allclose(found.distances, exact[0], rtol=1e-12)


def estimated_distances(centres, query):
    """Squared distances to centres, with products of both rounded to whole numbers from -127 to 127; their error."""
    shifted, x = centres.points - centres.origin.astype(np.float64), query - centres.origin
    steps = np.abs(shifted).max() / 127, np.abs(x).max() / 127
    products = np.rint(shifted / steps[0]) @ np.rint(x / steps[1])
    norms = np.square(shifted).sum(axis=1)
    error = 2 * np.sqrt((steps[0] ** 2 * (x @ x) + steps[1] ** 2 * norms.max()) / 12)
    return np.maximum(x @ x + norms - 2 * steps[0] * steps[1] * products, 0), error


@given(st.integers(0, 2**32), st.sampled_from([20, 100, 300]), st.booleans(), st.data())
def test_lists_are_scanned_where_enough_neighbours_are_expected(seed, n_lists, filtered, data):
    problem = Problem(seed, 2, n_lists=n_lists, most=900)
    search = search_of(problem, "decoded")
    live = sum(np.diff(segment.codes.bounds) for segment in problem.segments)
    counts = live
    if filtered:
        allowed, _ = problem.filtered(0.5)
        search, counts = search.restricted(allowed), sum(some.counts for some in allowed)
    usable = np.flatnonzero(counts)
    n_levels, k = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 30))
    draw = [(st.floats(-3, 3), st.floats(-3, 0), st.floats(-3, 0), st.floats(-3, 1)) for _ in range(n_levels)]
    weights = np.array([[data.draw(one) for one in level] for level in draw])
    thresholds = np.array([data.draw(st.floats(-6, 3)) for _ in range(n_levels)])
    most = data.draw(st.integers(1, n_lists))
    lists, squared = search.chosen_lists(problem.floats, Probing(most, weights, thresholds, k))
    points = problem.centres.points.astype(np.float64)
    for q, query in enumerate(problem.floats.astype(np.float64)):
        estimates, error = estimated_distances(problem.centres, query)
        measured = np.square(query - points).sum(axis=1)
        nearest = usable[np.argmin(estimates[usable])]
        allowed_error = min(0.15 * problem.weights.error, 0.02 * measured[nearest])
        if abs(error - allowed_error) < 1e-3 * error:
            continue
        values = measured if error > allowed_error else estimates
        ranked = usable[np.argsort(values[usable], kind="stable")]
        distances = values[ranked]
        distances[0] = measured[ranked[0]]
        if filtered:  # as many are looked at as may be scanned
            ranked, distances = ranked[: max(most, 65)], distances[: max(most, 65)]
        far = distances[min(64, len(distances) - 1)]
        logs = np.log(np.maximum(distances, 1e-6 * far))
        ranks = np.arange(len(ranked))
        features = [np.ones(len(ranks)), logs - logs[0], np.log(1 + ranks), np.log(far) - logs[0] + 0 * ranks]
        expected = weights @ np.array(features)
        level, undecided = 0, np.zeros(1, dtype=bool)
        threshold = thresholds[0]
        if filtered:
            sums = (np.exp(expected) * (counts[ranked] / live[ranked])).sum(axis=1)
            wanted = k + 2 * np.sqrt(k)
            reached = np.flatnonzero(sums >= wanted)
            level, threshold = (reached[0], thresholds[reached[0]]) if len(reached) else (0, -np.inf)
            undecided = np.abs(sums / wanted - 1) < 1e-4
        chosen = ranked[(expected[level] >= threshold) | (ranks == 0)][:most]
        undecided = np.append(undecided, np.abs(expected[level] - threshold) < 1e-3)
        written = lists[q][lists[q] >= 0]
        if not undecided.any():  # of equally far lists it may be another
            assert len(written) == len(np.unique(written)) == len(chosen)
            assert np.allclose(np.sort(values[written]), np.sort(values[chosen]), rtol=1e-4)
        assert np.all(lists[q, len(written) :] == -1)
        given_out = np.append(measured[written[:1]], values[written[1:]])
        assert np.allclose(squared[q, : len(written)], given_out, rtol=1e-4)


def test_a_level_that_expects_enough_only_in_more_lists_than_may_be_scanned_is_not_taken():
    """Of 65 lists, 11.94 neighbours are expected: fewer than 7 + 2√7, so that all of them are scanned."""
    problem = Problem(0, 2, n_lists=300, most=900)
    search = search_of(problem, "decoded").restricted(problem.filtered(0.5)[0])
    lists, _ = search.chosen_lists(problem.floats, Probing(65, np.array([[0.0, 0.0, 0.0, -2.0]]), np.zeros(1), 7))
    assert (lists[2] >= 0).sum() == 65


@pytest.mark.parametrize(("n_queries", "lists_per_call"), [(9, 2**16), (700, 2**16), (200, 1)])
def test_many_queries_get_the_answers_of_each_alone(n_queries, lists_per_call, monkeypatch):
    monkeypatch.setattr("autojacobin.search.prepared_search._LISTS_PER_CALL", lists_per_call)
    problem = Problem(5, 2, "float32", n_lists=40, n_queries=n_queries, most=3000)
    search = search_of(problem, "decoded")
    for probing in (Probing(4), Probing(30, np.array([[0.5, -1.0, -0.5, 0.2]]), np.array([-2.0]))):
        together = search.search(problem.queries, 5, 20, probing)
        for q in range(0, n_queries, 40):
            alone = search.search(problem.queries[q : q + 1], 5, 20, probing)
            assert all(np.array_equal(one[0], other[q]) for one, other in zip(alone, together, strict=True))


def test_a_query_that_is_a_centre_scans_more_than_its_list():
    problem = Problem(2, n_lists=100, most=900)
    query = problem.centres.points[:1].copy()
    lists, squared = search_of(problem, "decoded").chosen_lists(
        query, Probing(50, np.array([[0.0, -0.1, -0.1, 0.0]]), np.array([-2.0]))
    )
    assert squared[0, 0] == 0
    assert (lists >= 0).sum() > 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_numbers_that_are_not_finite_do_no_harm(value):
    problem = Problem(3, n_lists=100, most=900)
    for probing in (Probing(4), Probing(30, np.array([[0.5, -1.0, -0.5, 0.2]]), np.array([-2.0]))):
        for columns in (slice(0, 1), slice(None)):
            problem.queries[1, columns] = value
            found = search_of(problem, "decoded").search(problem.queries, 5, 20, probing)
            assert found.numbers.shape == (3, 5)
            assert np.all(found.numbers < 4000)


@pytest.mark.parametrize("n_queries", [3, 300])
def test_vectors_are_checked_before_distances_are_given(n_queries):
    problem = Problem(4, 2, "float32", n_queries=n_queries, most=400)
    seen = []

    def check(rows):
        seen.append(rows)

    flags = [np.zeros(len(segment.vectors) * WIDTH * 4 // 64 + 1, dtype=bool) for segment in problem.segments]
    problem.segments = [
        segment._replace(checked=some, block_bytes=64, check=check)
        for segment, some in zip(problem.segments, flags, strict=True)
    ]
    search = search_of(problem, "decoded")
    found = search.search(problem.queries, 5, 20, Probing(7))
    assert sum(len(np.unique(rows)) for rows in seen) >= 20
    for some in flags:
        some[:] = True
    seen.clear()
    again = search.search(problem.queries, 5, 20, Probing(7))
    assert not seen
    assert np.array_equal(found.numbers, again.numbers)


@pytest.mark.parametrize("n_queries", [3, 300])
def test_a_vector_with_nan_is_an_error(n_queries):
    problem = Problem(4, 1, "float32", n_queries=n_queries, most=400)
    problem.segments[0].vectors[:, 3] = np.nan
    with pytest.raises(DataError, match="NaN in row"):
        search_of(problem, "decoded").search(problem.queries, 5, 20, Probing(7))


def test_vectors_that_cannot_be_read_in_place_are_measured_by_their_numbers():
    problem = Problem(6, 2, "float32", most=200)
    plain = search_of(problem, "decoded").search(problem.queries, 5, 20, Probing(3))

    def measure(queries, ids, squared, wanted=None):
        del wanted
        for q, row in enumerate(ids):
            for c, number in enumerate(row):
                squared[q, c] = problem.exact(np.array([[number]] * len(problem.queries)), 1)[0][q, 0] ** 2

    search = ListSearch(problem.centres, problem.segments, problem.weights, measure)
    found = search.search(problem.queries, 5, 20, Probing(3))
    assert np.array_equal(found.numbers, plain.numbers)
    assert np.allclose(found.distances, plain.distances)
    assert len(problem.queries) <= prepared_search.MOST_QUERIES


# Tiles


def tiles_of(problem):
    """The segments of a problem as tiles of the same codes."""
    return [
        segment._replace(
            codes=Tiles.from_codes(codes_of(segment.codes)),
            allowed=None if segment.allowed is None else np.packbits(alive, bitorder="little"),
        )
        for segment, alive in zip(problem.segments, problem.alive, strict=True)
    ]


def projection_of(problem, distance, n_level_bits):
    """A random projection, its weights for the queries, and these as the distance takes them."""
    rng, n_bits = problem.rng, problem.n_bits
    shift = rng.normal(size=n_bits).astype(np.float32)
    matrix = problem.weights.decoder[: n_bits - n_level_bits]
    projection = Projection(matrix, problem.weights.origin, shift, n_level_bits, 2.0)
    weights = np.zeros((len(problem.queries), n_bits), dtype=np.float32)
    weights[:, : len(matrix)] = query_weights(problem.floats, projection.start, matrix)
    weights += shift
    if distance == "hamming":
        return projection, hamming_queries(Codes.from_bits(weights >= 0))
    if distance == "asymmetric":
        return projection, asymmetric_queries(weights)
    constants = np.square(problem.floats.astype(np.float64) - projection.start).sum(axis=1) + projection.offset
    return projection, decoded_queries(DistanceTerms(weights, constants, n_level_bits))


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(3, 300), st.integers(1, 8), st.booleans(), st.data())
def test_one_call_over_all_codes_gives_what_the_steps_of_a_search_give(
    seed, n_segments, n_bits, n_queries, removed, data
):
    most, dtype = data.draw(st.integers(2, 3000)), data.draw(st.sampled_from(DTYPES))
    problem = Problem(seed, n_segments, dtype, n_bits=n_bits, n_queries=n_queries, removed=removed, most=most)
    distance, k = data.draw(st.sampled_from(["decoded", "asymmetric", "hamming"])), data.draw(st.integers(1, 12))
    projection, prepared = projection_of(problem, distance, data.draw(st.integers(0, 2)) * (distance == "decoded"))
    problem.segments = tiles_of(problem)
    given_ = data.draw(st.booleans())
    search = TileSearch(problem.segments, distance, None if given_ else projection)
    bitmaps = [segment.allowed for segment in problem.segments]
    if data.draw(st.booleans()):
        share = data.draw(st.sampled_from([0.0, 0.05, 0.6]))
        bitmaps = [np.packbits(alive & (problem.rng.random(len(alive)) < share), bitorder="little")
                   for alive in problem.alive]  # fmt: skip
        search = search.restricted(bitmaps)

    def nearest(number):
        parts = [(np.full((n_queries, number), MISSING, dtype=np.int32), np.full((n_queries, number), -1))]
        for segment, bitmap in zip(problem.segments, bitmaps, strict=True):
            present = segment.codes.n if bitmap is None else int(np.unpackbits(bitmap).sum())
            if present:
                distances, positions = segment.codes.nearest(prepared, min(number, present), bitmap)
                parts.append((distances, problem.ids(segment)[positions]))
        return merge_topk(parts, number)

    whole, ids = nearest(k)
    found = search.search(problem.queries, k, None, prepared if given_ else None)
    assert np.array_equal(found.numbers, ids)
    expected = prepared.real(whole)
    missing = ids < 0
    assert found.distances.dtype == expected.dtype
    assert np.allclose(found.distances[~missing], expected[~missing], rtol=1e-5, atol=1e-4)
    candidates = k + data.draw(st.integers(0, 200))
    found = search.search(problem.queries, k, candidates, prepared if given_ else None)
    distances, numbers = problem.exact(nearest(candidates)[1], k)
    assert np.array_equal(found.numbers, numbers)
    assert np.allclose(found.distances, distances, rtol=1e-12)


@pytest.mark.parametrize("distance", ["decoded", "asymmetric", "hamming"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_numbers_that_are_not_finite_do_no_harm_in_tiles(distance, value):
    problem = Problem(3, most=900)
    projection, _ = projection_of(problem, distance, 0)
    search = TileSearch(tiles_of(problem), distance, projection)
    problem.queries[1] = value
    found = search.search(problem.queries, 5, 20)
    assert np.all(found.numbers[[0, 2]] >= 0)
    assert np.all((found.numbers >= -1) & (found.numbers < 4000))


def test_long_codes_of_tiles_are_compared_exactly():
    problem = Problem(8, n_bits=64 * 40, most=400)
    problem.segments = tiles_of(problem)
    bits = np.unpackbits(problem.segments[0].codes.take(np.arange(3)).packed, axis=1, bitorder="little")
    prepared = hamming_queries(Codes.from_bits(1 - bits))  # as far away as codes can be
    found = TileSearch(problem.segments, "hamming").search(problem.queries, 400, None, prepared)
    expected = problem.segments[0].codes.nearest(prepared, problem.segments[0].codes.n)
    assert np.array_equal(found.distances[:, : expected[0].shape[1]], expected[0])
    assert expected[0].max() == 64 * 40


@pytest.mark.parametrize(
    ("hasher", "distance"),
    [
        (ITQ(24, random_state=0), "hamming"),
        (ITQ(24, random_state=0), "asymmetric"),
        (Sign(), "hamming"),
        (BinaryAutoencoder(40, random_state=0), "decoded"),
        (BinaryAutoencoder(40, random_state=0), "asymmetric"),
    ],
)
def test_the_projection_of_a_method_finds_what_its_prepared_queries_find(hasher, distance):
    X = digits()
    hasher = hasher.fit(X)
    stored = [Stored(Tiles.from_codes(hasher.encode(X)))]
    queries = np.ascontiguousarray(X[:200:3] + 0.25, dtype=np.float32)
    by_itself = TileSearch(stored, distance, hasher.projection(distance))
    prepared = TileSearch(stored, distance)
    for q in range(0, len(queries), 8):
        some = queries[q : q + 8]
        found = by_itself.search(some, 20, None)
        expected = prepared.search(some, 20, None, DISTANCES[distance].queries(hasher, some))
        assert np.array_equal(found.numbers, expected.numbers)
        assert np.allclose(found.distances, expected.distances, rtol=1e-4, atol=1e-2)


def test_methods_whose_queries_only_they_can_make_have_no_projection():
    X = digits()
    assert BinaryAutoencoder(40, random_state=0).fit(X).projection("hamming") is None
    assert ITQ(24, random_state=0).fit(X).projection("decoded") is None
    assert PartitionedAutoencoder(40, n_lists=4, random_state=0).fit(X).projection("decoded") is None
    assert SphericalHashing(24, random_state=0).fit(X).projection("hamming") is None
