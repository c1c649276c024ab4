"""Train, encode, index, search, evaluate: each command against the library or against brute force."""

import csv
import io
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import autojacobin
from autojacobin import AutoBin, AutoJacoBin, Codes, Index, Metric
from autojacobin.cli.models import method_names
from autojacobin.datasets import open_vectors, write_vectors
from autojacobin.hashers import find_command
from tests.search.gpu_kernels import use_fake_cupy


def nearest(base, queries, k):
    """Ids of the k nearest by plain float64 arithmetic, equal distances by the lower id."""
    distances = ((queries[:, None].astype(np.float64) - base[None].astype(np.float64)) ** 2).sum(axis=2)
    ids = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.sqrt(np.take_along_axis(distances, ids, axis=1)), ids


def recall(found, truth):
    return np.mean([len(set(row) & set(true)) / len(true) for row, true in zip(found, truth, strict=True)])


def test_train_writes_the_model_that_the_library_fits(done, digits, fitted, folder):
    result = done("train", "base.npy", "new.safetensors", "--method", "itq", "--bits", 16)
    assert result.out.startswith("Wrote new.safetensors: itq, 16 bits, from 600 vectors of 64 numbers in ")
    assert "training itq …" in result.err
    learned = autojacobin.load("new.safetensors")
    assert np.array_equal(learned.weights_, fitted.weights_)
    assert learned.encode(digits.queries) == fitted.encode(digits.queries)


@pytest.mark.parametrize("method", method_names())
def test_every_method_is_trained_by_its_name(done, method, folder):
    given = ["n_epochs=1"] if "auto" in method and not method.endswith("autoencoder") else []
    given += ["alpha=0.1", "init=random", "energy=0.9"] if method == "autojacobin" else []  # nothing to choose
    write_vectors("few.npy", np.random.default_rng(0).normal(size=(150, 8)).astype(np.float32))
    options = [part for setting in given for part in ("--set", setting)]
    done("train", "few.npy", "m.safetensors", "-m", method, "-b", 4, "--seed", 3, "-q", *options)
    learned = autojacobin.load("m.safetensors")
    names = {"autojacobin-published": "autojacobin", "autobin2": "autobin"}
    names |= {"spectral": "spectralhashing", "spherical": "sphericalhashing", "neighbour": "neighbourhashing"}
    assert type(learned).__name__.lower() == names.get(method, method)
    assert learned.n_bits == 4
    assert getattr(learned, "random_state", 3) == 3


def test_names_that_stand_for_settings():
    from autojacobin.cli.models import make_hasher

    second = make_hasher("autobin2", 8, [], 0, "cpu")
    assert (type(second), second.batch_size, second.n_epochs) == (AutoBin, None, 50)
    published = make_hasher("autojacobin-published", 8, ["alpha=0.5"], 0, "cpu")
    assert published.get_params() == AutoJacoBin.as_published(8, alpha=0.5, random_state=0).get_params()


def test_train_from_a_sample_of_several_files(done, digits, folder):
    np.save("part-0.npy", digits.base[:300])
    np.save("part-1.npy", digits.base[300:])
    facts = json.loads(done("train", "part-*.npy", "m.safetensors", "-m", "lsh", "--sample", 100, "--json").out)
    assert (facts["vectors"], facts["features"], facts["method"], facts["bits"]) == (100, 64, "lsh", 64)
    for number, options in enumerate((["--sample", 10**6], ["--all"], [])):  # each of which takes all rows
        done("train", "part-0.npy", "part-1.npy", f"{number}.safetensors", "-m", "lsh", *options)
        assert np.allclose(autojacobin.load(f"{number}.safetensors").mean_, digits.base.mean(axis=0), atol=1e-4)


