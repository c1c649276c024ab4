"""``autojacobin export``: what is in an index or a file of codes is then in the engine."""

import json
import uuid
from pathlib import Path

import faiss
import numpy as np
import pytest

from autojacobin import ITQ, BinaryAutoencoder, Index
from autojacobin.engines import FaissEngine
from autojacobin.engines.lancedb import LanceDB
from autojacobin.engines.milvus import Milvus
from autojacobin.engines.sqlite import SQLite
from autojacobin.search import hamming_topk


def test_an_index_becomes_a_file_of_faiss(done, folder):
    printed = done("export", "faiss", "my-index", "codes.faiss")
    assert printed.out == "Wrote 600 codes of 16 bits to codes.faiss.\n"
    with Index.open("my-index") as index, FaissEngine("codes.faiss", 16) as engine:
        assert engine.count() == 600
        assert engine.read(index.ids) == index.codes(index.ids)


def test_codes_that_hamming_distances_rank_badly_are_exported_with_a_warning(done, folder, digits):
    with Index.create("decoded", BinaryAutoencoder(16, random_state=0).fit(digits.base)) as index:
        index.add(digits.base)
    said = done("export", "faiss", "decoded", "codes.faiss").out
    assert "They rank best by the distance decoded, but engines compare codes by their Hamming distance" in said


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_other_kinds_of_faiss(done, folder, kind):
    assert json.loads(done("export", "faiss", "my-index", "codes.faiss", "--kind", kind, "--json").out) == {
        "destination": "codes.faiss", "codes": 600, "bits": 16, "vectors": False, "best_distance": "asymmetric",
    }  # fmt: skip
    assert faiss.read_index_binary("codes.faiss").ntotal == 600


def test_an_index_with_names_is_exported(done, command, digits, fitted):
    ids = [uuid.UUID(int=number) for number in range(5)]
    for name, given in (("named", list("abcde")), ("uuids", ids)):
        with Index.create(name, fitted) as index:
            index.add(digits.base[:5], ids=given)
        done("export", "sqlite", name, "my.db", "--table", name)
        with SQLite("my.db", name, 16, 64, id_kind="string") as engine:
            found = engine.search_vectors(fitted.encode(digits.base[3:4]), digits.base[3:4], 1)[1]
            assert found.tolist() == [[str(given[3])]]
            assert engine.read(list(map(str, given))) == fitted.encode(digits.base[:5])
    done("export", "lancedb", "named", "my-lance", "--table", "items")
    with LanceDB("my-lance", "items", 16, 64, id_kind="string") as engine:
        assert engine.read(["e"]) == fitted.encode(digits.base[4:5])
    done("export", "faiss", "named", "codes.faiss")
    _, places = faiss.read_index_binary("codes.faiss").search(fitted.encode(digits.base[:1]).packed, 5)
    assert sorted(np.load("codes.faiss.names.npy")[places[0]].tolist()) == list("abcde")
    Path("codes.faiss").unlink()
    assert "codes.faiss.names.npy exists already" in " ".join(
        command("export", "faiss", "named", "codes.faiss").err.replace("│", " ").split()
    )


def test_a_hashing_index_of_faiss(done, folder, digits, fitted):
    assert done("export", "faiss", "my-index", "hashing.faiss", "--kind", "hasher", "--quiet").out == ""
    distances, _ = faiss.read_index("hashing.faiss").search(digits.queries, 7)
    exact, _ = hamming_topk(fitted.encode(digits.queries), fitted.encode(digits.base), 7)
    np.testing.assert_array_equal(distances, exact)


def test_a_file_of_codes_gets_row_numbers(done, folder, digits, fitted):
    codes = fitted.encode(digits.base)
    codes.save("codes.npz")
    done("export", "faiss", "codes.npz", "codes.faiss")
    with FaissEngine("codes.faiss", 16) as engine:
        assert engine.read(range(600)) == codes


@pytest.mark.parametrize(("option", "width"), [("--vectors", 64), ("--no-vectors", None)])
def test_an_index_becomes_a_table_of_lancedb(done, folder, digits, fitted, option, width):
    printed = done("export", "lancedb", "my-index", "my-lance", "--table", "items", option)
    kept = " with their vectors" if width else ""
    assert printed.out == f"Wrote 600 codes of 16 bits{kept} to the table items.\n"
    assert "writing codes" in printed.err
    queries = fitted.encode(digits.queries[:5])
    with LanceDB("my-lance", "items", 16, width) as engine, Index.open("my-index") as index:
        assert engine.count() == 600
        if width:
            found = engine.search_vectors(queries, digits.queries[:5], 4)
            expected = index.search(digits.queries[:5], 4, candidates=100, distance="hamming")
        else:
            found = engine.search(queries, 4)
            expected = index.search(digits.queries[:5], 4, distance="hamming", rerank=False)
    np.testing.assert_array_equal(found[1], expected[1])


