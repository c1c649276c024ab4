"""``autojacobin info`` and ``autojacobin bench``, completion, and options that all commands share."""

import importlib.metadata
import json

import numpy as np
import pytest

import autojacobin
from autojacobin.datasets import write_vectors
from autojacobin.search.distances import DISTANCES


def test_info_describes_each_kind_of_file(done, digits, fitted, folder):
    fitted.encode(digits.base).save("codes.npz")
    (folder / "model.safetensors").rename(folder / "model")  # known by its content
    write_vectors("set.hdf5", {"train": digits.base, "test": digits.queries})
    np.savez("arrays.npz", packed=digits.base)
    told = {
        name: json.loads(done("info", name, "--json").out)
        for name in ("model", "codes.npz", "my-index", "queries.npy", "set.hdf5::test", "arrays.npz")
    }
    assert {name: facts["kind"] for name, facts in told.items()} == {
        "model": "model",
        "codes.npz": "codes",
        "my-index": "index",
        "queries.npy": "vectors",
        "set.hdf5::test": "vectors",
        "arrays.npz": "vectors",
    }
    assert told["model"]["parameters"] == {"n_iter": 50}
    assert (told["model"]["method"], told["model"]["bits"], told["model"]["features"]) == ("ITQ", 16, 64)
    assert (told["codes.npz"]["codes"], told["codes.npz"]["bits"]) == (600, 16)
    assert told["my-index"]["vectors"] == 600
    assert (told["set.hdf5::test"]["vectors"], told["set.hdf5::test"]["type"]) == (40, "float32")
    shown = done("info", "queries.npy").out
    assert "features      64\n" in shown
    assert "first 40      from 0 to 16\n" in shown


def test_info_counts_what_is_not_finite(done, folder):
    np.save("odd.npy", np.array([[1.0, np.nan], [np.inf, 4.0]]))
    facts = json.loads(done("info", "odd.npy", "--json").out)
    assert facts["not_finite"] == "2 of the first 4 numbers"
    assert facts["first_2"] == "from 1 to 4"


def test_info_without_a_path_lists_versions_and_what_is_not_installed(done, monkeypatch):
    facts = json.loads(done("info", "--json", stdin=b"").out)
    assert facts["autojacobin"] == autojacobin.__version__
    assert facts["numpy"] == np.__version__
    assert facts["cores"] >= 1
    assert facts["opencv-python-headless"] == importlib.metadata.version("opencv-python-headless")
    assert not any(name in facts for name in ("pytest", "tomli", "pre-commit"))
    needed = ["numpy>=2.0", "no-such-package>=1; extra == 'figures'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: needed)
    assert "no-such-package  not installed: pip install 'autojacobin[figures]'" in done("info").out


def test_bench_measures_all_on_the_same_codes(done):
    arguments = ["bench", "--points", 2000, "--queries", 10, "--threads", 1]
    facts = json.loads(done(*arguments, "--json").out)
    assert facts["cores"] == 1
    seconds = facts["seconds"]
    distances = [name for name in seconds if name in DISTANCES]
    assert {"hamming", "asymmetric"} <= set(distances)
    assert list(seconds) == ["encode", *distances, "faiss flat", "faiss counting"]
    peers = min(seconds["faiss flat"], seconds["faiss counting"])
    assert facts["times_as_fast_as_faiss"] == pytest.approx(peers / seconds["hamming"])
    shown = done(*arguments, "--bits", 12)
    assert "FAISS was not measured: it takes codes of whole bytes" in shown.out
    assert "measuring …" in shown.err


def test_quiet_is_quiet_and_json_is_json_alone(done, folder):
    assert done("encode", "model.safetensors", "base.npy", "c.npz", "--quiet").out == ""
    result = done("encode", "model.safetensors", "base.npy", "d.npz", "--json")
    assert result.err == ""
    assert json.loads(result.out)["vectors"] == 600
    listed = json.loads(done("data", "list", "--json").out)
    assert {"name", "licence", "here"} <= set(listed[0])
    told = json.loads(done("data", "info", "base.npy", "--json").out)
    assert told["base"]["shape"] == [540, 64]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("autojacobin tr", ["train"]),
        ("autojacobin search --dis", ["--distance"]),
        ("autojacobin index ver", ["verify"]),
    ],
)
def test_the_shell_completes_commands_and_their_options(command, monkeypatch, words, completed):
    monkeypatch.setenv("_AUTOJACOBIN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert command().out.split() == completed
