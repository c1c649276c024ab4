"""An index whose codes are in inverted lists, against brute force."""

import copy
import pickle

import numpy as np
import pytest

from autojacobin import ITQ, LSH, DataError, Index, PartitionedAutoencoder, PartitionedHasher, Sign
from autojacobin.evaluation import ground_truth
from autojacobin.index import calibration, segment
from autojacobin.index.execution import search_codes
from autojacobin.index.repair import repair
from autojacobin.index.state import codes_at
from autojacobin.search.probing import Probing

K = 10


def points(n, seed=0):
    rng = np.random.default_rng(seed)
    surface = np.random.default_rng(99).normal(size=(6, 24))
    return (rng.normal(size=(n, 6)) @ surface + 0.1 * rng.normal(size=(n, 24))).astype(np.float32)


@pytest.fixture(scope="module")
def autoencoder():
    return PartitionedAutoencoder(40, n_lists=32, random_state=0).fit(points(4000, 1))


@pytest.fixture(scope="module")
def signs():
    return PartitionedHasher(ITQ(24, random_state=0), n_lists=32, random_state=0).fit(points(4000, 1))


@pytest.fixture(scope="module")
def two_copies():
    return PartitionedAutoencoder(80, n_lists=32, copies=2, random_state=0).fit(points(4000, 1))


