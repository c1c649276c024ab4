"""Every program of ``examples/`` runs, and what it gives is right."""

import io
import json
import os
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import cv2
import numpy as np
import pytest
from safetensors.numpy import save_file

import autojacobin
from autojacobin import Codes

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch):
    def run(name, *arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        path = EXAMPLES / name
        if path.suffix == ".ipynb":
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            path = tmp_path / f"{path.stem}.py"
            path.write_text("\n".join("".join(one["source"]) for one in cells if one["cell_type"] == "code"), "utf-8")
        with redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(str(path), run_name="__main__")
        return printed.getvalue()

    return run


def test_the_list_of_examples_is_whole():
    listed = re.findall(
        r"^\| `(\w+\.(?:py|ipynb))`", (EXAMPLES / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))
    tested = Path(__file__).read_text(encoding="utf-8")
    assert all(f'run("{name}"' in tested for name in listed)


def test_hash_vectors(run, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(400, 24)).astype(np.float32)
    np.save(tmp_path / "mine.npy", vectors)
    printed = run("hash_vectors.py", "mine.npy", "--bits", 16)
    codes = Codes.load(tmp_path / "mine.codes.npz")
    assert codes == autojacobin.load(tmp_path / "mine.safetensors").encode(vectors)
    assert "Codes(400 codes of 16 bits): 800 bytes instead of 38,400" in printed
    differ = (codes.to_bits() != codes.to_bits()[0]).sum(axis=1)
    nearest = np.lexsort((np.arange(400), differ))[:5]
    assert [int(i) for i in re.findall(r"(\d+) \(\d+ bits differ\)", printed)] == nearest.tolist()


@pytest.mark.rare
def test_search_pictures_finds_the_turned_part_of_the_cat(run):
    votes = {name: int(n) for n, name in re.findall(r"(\d+) votes  (\S+)", run("search_pictures.py"))}
    assert votes["chelsea.png"] > 2 * max(n for name, n in votes.items() if name != "chelsea.png")


def test_search_pictures_of_a_folder_passes_over_what_is_none(run, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for number in range(3):
        noise = np.random.RandomState(number).randint(0, 256, (16, 16)).astype(np.uint8)
        cv2.imwrite(str(folder / f"{number}.png"), cv2.resize(noise, (160, 160)))
    (folder / "notes.txt").write_text("no picture")
    printed = run("search_pictures.py", folder, folder / "1.png", "--bits", 32)
    assert "of 3 pictures" in printed
    assert re.search(r"(\d+) votes  (\S+)", printed)[2] == "1.png"


@pytest.mark.rare
def test_words_are_neighbours_by_their_spelling(run):
    found = dict(line.split(": ") for line in run("words.py", "--spelling", "strings", "iterate", "xyzzy").splitlines())
    assert "string" in found["strings"].split(", ")
    assert {"iterates", "iterated"} <= set(found["iterate"].split(", "))
    assert "is not among the" in found["xyzzy"]


def test_words_are_neighbours_by_the_vectors_of_a_package(run, tmp_path, monkeypatch):
    """The files that the example reads from the package, in small: a token that begins a word has a mark before it."""
    for folder in ("weights", "tokenizers"):
        (tmp_path / "wordllama" / folder).mkdir(parents=True)
    (tmp_path / "wordllama" / "__init__.py").touch()
    rng = np.random.default_rng(0)
    topics = rng.normal(size=(8, 256))
    words = [
        f"{'abcdefgh'[topic]}word{'abcdefghijklmnopqrstuvwxyz'[number]}" for topic in range(8) for number in range(26)
    ]
    vectors = np.repeat(topics, 26, axis=0) + 0.3 * rng.normal(size=(8 * 26, 256))
    vocabulary = {f"▁{word}": row for row, word in enumerate(words)} | {"ing": 0, "▁Name": 1}
    (tmp_path / "wordllama" / "tokenizers" / "l2_supercat_tokenizer_config.json").write_text(
        json.dumps({"model": {"vocab": vocabulary}}), encoding="utf-8"
    )
    weights = tmp_path / "wordllama" / "weights" / "l2_supercat_256.safetensors"
    save_file({"embedding.weight": vectors.astype(np.float16)}, weights)
    monkeypatch.syspath_prepend(tmp_path)
    found = run("words.py", "cwordx", "Name").splitlines()
    assert found[0].startswith("cwordx: ")
    assert all(word.startswith("cword") for word in found[0].partition(": ")[2].split(", "))
    assert found[1] == "Name: is not among the 208 words; give another one"


def test_larger_than_memory(run, tmp_path):
    run("larger_than_memory.py", "--points", 3_000, "--candidates", 3_000)
    vectors, found = np.load(tmp_path / "large.npy"), np.load(tmp_path / "found.npz")
    assert vectors.shape == (3_000, 128)
    squared = ((found["queries"][:, None].astype(np.float64) - vectors[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(found["ids"], np.argsort(squared, axis=1, kind="stable")[:, :10])


@pytest.mark.rare
def test_larger_than_memory_finds_most_with_few_candidates(run, tmp_path):
    run("larger_than_memory.py", "--points", 3_000, "--candidates", 200)
    vectors, found = np.load(tmp_path / "large.npy"), np.load(tmp_path / "found.npz")
    squared = ((found["queries"][:, None].astype(np.float64) - vectors[None]) ** 2).sum(axis=2)
    truth = np.argsort(squared, axis=1, kind="stable")[:, :10]
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found["ids"], truth, strict=True)]) > 0.9


def test_sklearn_pipeline(run):
    printed = run("sklearn_pipeline.py")
    scores = [float(score) for score in re.findall(r"m-Recall ([\d.]+)", printed)]
    assert len(scores) == 3
    assert scores == sorted(scores)
    by_codes, by_pixels = map(float, re.search(r"rightly: ([\d.]+) by 32 bits, ([\d.]+)", printed).groups())
    assert 0.9 < by_codes <= by_pixels + 0.02


def test_algorithm_1(run):
    """The notebook compares each line of the algorithm with the library itself."""
    printed = run("algorithm_1.ipynb")
    before, after = map(float, re.search(r"cost ([\d.]+) before the first, ([\d.]+) after", printed).groups())
    assert after < before
    assert printed.endswith("Codes(600 codes of 16 bits)\n")


def test_reproduce_figure(run, tmp_path):
    printed = run("reproduce_figure.py", "fig6", "--set", "digits", "--bits", 8, "--train", 200)
    assert "Here: " in printed
    folder = tmp_path / "figure-digits"
    assert {path.name for path in (folder / "figures").iterdir()} == {"fig6.png", "fig6.svg"}
    assert os.fspath(Path("figure-digits") / "report.html") in printed
    assert "<img" in (folder / "report.html").read_text(encoding="utf-8")
