"""Search over the segments of an index, for many queries and for few, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, BinaryAutoencoder, DataError, Index, SphericalHashing
from autojacobin.index import execution
from autojacobin.search.distances import DISTANCES
from tests.service.compiled_after_ready import compiled

TYPES = [np.uint8, np.float16, np.float32, np.int16]


@pytest.mark.parametrize(
    ("distance", "dtype"),
    [
        pytest.param(distance, dtype, marks=[] if number % len(TYPES) == place else pytest.mark.rare)
        for number, distance in enumerate(DISTANCES)
        for place, dtype in enumerate(TYPES)
    ],
)
def test_an_index_re_ranks_many_queries_like_few_and_like_brute_force(distance, dtype):
    rng = np.random.default_rng(1)
    surface = rng.normal(size=(5, 60)) * 30  # so long that distances of many queries are estimated, and of few not
    base, queries = ((rng.normal(size=(n, 5)) @ surface + 128).clip(0, 255).astype(dtype) for n in (12_000, 300))
    method = {"decoded": BinaryAutoencoder, "spherical": SphericalHashing}.get(distance, ITQ)
    hasher = method(24, random_state=0).fit(base[:1000].astype(np.float32))
    index, ids = Index(hasher), rng.permutation(50_000)[:12_000]
    index.add(base, ids)
    gone = rng.random(12_000) < 0.2
    index.remove(ids[gone])
    found = index.search(queries, 10, candidates=150, distance=distance)
    few = [index.search(queries[row : row + 1], 10, candidates=150, distance=distance) for row in range(0, 300, 50)]
    assert np.array_equal(found[1][::50], np.concatenate([part[1] for part in few]))
    assert np.array_equal(found[0][::50], np.concatenate([part[0] for part in few]))
    order = np.argsort(ids[~gone])
    left, left_ids = base[~gone][order], ids[~gone][order]
    entry = DISTANCES[distance]
    near = entry.topk(entry.encode(hasher, queries), hasher.encode(left), 150)[1]
    gaps = np.sqrt(((queries[:, None].astype(float) - left[near].astype(float)) ** 2).sum(axis=2))
    first = np.lexsort((left_ids[near], gaps), axis=1)[:, :10]
    assert np.array_equal(found[1], left_ids[np.take_along_axis(near, first, axis=1)])
    assert np.allclose(found[0], np.take_along_axis(gaps, first, axis=1), rtol=1e-12)


def test_an_index_compares_codes_of_a_binary_auto_encoder_by_what_they_decode_to(tmp_path):
    rng = np.random.default_rng(0)
    base = (rng.normal(size=(3000, 6)) @ rng.normal(size=(6, 20))).astype(np.float32)
    hasher = BinaryAutoencoder(40, random_state=0).fit(base)
    with Index.create(tmp_path / "index", hasher) as index:
        index.add(base)
        expected = index.search(base[:50], 10, distance="decoded", rerank=False)
        for got in (
            index.search(base[:50], 10, rerank=False),
            Index.open(tmp_path / "index").search(base[:50], 10, rerank=False),
        ):
            assert np.array_equal(got[0], expected[0])
            assert np.array_equal(got[1], expected[1])
        assert index.plan(10, recall=0.9).distance == "decoded"
        counts = [index.plan(10, recall=0.9, distance=name).candidates for name in hasher.distances]
        assert counts[0] <= counts[1] < counts[2]
    itq = Index(ITQ(8, random_state=0).fit(base))
    itq.add(base)
    with pytest.raises(DataError, match="distance must be 'asymmetric' or 'hamming', got 'decoded'"):
        itq.search(base[:2], 3, distance="decoded")


def test_nothing_is_compiled_again_for_read_only_vectors_and_for_every_other_row():
    base = np.random.default_rng(0).normal(size=(2500, 8)).astype(np.float32)
    index = Index(BinaryAutoencoder(12, n_iterations=1, random_state=0).fit(base[:100]), partitions=8)
    index.add(base)
    frozen = base[:6].copy()
    frozen.flags.writeable = False
    for number, queries in enumerate((base[:3], frozen[:3], base[:6:2])):
        if number == 1:
            before = compiled()
        index.hasher.encode(queries)
        for options in ({"candidates": 50}, {"candidates": 50, "probes": 2}, {"recall": 0.9}, {"rerank": False}):
            index.search(queries, 5, **options)
    assert compiled() == before


def test_a_wrong_number_among_many_queries_is_named_by_its_row():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(100, 8)).astype(np.float32)
    index = Index(ITQ(8, random_state=0).fit(base))
    index.add(base)
    queries = rng.normal(size=(1300, 8)).astype(np.float32)
    queries[1201, 3] = np.nan
    for rerank in (True, False):
        with pytest.raises(DataError, match="NaN in row 1201, column 3"):
            index.search(queries, 3, rerank=rerank)


@given(st.integers(1, 300), st.sampled_from([np.uint8, np.float16, np.float64]))
def test_vectors_in_memory_begin_at_a_cache_line(n, dtype):
    blocks = [np.arange(3 * n).reshape(n, 3).astype(dtype), np.asfortranarray(np.ones((2, 3), dtype=dtype))]
    index = Index(LSH(4, random_state=0).fit(blocks[1]))
    index.add(iter(blocks))
    (segment,) = index._state.segments
    assert np.array_equal(segment.vectors, np.concatenate(blocks))
    assert segment.vectors.ctypes.data % 64 == 0
    assert segment.vectors.flags.c_contiguous


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n_queries", [3, 200])
def test_all_vectors_are_compared_as_by_brute_force_in_any_blocks(dtype, n_queries, monkeypatch):
    monkeypatch.setattr(execution, "_PRODUCTS_BY_NUMPY", 0)
    monkeypatch.setattr(execution, "_NUMBERS_AT_ONCE", 6 * 40)  # many blocks, so that results are merged on the way
    rng = np.random.default_rng(2)
    base = rng.integers(0, 4, (1500, 6)).astype(dtype)  # many distances are equal
    index, ids = Index(LSH(8, random_state=0).fit(base)), rng.permutation(9000)[:1500]
    for part in range(3):  # three segments
        rows = slice(500 * part, 500 * part + 500)
        index.add(base[rows], ids[rows])
    gone = rng.random(1500) < 0.3
    index.remove(ids[gone])
    queries = rng.integers(0, 4, (n_queries, 6)).astype(dtype)
    assert (n_queries >= execution._MANY_QUERIES) == (n_queries == 200)
    distances, found = index.search(queries, 7, recall=1)
    left, left_ids = base[~gone].astype(float), ids[~gone]
    gaps = np.sqrt(((queries[:, None].astype(float) - left) ** 2).sum(axis=2))
    first = np.lexsort((np.broadcast_to(left_ids, gaps.shape), gaps), axis=1)[:, :7]
    assert np.array_equal(found, left_ids[first])
    assert np.array_equal(distances, np.take_along_axis(gaps, first, axis=1))
