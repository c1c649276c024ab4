"""Searches among some of the vectors, against brute force over what the filter allows."""

import uuid

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import LSH, BinaryAutoencoder, Index, PartitionedAutoencoder, PartitionedHasher
from autojacobin.errors import DataError, FormatError
from autojacobin.evaluation import ground_truth
from autojacobin.index import execution, filters, growth, segment
from tests.index.index_model import by_hamming, by_reranking, small_hasher, vectors
from tests.index.test_threads import in_threads

N, K = 60, 5
QUERIES = vectors(7, 9)
MANY = vectors(12, 8)  # searched on all cores


def model_of(index):
    return dict(zip(index.ids.tolist(), index.vectors(index.ids), strict=True))


def padded(distances, ids, k):
    missing = ((0, 0), (0, k - ids.shape[1]))
    return np.pad(distances.astype(float), missing, constant_values=np.nan), np.pad(ids, missing, constant_values=-1)


def brute_force(model, allowed, queries, k, rerank=True):
    left = {id: vector for id, vector in model.items() if id in allowed}
    if not left:
        return np.full((len(queries), k), np.nan), np.full((len(queries), k), -1)
    search = by_reranking if rerank else by_hamming
    more = (len(left),) if rerank else ()
    return padded(*search(left, small_hasher(), queries, min(k, len(left)), *more), k)


def is_the_same(found, expected):
    return np.array_equal(found[1], expected[1]) and np.allclose(found[0], expected[0], equal_nan=True)


def several_segments():
    """Three segments with ids in another order than the vectors, of two types, and removals."""
    index = Index(small_hasher())
    rng = np.random.default_rng(0)
    ids = rng.permutation(200)[:N]
    for start, dtype in ((0, "f4"), (20, "f8"), (40, "f4")):
        rows = slice(start, start + 20)
        columns = {"price": ids[rows] % 10, "lang": ["de" if id % 2 else "en" for id in ids[rows]]}
        index.add(vectors(N, 1)[rows].astype(dtype), ids=ids[rows], payload=columns)
    index.remove(ids[::7])
    return index


@given(
    share=st.sampled_from([0, 0.02, 0.1, 0.3, 0.9, 1.0]),
    seed=st.integers(0, 10**6),
    rerank=st.booleans(),
    form=st.sampled_from(["list", "array", "set", "mask", "mask as a list", "series"]),
    copied_share=st.sampled_from([0, 1 / 8, 1]),
)
def test_a_filter_is_exact(share, seed, rerank, form, copied_share):
    index = several_segments()
    model = model_of(index)
    allowed = set(index.ids[np.random.default_rng(seed).random(len(index)) < share].tolist())
    mask = np.isin(index.ids, list(allowed))
    among = {
        "list": [*allowed, 10**9],  # an unknown id does not matter
        "array": np.array([*allowed, *allowed], dtype=np.int64),
        "set": allowed,
        "mask": mask,
        "mask as a list": mask.tolist(),
        "series": pd.Series(mask),
    }[form]
    options = {"candidates": len(index)} if rerank else {"rerank": False, "distance": "hamming"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "_COPIED_SHARE", copied_share)
        found = index.search(MANY, K, among=among, **options)
    assert is_the_same(found, brute_force(model, allowed, MANY, K, rerank))


def test_each_query_may_have_its_own_filter():
    index = several_segments()
    model, ids = model_of(index), index.ids
    shared = ids[:9].tolist()
    among = [shared, None, ids > 100, set(ids[5:30].tolist()), [], shared, ids[:2]]
    allowed = [shared, ids, ids[ids > 100], ids[5:30], [], shared, ids[:2]]
    distances, found = index.search(QUERIES, K, among=among, candidates=len(index))
    for row, some in enumerate(allowed):
        expected = brute_force(model, set(np.asarray(some).tolist()), QUERIES[row : row + 1], K)
        assert is_the_same((distances[row : row + 1], found[row : row + 1]), expected)


PRICE, LANG = pc.field("price"), pc.field("lang")
CONDITIONS = [
    ("price < 3", PRICE < 3, lambda id: id % 10 < 3),
    ("lang == 'de' and price >= 5", (LANG == "de") & (PRICE >= 5), lambda id: id % 10 in (5, 7, 9)),
    (
        "price in (1, 2) or lang like 'e%'",
        (PRICE == 1) | (PRICE == 2) | (LANG == "en"),
        lambda id: id % 10 in (1, 2) or id % 2 == 0,
    ),
    ("price > 100", PRICE > 100, lambda id: id < 0),
    ("true", pc.scalar(True), lambda id: id >= 0),
]