@pytest.mark.parametrize("name", ["codes.npz", "codes.npy", "codes.parquet", "codes.csv", "codes.jsonl"])
def test_codes_in_every_format_are_those_of_the_library(done, digits, fitted, folder, name):
    result = done("encode", "model.safetensors", "base.npy", name)
    assert result.out.startswith(f"Wrote {name}: 600 codes of 16 bits in ")
    expected = fitted.encode(digits.base)
    if name.endswith("npz"):
        assert Codes.load(name) == expected
        return
    if name.endswith("npy"):
        packed = np.load(name)
    elif name.endswith("parquet"):
        packed = np.asarray(open_vectors(name, part="code"))
    else:
        with open(name, encoding="utf-8") as file:
            rows = list(csv.DictReader(file)) if name.endswith("csv") else [json.loads(line) for line in file]
        assert [int(row["row"]) for row in rows] == list(range(600))
        packed = np.array([list(bytes.fromhex(row["code"])) for row in rows], dtype=np.uint8)
    assert packed.dtype == np.uint8
    assert Codes(packed, 16) == expected


def test_standard_streams_carry_vectors_in_and_json_lines_out(done, digits, fitted, folder):
    buffer = io.BytesIO()
    np.save(buffer, digits.queries)
    result = done("encode", "model.safetensors", "-", "-", stdin=buffer.getvalue())
    codes = [json.loads(line)["code"] for line in result.out.splitlines()]
    assert codes == [code.tobytes().hex() for code in fitted.encode(digits.queries).packed]
    write_vectors("queries.fvecs", digits.queries)
    raw = (folder / "queries.fvecs").read_bytes()
    again = done("encode", "model.safetensors", "-", "-", "--format", "fvecs", stdin=raw)
    assert again.out == result.out


def test_one_matrix_of_several_is_named_after_two_colons(done, digits, fitted, folder):
    write_vectors("set.hdf5", {"train": digits.base, "test": digits.queries})
    done("encode", "model.safetensors", "set.hdf5::test", "codes.npz")
    assert Codes.load("codes.npz") == fitted.encode(digits.queries)


def test_an_index_is_built_changed_and_looked_after(done, digits, fitted, folder):
    np.save("ids.npy", np.arange(1000, 1600))
    built = json.loads(done("index", "build", "model.safetensors", "base.npy", "new", "--ids", "ids.npy", "--json").out)
    assert (built["vectors"], built["bits"], built["vectors_kept"]) == (600, 16, True)
    (folder / "more-ids.txt").write_text("\n".join(map(str, [5, *range(1000, 1099)])))
    assert (
        "Wrote 100 vectors to new, which now holds 601."
        in done("index", "add", "new", "more.npy", "--ids", "more-ids.txt", "--upsert").out
    )
    assert "Removed 2 vectors from new, which now holds 599." in done("index", "remove", "new", 5, 1599).out
    assert "Removed 1 vector from" in done("index", "remove", "new", "--ids", "-", stdin=b"1598\n").out
    assert "2 → 1 segments" in done("index", "compact", "new").out
    assert "new is intact: 598 vectors" in done("index", "verify", "new").out
    assert json.loads(done("info", "new", "--json").out)["vectors"] == 598
    with Index.open("new") as index:
        assert list(index.ids) == list(range(1000, 1598))
        assert np.array_equal(index.vectors([1000, 1099]), np.stack([digits.more[1], digits.base[99]]))


def test_an_index_of_several_files_without_vectors(done, digits, fitted, folder):
    done("index", "build", "model.safetensors", "base.npy", "more.npy", "new", "--no-vectors", "--quiet")
    with Index.open("new") as index:
        assert len(index) == 700
        assert not index.info()["vectors_kept"]
        assert index.codes([0, 699]) == fitted.encode(np.stack([digits.base[0], digits.more[99]]))


def test_search_finds_what_brute_force_finds(done, digits, folder):
    result = done("search", "my-index", "queries.npy", "found.npz", "-k", 7, "--candidates", 600)
    assert "Wrote found.npz: 7 neighbours of each of 40 queries among 600 vectors in " in result.out
    distances, ids = nearest(digits.base, digits.queries, 7)
    with np.load("found.npz") as found:
        assert np.array_equal(found["ids"], ids)
        assert np.allclose(found["distances"], distances)


def test_prepared_queries_are_compared_with_all_vectors(done, digits, folder):
    facts = json.loads(done("search", "my-index", "queries.npy", "f.npy", "-k", 5, "--recall", 0.5, "--json").out)
    assert (facts["recall"], facts["candidates"]) == (1, 600)
    assert np.array_equal(np.load("f.npy"), nearest(digits.base, digits.queries, 5)[1])


