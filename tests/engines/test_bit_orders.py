"""Bytes of either bit order in the engines that store bytes: what others read and write there."""

import faiss
import numpy as np
import pyarrow as pa
import pytest

from autojacobin import Codes, DataError
from autojacobin.engines import FaissEngine, LanceDB, Milvus, SQLite, to_faiss
from tests.engines.conformance import assert_same, clustered, nearest, scattered_ids

ENGINES = {
    "FAISS": lambda folder, n_bits, order: FaissEngine(folder / "codes.faiss", n_bits, order),
    "LanceDB": lambda folder, n_bits, order: LanceDB(folder / "lance", "codes", n_bits, bitorder=order),
    "Milvus": lambda folder, n_bits, order: Milvus(folder / "milvus.db", "codes", n_bits, bitorder=order),
    "SQLite": lambda folder, n_bits, order: SQLite(folder / "my.db", "codes", n_bits, bitorder=order),
}


@pytest.mark.parametrize("n_bits", [20, 64])
@pytest.mark.parametrize("name", ENGINES)
def test_both_orders_give_the_same_answers(name, n_bits, tmp_path):
    codes, ids = clustered(40, n_bits, 0), scattered_ids(40, 1)
    for order in ("little", "big"):
        (tmp_path / order).mkdir()
        with ENGINES[name](tmp_path / order, n_bits, order) as engine:
            assert engine.bitorder == order
            engine.write(codes, ids)
        with ENGINES[name](tmp_path / order, n_bits, order) as engine:
            assert engine.read(ids) == codes
            assert_same(engine.search(codes[:5], 9), nearest(codes[:5], codes, ids, 9))


@pytest.mark.parametrize("name", ["LanceDB", "Milvus", "SQLite"])
def test_an_engine_that_knows_its_order_refuses_the_other(name, tmp_path):
    with ENGINES[name](tmp_path, 64, "big") as engine:
        engine.write(clustered(3, 64, 0), range(3))
    with pytest.raises(DataError, match="order"):
        ENGINES[name](tmp_path, 64, "little")
    with ENGINES[name](tmp_path, 64, "big") as engine:
        assert engine.read(range(3)) == clustered(3, 64, 0)


@pytest.mark.parametrize("name", ENGINES)
def test_an_order_that_there_is_not(name, tmp_path):
    with pytest.raises(DataError, match="bitorder must be 'little' or 'big', got 'middle'"):
        ENGINES[name](tmp_path, 64, "middle")
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_another_program_wrote_to_lancedb(tmp_path):
    import lancedb  # which takes seconds, in the process only that runs this test

    bits = np.random.default_rng(0).integers(0, 2, (30, 64), dtype=np.uint8)
    packed = np.packbits(bits, axis=1)  # as sentence-transformers packs them
    column = pa.FixedSizeListArray.from_arrays(pa.array(packed.ravel()), 8)
    lancedb.connect(tmp_path).create_table("codes", pa.table({"id": np.arange(30), "code": column}))
    with LanceDB(tmp_path, "codes", 64, bitorder="big") as engine:
        assert engine.read(range(30)) == Codes.from_bits(bits)
        assert engine.search(Codes.from_bits(bits[7:8]), 1)[1].tolist() == [[7]]


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_an_export_to_faiss_in_the_order_of_its_reader(kind, tmp_path):
    codes = clustered(50, 64, 0)
    index = to_faiss(codes, kind, bitorder="big")
    distances, _ = index.search(np.packbits(codes.to_bits(), axis=1), 1)
    assert not distances.any()


@pytest.mark.parametrize("order", ["little", "big"])
def test_a_file_that_faiss_wrote(order, tmp_path):
    bits = np.random.default_rng(0).integers(0, 2, (30, 20), dtype=np.uint8)
    index = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(24))
    index.add_with_ids(np.packbits(bits, axis=1, bitorder=order), np.arange(30))
    faiss.write_index_binary(index, str(tmp_path / "codes.faiss"))
    with FaissEngine(tmp_path / "codes.faiss", 20, order) as engine:
        assert engine.read(range(30)) == Codes.from_bits(bits)
    other = {"little": "big", "big": "little"}[order]
    with pytest.raises(DataError, match="holds codes of more than 20 bits"):
        FaissEngine(tmp_path / "codes.faiss", 20, other)
