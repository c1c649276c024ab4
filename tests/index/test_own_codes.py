"""An index of codes that were made elsewhere."""

import numpy as np
import pytest

from autojacobin import Codes, DataError, Index, hashers
from autojacobin.index import repair

N_BITS = 21


def bits(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, N_BITS))


def by_hamming(base, queries, k):
    distances = (queries[:, None, :] != base).sum(axis=2)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), order


def same(found, expected):
    return all(np.array_equal(got, wanted) for got, wanted in zip(found, expected, strict=True))


@pytest.mark.parametrize("bitorder", ["little", "big"])
def test_packed_codes_of_either_bit_order_are_searched_as_bits(bitorder, tmp_path):
    base, queries = bits(400), bits(20, 1)
    packed, asked = (np.packbits(array, axis=1, bitorder=bitorder) for array in (base, queries))
    expected = by_hamming(base, queries, 7)
    index = Index.from_codes(packed, n_bits=N_BITS, bitorder=bitorder)
    assert same(index.search(asked, 7), expected)
    assert same(index.search(Codes.from_bits(queries), 7), expected)
    index.save(tmp_path / "index")
    with Index.open(tmp_path / "index") as opened:
        opened.verify()
        assert same(opened.search(asked, 7), expected)
        assert opened.codes(np.arange(400)) == Codes.from_bits(base)


def test_codes_are_added_to_a_folder_in_several_forms(tmp_path):
    base = bits(60)
    with Index.create(tmp_path / "index", n_bits=N_BITS, bitorder="big") as index:
        index.add(np.packbits(base[:20], axis=1))
        index.add(Codes.from_bits(base[20:40]), ids=np.arange(20, 40))
        index.add(iter([np.packbits(base[40:50], axis=1), np.packbits(base[50:], axis=1)]))
        index.remove([3])
        index.compact()
        assert same(index.search(Codes.from_bits(base[:3]), 1)[1:], [np.array([[0], [1], [2]])])
    report = repair(tmp_path / "index", tmp_path / "repaired")
    assert (report.saved, report.lost) == (59, 0)


def test_real_values_are_compared_asymmetrically():
    base, values = bits(300), np.random.default_rng(1).normal(size=(10, N_BITS)).astype(np.float32)
    index = Index.from_codes(Codes.from_bits(base), ids=[f"code {i}" for i in range(300)])
    distances, ids = index.search(values, 5, distance="asymmetric")
    true = np.where((values[:, None, :] >= 0) != (base > 0), np.abs(values)[:, None, :], 0).sum(axis=2)
    found = np.array([[int(name.split()[1]) for name in row] for row in ids])
    best = np.sort(true, axis=1)[:, :5]
    assert np.allclose(np.take_along_axis(true, found, axis=1), best, atol=0.05 * true.mean())
    assert np.allclose(distances, best, atol=0.05 * true.mean())


def test_codes_can_be_compared_asymmetrically_too():
    base, queries = bits(300), bits(10, 1)
    index = Index.from_codes(np.packbits(base, axis=1), n_bits=N_BITS, bitorder="big")
    expected = by_hamming(base, queries, 5)
    for asked in (np.packbits(queries, axis=1), Codes.from_bits(queries)):
        distances, _ = index.search(asked, 5, distance="asymmetric")
        assert np.allclose(distances, expected[0], atol=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda index: index.add(np.zeros((2, 4), dtype=np.uint8)), r"rows of 3 bytes \(uint8\).* got uint8 of shape"),
        (lambda index: index.add(np.zeros((2, 3))), "packed codes must be uint8, got float64"),
        (
            lambda index: index.search(Codes.from_bits(np.zeros((1, 5), dtype=int)), 1),
            "of 21 bits, got codes of 5",
        ),
        (
            lambda index: index.search(np.zeros((1, 3), dtype=np.uint8), 1, rerank=True),
            "keeps no vectors to re-rank by",
        ),
        (lambda index: index.search(np.zeros((1, 3), dtype=np.uint8), 1, recall=0.9), "keeps no vectors to re-rank by"),
        (lambda index: index.add(np.full((1, 3), 255, dtype=np.uint8)), "padding bits of each code must be zero"),
    ],
)
def test_what_is_no_code_of_the_index_is_refused(call, message):
    index = Index.from_codes(Codes.from_bits(bits(10)))
    with pytest.raises(DataError, match=message):
        call(index)
    assert len(index) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give a hasher, or n_bits"),
        ({"n_bits": 0}, "n_bits must be an integer of at least 1, got 0"),
        ({"n_bits": 8, "bitorder": "middle"}, "bitorder of OwnCodes must be 'little' or 'big'"),
    ],
)
def test_an_index_without_a_hasher_needs_a_length(options, message, tmp_path):
    with pytest.raises(DataError, match=message):
        Index.create(tmp_path / "index", **options)


def test_a_file_of_such_a_hasher_can_be_loaded(tmp_path):
    hashers.OwnCodes(9, bitorder="big").save(tmp_path / "own.safetensors")
    loaded = hashers.load(tmp_path / "own.safetensors")
    assert (loaded.n_bits, loaded.bitorder, loaded.n_features_in_) == (9, "big", 2)


def test_codes_are_updated_by_codes_and_by_bytes():
    rows = np.random.default_rng(3).integers(0, 2, (30, 24))
    index = Index.from_codes(np.packbits(rows[:20], axis=1), bitorder="big", payload={"n": list(range(20))})
    index.update([3, 4], Codes.from_bits(rows[20:22]))
    index.update([5], np.packbits(rows[22:23], axis=1), payload={"n": [50]})
    index.upsert(Codes.from_bits(rows[23:25]), ids=[6, 40])
    assert index.codes([3, 4, 5, 6, 40]) == Codes.from_bits(rows[20:25])
    assert index.get([3, 4, 5, 6, 40])["n"].to_pylist() == [3, 4, 50, 6, None]
    with pytest.raises(DataError, match="this index has codes of 24 bits, got codes of 16"):
        index.update([3], Codes.from_bits(rows[:1, :16]))