def test_a_wanted_recall_chooses_candidates_that_find_it(done, digits, folder):
    told = json.loads(
        done("search", "my-index", "queries.npy", "found.npy", "-k", 5, "--recall", 0.9, "-d", "hamming", "--json").out
    )
    with Index.open("my-index") as index:
        _, ids = index.search(digits.queries, 5, candidates=told["candidates"], distance="hamming")
    assert told["recall"] == 1  # few vectors are compared all
    assert np.array_equal(np.load("found.npy"), ids)
    assert recall(ids, nearest(digits.base, digits.queries, 5)[1]) >= 0.85  # forty queries spread by some percent
    facts = json.loads(
        done("evaluate", "my-index", "queries.npy", "-k", 5, "--recall", 0.9, "-d", "hamming", "--json").out
    )
    assert facts["candidates"] == told["candidates"]


@pytest.mark.parametrize("options", [["--distance", "asymmetric"], ["--no-rerank"], ["-c", "20", "--threads", "1"]])
def test_formats_of_neighbours_agree_with_the_library(done, digits, folder, options):
    wanted = {"distance": "asymmetric"} if "asymmetric" in options else {}
    wanted |= {"rerank": False} if "--no-rerank" in options else {}
    wanted |= {"candidates": 20} if "-c" in options else {}
    with Index.open("my-index") as index:
        distances, ids = index.search(digits.queries, 3, **wanted)
    for name in ("f.npy", "f.npz", "f.parquet", "f.csv", "f.jsonl"):
        done("search", "my-index", "queries.npy", name, "-k", 3, *options, "-q")
    assert np.array_equal(np.load("f.npy"), ids)
    with np.load("f.npz") as found:
        assert np.array_equal(found["distances"], distances)
    table = pyarrow.parquet.read_table("f.parquet")
    assert table["ids"].to_pylist() == ids.tolist()
    assert table["distances"].to_pylist() == distances.tolist()
    lines = [json.loads(line) for line in (folder / "f.jsonl").read_text().splitlines()]
    assert [line["query"] for line in lines] == list(range(40))
    assert [line["ids"] for line in lines] == ids.tolist()
    written = np.array([line["distances"] for line in lines], dtype=distances.dtype)
    assert np.array_equal(written, distances)
    with open("f.csv", encoding="utf-8") as file:
        rows = [
            (int(r["query"]), int(r["rank"]), int(r["id"]), distances.dtype.type(r["distance"]))
            for r in csv.DictReader(file)
        ]
    assert rows == [(q, r + 1, ids[q, r], distances[q, r]) for q in range(40) for r in range(3)]
    piped = done("search", "my-index", "queries.npy", "-", "-k", 3, *options)
    assert piped.out == (folder / "f.jsonl").read_text()


def test_evaluate_a_model_counts_as_one_does_by_hand(done, digits, fitted, folder):
    measures = [f"--measure={name}" for name in ("recall@5", "recall@50", "m-recall@50")]
    model = ["model.safetensors", "queries.npy", "--base", "base.npy"]
    arguments = ["evaluate", *model, "-k", 5, "-d", "hamming", *measures]
    facts = json.loads(done(*arguments, "--json").out)
    bits = fitted.transform(digits.base).astype(int), fitted.transform(digits.queries).astype(int)
    order = np.argsort((bits[1][:, None] != bits[0][None]).sum(axis=2), axis=1, kind="stable")
    _, truth = nearest(digits.base, digits.queries, 5)
    curve = [recall(order[:, :i], truth) for i in range(1, 51)]
    found = {name: value["mean"] for name, value in facts["k"]["5"].items()}
    assert found == pytest.approx({"recall@5": curve[4], "recall@50": curve[49], "m-recall@50": np.mean(curve)})
    assert (facts["method"], facts["bits"], facts["vectors"], facts["queries"]) == ("ITQ", 16, 600, 40)
    shown = done(*arguments).out
    assert f"{curve[4]:.4f}" in shown
    assert f"{np.mean(curve):.4f}" in shown
    np.save("truth.npy", truth)
    assert json.loads(done(*arguments, "--truth", "truth.npy", "--json").out) == facts