def test_an_index_by_inner_product_is_exported_as_it_keeps_its_vectors(done, folder, digits):
    queries = digits.queries[:5]
    with Index.from_vectors(digits.base, ITQ(16, random_state=0), path="products", metric="inner_product") as index:
        expected, hasher = index.search(queries, 4, distance="hamming", candidates=600)[1], index.hasher
    done("export", "lancedb", "products", "my-lance", "--table", "items", "--vectors")
    asked = np.pad(queries, ((0, 0), (0, 1)))
    with LanceDB("my-lance", "items", 16, 65) as engine:
        found = engine.search_vectors(hasher.encode(asked), asked, 4, candidates=600)
    np.testing.assert_array_equal(found[1], expected)


def test_an_index_becomes_a_collection_of_milvus(done, folder, digits, fitted):
    printed = done("export", "milvus", "my-index", "codes.db", "--collection", "items", "--no-vectors")
    assert printed.out == "Wrote 600 codes of 16 bits to the collection items.\n"
    queries = fitted.encode(digits.queries[:5])
    with Milvus("codes.db", "items", 16) as engine:
        found = engine.search(queries, 4)
    np.testing.assert_array_equal(found[1], hamming_topk(queries, fitted.encode(digits.base), 4)[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["faiss", "nothing", "codes.faiss"], "cannot read nothing: it does not exist"),
        (["faiss", "base.npy", "codes.faiss"], "base.npy is damaged or does not hold codes"),
        (["faiss", "codes.npz", "codes.faiss", "--kind", "hasher"], "holds codes and no hasher, expected an index"),
        (["pgvector", "my-index", "host=/nowhere password=sesame", "--table", "t"], "check that the server runs"),
        (["pgvector", "my-index", "postgresql://me:ses@same@host", "--table", "t"], "dsn cannot be read"),
    ],
)
def test_what_cannot_be_exported_is_reported_and_leaves_nothing(command, folder, fitted, digits, arguments, message):
    fitted.encode(digits.base).save("codes.npz")
    before = sorted(folder.iterdir())
    result = command("export", *arguments)
    assert result.code == 1
    assert message in result.err
    assert "same" not in result.err
    assert "Traceback" not in result.err
    assert sorted(folder.iterdir()) == before


def test_the_name_of_a_server_may_come_from_the_environment(command, folder, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_DSN", "host=/nowhere user=me password=sesame")
    result = command("export", "pgvector", "my-index", "--table", "items")
    assert "cannot open the table items of PostgreSQL at host=/nowhere user=me ***:" in result.err
    assert "sesame" not in command("export", "pgvector", "--help").out + result.err


def test_a_failed_export_leaves_the_file_that_was_there(command, done, folder):
    done("export", "faiss", "my-index", "codes.faiss")
    before = (folder / "codes.faiss").read_bytes()
    done("index", "create", "empty", "--bits", "16")
    result = command("export", "faiss", "empty", "codes.faiss", "--kind", "ivf", "--overwrite")
    assert "codes to be learned from, got 0" in result.err
    assert (folder / "codes.faiss").read_bytes() == before


def test_an_index_becomes_a_table_of_sqlite(done, folder, digits, fitted):
    printed = done("export", "sqlite", "my-index", "my.db", "--table", "items")
    assert printed.out == "Wrote 600 codes of 16 bits with their vectors to the table items.\n"
    queries = fitted.encode(digits.queries[:5])
    with SQLite("my.db", "items", 16, 64) as engine, Index.open("my-index") as index:
        found = engine.search_vectors(queries, digits.queries[:5], 4)
        expected = index.search(digits.queries[:5], 4)
    np.testing.assert_array_equal(found[1], expected[1])


def test_exports_in_the_other_bit_order(command, done, folder, digits, fitted):
    codes = fitted.encode(digits.base)
    done("export", "faiss", "my-index", "codes.faiss", "--bitorder", "big")
    stored = faiss.read_index_binary("codes.faiss")
    distances, _ = stored.search(np.packbits(codes.to_bits(), axis=1), 1)
    assert not distances.any()
    done("export", "lancedb", "my-index", "my-lance", "--table", "items", "--no-vectors", "--bitorder", "big")
    done("export", "milvus", "my-index", "codes.db", "--collection", "items", "--no-vectors", "--bitorder", "big")
    done("export", "sqlite", "my-index", "my.db", "--table", "items", "--no-vectors", "--bitorder", "big")
    for open_engine in (
        lambda: LanceDB("my-lance", "items", 16, bitorder="big"),
        lambda: Milvus("codes.db", "items", 16, bitorder="big"),
        lambda: SQLite("my.db", "items", 16, bitorder="big"),
    ):
        with open_engine() as engine:
            assert engine.read(range(600)) == codes
    refused = command("export", "faiss", "my-index", "h.faiss", "--kind", "hasher", "--bitorder", "big")
    assert refused.code == 2
    assert "has the order little" in " ".join(refused.err.replace("│", "").split())
