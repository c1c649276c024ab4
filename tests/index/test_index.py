"""An index against a plain dict of vectors: changes, searches and files."""

import itertools
import re
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, BinaryAutoencoder, Codes, DataError, NeighbourHashing
from autojacobin.errors import DataTypeError, StorageError
from autojacobin.index import changes as changes_module
from autojacobin.index import segment
from autojacobin.index.growth import training_sample
from autojacobin.index.index import Index
from autojacobin.index.manifest import FORMAT_VERSION
from autojacobin.search import hamming_topk
from autojacobin.search.asymmetric import asymmetric_topk
from tests.index.index_model import N_FEATURES, as_bytes, by_hamming, by_reranking, contents, small_hasher, vectors

GOLDEN = Path(__file__).parent.parent / "golden" / f"index-{FORMAT_VERSION}"


change = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 25)),
    st.tuples(st.just("upsert"), st.lists(st.integers(0, 60), min_size=1, max_size=25, unique=True)),
    st.tuples(st.just("stream"), st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)),
    st.tuples(st.just("remove"), st.integers(1, 30)),
    st.tuples(st.sampled_from(["compact", "save", "reopen", "refresh"]), st.none()),
)


@given(st.booleans(), st.lists(change, min_size=1, max_size=12), st.integers(1, 30), st.integers(0, 2**32))
def test_any_sequence_of_changes_equals_a_dict(on_disk, changes, limit, seed):
    hasher, rng, model, next_id = small_hasher(), np.random.default_rng(seed), {}, 0
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for module in (changes_module, segment):
            patch.setattr(module, "most_rows", lambda hasher: limit)
        index = Index.create(Path(folder) / "0", hasher) if on_disk else Index(hasher)
        for number, (name, argument) in enumerate(changes, 1):
            new = rng.integers(-2, 3, (40, N_FEATURES)).astype(np.float32)
            if name == "add":
                index.add(new[:argument])
                model |= dict(enumerate(new[:argument], next_id))
                next_id += argument
            elif name == "upsert":
                if model.keys() & set(argument):
                    with pytest.raises(DataError, match="ids that are added must be new"):
                        index.add(new[: len(argument)], ids=argument)
                index.upsert(new[: len(argument)], ids=argument)
                model |= dict(zip(argument, new, strict=False))
                next_id = max(next_id, max(argument) + 1)
            elif name == "stream":
                edges = np.cumsum([0, *argument])
                index.add(new[start:end] for start, end in itertools.pairwise(edges))
                model |= dict(enumerate(new[: edges[-1]], next_id))
                next_id += int(edges[-1])
            elif name == "remove":
                gone = rng.permutation(sorted(model))[:argument].astype(np.int64)
                index.remove(gone)
                model = {i: vector for i, vector in model.items() if i not in gone}
            elif name == "save":
                index.save(Path(folder) / str(number))
                index.close()
                index = Index.open(Path(folder) / str(number))
            elif name == "reopen" and index.path is not None:
                index.close()
                index = Index.open(index.path)
            else:
                getattr(index, name if name != "reopen" else "refresh")()
            assert contents(index) == as_bytes(model)
        index.verify()
        check_reading(index, model, rng)
        if model:
            check_searches(index, model, rng)
        index.close()


def check_reading(index, model, rng):
    ids = rng.permutation(sorted(model)).astype(np.int64)
    there = np.array([model[i] for i in ids]).reshape(-1, N_FEATURES)
    assert np.array_equal(index.vectors(ids), there)
    parts = list(index.parts())
    assert [i for part in parts for i in part.ids] == sorted(model)
    if model:
        assert index.codes(ids) == index.hasher.encode(there)
        assert np.array_equal(np.concatenate([part.vectors for part in parts]), [model[i] for i in sorted(model)])
        assert Codes.concatenate([part.codes for part in parts]) == index.codes(sorted(model))