@pytest.mark.parametrize("number", range(len(CONDITIONS)))
def test_a_condition_is_a_filter_as_text_and_as_an_expression(number):
    text, expression, holds = CONDITIONS[number]
    index = several_segments()
    model = model_of(index)
    some = index.ids[::2]
    for where in (text, expression):
        found = index.search(QUERIES, K, where=where, candidates=len(index))
        assert is_the_same(found, brute_force(model, {id for id in model if holds(id)}, QUERIES, K))
        both = index.search(QUERIES, K, where=where, among=some, candidates=len(index))
        assert is_the_same(both, brute_force(model, {id for id in some.tolist() if holds(id)}, QUERIES, K))


@pytest.mark.parametrize("make", [str, lambda number: uuid.UUID(int=number)])
def test_names_are_filters_too(make):
    index = Index(small_hasher())
    index.add(vectors(10), ids=[make(number) for number in range(10)])
    index.upsert(vectors(10, 1), ids=[make(number) for number in range(8, 18)])
    index.remove([make(3)])
    among = [make(number) for number in (3, 9, 1, 1, 15, 77)]
    distances, ids = index.search(QUERIES, 4, among=among)
    assert set(ids[0][:3]) == {make(1), make(9), make(15)}
    assert ids[0][3] is None
    assert np.isnan(distances[:, 3]).all()
    mask = np.isin(index.ids, among)
    assert np.array_equal(index.search(QUERIES, 4, among=mask)[1], ids)
    if make is str:
        assert set(index.search(QUERIES, 1, among="15")[1][:, 0]) == {"15"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"among": np.ones(3, bool)}, r"True or False for each of the \d+ vectors, .* got bool of shape \(3,\)"),
        ({"among": [True, *range(50)]}, "True or False for each"),
        ({"among": ["a"]}, "ids must be a list of integers"),
        ({"among": [1.5]}, "ids must be a list of integers"),
        ({"among": [[1], [2]]}, "one filter for each of the 7 queries, got 2"),
        ({"where": "nothing < 3"}, "where='nothing < 3' names the column 'nothing', but the columns are price"),
        ({"where": "price <"}, "cannot be read at its end: a condition compares columns"),
        ({"where": "lang < 3"}, "compares the column 'lang' .string. with a number"),
        ({"where": pc.field("nothing") < 3}, "cannot be computed.*the columns are price"),
        ({"where": pc.field("price")}, "cannot be computed"),
        ({"where": pc.field("price") == "x"}, "cannot be computed"),
    ],
)
def test_a_wrong_filter_is_one_sentence(options, message):
    index = several_segments()
    with pytest.raises(DataError, match=message) as caught:
        index.search(QUERIES, K, **options)
    assert "\n" not in str(caught.value)


def test_columns_with_awkward_names_can_be_filtered():
    index = Index(small_hasher())
    index.add(vectors(4), payload={"__row": [5, 6, 7, 8], "a b": [1, 2, 3, 4], "A b": [1, 1, 1, 1]})
    for where in (pc.field("__row") > 6, "__row > 6", '"a b" > 2 and "A b" = 1'):
        assert set(index.search(QUERIES, 2, where=where)[1][0]) == {2, 3}


def test_a_condition_is_computed_once_for_the_filters_of_all_queries(monkeypatch):
    index = several_segments()
    even, odd = index.ids[::2], index.ids[1::2]
    among = [list(even), even, odd, list(even), set(odd.tolist()), set(odd.tolist()), None]
    expected = [
        index.search(QUERIES[row : row + 1], K, among=some, where="price < 5") for row, some in enumerate(among)
    ]
    computed, allowed_rows = [], filters.allowed_rows
    monkeypatch.setattr(filters, "allowed_rows", lambda *given: computed.append(given) or allowed_rows(*given))
    distances, ids = index.search(QUERIES, K, among=among, where="price < 5")
    np.testing.assert_array_equal(ids, np.concatenate([rows for _, rows in expected]))
    np.testing.assert_array_equal(distances, np.concatenate([rows for rows, _ in expected]))
    assert len(computed) == 1


