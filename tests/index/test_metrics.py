"""Cosine and inner product, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, BinaryAutoencoder, DataError, Index, Metric, PartitionedHasher, load
from autojacobin.index.repair import repair

N_FEATURES = 12


def points(n, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.uniform(0.5, 3, (n, 1))
    return (lengths * (rng.normal(size=(n, N_FEATURES)) + 0.5)).astype(np.float32)


def products(base, queries, metric):
    base, queries = base.astype(np.float64), queries.astype(np.float64)
    if metric == "cosine":
        base, queries = (X / np.linalg.norm(X, axis=1, keepdims=True) for X in (base, queries))
    return queries @ base.T


@pytest.mark.parametrize("metric", ["cosine", "inner_product"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_an_exact_search_gives_the_largest_products_first(metric, dtype):
    base, queries = points(800).astype(dtype), points(20, 1)
    index = Index.from_vectors(base, ITQ(8, random_state=0), metric=metric)
    values, ids = index.search(queries, 10, recall=1)
    true = products(base, queries, metric)
    tolerance = {np.float16: 3e-3, np.float32: 1e-5, np.float64: 1e-6}[dtype]
    assert np.allclose(values, np.take_along_axis(true, ids, axis=1), atol=tolerance * np.abs(true).max())
    assert np.allclose(values, -np.sort(-true, axis=1)[:, :10], atol=tolerance * np.abs(true).max())
    assert np.all(np.diff(values, axis=1) <= 0)


@pytest.mark.parametrize("metric", ["cosine", "inner_product"])
@pytest.mark.parametrize("partitions", [None, 16])
def test_a_wanted_recall_is_kept(metric, partitions):
    base, queries = points(4000), points(300, 1)
    hasher = BinaryAutoencoder(48, n_iterations=6, random_state=0)
    index = Index.from_vectors(base, hasher, metric=metric, partitions=partitions)
    assert index.info()["lists"] == partitions
    truth = np.argsort(-products(base, queries, metric), axis=1)[:, :10]
    ids = index.search(queries, 10, recall=0.9)[1]
    found = np.mean([np.isin(row, true).mean() for row, true in zip(ids, truth, strict=True)])
    assert found >= 0.87
    assert index.plan(10, recall=0.9).candidates < 2000


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner_product"])
def test_the_metric_is_kept_on_disk_with_everything_else(metric, tmp_path):
    base = points(300)
    names = [f"word {i}" for i in range(300)]
    made = Index.from_vectors(
        base, ITQ(8, random_state=0), path=tmp_path / "index", metric=metric, ids=names, payload={"n": range(300)}
    )
    expected = made.search(points(5, 2), 4, recall=1)
    made.add(iter([points(30, 3)]), [f"more {i}" for i in range(30)])
    made.remove([f"more {i}" for i in range(30)])
    made.compact()
    made.close()
    with Index.open(tmp_path / "index") as index:
        index.verify()
        assert (index.info()["metric"], index.info()["features"]) == (metric, N_FEATURES)
        got = index.search(points(5, 2), 4, recall=1)
        assert np.allclose(got[0], expected[0])
        assert np.array_equal(got[1], expected[1])
        stored = index.vectors(names[:10])
        lengths = np.linalg.norm(base[:10], axis=1, keepdims=True) if metric == "cosine" else 1
        assert np.allclose(stored * lengths, base[:10], rtol=1e-5)
        with pytest.raises(DataError, match="features"):
            index.search(base[:, :5], 3)
    index = Index.open(tmp_path / "index")
    index.save(tmp_path / "copy")
    assert Index.open(tmp_path / "copy").info()["metric"] == metric


@given(st.integers(0, 2**31), st.integers(1, 30))
def test_the_prepared_vectors_give_the_products(seed, n):
    base, queries = points(n, seed), points(5, seed + 1)
    for name in ("cosine", "inner_product"):
        metric = Metric.of(name, base)
        assert Metric.of(name, iter([base[: n // 2], base[n // 2 :]])) == metric
        stored, asked = metric.prepare(base).astype(np.float64), metric.queries(queries).astype(np.float64)
        distances = np.sqrt(((asked[:, None, :] - stored) ** 2).sum(axis=2))
        assert np.allclose(metric.values(queries, distances), products(base, queries, name), atol=1e-3)


def test_a_vector_without_a_direction_is_refused():
    base = points(100)
    index = Index.from_vectors(base, ITQ(8, random_state=0), metric="cosine")
    wrong = points(20, 1)
    wrong[7] = 0
    with pytest.raises(DataError, match="the vector in row 7 is zero, so it has no direction"):
        index.add(wrong)
    with pytest.raises(DataError, match="row 7"):
        index.add(iter([wrong[:5], wrong[5:]]))
    with pytest.raises(DataError, match="the vector in row 0 is zero"):
        index.search(np.zeros((1, N_FEATURES)), 1)
    assert len(index) == 100


def test_a_vector_that_is_too_long_for_inner_products_is_refused():
    index = Index.from_vectors(points(100), ITQ(8, random_state=0), metric="inner_product")
    with pytest.raises(DataError, match="the vector in row 3 has the length"):
        index.add(np.concatenate([points(3, 1), 100 * points(1, 2)]))
    assert len(index) == 100


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("dot", "metric must be 'euclidean', 'cosine' or 'inner_product', got 'dot'"),
        ("inner_product", "use Index.from_vectors"),
    ],
)
def test_a_metric_that_cannot_work_is_refused(metric, message):
    hasher = ITQ(8, random_state=0).fit(points(100))
    with pytest.raises(DataError, match=message):
        Index(hasher, metric=metric)


def test_codes_alone_are_compared_by_their_own_distance():
    index = Index.from_vectors(points(100), ITQ(8, random_state=0), metric="cosine", keep_vectors=False)
    distances, _ = index.search(points(3, 1), 5, distance="hamming")
    assert distances.dtype.kind in "iu"


def test_the_cosine_of_very_long_and_very_short_vectors_is_that_of_their_directions():
    X = np.random.default_rng(0).normal(size=(50, 8))
    expected = Index.from_vectors(X, LSH(8, random_state=0), metric="cosine").search(X[:5], 3)
    for factor in (1e200, 1e-200):
        found = Index.from_vectors(factor * X, LSH(8, random_state=0), metric="cosine").search(factor * X[:5], 3)
        assert np.array_equal(found[1], expected[1])
        assert np.allclose(found[0], expected[0])


@pytest.mark.parametrize("longest", [10.0, 1e3, 1e5])
def test_one_long_vector_does_not_blur_the_products_of_the_others(longest, tmp_path):
    rng = np.random.default_rng(0)
    X, queries = rng.normal(size=(3000, 16)).astype(np.float32), rng.normal(size=(20, 16)).astype(np.float32)
    X[0] *= longest / np.linalg.norm(X[0])
    products = queries.astype(np.float64) @ X.T.astype(np.float64)
    order = np.argsort(-products, axis=1, kind="stable")[:, :10]
    with Index.from_vectors(X, LSH(16, random_state=0), path=tmp_path / "index", metric="inner_product") as index:
        found, ids = index.search(queries, 10, recall=1)
    assert np.array_equal(ids, order)
    assert np.allclose(found, np.take_along_axis(products, order, axis=1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["cosine", "inner_product"])
def test_a_model_keeps_its_metric_and_an_index_takes_it_from_there(name, tmp_path):
    base = points(200)
    metric = Metric.of(name, base)
    model = metric.fit(ITQ(8, random_state=0), base)
    model.save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    index = Index(loaded)
    index.add(base)
    assert index.info()["metric"] == name
    found, ids = index.search(base[:5], 3, recall=1)
    expected, expected_ids = Index.from_vectors(base, ITQ(8, random_state=0), metric=name).search(base[:5], 3, recall=1)
    assert np.array_equal(ids, expected_ids)
    assert np.allclose(found, expected)
    with pytest.raises(DataError, match=f"was trained for the metric {name}, got euclidean; leave the metric out"):
        Index(loaded, metric="euclidean")
    assert Index(loaded, metric=name).info()["metric"] == name
    index.hasher.save(tmp_path / "again.safetensors")  # the hasher of an index knows it too
    assert Index(load(tmp_path / "again.safetensors")).info()["metric"] == name
    assert loaded.fit(base).metric_ is None  # nobody said for what


def test_a_file_without_a_metric_is_euclidean(tmp_path):
    base = points(200)
    ITQ(8, random_state=0).fit(base).save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert Index(loaded).info()["metric"] == "euclidean"
    with pytest.raises(DataError, match="was trained for the metric euclidean, got cosine"):
        Index(loaded, metric="cosine")


def test_a_repaired_index_has_the_metric_of_its_model_without_a_manifest(tmp_path):
    base = points(50)
    Index.from_vectors(base, LSH(8, random_state=0), path=tmp_path / "index", metric="cosine").close()
    (tmp_path / "index" / "MANIFEST.json").unlink()
    report = repair(tmp_path / "index", tmp_path / "repaired")
    assert "that of the model is cosine" in " ".join(report.problems)
    with Index.open(tmp_path / "repaired") as index:
        assert index.info()["metric"] == "cosine"


def test_wrong_vectors_and_ids_are_named_before_a_training_begins(monkeypatch):
    hasher, base = LSH(8, random_state=0), points(100)
    monkeypatch.setattr(LSH, "fit", lambda *_, **__: pytest.fail("a training has begun"))
    zero, missing = base.copy(), base.copy()
    zero[70], missing[80, 3] = 0, np.nan
    with pytest.raises(DataError, match="the vector in row 70 is zero"):
        Index.from_vectors(zero, hasher, metric="cosine")
    with pytest.raises(DataError, match="NaN in row 80, column 3"):
        Index.from_vectors(missing, hasher)
    with pytest.raises(DataError, match="got 99 ids for 100 vectors"):
        Index.from_vectors(base, hasher, ids=range(99))
    with pytest.raises(DataError, match="payload"):
        Index.from_vectors(base, hasher, payload={"n": [1, 2]})


def test_a_wrong_vector_is_named_before_lists_are_learned_and_learning_is_reported(monkeypatch, capsys):
    base = points(300)
    index = Index.from_vectors(base[:20], LSH(8, random_state=0), metric="cosine", partitions=4)
    wrong = base.copy()
    wrong[200] = 0
    with monkeypatch.context() as patch:
        patch.setattr(PartitionedHasher, "fit", lambda *_, **__: pytest.fail("a training has begun"))
        with pytest.raises(DataError, match="the vector in row 200 is zero"):
            index.add(wrong)
    assert (len(index), index.info()["lists"]) == (20, None)
    index.add(base, verbose=True)
    assert "adding vectors: learning 4 lists\n" in capsys.readouterr().err
    assert index.info()["lists"] == 4