def test_evaluate_on_a_gpu_finds_the_same(done, folder, monkeypatch):
    use_fake_cupy(monkeypatch)
    for arguments in (["my-index", "queries.npy"], ["model.safetensors", "queries.npy", "--base", "base.npy"]):
        found, expected = (
            json.loads(done("evaluate", *arguments, "--json", "--device", device).out) for device in ("cuda", "cpu")
        )
        assert found == expected


def test_evaluate_an_index_with_gaps_in_its_ids(done, digits, folder):
    done("index", "remove", "my-index", *range(100))
    facts = json.loads(done("evaluate", "my-index", "queries.npy", "-k", 10, "-c", 30, "--json").out)
    with Index.open("my-index") as index:
        _, ids = index.search(digits.queries, 10, candidates=30)
    truth = nearest(digits.base[100:], digits.queries, 10)[1] + 100
    assert facts["k"]["10"]["recall@10"]["mean"] == pytest.approx(recall(ids, truth))
    exact = json.loads(done("evaluate", "my-index", "queries.npy", "-c", 500, "--measure", "recall@200", "--json").out)
    assert {k: row["recall@200"]["mean"] for k, row in exact["k"].items()} == {"10": 1.0}


def test_train_reports_what_it_chose(done, digits, folder):
    given = {"alpha": "auto", "init": "random", "energy": 0.98, "jacobian_weight": 0.0, "n_epochs": 1}
    settings = ["-m", "autojacobin", *(f"--set={name}={value}" for name, value in given.items())]
    told = json.loads(done("train", "base.npy", "new.safetensors", "-b", 8, *settings, "--json").out)
    expected = AutoJacoBin(8, **given, random_state=0).fit(digits.base).chosen_
    assert told["chosen"] == {name: value for name, value in expected.items() if value == value}
    shown = done("train", "base.npy", "new.safetensors", "-b", 8, *settings, "--overwrite").out
    assert f" (chosen: init random, alpha {expected['alpha']}, " in shown
    assert told["trained_as"] in shown
    assert "chosen" not in json.loads(done("train", "base.npy", "lsh.safetensors", "-m", "lsh", "--json").out)


def test_the_help_of_train_says_that_settings_are_chosen(done):
    text = " ".join(done("train", "--help").out.split())
    assert "compares settings on held-out vectors" in text
    assert "-m itq learns in a second" in text


def test_evaluate_measures_what_search_finds_by_default(done, digits, folder):
    done("search", "my-index", "queries.npy", "found.npy")
    told = json.loads(done("evaluate", "my-index", "queries.npy", "--json").out)
    truth = nearest(digits.base, digits.queries, 10)[1]
    assert told["k"]["10"]["recall@10"]["mean"] == pytest.approx(recall(np.load("found.npy"), truth))
    assert (told["depth"], told["candidates"]) == (10, 600)
    shown = done("evaluate", "my-index", "queries.npy").out
    assert "candidates 600" in shown
    assert shown.count("recall@") == 1  # recall@k, which recall@10 would repeat
    bare = json.loads(done("evaluate", "my-index", "queries.npy", "--no-rerank", "--json").out)
    assert "candidates" not in bare


def test_evaluate_with_the_asymmetric_distance_and_a_text_of_truth(done, digits, folder):
    _, truth = nearest(digits.base, digits.queries, 3)
    write_vectors("truth.csv", truth)
    plain = ["evaluate", "model.safetensors", "queries.npy", "--base", "base.npy", "-k", 3, "--json"]
    hamming = json.loads(done(*plain, "--truth", "truth.csv", "--distance", "hamming").out)
    asymmetric = json.loads(done(*plain, "--truth", "truth.csv", "--distance", "asymmetric").out)
    assert hamming["depth"] == asymmetric["depth"] == 30
    assert asymmetric["k"]["3"]["m-recall@30"]["mean"] > hamming["k"]["3"]["m-recall@30"]["mean"]


