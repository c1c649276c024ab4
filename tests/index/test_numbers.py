"""Huge, tiny and equal numbers: refused with the row, or searched as brute force does; an index goes on growing."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, BinaryAutoencoder, DataError, Index, Metric, PartitionedAutoencoder, SphericalHashing
from autojacobin.index import growth, segment

WIDTH = 6
METRICS = ["euclidean", "cosine", "inner_product"]
TOO_LARGE = r"Input {} has {} in row {}, column {}, expected numbers of up to 1e\+15 in absolute value"


def points(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(np.float32)


def products(base, queries):
    return queries.astype(np.longdouble) @ base.astype(np.longdouble).T


@pytest.fixture
def small_lists(monkeypatch):
    """Lists from 200 vectors on, in files from the first vector on."""
    monkeypatch.setattr(growth, "_FEWEST_VECTORS", 200)
    monkeypatch.setattr(segment, "_FEWEST_IN_LISTS", 1)


@pytest.fixture(scope="module", params=["signs", "auto-encoder"])
def hasher(request):
    if request.param == "signs":
        return ITQ(6, random_state=0).fit(points(300, 1))
    return BinaryAutoencoder(8, n_iterations=3, random_state=0).fit(points(300, 1))


# Vectors


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("number", [1e17, -2e15])
def test_a_number_that_is_too_large_is_refused_with_its_row_and_changes_nothing(dtype, number):
    index = Index(ITQ(6, random_state=0).fit(points(100)))
    index.add(points(50))
    wrong = (10 * points(9, 1)).astype(dtype)
    wrong[7, 2] = number
    message = TOO_LARGE.format("X", f"{number:.4g}".replace("+", r"\+"), 7, 2)
    for vectors in (wrong, iter([wrong[:5], wrong[5:]])):
        with pytest.raises(DataError, match=message):
            index.add(vectors)
    for change in (index.update, lambda ids, vectors: index.upsert(vectors, ids)):
        with pytest.raises(DataError, match=message):
            change(range(9), wrong)
    assert len(index) == 50
    assert np.array_equal(index.vectors(range(50)), points(50))


@pytest.mark.usefixtures("small_lists")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("wrong", [np.nan, 1e17])
def test_a_number_that_stops_a_growing_index_is_named_by_its_own_row(hasher, metric, wrong):
    base, sample = points(700), points(300, 1)
    measure = Metric.of(metric, base)
    fitted = hasher.unfitted().fit(measure.prepare(sample))
    index = Index(fitted, partitions="auto", metric=measure)
    index.add(base[:100])
    spoiled = base[100:].copy()
    spoiled[-1, 3] = wrong
    if metric == "cosine" and wrong == 1e17:
        index.add(spoiled)  # a direction like any other
    else:
        with pytest.raises(DataError, match="row 599"):
            index.add(spoiled)
        index.add(base[100:])
    assert len(index) == 700
    assert index.info()["lists"] == 128
    index.compact()


def test_vectors_at_the_limit_are_stored_searched_compacted_and_divided_into_lists(hasher, small_lists):
    base = points(600)
    base *= np.float32(9.9e14) / np.abs(base).max()
    for partitions in (None, 16):
        index = Index.from_vectors(base, hasher, partitions=partitions)
        assert index.info()["lists"] == partitions
        index.remove([5])
        index.compact()
        distances, ids = index.search(base[:4], 3)
        assert np.array_equal(ids[:, 0], range(4))
        assert np.isfinite(distances).all()


def test_the_row_of_a_sample_is_that_of_the_data(monkeypatch):
    monkeypatch.setattr(growth, "MOST_TRAINING_POINTS", 50)
    base = points(500)
    base[100:] = np.inf
    for metric in METRICS:
        with pytest.raises(DataError, match=r"contains inf in row (100|1[0-4]\d)\D"):
            Index.from_vectors(base, ITQ(4, random_state=0), metric=metric)


# Queries


@pytest.mark.parametrize("partitions", [None, 8])
@pytest.mark.parametrize(
    "method",
    [ITQ(6, random_state=0), BinaryAutoencoder(8, n_iterations=3, random_state=0), SphericalHashing(6, random_state=0)],
    ids=lambda method: type(method).__name__,
)
def test_one_rule_for_queries_that_are_too_large(method, partitions):
    if partitions and isinstance(method, SphericalHashing):
        pytest.skip("has no lists")
    index = Index.from_vectors(points(400), method, partitions=partitions)
    for number in (1.1e15, 1e20, -3.4e38):
        queries = points(3, 2)
        queries[2, 1] = number
        ways = [{}, {"recall": 1}, {"candidates": 20}, {"rerank": False}, {"among": range(50)}, {"among": [None] * 3}]
        for way in [*ways, *({"distance": name} for name in index._state.hasher.distances)]:
            with pytest.raises(DataError, match=TOO_LARGE.format("queries", ".*", 2, 1)):
                index.search(queries, 3, **way)
        with pytest.raises(DataError, match="Input queries has"):
            index.learn(np.repeat(queries, 100, axis=0))
    distances, ids = index.search(np.full((1, WIDTH), 1e15, dtype=np.float32), 3)
    assert np.isfinite(distances).all()
    assert (ids >= 0).all()


@pytest.mark.parametrize("partitions", [None, 8])
@pytest.mark.parametrize("factor", [1e-45, 2.0**-100, 1e-8, 1e-5, 1.0, 1e5, 1e15, 2.0**100])
def test_the_order_of_inner_products_does_not_depend_on_the_length_of_the_query(factor, partitions):
    base, queries = points(500), points(20, 2)
    index = Index.from_vectors(base, ITQ(6, random_state=0), metric="inner_product", partitions=partitions)
    scaled = (queries.astype(np.float64) * factor).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, ids = index.search(scaled, 10, recall=1)
        few = index.search(scaled, 10, candidates=60)[1]
    true = products(base, scaled) / factor
    there = np.take_along_axis(true, ids, axis=1)
    assert np.allclose(there.astype(np.float64), -np.sort(-true, axis=1)[:, :10].astype(np.float64), rtol=1e-6)
    assert np.allclose(found / factor, there.astype(np.float64), rtol=1e-5, atol=1e-6)
    if factor == 1e-45:  # where numbers have one or two binary digits, and a query is another one
        return
    expected = index.search(queries, 10, candidates=60)[1]
    if np.log2(factor).is_integer():
        assert np.array_equal(few, expected)
    recalls = [
        np.mean([np.isin(row, near).mean() for row, near in zip(way, ids, strict=True)]) for way in (few, expected)
    ]
    assert abs(recalls[0] - recalls[1]) < 0.05


def test_a_query_of_zero_has_products_of_zero():
    index = Index.from_vectors(points(300), ITQ(6, random_state=0), metric="inner_product")
    assert not index.search(np.zeros((1, WIDTH)), 5)[0].any()


@pytest.mark.parametrize("length", [1e6, 5e8])
def test_products_are_right_beside_a_very_long_vector(length):
    base, queries = points(800), points(20, 2) * np.float32(1e-3)
    base[17] *= length / np.linalg.norm(base[17])
    index = Index.from_vectors(base, ITQ(6, random_state=0), metric="inner_product")
    found, ids = index.search(queries, 10, recall=1)
    true = products(base, queries).astype(np.float64)
    assert np.allclose(found, -np.sort(-true, axis=1)[:, :10], rtol=1e-5)
    assert np.array_equal(ids, np.argsort(-true, axis=1, kind="stable")[:, :10])


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (1e20, r"Input X has .*e\+\d\d in row 17"),
        (9e14, "the vector in row 17 is .* times as long as the median"),
        (1e11, "the vector in row 17 is .* times as long as the median"),
    ],
)
def test_a_vector_beside_which_all_products_vanish_is_refused(length, message):
    base = points(100)
    base[17] = 0
    base[17, 0] = length
    with pytest.raises(DataError, match=message):
        Index.from_vectors(base, ITQ(6, random_state=0), metric="inner_product")


def test_a_radius_and_a_query_that_are_too_large_for_inner_products_are_refused():
    with pytest.raises(DataError, match=r"lengths up to 5e\+14, got a radius of 1e\+20"):
        Metric("inner_product", 1e20)
    index = Index.from_vectors(points(100), ITQ(6, random_state=0), metric="inner_product")
    with pytest.raises(DataError, match="the query in row 1 is too long"):
        index.search(np.array([[1.0] * WIDTH, [1e300] * WIDTH]), 3)


@pytest.mark.parametrize("metric", METRICS)
@given(data=st.data())
def test_numbers_of_any_size_are_refused_or_compared_exactly(metric, data):
    """The rule: a refusal names what is too large, and everything else is what brute force finds."""
    powers = st.integers(-44, 38)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    base, queries = (
        (rng.choice([-2, -1, 1, 3], (n, WIDTH)) * 10.0 ** data.draw(powers)).astype(np.float32) for n in (30, 3)
    )
    k, distances = data.draw(st.integers(1, 30)), None
    try:
        measure = Metric.of(metric, base)
        index = Index(LSH(4, random_state=0).fit(np.eye(WIDTH + (metric == "inner_product"))), metric=measure)
        index.add(base)
        distances, ids = index.search(queries, k)
    except DataError as error:
        largest = max(np.abs(base).max(), np.abs(queries).max())
        assert largest > 1e14 or not np.isfinite(largest)
        assert "expected numbers of up to" in str(error) or "lengths up to" in str(error) or "inf in row" in str(error)
        return
    wide, asked = base.astype(np.longdouble), queries.astype(np.longdouble)
    if metric == "euclidean":
        true = np.sqrt(((asked[:, None] - wide) ** 2).sum(axis=2))
    else:
        if metric == "cosine":
            wide, asked = (X / np.sqrt((X**2).sum(axis=1, keepdims=True)) for X in (wide, asked))
        true = -asked @ wide.T
    best = np.sort(true, axis=1)[:, :k] * (1 if metric == "euclidean" else -1)
    tolerance = 1e-5 * np.abs(true).max(axis=1, keepdims=True)
    assert (np.abs(distances - best) <= tolerance).all()
    assert (np.abs(np.take_along_axis(np.abs(true), ids, axis=1) - np.abs(best)) <= 2 * tolerance).all()


# Equal vectors


@pytest.mark.usefixtures("small_lists")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("vector", [np.ones(WIDTH), np.zeros(WIDTH), np.full(WIDTH, 1e-25), np.full(WIDTH, 9e14)])
def test_equal_vectors_grow_without_lists_and_others_get_them(hasher, vector, streamed, caplog, tmp_path):
    equal = np.tile(vector.astype(np.float32), (150, 1))
    with Index.create(tmp_path / "index", hasher, partitions="auto") as index:
        for _ in range(3):
            index.add(iter([equal[:70], equal[70:]]) if streamed else equal)
        assert len(index) == 450
        assert index.info()["lists"] is None
        assert np.array_equal(index.search(equal[:2], 5)[1], [range(5)] * 2)
        index.compact()
        assert [record for record in caplog.records if record.levelname != "INFO"] == []
        index.add(points(900, 5))
        assert index.info()["lists"] is not None
        index.verify()
        assert index.search(points(900, 5)[:3], 1, recall=1)[1].ravel().tolist() == [450, 451, 452]


@pytest.mark.usefixtures("small_lists")
def test_lists_whose_vectors_have_become_equal_stay_as_they_are(hasher):
    index = Index(hasher, partitions=8)
    index.add(points(400))
    index.update(range(400), np.ones((400, WIDTH), dtype=np.float32))
    index.compact()
    assert index.info()["lists"] == 8
    assert np.array_equal(index.search(np.ones((1, WIDTH)), 4)[1], [range(4)])


@pytest.mark.usefixtures("small_lists")
@pytest.mark.parametrize("n_different", [2, 7, 8, 9, 40])
def test_prepared_different_vectors_many_times(hasher, n_different):
    base = points(n_different)[np.arange(600) % n_different]
    index = Index(hasher, partitions=8)
    index.add(base)
    assert index.info()["lists"] == (8 if n_different >= 8 else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for way in ({}, {"recall": 1}, {"candidates": 100}):
            distances, ids = index.search(base[:20], 3, **way)
            assert (distances == 0).all()
            assert np.array_equal(ids % n_different, np.tile(np.arange(20) % n_different, (3, 1)).T)


def test_an_auto_encoder_of_residuals_that_are_all_zero():
    base = points(4)[np.arange(200) % 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hasher = PartitionedAutoencoder(12, n_lists=4, n_iterations=3, random_state=1).fit(base)
        decoded = hasher.decode(hasher.encode(base))
    assert len(np.unique(hasher.centres_, axis=0)) < 4 or np.allclose(decoded, base, atol=1e-5)
    assert np.isfinite(hasher.reconstruction_error_).all()