def check_searches(index, model, rng):
    queries = rng.integers(-2, 3, (3, N_FEATURES)).astype(np.float32)
    k = int(rng.integers(1, len(model) + 1))
    distances, ids = index.search(queries, k, distance="hamming", rerank=False)
    expected_distances, expected_ids = by_hamming(model, index.hasher, queries, k)
    assert np.array_equal(distances, expected_distances)
    assert np.array_equal(ids, expected_ids)
    candidates = int(rng.integers(k, len(model) + 3))
    distances, ids = index.search(queries, k, candidates=candidates, distance="hamming")
    expected_distances, expected_ids = by_reranking(model, index.hasher, queries, k, candidates)
    assert np.allclose(distances, expected_distances)
    assert np.array_equal(ids, expected_ids)


@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
def test_many_segments_answer_as_one(hasher, distance):
    X, queries = vectors(300), vectors(7, seed=1)
    one, many = Index(hasher), Index(hasher)
    one.add(X)
    for start in range(0, 300, 9):
        many.add(X[start : start + 9])
    for rerank in (False, True):
        for k in (1, 10, 300):
            expected = one.search(queries, k, distance=distance, rerank=rerank)
            answer = many.search(queries, k, distance=distance, rerank=rerank)
            assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))


def test_one_segment_answers_as_the_functions_for_codes_do(hasher):
    X, queries = vectors(300), vectors(7, seed=1)
    index = Index(hasher)
    index.add(X)
    expected = hamming_topk(hasher.encode(queries), hasher.encode(X), 20)
    answer = index.search(queries, 20, distance="hamming", rerank=False)
    assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))
    expected = asymmetric_topk(hasher.project(queries), hasher.encode(X), 20)
    answer = index.search(queries, 20, distance="asymmetric", rerank=False)
    assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))


@pytest.mark.parametrize(("distance", "n_bits"), [("hamming", 2200), ("asymmetric", 2184)])
def test_long_codes_are_found(distance, n_bits):
    X = vectors(30)
    index = Index(LSH(n_bits, random_state=0).fit(X))
    index.add(X[:10])
    index.add(X[10:])
    index.remove([3, 17])
    kept = [i for i in range(30) if i not in (3, 17)]
    distances, ids = index.search(X[kept], 1, distance=distance, rerank=False)
    assert not distances.any()
    assert all(np.array_equal(X[i], X[j]) for i, j in zip(kept, ids[:, 0], strict=True))


@pytest.mark.parametrize(("distance", "n_bits", "most"), [("hamming", 32_768, "32,767"), ("asymmetric", 2185, "2,184")])
@pytest.mark.parametrize("how", [{"candidates": 3}, {"rerank": False}])
def test_codes_that_are_too_long_are_named(distance, n_bits, most, how):
    X = vectors(30)
    index = Index(LSH(n_bits, random_state=0).fit(X))
    index.add(X)
    with pytest.raises(DataError, match=f"at most {most} bits, got {n_bits:,}; use shorter codes"):
        index.search(X[:2], 1, distance=distance, **how)


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i8", "f2", "f4", "f8", ">f4", "g"])
def test_vectors_are_kept_in_the_type_in_which_they_come(hasher, tmp_path, dtype):
    X = np.abs(vectors(10)).astype(dtype)
    with Index.create(tmp_path / "index", hasher) as index:
        index.add(X)
        index.compact()
    with Index.open(tmp_path / "index") as index:
        kept = index._state.segments[0].vectors
        assert np.array_equal(kept, X)
        expected = {"?": "|u1", "g": "<f8"}.get(dtype, np.dtype(dtype).newbyteorder("<").str)
        assert kept.dtype.str == expected
        assert index.search(X[:2], 1, candidates=10)[0].tolist() == [[0], [0]]