def test_filters_are_equal_by_value_and_kind():
    same = [
        ([1, 2], [1, 2], True), ([1, 0], [True, False], False), ([1], [1.0], False), ((1, 2), [1, 2], False),
        (np.array([1, 2]), np.array([1, 2]), True), (np.array([1, 2]), np.array([1, 2], np.int32), False),
        ({1, 2}, {2, 1}, True), (range(3), range(3), True), (None, None, True), ([], [], True),
        ([[1]], [[1]], False), (["a"], ["a"], True),
    ]  # fmt: skip
    for one, other, equal in same:
        assert len(filters._filters_of_queries([one, other], 2)) == (1 if equal else 2), (one, other)


# Lists


def clusters(n, seed=0):
    """Points around 40 centres on a surface, so that neighbours mean something."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(40, 16)) * 3
    return (centres[rng.integers(0, 40, n)] + rng.normal(size=(n, 16))).astype(np.float32)


def hasher_with_lists(kind, n_lists):
    if kind == "signs":
        return PartitionedHasher(LSH(32, random_state=0), n_lists=n_lists, random_state=0)
    copies = 2 if kind == "two copies" else 1
    return PartitionedAutoencoder(24 * copies, n_lists=n_lists, copies=copies, n_iterations=3, random_state=0)


@pytest.fixture(scope="module", params=["auto-encoder", "two copies", "signs"])
def with_lists(request):
    base = clusters(3_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "_FEWEST_IN_LISTS", 1)
        index = Index(hasher_with_lists(request.param, 16).fit(base[:1_500]))
        index.add(base[:2_000])
        index.add(base[2_000:])
        index.remove(np.arange(0, 3_000, 11))
    return index, base


def truth_among(base, allowed, queries, k):
    return allowed[ground_truth(base[allowed], queries, k)]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("options", [{"recall": 1}, {"probes": "all", "candidates": 3_000}])
def test_lists_are_exact_within_a_filter_if_all_are_scanned(with_lists, share, options):
    index, base = with_lists
    allowed = index.ids[np.random.default_rng(1).random(len(index)) < share]
    if "candidates" in options:
        options = options | {"candidates": len(index)}
    k = min(K, len(allowed))
    _, ids = index.search(clusters(10, 3), K, among=allowed, **options)
    assert np.array_equal(ids[:, :k], truth_among(base, allowed, clusters(10, 3), k))


def test_prepared_probes_find_what_is_allowed_even_if_it_is_far_away(with_lists):
    index, _ = with_lists
    for options in ({}, {"probes": 1}, {"rerank": False}, {"probes": 1, "rerank": False}):
        distances, ids = index.search(clusters(10, 3), 4, among=[1, 2, 3], **options)
        assert {tuple(sorted(row)) for row in ids.tolist()} == {(-1, 1, 2, 3)}
        assert np.isnan(distances[:, 3]).all()
        assert np.isfinite(distances[:, :3]).all()


@pytest.mark.parametrize(
    "hasher", [BinaryAutoencoder(16, n_iterations=2, random_state=0), LSH(32, random_state=0)], ids=lambda one: str(one)
)
def test_an_index_that_made_its_lists_is_filtered(hasher, monkeypatch):
    monkeypatch.setattr(growth, "_FEWEST_VECTORS", 200)
    base = clusters(1_000)
    index = Index(hasher.fit(base), partitions="auto")
    index.add(base, ids=[f"n{row}" for row in range(1_000)], payload={"third": np.arange(1_000) % 3})
    assert index.info()["lists"]
    allowed = np.arange(0, 1_000, 3)
    _, ids = index.search(clusters(5, 3), K, where="third == 0", recall=1)
    expected = truth_among(base, allowed, clusters(5, 3), K)
    assert ids.tolist() == [[f"n{row}" for row in rows] for rows in expected.tolist()]


# Threads


EVEN = [number % 2 == 0 for number in range(100)]


def test_threads_search_with_filters_while_another_changes_the_index(tmp_path):
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(
            vectors(50), ids=[f"kept {row}" for row in range(50)], payload={"n": np.arange(50), "even": EVEN[:50]}
        )
        done = []

        def search(**options):
            def work():
                while not done:
                    _, ids, table = index.search(QUERIES, 30, columns=["n"], **options)
                    for id, n in zip(ids.ravel().tolist(), table["n"].to_pylist(), strict=True):
                        assert (id is None) == (n is None)
                        assert id is None or id == (f"kept {n}" if n < 50 else f"new {n}")
                        assert n is None or n % 2 == 0

            return work

        def change():
            try:
                for step in range(50, 65):
                    names = [f"new {step}", f"kept {step - 50}"]
                    payload = {"n": [step, step - 50], "even": [EVEN[step], EVEN[step - 50]]}
                    index.upsert(vectors(2, step), ids=names, payload=payload)
                    if step % 3 == 0:
                        index.remove([f"new {step}"])
                    if step % 5 == 0:
                        index.compact()
            finally:
                done.append(True)

        evens = [f"kept {n}" for n in range(0, 50, 2)]
        in_threads(search(where="even"), search(among=evens), change)
        assert len(index) == 60
        index.verify()


def test_vectors_without_a_payload_have_nulls_before_and_after_compaction():
    X = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    index = Index(LSH(8, random_state=0).fit(X))
    index.add(X[:2], payload={"x": [1, 2]})
    index.add(X[2:4])
    for _ in range(2):
        for where, expected in (("x is null", [2, 3]), ("1 = 1", [0, 1, 2, 3]), ("x > 1", [1])):
            found = index.search(X[:1], 4, where=where)[1]
            assert sorted(found[found >= 0].tolist()) == expected
        index.compact()


def test_nan_is_null_however_it_comes():
    pandas = pytest.importorskip("pandas")
    arrow = pytest.importorskip("pyarrow")
    X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    price = [5.0, np.nan] * 3
    for payload in (
        {"price": price},
        {"price": np.array(price, dtype=np.float32)},
        {"price": arrow.chunked_array([[5.0, None, 5.0], [np.nan, 5.0, None]])},
        [{"price": value} for value in price],
        pandas.DataFrame({"price": price}),
        arrow.table({"price": arrow.array(price)}),
    ):
        index = Index(LSH(8, random_state=0).fit(X))
        index.add(X, payload=payload)
        for where in ("price > 3", arrow.compute.field("price") > 3):
            found = index.search(X[:1], 6, where=where)[1]
            assert sorted(found[found >= 0].tolist()) == [0, 2, 4]
        assert index.get([1]).column("price").to_pylist() == [None]


def test_a_condition_must_be_true_or_false():
    X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    index = Index(LSH(8, random_state=0).fit(X))
    index.add(X, payload={"floors": np.arange(6), "city": list("abcabc")})
    with pytest.raises(DataError, match="where='floors' has the column 'floors' .int64. as a condition; compare it"):
        index.search(X[:1], 2, where="floors")
    with pytest.raises(DataError, match="; put text into single quotes"):
        index.search(X[:1], 2, where='city = "a"')


def test_a_damaged_payload_does_not_stop_searches_without_columns(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    with Index.create(tmp_path / "index", LSH(8, random_state=0).fit(X)) as index:
        index.add(X, payload={"x": np.arange(40)})
        expected = index.search(X[:3], 4)[1]
    (file,) = (tmp_path / "index").glob("payload-*.arrow")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with Index.open(tmp_path / "index") as index:
        assert index.info()["columns"] is None
        assert np.array_equal(index.search(X[:3], 4)[1], expected)
        with pytest.raises(FormatError, match="checksum"):
            index.search(X[:3], 4, where="x > 3")


@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
def test_distances_have_one_type_however_the_filter_is_given(distance):
    index = Index(small_hasher())
    index.add(vectors(40), payload={"n": list(range(40))})
    ids = list(range(10, 30))
    how = {"distance": distance, "rerank": False}
    expected, expected_ids = index.search(QUERIES, 3, among=ids, **how)
    assert expected.dtype == np.float64
    mask = np.isin(index.ids, ids)
    filters = [{"among": mask}, {"among": [ids] * len(QUERIES)}, {"where": "n >= 10 and n < 30"}]
    for given_filter in [*filters, {"among": [ids] * len(QUERIES), "where": "n >= 0"}]:
        distances, found = index.search(QUERIES, 3, **given_filter, **how)
        assert distances.dtype == expected.dtype
        assert np.array_equal(distances, expected)
        assert np.array_equal(found, expected_ids)
    short, _ = index.search(QUERIES, 3, among=ids[:2], **how)
    assert short.dtype == expected.dtype