def test_an_index_with_lists_is_trained_built_searched_and_evaluated(done, command, folder):
    done("train", "base.npy", "lists.safetensors", "--method", "partitionedautoencoder", "--bits", "24")
    done("index", "build", "lists.safetensors", "base.npy", "lists")
    done("search", "lists", "queries.npy", "found.npz", "-k", "3", "--probes", "2")
    queries = np.load("queries.npy")
    with Index.open("lists") as index, np.load("found.npz") as found:
        assert np.array_equal(found["ids"], index.search(queries, 3, probes=2)[1])
    shown = json.loads(done("evaluate", "lists", "queries.npy", "-k", "3", "--recall", "0.9", "--json").out)
    assert shown["candidates"] >= 3
    assert shown["k"]["3"]["recall@3"]["mean"] > 0.8
    done("index", "build", "model.safetensors", "base.npy", "grouped", "--partitions", "16")
    made = json.loads(done("info", "grouped", "--json").out)
    plain = json.loads(done("info", "model.safetensors", "--json").out)
    assert (made["lists"], made["hasher"], made["bits"]) == (16, plain["method"], plain["bits"])
    done("search", "grouped", "queries.npy", "all.npz", "-k", "3", "--recall", "1", "--distance", "hamming")
    done("search", "grouped", "queries.npy", "some.npz", "-k", "3", "--probes", "16", "--candidates", "1000")
    with np.load("all.npz") as everything, np.load("some.npz") as found:
        assert np.array_equal(everything["ids"], found["ids"])
    result = command("search", "lists", "queries.npy", "other.npz", "--probes", "2", "--recall", "0.9")
    assert result.code == 1
    assert "recall chooses how many lists to scan" in result.err


@pytest.mark.parametrize(
    ("spelling", "command"),
    [
        ("BinaryAutoencoder", "binaryautoencoder"),
        ("binary_autoencoder", "binaryautoencoder"),
        ("Binary-Auto-Encoder", "binaryautoencoder"),
        ("ITQ", "itq"),
        ("Spectral_Hashing", "spectral"),
        ("AutoJacoBin-Published", "autojacobin-published"),
        ("AutoJacoBin", "autojacobin"),
        ("Auto-JacoBin (chosen)", "autojacobin"),
    ],
)
def test_capitals_hyphens_and_underscores_do_not_matter(spelling, command):
    assert find_command(spelling).command == command


def test_a_method_is_trained_by_another_spelling(done, folder):
    np.save("few.npy", np.load("base.npy")[:100])
    facts = json.loads(done("train", "few.npy", "o.safetensors", "-m", "O_K-Means", "-b", 4, "--json").out)
    assert facts["method"] == "okmeans"


def test_sign_takes_one_bit_for_each_number(done, folder):
    facts = json.loads(done("train", "base.npy", "sign.safetensors", "--method", "Sign", "--json").out)
    assert (facts["method"], facts["bits"]) == ("sign", 64)
    done("encode", "sign.safetensors", "base.npy", "codes.npz")
    assert Codes.load("codes.npz") == Codes.from_bits(np.load("base.npy") > 0)
    few = ["--set", "centred=true", "--set", "rotate=true", "--bits", "7"]
    done("train", "base.npy", "few.safetensors", "--method", "sign", *few)
    assert autojacobin.load("few.safetensors").n_bits == 7


def test_packed_codes_are_written_in_either_bit_order(done, fitted, digits, folder):
    bits = fitted.transform(digits.base)
    for order in ("little", "big"):
        done("encode", "model.safetensors", "base.npy", f"{order}.npy", "--bitorder", order)
        assert np.array_equal(np.load(f"{order}.npy"), np.packbits(bits, axis=1, bitorder=order))
    done("encode", "model.safetensors", "base.npy", "big.csv", "--bitorder", "big")
    with open("big.csv", newline="") as stream:
        first = next(csv.DictReader(stream))["code"]
    assert bytes.fromhex(first) == np.packbits(bits[0]).tobytes()


def test_an_npz_file_has_one_bit_order(command, folder):
    result = command("encode", "model.safetensors", "base.npy", "codes.npz", "--bitorder", "big")
    assert result.code == 2
    assert "an .npz file has the bit order of Codes.load" in " ".join(result.err.replace("│", "").split())