def test_types_may_change_within_a_stream_and_survive_compaction(hasher):
    index = Index(hasher)
    index.add(iter([vectors(5).astype(np.int8), vectors(5, seed=1), vectors(5, seed=2).astype(np.int8)]))
    assert [segment.vectors.dtype.str for segment in index._state.segments] == ["|i1", "<f4", "|i1"]
    before = index.search(vectors(3, seed=3), 15, candidates=15)
    index.compact()
    sizes = [(segment.vectors.dtype.str, segment.n) for segment in index._state.segments]
    assert sizes == [("|i1", 10), ("<f4", 5)]
    assert all(np.array_equal(a, b) for a, b in zip(index.search(vectors(3, seed=3), 15), before, strict=True))


def test_a_memory_map_and_a_data_frame_are_taken(tmp_path):
    frame = pd.DataFrame(vectors(40), columns=list("abcd"))
    np.save(tmp_path / "vectors.npy", frame.to_numpy())
    index = Index(ITQ(4, random_state=0).fit(frame))
    index.add(frame)
    plain = Index(ITQ(4, random_state=0).fit(frame.to_numpy()))
    plain.add(np.load(tmp_path / "vectors.npy", mmap_mode="r"))
    assert contents(plain) == as_bytes(dict(enumerate(frame.to_numpy())))
    assert np.array_equal(index.search(frame[:5], 3)[1], plain.search(frame.to_numpy()[:5], 3)[1])


def test_the_index_is_not_changed_through_the_arrays_and_the_hasher_it_was_given(hasher):
    X = vectors(30)
    index = Index(hasher)
    index.add(X)
    before = index.search(vectors(3, seed=1), 5)
    X[:] = 0
    hasher.set_params(n_bits=9).fit(vectors(60, seed=7))
    assert all(np.array_equal(a, b) for a, b in zip(index.search(vectors(3, seed=1), 5), before, strict=True))


def test_ids_count_on_from_the_largest_ever_used(hasher):
    index = Index(hasher)
    index.add(vectors(2), ids=[10, 5])
    index.add(vectors(2))
    assert index.ids.tolist() == [5, 10, 11, 12]
    index.remove([12, 11])
    index.remove(10)
    index.add(vectors(1))
    assert index.ids.tolist() == [5, 13]
    assert 5 in index
    assert np.int64(13) in index
    assert all(absent not in index for absent in (10, -1, 2**70, "5", None))


def test_consecutive_ids_need_no_file_and_sorted_vectors_no_row_numbers(hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher) as index:
        index.add(vectors(10))
        index.add(vectors(10), ids=np.arange(29, 19, -1))
        index.add(vectors(10), ids=np.arange(40, 60, 2))
        assert [sorted(segment.files) for segment in index._state.segments] == [
            ["codes", "vectors"],
            ["codes", "rows", "vectors"],
            ["codes", "ids", "vectors"],
        ]
        assert contents(index)


def test_compaction_leaves_one_segment_and_nothing_to_do_the_second_time(hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher) as index:
        for seed in range(4):
            index.add(vectors(10, seed))
        index.remove(range(15, 25))
        before = contents(index)
        index.compact()
        figures = index.info()
        assert (figures["segments"], figures["dead"], figures["vectors"]) == (1, 0, 30)
        assert contents(index) == before
        index.compact()
        assert index.info() == figures


def test_an_index_without_vectors_searches_codes_alone(hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher, keep_vectors=False) as index:
        index.add(vectors(20), ids=np.arange(20)[::-1])
        index.remove([4])
        index.compact()
    index = Index.open(tmp_path / "index")
    expected = by_hamming({i: v for i, v in enumerate(vectors(20)[::-1]) if i != 4}, hasher, vectors(3, seed=1), 19)
    assert np.array_equal(index.search(vectors(3, seed=1), 19, distance="hamming")[1], expected[1])
    for wish in ({"rerank": True}, {"candidates": 5}, {"recall": 0.9}):
        with pytest.raises(DataError, match="keeps no vectors to re-rank by; pass rerank=False"):
            index.search(vectors(3), 1, **wish)
    index.close()


