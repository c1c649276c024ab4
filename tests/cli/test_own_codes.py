"""An index of codes that another program made, at the command line."""

import json

import numpy as np
import pytest

from autojacobin import Codes, Index

N_BITS = 20


def bits(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, N_BITS))


def nearest(base, queries, k):
    distances = (queries[:, None, :] != base).sum(axis=2)
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("bitorder", ["little", "big"])
def test_packed_codes_are_indexed_and_searched(done, folder, bitorder):
    for name, part in (("one", bits(100)), ("two", bits(50, 1)), ("more", bits(30, 2)), ("queries", bits(9, 3))):
        np.save(f"{name}.npy", np.packbits(part, axis=1, bitorder=bitorder))
    made = done(
        "index", "create", "own", "--codes", "one.npy", "--codes", "two.npy", "--bits", N_BITS,
        "--bitorder", bitorder, "--json",
    )  # fmt: skip
    assert (json.loads(made.out)["vectors"], json.loads(made.out)["bits"]) == (150, N_BITS)
    done("index", "add", "own", "more.npy")
    facts = json.loads(done("search", "own", "queries.npy", "found.npz", "-k", 5, "--json").out)
    assert (facts["distance"], facts["rerank"]) == ("hamming", False)
    base = np.concatenate([bits(100), bits(50, 1), bits(30, 2)])
    with np.load("found.npz") as found:
        assert np.array_equal(found["ids"], nearest(base, bits(9, 3), 5))


def test_a_file_of_codes_has_its_own_length_and_bit_order(done, command, folder):
    Codes.from_bits(bits(100)).save("codes.npz")
    Codes.from_bits(bits(9, 3)).save("queries.npz")
    Codes.from_bits(bits(9, 3)[:, :7]).save("short.npz")
    done("index", "create", "own", "--codes", "codes.npz", "--bitorder", "big")
    np.save("queries.npy", np.packbits(bits(9, 3), axis=1))
    for name in ("queries.npz", "queries.npy"):
        done("search", "own", name, "found.npy", "-k", 4, "--overwrite")
        assert np.array_equal(np.load("found.npy"), nearest(bits(100), bits(9, 3), 4))
    refused = command("search", "own", "short.npz", "again.npy")
    assert refused.code == 1
    assert "the codes of the index have 20 bits, got codes of 7 bits in short.npz" in refused.err
    with Index.open("own") as index:
        assert index.codes(np.arange(100)) == Codes.from_bits(bits(100))


def test_the_standard_input_may_be_a_file_of_codes(done, folder):
    Codes.from_bits(bits(100)).save("codes.npz")
    done("index", "create", "own", "--bits", N_BITS, "--bitorder", "big")
    done("index", "add", "own", "-", stdin=(folder / "codes.npz").read_bytes())
    with Index.open("own") as index:
        assert index.codes(np.arange(100)) == Codes.from_bits(bits(100))


def test_real_values_are_compared_asymmetrically(done, folder):
    Codes.from_bits(bits(100)).save("codes.npz")
    values = np.random.default_rng(5).normal(size=(6, N_BITS)).astype(np.float32)
    np.save("values.npy", values)
    done("index", "create", "own", "--codes", "codes.npz")
    done("search", "own", "values.npy", "found.npz", "-k", 3, "--distance", "asymmetric")
    with Index.open("own") as index, np.load("found.npz") as found:
        assert np.array_equal(found["ids"], index.search(values, 3, distance="asymmetric")[1])


def test_what_encode_writes_becomes_an_index_of_the_same_codes(done, folder, fitted, digits):
    done("encode", "model.safetensors", "base.npy", "codes.parquet", "--bitorder", "big")
    done("index", "create", "own", "--codes", "codes.parquet", "--bitorder", "big")
    with Index.open("own") as index:
        assert index.codes(np.arange(len(digits.base))) == fitted.encode(digits.base)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "an empty index needs the length of its codes; give --bits"),
        (("--bits", 8, "--ids", "ids.txt"), "it belongs to codes; give --codes too"),
        (("--codes", "base.npy"), "packed codes must be uint8, got float32"),
        (("--codes", "codes.npy", "--bits", 99), "codes of 99 bits are rows of 13 bytes"),
        (("--codes", "codes.npy", "--id-kind", "uuid"), "it is the kind of the ids in --ids; give these too"),
    ],
)
def test_what_is_no_index_of_codes_is_refused_and_nothing_is_made(command, folder, arguments, message):
    np.save("codes.npy", np.packbits(bits(10), axis=1))
    result = command("index", "create", "own", *arguments)
    assert result.code in (1, 2)
    assert message in " ".join(result.err.replace("│", " ").split())
    assert not (folder / "own").exists()


def test_candidates_are_refused_where_there_are_no_vectors(done, command, folder):
    np.save("codes.npy", np.packbits(bits(10), axis=1))
    done("index", "create", "own", "--codes", "codes.npy")
    result = command("search", "own", "codes.npy", "found.npy", "-k", 1, "--candidates", 5)
    assert result.code == 1
    assert "this index keeps no vectors to re-rank by" in result.err