@pytest.mark.parametrize("metric", ["cosine", "inner_product"])
def test_a_model_and_an_index_by_another_metric(done, digits, folder, metric):
    scaled = digits.base * np.linspace(0.5, 2, len(digits.base), dtype=np.float32)[:, np.newaxis]
    np.save("scaled.npy", scaled)
    done("train", "scaled.npy", "other.safetensors", "--method", "itq", "--bits", 16, "--metric", metric)
    made = done("index", "build", "other.safetensors", "scaled.npy", "other", "--json")  # as the model says
    facts = json.loads(made.out)
    assert (facts["metric"], facts["features"]) == (metric, 64)
    done("search", "other", "queries.npy", "found.npz", "-k", 5, "--recall", 1)
    products = digits.queries.astype(np.float64) @ scaled.astype(np.float64).T
    if metric == "cosine":
        products /= np.outer(np.linalg.norm(digits.queries, axis=1), np.linalg.norm(scaled, axis=1))
    with np.load("found.npz") as found:
        np.testing.assert_allclose(found["distances"], -np.sort(-products, axis=1)[:, :5], rtol=1e-4)
    measured = json.loads(done("evaluate", "other", "queries.npy", "-k", 5, "--recall", 1, "--json").out)
    assert measured["k"]["5"]["recall@5"]["mean"] == 1
    # By codes alone: as many of the best products as there are among the nearest codes, counted by hand.
    assert json.loads(done("info", "other.safetensors", "--json").out)["metric"] == metric
    how = ("--base", "scaled.npy", "-k", 5, "--measure", "recall@50", "--distance", "hamming", "--json")
    measured = json.loads(done("evaluate", "other.safetensors", "queries.npy", *how).out)
    model, compared = autojacobin.load("other.safetensors"), Metric.of(metric, scaled)
    bits, asked = (model.transform(side) for side in (compared.prepare(scaled), compared.queries(digits.queries)))
    nearest = np.argsort((asked[:, np.newaxis] != bits).sum(axis=2), axis=1, kind="stable")[:, :50]
    best = np.argsort(-products, axis=1)[:, :5]
    found = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(nearest, best, strict=True)])
    assert measured["k"]["5"]["recall@50"]["mean"] == pytest.approx(found)
    assert measured["metric"] == metric
    done("encode", "other.safetensors", "scaled.npy", "codes.npz")
    assert Codes.load("codes.npz") == model.encode(Metric.for_hasher(model).prepare(scaled))


def test_another_metric_than_that_of_the_model_is_refused(done, command, digits, folder):
    done("train", "base.npy", "cosine.safetensors", "--method", "itq", "--bits", 16, "--metric", "cosine")
    for name, own, other in (("cosine", "cosine", "euclidean"), ("model", "euclidean", "inner_product")):
        words = f"was trained for the metric {own}, got {other}; leave the metric out"
        refused = command("index", "build", f"{name}.safetensors", "base.npy", "new", "--metric", other)
        assert (refused.code, words in refused.err) == (1, True), refused.err
    assert not (folder / "new").exists()
    done("index", "build", "cosine.safetensors", "base.npy", "new", "--metric", "cosine")
    np.save("narrow.npy", digits.base[:, :10])
    refused = command("evaluate", "model.safetensors", "narrow.npy", "--base", "narrow.npy")
    assert "X has 10 features, but ITQ is expecting 64 features" in refused.err


def test_an_error_in_one_of_several_files_names_it(done, command, digits, folder):
    wrong = digits.base[:30].copy()
    wrong[4, 2] = np.nan
    np.save("wrong.npy", wrong)
    result = command("index", "build", "model.safetensors", "base.npy", "wrong.npy", "base.npy", "new")
    n = len(digits.base)
    assert result.code == 1
    assert f"NaN in row {n + 4}, column 2" in result.err
    assert f"(row {n} is the first of wrong.npy)" in result.err
    done("train", "base.npy", "inner.safetensors", "--method", "itq", "--bits", 16, "--metric", "inner_product")
    result = command("index", "build", "inner.safetensors", "base.npy", "wrong.npy", "new", "--metric", "inner_product")
    assert f"(row {n} is the first of wrong.npy)" in result.err
    assert not (folder / "new").exists()
    np.save("narrow.npy", digits.base[:5, :10])
    assert "is the first of narrow.npy" in command("index", "add", "my-index", "base.npy", "narrow.npy").err
    assert "is the first of" not in command("index", "build", "model.safetensors", "wrong.npy", "new").err