def test_the_golden_index_stays_readable():
    with np.load(GOLDEN / "expected.npz") as expected, Index.open(GOLDEN / "index") as index:
        index.verify()
        assert np.array_equal(index.ids, expected["ids"])
        kinds = {"hamming": ("hamming", False), "asymmetric": ("asymmetric", False), "reranked": ("hamming", True)}
        for name, (distance, rerank) in kinds.items():
            distances, ids = index.search(expected["queries"], 10, distance=distance, rerank=rerank)
            assert np.allclose(distances, expected[f"{name}_distances"], rtol=1e-5)
            assert np.array_equal(ids, expected[f"{name}_ids"])


def test_the_golden_index_with_lists_stays_readable():
    with np.load(GOLDEN / "expected.npz") as expected, Index.open(GOLDEN / "lists") as index:
        index.verify()
        assert np.array_equal(index.codes(index.ids).packed, expected["lists_codes"])
        distances, ids = index.search(expected["queries"], 10, probes="all", rerank=False)
        decoded = index.hasher.decode(index.codes(index.ids)).astype(np.float64)
        exact = np.square(decoded - expected["queries"][:, np.newaxis]).sum(axis=2)  # their standard deviation is 148
        of_found = np.array([row[np.searchsorted(index.ids, some)] for row, some in zip(exact, ids, strict=True)])
        assert (of_found <= np.sort(exact, axis=1)[:, 9:10] + 2).all()
        assert np.sqrt(np.square(distances - of_found).mean()) < 1.5
        assert np.sqrt(np.square(distances - expected["lists_distances"]).mean()) < 1
        in_both = [np.isin(some, others) for some, others in zip(ids, expected["lists_ids"], strict=True)]
        assert np.mean(in_both) > 0.8  # many are about equally far


def test_the_golden_index_with_names_a_payload_and_knowledge_stays_readable(monkeypatch):
    monkeypatch.setattr("autojacobin.index.plan._PER_COMPARED_BYTE", np.inf)  # or all of them are compared
    with np.load(GOLDEN / "expected.npz") as expected, Index.open(GOLDEN / "named") as index:
        index.verify()
        assert index.plan(10).candidates == expected["named_candidates"]
        for name, where in {"named": None, "dear": "price >= 2000 and shop = 'north'"}.items():
            similarities, ids = index.search(expected["named_queries"], 10, recall=1, where=where)
            assert np.allclose(similarities, expected[f"{name}_similarities"], rtol=1e-5)
            assert np.mean(ids.astype(str) == expected[f"{name}_ids"]) > 0.8  # equal ones are rounded differently


@pytest.mark.parametrize("dtypes", [["uint8"], ["float16"], ["float32", "float64"], ["uint8", "float16"], ["int16"]])
def test_vectors_of_all_dtypes_are_ranked_alike_over_segments(hasher, dtypes):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (240, N_FEATURES))
    index, queries = Index(hasher), rng.integers(0, 4, (40, N_FEATURES)).astype(np.float32)
    for part in range(6):  # ids out of order, so that vectors do not stand in the order of codes
        rows = slice(40 * part, 40 * part + 40)
        index.add(X[rows].astype(dtypes[part % len(dtypes)]), ids=rng.permutation(40) + 50 * (5 - part))
    gone = index.ids[::7]
    index.remove(gone)
    model = {i: index.vectors([i])[0] for i in index.ids.tolist()}
    expected = by_reranking(model, hasher, queries, 20, 60)
    for _ in range(2):
        answer = index.search(queries, 20, candidates=60, distance="hamming")
        assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))
        index.compact()


@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
def test_blocks_of_queries_give_the_same(index, monkeypatch, distance):
    queries = vectors(23, seed=4)
    expected = index.search(queries, 5, candidates=9, distance=distance)
    monkeypatch.setattr("autojacobin.index.execution._CANDIDATES_AT_ONCE", 36)
    answer = index.search(queries, 5, candidates=9, distance=distance)
    assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))