@pytest.fixture(scope="module", params=["autoencoder", "two_copies", "signs"])
def hasher(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def made(hasher):
    made = Index(hasher)
    made.add(points(3000))
    return made


@pytest.fixture
def index(made):
    return copy.deepcopy(made)


def labels_of(index):
    """The lists of each of 3,000 vectors."""
    hasher, segments = index._state.hasher, index._state.segments
    codes = codes_at(segments, np.arange(3000), int(hasher.n_bits))
    return np.stack([hasher.split(codes, copy)[1] for copy in range(hasher.copies)], axis=1)


def real_distances(hasher, codes, queries, base):
    """‖q − decoded‖² + 0.6 ‖x − decoded‖² of every query and code."""
    decoded = hasher.decode(codes).astype(np.float64)
    errors = ((base - decoded) ** 2).sum(axis=1)
    return ((queries[:, None, :].astype(np.float64) - decoded) ** 2).sum(axis=2) + 0.6 * errors


def test_all_lists_and_all_candidates_are_an_exact_search(index):
    queries = points(50, 2)
    distances, ids = index.search(queries, K, probes="all", candidates=len(index))
    assert np.array_equal(ids, ground_truth(points(3000), queries, K))
    assert np.all(np.diff(distances, axis=1) >= 0)


def test_codes_alone_are_ordered_by_the_distance_to_what_they_decode_to(autoencoder):
    hasher, queries, base = autoencoder, points(20, 2), points(3000)
    index = Index(hasher)
    index.add(base)
    distances, ids = index.search(queries, 3000, probes="all", rerank=False)
    assert np.array_equal(np.sort(ids, axis=1), np.tile(np.arange(3000), (20, 1)))
    true = np.take_along_axis(real_distances(hasher, index.codes(np.arange(3000)), queries, base), ids, axis=1)
    assert np.all(np.diff(distances, axis=1) >= 0)
    assert np.median(np.abs(distances - true)) < 0.02 * true.mean()  # rounded to levels and to whole numbers
    assert np.corrcoef(distances.ravel(), true.ravel())[0, 1] > 0.995


def test_a_vector_in_two_lists_has_a_code_of_its_residual_in_each(two_copies):
    X, centres = points(500, 2), two_copies.centres_
    codes = two_copies.encode(X)
    (coded, first), (other, second) = (two_copies.split(codes, copy) for copy in (0, 1))
    squared = ((X[:, None, :].astype(np.float64) - centres) ** 2).sum(axis=2)
    assert np.array_equal(first, squared.argmin(axis=1))
    left = X - centres[first].astype(np.float64)
    along = np.einsum("ijk,ik->ij", X[:, None, :] - centres, left) / np.linalg.norm(left, axis=1)[:, None]
    cost = squared + along**2
    cost[np.arange(500), first] = np.inf
    best = cost.min(axis=1)
    assert np.allclose(cost[np.arange(500), second], best, rtol=1e-4)  # among all 32 lists as among the nearest 24
    for numbers, bits in ((first, coded), (second, other)):
        signs = bits.to_signs()[:, : len(two_copies.decoder_)].astype(np.float64)
        decoded = centres[numbers] + two_copies.mean_ + signs @ two_copies.decoder_
        residuals = X - centres[numbers] - two_copies.mean_
        assert ((X - decoded) ** 2).sum() < 0.5 * (residuals**2).sum()


def test_two_copies_find_more_in_as_many_lists(autoencoder, two_copies):
    queries = points(300, 2)
    truth = ground_truth(points(3000), queries, K)
    recalls = []
    for hasher in (autoencoder, two_copies):
        index = Index(hasher)
        index.add(points(3000))
        _, ids = index.search(queries, K, probes=2, candidates=200)
        recalls.append(np.mean([np.isin(row, true).mean() for row, true in zip(ids, truth, strict=True)]))
    assert recalls[1] > recalls[0] + 0.05


def test_of_two_codes_of_a_vector_the_nearer_one_counts(two_copies):
    index, queries, base = Index(two_copies), points(20, 2), points(400)
    index.add(base)
    distances, ids = index.search(queries, 400, probes="all", rerank=False)
    assert np.array_equal(np.sort(ids, axis=1), np.tile(np.arange(400), (20, 1)))
    codes = two_copies.encode(base)
    copies = []
    for copy_ in (0, 1):
        coded, labels = two_copies.split(codes, copy_)
        signs = coded.to_signs()[:, : len(two_copies.decoder_)].astype(np.float64)
        decoded = two_copies.centres_[labels] + two_copies.mean_ + signs @ two_copies.decoder_
        errors = ((base - decoded) ** 2).sum(axis=1)
        copies.append(((queries[:, None, :].astype(np.float64) - decoded) ** 2).sum(axis=2) + 0.6 * errors)
    true = np.take_along_axis(np.min(copies, axis=0), ids, axis=1)
    assert np.median(np.abs(distances - true)) < 0.02 * true.mean()


def test_only_the_codes_of_the_probed_lists_are_found(index, hasher):
    queries = points(30, 2)
    labels = labels_of(index)
    squared = ((queries[:, None, :] - hasher.search_centres().points) ** 2).sum(axis=2)
    nearest = np.argsort(squared, axis=1)[:, :3]
    fewest = min(np.isin(labels, lists).any(axis=1).sum() for lists in nearest)
    _, ids = search_codes(index._state, queries, hasher.distances[0], fewest, None, Probing(3))
    for query, found in enumerate(ids):
        here = np.flatnonzero(np.isin(labels, nearest[query]).any(axis=1))
        assert np.isin(found, here).all()
        assert len(set(found)) == fewest


def test_lists_whose_codes_were_removed_are_not_probed(index, hasher):
    queries = points(30, 2)
    labels = labels_of(index)
    squared = ((queries[:, None, :] - hasher.search_centres().points) ** 2).sum(axis=2)
    emptied = np.unique(np.argmin(squared, axis=1))[:8]
    index.remove(np.flatnonzero(np.isin(labels, emptied).any(axis=1)))
    squared[:, emptied] = np.inf
    _, ids = search_codes(index._state, queries, hasher.distances[0], 1, None, Probing(1))
    for found, number in zip(ids, np.argmin(squared, axis=1), strict=True):
        assert number in labels[found]


def test_a_query_finds_the_same_alone_and_among_others(index):
    queries = points(1200, 2)
    for options in ({"probes": 3, "candidates": 40}, {"probes": 3, "rerank": False}):
        distances, ids = index.search(queries, K, **options)
        few = index.search(queries[:300], K, **options)
        assert all(map(np.array_equal, few, (distances[:300], ids[:300])))
        for row in range(0, 1200, 37):
            alone = index.search(queries[row : row + 1], K, **options)
            assert np.allclose(
                alone[0][0], distances[row], rtol=1e-6
            )  # a product with one row may be rounded otherwise
            assert np.array_equal(alone[1][0], ids[row])


@pytest.mark.parametrize("distance", ["hamming", pytest.param("asymmetric", marks=pytest.mark.rare)])
@pytest.mark.parametrize("plain", [ITQ(12, random_state=0), LSH(37, random_state=0), Sign(24, centred=True)])
def test_all_lists_are_the_exhaustive_search_to_the_last_bit(plain, distance):
    base, queries = points(3000), points(130, 2)
    fitted = plain.fit(points(500, 1))
    without = Index(fitted)
    within = Index(PartitionedHasher(fitted, n_lists=20, random_state=0).fit(points(500, 1)))
    for index in (without, within):
        index.add(base[:2000])
        index.add(base[2000:], np.arange(5000, 6000))
        index.remove(np.arange(0, 2000, 7))
    assert within.info()["lists"] == 20
    assert within.codes(within.ids) == without.codes(without.ids)
    assert all(one.codes == two.codes for one, two in zip(within.parts(), without.parts(), strict=True))
    assert within.hasher.encode(base) == fitted.encode(base)
    some = np.arange(0, 6000, 3)
    for options in ({"rerank": False}, {"candidates": 60}, {"rerank": False, "among": some}):
        expected = without.search(queries, K, distance=distance, **options)
        found = within.search(queries, K, distance=distance, probes="all", **options)
        assert found[0].dtype == expected[0].dtype
        assert np.array_equal(found[1], expected[1])
        if "candidates" in options:  # lists still add up the squares of gaps in another order than the kernels in C++
            assert np.allclose(found[0], expected[0], rtol=1e-14, atol=0)
        else:
            assert np.array_equal(found[0], expected[0])
    exact = [index.search(queries, K, distance=distance, recall=1) for index in (without, within)]
    assert all(map(np.array_equal, *exact))


def test_a_residual_reconstructs_better_than_the_vector_itself(autoencoder):
    from autojacobin import BinaryAutoencoder

    X = points(3000)
    plain = BinaryAutoencoder(35, random_state=0).fit(points(4000, 1))
    errors = [((X - one.decode(one.encode(X))) ** 2).sum() for one in (autoencoder, plain)]
    assert errors[0] < 0.8 * errors[1]


def test_removed_and_replaced_vectors_are_not_found(index):
    queries, base = points(20, 2), points(3000)
    index.remove(np.arange(0, 3000, 2))
    index.upsert(base[:100] + 0.5, np.arange(1, 201, 2))
    left = {id: base[id] for id in range(1, 3000, 2)} | {
        1 + 2 * row: vector for row, vector in enumerate(base[:100] + 0.5)
    }
    ids = np.array(sorted(left))
    expected = ids[ground_truth(np.array([left[id] for id in ids]), queries, K)]
    assert np.array_equal(index.search(queries, K, probes="all", candidates=len(index))[1], expected)
    index.compact()
    assert np.array_equal(index.search(queries, K, probes="all", candidates=len(index))[1], expected)


def test_segments_answer_as_one(hasher):
    queries, base = points(40, 2), points(3000)
    one, many = Index(hasher), Index(hasher)
    one.add(base)
    for start in range(0, 3000, 700):
        many.add(base[start : start + 700])
    for options in ({"probes": 4, "rerank": False}, {"probes": 4, "candidates": 60}, {"probes": "all"}):
        for got, expected in zip(many.search(queries, K, **options), one.search(queries, K, **options), strict=True):
            assert np.array_equal(got, expected)


def test_a_wanted_recall_is_kept_and_easy_queries_scan_fewer_lists(index):
    queries = points(500, 3)
    truth = ground_truth(points(3000), queries, K)
    for recall in (0.8, 0.95):
        plan = index.plan(K, recall=recall)
        assert plan.probing is not None
        assert 1 <= plan.lists < plan.probing.most <= 32
        _, ids = index.search(queries, K, recall=recall)
        found = np.mean([np.isin(row, true).mean() for row, true in zip(ids, truth, strict=True)])
        assert found >= recall - 0.02


@pytest.mark.parametrize(
    "hasher",
    [PartitionedAutoencoder(6, n_lists=4, random_state=0), PartitionedHasher(LSH(4, random_state=0), n_lists=4)],
)
def test_codes_that_rank_badly_take_many_candidates_or_all(hasher, monkeypatch):
    monkeypatch.setattr(calibration, "_MOST_QUERIES", 1_000)
    base = np.random.default_rng(0).normal(size=(2200, 24)).astype(np.float32)  # nothing to learn
    index = Index(hasher.fit(base))
    index.add(base)
    plan = index.plan(K, recall=0.99)
    assert plan.compares_all or plan.candidates > 500
    assert plan.at_least >= 0.99


def test_on_disk_it_is_the_same_and_survives_a_copy(index, hasher, tmp_path):
    queries = points(20, 2)
    expected = index.search(queries, K, probes=4)
    with Index.create(tmp_path / "index", hasher) as made:
        made.add(points(3000))
    for other in (Index.open(tmp_path / "index"), copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        for got, wanted in zip(other.search(queries, K, probes=4), expected, strict=True):
            assert np.array_equal(got, wanted)
    Index.open(tmp_path / "index").verify()


def test_a_copy_has_nothing_that_searches_keep(index):
    """They keep addresses of arrays, which are of the copied index, and may be freed."""
    before = len(pickle.dumps(index))
    index.search(points(20, 2), K, probes=4)
    assert len(pickle.dumps(index)) == before


def test_two_copies_in_files_survive_changes_and_repair(two_copies, tmp_path, monkeypatch):
    monkeypatch.setattr(segment, "_FEWEST_IN_LISTS", 1)
    base, queries = points(1200), points(30, 2)
    with Index.create(tmp_path / "index", two_copies) as made:
        made.add(base[:900])
        made.add(base[900:])
        made.remove(np.arange(0, 300, 2))
        made.upsert(base[:50] + 0.5, np.arange(1, 101, 2))
    stored = {id: base[id] for id in range(1200) if id >= 300 or id % 2}
    stored |= {1 + 2 * row: vector for row, vector in enumerate(base[:50] + 0.5)}
    ids = np.array(sorted(stored))
    expected = ids[ground_truth(np.array([stored[id] for id in ids]), queries, K)]
    repair(tmp_path / "index", tmp_path / "repaired")
    for name in ("index", "repaired"):
        index = Index.open(tmp_path / name)
        for _ in range(2):
            index.verify()
            assert all("order" in segment.arrays for segment in index._state.segments)
            assert np.array_equal(index.search(queries, K, probes="all", candidates=len(index))[1], expected)
            index.compact()


def test_queries_far_from_everything_still_find_k(hasher):
    index = Index(hasher)
    index.add(points(40))
    for rerank in (True, False):
        distances, ids = index.search(points(5, 2) + 100, 30, probes=1, rerank=rerank)
        assert all(len(set(row)) == 30 for row in ids)
        assert ids.min() >= 0
        assert np.isfinite(distances).all()


def test_a_search_that_names_candidates_alone_scans_a_few_lists(hasher):
    index = Index(hasher)
    index.add(points(40))
    assert index.info()["lists"] > 8
    assert index.plan(K, candidates=50).probing.most == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probes": 0}, "probes must be an integer from 1 to 32, the number of lists, got 0"),
        ({"probes": 33}, "from 1 to 32"),
        ({"probes": "some"}, "probes must be a number of lists or 'all', got 'some'"),
        ({"probes": 3, "recall": 0.9}, "recall chooses how many lists to scan, got probes=3 besides"),
        ({"distance": "spherical"}, "distance must be .*, got 'spherical'"),
    ],
)
def test_wrong_options_are_refused(index, options, message):
    with pytest.raises((DataError, TypeError), match=message):
        index.search(points(2), 3, **options)