def test_train_learns_from_10_000_rows_unless_it_is_told_to_take_all(done, folder):
    np.save("many.npy", np.random.default_rng(0).normal(size=(10_020, 6)).astype(np.float32))
    how = ("--method", "itq", "--bits", "4", "--set", "n_iter=2")
    said = done("train", "many.npy", "some.safetensors", *how).out
    assert "from 10,000 of 10,020 vectors" in said
    assert "Give --all to learn from all vectors." in said
    facts = json.loads(done("train", "many.npy", "all.safetensors", *how, "--all", "--json").out)
    assert (facts["vectors"], facts["learned_from"]) == (10_020, 10_020)
    assert (folder / "some.safetensors").read_bytes() != (folder / "all.safetensors").read_bytes()


def test_all_rows_and_a_sample_exclude_each_other(command, folder):
    refused = command("train", "base.npy", "new.safetensors", "--all", "--sample", "10")
    assert refused.code == 2
    assert "leave out either" in refused.err


def test_an_index_is_evaluated_without_m_recall(done, folder):
    measured = json.loads(done("evaluate", "my-index", "queries.npy", "--json").out)
    assert list(measured["k"]["10"]) == ["recall@10"]
    assert "m-recall" not in done("evaluate", "my-index", "queries.npy").out
    assert "m-recall@" in done("evaluate", "model.safetensors", "queries.npy", "--base", "base.npy").out


def test_search_has_the_defaults_of_the_library(done, folder, digits):
    facts = json.loads(done("search", "my-index", "queries.npy", "found.npz", "--json").out)
    assert (facts["distance"], facts["recall"], facts["candidates"]) == ("asymmetric", 1.0, 600)
    with Index.open("my-index") as index, np.load("found.npz") as found:
        assert np.array_equal(found["ids"], index.search(digits.queries, 10)[1])


def test_an_index_without_vectors_is_searched_by_its_codes(done, folder):
    done("index", "build", "model.safetensors", "base.npy", "codes-only", "--no-vectors")
    facts = json.loads(done("search", "codes-only", "queries.npy", "found.npz", "--json").out)
    assert (facts["distance"], facts["rerank"]) == ("asymmetric", False)


def test_info_names_what_was_trained(done, folder):
    assert json.loads(done("info", "model.safetensors", "--json").out)["trained_as"] == "ITQ"
    assert json.loads(done("info", "my-index", "--json").out)["trained_as"] == "ITQ"


def test_an_index_is_built_without_a_model(done, command, digits):
    np.save("narrow.npy", digits.base[:9, :9])
    np.save("wrong.npy", np.where(np.arange(64) == 3, np.nan, digits.more))
    built = json.loads(done("index", "build", "base.npy", "more.npy", "new", "--metric", "cosine", "--json").out)
    assert (built["vectors"], built["bits"], built["metric"]) == (700, 128, "cosine")
    streamed = done("index", "build", "-", "other", stdin=Path("base.npy").read_bytes())
    assert "128 bits each by BinaryAutoencoder" in streamed.out
    with Index.open("other") as one, closing(Index.from_vectors(digits.base)) as same:
        assert one.codes(range(600)) == same.codes(range(600))
        assert one._state.partitions == "auto"
    for names, message in {
        ("base.npy", "narrow.npy"): "the vectors of an index have one length, got [64, 9] in 2 files",
        ("base.npy", "wrong.npy"): "row 600 is the first of wrong.npy",
        ("model.safetensors",): "there are none; give files",
    }.items():
        result = command("index", "build", *names, "wrong")
        assert result.code
        assert message in result.err
        assert not Path("wrong").exists()


def test_search_for_vectors_of_the_index(done, command, digits):
    done("search", "my-index", "found.npz", "--like", "3", "--like", "14", "-k", "4")
    distances, ids = nearest(digits.base, digits.base[[3, 14]], 5)
    with np.load("found.npz") as found:
        assert found["ids"].tolist() == ids[:, 1:].tolist()
        np.testing.assert_allclose(found["distances"], distances[:, 1:])
    done("search", "my-index", "queries.npy", "all.csv", "-k", "603")  # those that there are
    assert len(Path("all.csv").read_text().splitlines()) == 1 + 40 * 600
    for words in (["found.csv"], ["queries.npy", "found.csv", "--like", "3"], ["queries.npy", "base.npy", "found.csv"]):
        result = command("search", "my-index", *words)
        assert result.code == 2
        assert "give one file of queries" in result.err