def test_a_notebook_shows_the_figures_and_escapes_names(hasher, tmp_path):
    with Index.create(tmp_path / "<b>", hasher) as index:
        index.add(vectors(1234))
        html = index._repr_html_()
        assert "<th>vectors</th><td>1,234</td>" in html
        assert "&lt;b&gt;" in html
        assert f"<th>bytes on disk</th><td>{index.info()['bytes']:,}</td>" in html
        codes = index._state.segments[0].arrays["codes"].array.nbytes
        assert f"<th>bytes in memory</th><td>{codes:,}</td>" in html  # the vectors stay on the disk
        assert "<th>recall of 10 neighbours</th><td>1.000, all vectors are compared</td>" in html
        assert re.search(r"<th>one query</th><td>[1-9][\d,]* µs</td>", html)
        index.add(vectors(1234, 1))
        plan = index.plan(10)
        assert f"<td>{plan.seen:.3f}, " in index._repr_html_()
        assert plan.compares_all or f"{plan.candidates:,} candidates" in index._repr_html_()
    assert "closed" in index._repr_html_()
    assert "recall" not in Index.from_codes(np.zeros((3, 2), dtype=np.uint8))._repr_html_()


def test_the_largest_id_does_not_end_what_can_be_added():
    X = np.random.default_rng(0).normal(size=(9, 8)).astype(np.float32)
    index = Index(LSH(8, random_state=0).fit(X))
    index.add(X[:1], ids=[2**63 - 1])
    index.add(X[1:3], ids=[5, 6])
    assert index.ids.tolist() == [5, 6, 2**63 - 1]
    with pytest.raises(DataError, match="there are no ids after 9223372036854775807"):
        index.add(X[3:])


def test_an_index_draws_more_training_points_for_a_method_that_gains_by_them():
    X = np.arange(60_000)[:, None]
    drawn, rows = training_sample(X, NeighbourHashing())
    assert np.array_equal(drawn[:, 0], rows)
    assert len(np.unique(rows)) == 50_000
    assert len(training_sample(X, ITQ())[0]) == len(training_sample(X, LSH())[0]) == 20_000
    assert len(training_sample(X, BinaryAutoencoder(), "auto")[0]) == 20_000
    assert len(training_sample(X, BinaryAutoencoder(), 64)[0]) == 2_000  # lists come at once, with codes of their own
    assert len(training_sample(X, ITQ(), 64)[0]) == 20_000