def test_probes_are_refused_without_lists():
    index = Index(ITQ(8, random_state=0).fit(points(100)))
    index.add(points(100))
    with pytest.raises(DataError, match="probes are for an index with lists, got probes=3 for one without"):
        index.search(points(2), 3, probes=3)


@pytest.mark.parametrize(
    ("parameters", "n", "message"),
    [
        ({"n_lists": 50}, 20, "at least as many training vectors as lists, got 20 for n_lists=50"),
        ({"n_bits": 5, "n_lists": 64}, 200, "64 lists leave no bit for the residuals, got n_bits=5"),
        ({"n_lists": 0}, 200, "n_lists of PartitionedAutoencoder must be None or an integer from 1 to"),
        ({"copies": 3}, 200, "copies of PartitionedAutoencoder must be 1 or 2, got 3"),
        ({"copies": 2, "n_lists": 1}, 200, "two copies need two lists and codes of an even length, got 1 lists"),
        ({"copies": 2, "n_bits": 41, "n_lists": 4}, 200, "codes of an even length, got 4 lists and n_bits=41"),
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters, n, message):
    with pytest.raises(DataError, match=message):
        PartitionedAutoencoder(**parameters).fit(points(n))


def test_codes_of_residuals_cannot_be_searched_without_an_index(autoencoder):
    with pytest.raises(DataError, match="add the vectors to an Index"):
        autoencoder.distance_terms(points(3))