def test_an_index_from_vectors_is_whole_or_nothing(tmp_path):
    X = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    for wrong in ({"ids": ["a"]}, {"payload": {"x": [1]}}):
        with pytest.raises(DataError):
            Index.from_vectors(X, LSH(8, random_state=0), path=tmp_path / "index", **wrong)
        assert list(tmp_path.iterdir()) == []
    with Index.from_vectors(X, LSH(8, random_state=0), path=tmp_path / "index") as index:
        index.add(X[:2])
        assert len(index) == 302
    with pytest.raises(StorageError, match="holds an index already; open it with Index.open, or give another path"):
        Index.from_vectors(X, LSH(8), path=tmp_path / "index")
    for wrong in ("itq", LSH):
        with pytest.raises(DataTypeError, match=r"hasher must be a hasher, got .*; pass one such as ITQ\(64\)"):
            Index.from_vectors(X, wrong)
    labelled = Index.from_vectors(X, LSH(8, random_state=0), payload={"x": np.arange(300)})
    with pytest.raises(DataTypeError, match=r"columns must be a list of names, got 'x'; pass \['x'\]"):
        labelled.get([1], columns="x")


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner_product"])
@pytest.mark.parametrize("filtered", [False, True])
def test_neighbours_of_stored_vectors_are_without_themselves(metric, filtered):
    """Against brute force; half of the vectors have a copy, which is a neighbour."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(30, N_FEATURES)).astype(np.float32)
    base[15:] = base[:15]
    names = [f"v{number}" for number in range(30)]
    index = Index.from_vectors(base, LSH(8, random_state=0), ids=names, metric=metric)
    asked, allowed, k = [3, 18, 29], np.arange(0 if not filtered else 10, 30), 6
    exact = base.astype(np.float64)
    if metric == "cosine":
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    values = -np.linalg.norm(exact[asked][:, None] - exact, axis=2) if metric == "euclidean" else exact[asked] @ exact.T
    values[:, np.setdiff1d(np.arange(30), allowed)] = -np.inf
    values[np.arange(3), asked] = -np.inf
    among = [names[number] for number in allowed] if filtered else None
    for options in ({"recall": 1}, {"candidates": 30}):
        found, ids = index.search(ids=[names[number] for number in asked], k=k, among=among, **options)
        best = -np.sort(-values, axis=1)[:, :k]
        np.testing.assert_allclose(found if metric != "euclidean" else -found, best, atol=1e-3)
        assert all(name not in row for name, row in zip(["v3", "v18", "v29"], ids, strict=True))
    assert index.search(ids=["v3"], k=40)[1].tolist() == index.search(ids=["v3"], k=29)[1].tolist()
    index.remove(index.ids[1:])
    assert [found.shape for found in index.search(ids=index.ids, k=3, columns=None)] == [(1, 0), (1, 0)]
    assert len(index.search(ids=index.ids, k=3, as_table=True)) == 0


@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
def test_neighbours_of_stored_codes_are_without_themselves(distance):
    packed = np.random.default_rng(0).integers(0, 256, (40, 2), dtype=np.uint8)
    index = Index.from_codes(packed, bitorder="big")
    bits = np.unpackbits(packed, axis=1).astype(int)
    differ = np.abs(bits[[4, 5]][:, None] - bits).sum(axis=2)
    differ[[0, 1], [4, 5]] = 99
    _, ids = index.search(ids=[4, 5], k=39, distance=distance)
    assert np.take_along_axis(differ, ids, axis=1).tolist() == np.sort(differ, axis=1)[:, :39].tolist()
    np.testing.assert_array_equal(index.queries([4], "hamming"), packed[4:5])


def test_a_search_has_queries_or_ids():
    index = Index.from_vectors(vectors(20), LSH(8, random_state=0))
    assert index.search(ids=[3])[1].shape == (1, 10)
    assert index.search(ids=[3], k=4, candidates=4)[1].shape == (1, 4)
    for options, message in (
        ({}, "got neither; give one of the two"),
        ({"queries": vectors(1), "ids": [1]}, "got both; give one of the two"),
        ({"ids": [1, 77]}, "only ids in the index can be searched for, got 77"),
        ({"ids": []}, "queries must have at least one vector"),
        ({"ids": [1], "k": 0}, "k must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(DataError, match=message):
            index.search(**options)


@pytest.mark.parametrize("options", [{}, {"rerank": False, "distance": "hamming"}, {"candidates": 60}, {"recall": 0.9}])
def test_more_neighbours_than_vectors_are_all_of_them(options):
    base = vectors(20)
    index = Index.from_vectors(base, LSH(8, random_state=0), payload={"n": list(range(20))})
    distances, ids, table = index.search(base[:2], 25, columns=["n"], **options)
    expected = index.search(base[:2], 20, **options)
    np.testing.assert_array_equal(distances, expected[0])
    np.testing.assert_array_equal(ids, expected[1])
    assert distances.dtype == expected[0].dtype
    assert table["n"].to_pylist() == ids.ravel().tolist()
    assert len(index.search(base[:2], 25, as_table=True)) == 40
    with pytest.raises(DataError, match="candidates must be at least k = 25, got 22"):
        index.search(base[:2], 25, candidates=22)
    narrow = index.search(base[:2], 25, among=[3, 4], columns=["n"], **options)
    assert [part.shape for part in narrow[:2]] == [(2, 20)] * 2  # as without a filter
    assert (np.isnan(narrow[0]) == (narrow[1] < 0)).all()
    assert narrow[2]["n"].to_pylist()[2:20] == [None] * 18
