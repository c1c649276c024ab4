"""The demo, on digits and with few training points: what it prints, makes and keeps is what the library gives."""

import contextlib
import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import typer

import autojacobin
from autojacobin import BinaryAutoencoder, Index, NeighbourHashing
from autojacobin.cli import app, main
from autojacobin.cli.reproduce import _program_name
from autojacobin.datasets import load_set
from autojacobin.evaluation import ground_truth
from autojacobin.paper.reproduction import Settings
from autojacobin.paper.reproduction.trials import cut

SMALL = ("demo", "--set", "digits", "--bits", "16", "--train", "300")


def run(folder):
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["autojacobin", *SMALL, "--out", "small"])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    return printed.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What a run printed, and the folder that it made."""
    folder = tmp_path_factory.mktemp("demo")
    return run(folder), folder / "small"


def test_it_makes_a_report_an_index_and_a_model_and_says_so(made):
    printed, folder = made
    for name in ("report.html", "index", "model.safetensors"):
        assert (folder / name).exists()
        assert name in printed
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<img") == 1  # the recall curves; digits have no patches
    assert "fig5 was not made: the set has no pictures" in printed

    with Index.open(folder / "index") as index:
        index.verify()
        data = load_set("digits")
        np.testing.assert_array_equal(index.vectors(index.ids), data.base)
        learned = autojacobin.load(folder / "model.safetensors")
        assert index.codes(index.ids) == learned.encode(data.base)
        assert isinstance(learned, NeighbourHashing)
        assert "model.safetensors   what neighbour hashing learned" in printed


def test_a_second_run_takes_the_place_of_the_first(made):
    printed, folder = made
    assert recalls(run(folder.parent)) == recalls(printed)
    with Index.open(folder / "index") as index:
        index.verify()


def recalls(printed):
    """What was found, without how fast."""
    rows = re.findall(r"^   (\S.*?)  +([\d,]*) +([01]\.\d{3})  +[\d,]+$", printed, flags=re.MULTILINE)
    return {name: (candidates.replace(",", ""), float(recall)) for name, candidates, recall in rows}


def test_the_printed_recalls_are_those_of_the_indexes(made):
    printed, folder = recalls(made[0]), made[1]
    data = load_set("digits")
    truth = ground_truth(data.base, data.queries, 10)
    sample = cut(data, Settings.for_set(data, bits=(16,), training_points=300)).train
    in_memory = Index(BinaryAutoencoder(16, random_state=0).fit(sample))
    in_memory.add(data.base)
    with Index.open(folder / "index") as on_disk:
        own = on_disk.hasher.trained_name
        assert on_disk.hasher.trained_as in " ".join(made[0].split())
        for name, index, how in (
            (f"{own}, hamming", on_disk, {"rerank": False, "distance": "hamming"}),
            (f"{own}, asymmetric", on_disk, {"rerank": False, "distance": "asymmetric"}),
            (f"{own}, hamming, re-ranked", on_disk, {"candidates": 100, "distance": "hamming"}),
            (f"{own}, asymmetric, re-ranked", on_disk, {"candidates": 100, "distance": "asymmetric"}),
            ("binary auto-encoder, decoded", in_memory, {"rerank": False}),
            ("binary auto-encoder, decoded, re-ranked", in_memory, {"candidates": 100}),
        ):
            _, ids = index.search(data.queries, 10, **how)
            found = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, truth, strict=True)])
            assert printed[name] == (str(how.get("candidates", "")), pytest.approx(found, abs=6e-4))
    assert printed["exact distances, no codes"] == ("", 1.0)
    for name in (f"{own}, asymmetric, recall=0.95", "binary auto-encoder, decoded, recall=0.95"):
        assert printed[name][1] > 0.9
    assert len(printed) == 9


def test_the_searches_that_are_printed_are_in_the_report_too(made):
    printed, folder = made
    page = (folder / "report.html").read_text(encoding="utf-8")
    table = page[page.index("Searches of an index") :]
    rows = re.findall(r'<th scope="row">([^<]+)</th><td>([\d,]*)</td><td>([\d.]+)</td><td>[\d,]+</td>', table)
    found = {name: (candidates.replace(",", ""), float(recall)) for name, candidates, recall in rows}
    assert found == recalls(printed)


def test_the_printed_m_recalls_are_those_of_the_report(made):
    printed, folder = made
    trials = json.loads((folder / "results.json").read_text(encoding="utf-8"))["trials"]
    assert len(trials) == 17
    for label, method, kind in (
        ("ITQ", "ITQ", "m_recall"),
        ("Auto-JacoBin (chosen)", "AutoJacoBin (chosen)", "m_recall"),
        ("LSH", "LSH", "m_recall"),
        ("ITQ, asymmetric", "ITQ", "m_recall_asymmetric"),
        ("Binary auto-encoder, decoded", "BinaryAutoencoder", "m_recall"),
    ):
        row = next(line for line in printed.splitlines() if line.startswith(f"   {label}  "))
        kept = next(trial[kind] for trial in trials if trial["method"] == method)
        assert [float(value) for value in re.findall(r"0\.\d{3}", row)] == [round(v, 3) for v in kept.values()]


def test_the_commands_it_proposes_are_understood(made):
    commands = typer.main.get_command(app).commands
    proposed = re.findall(r"^      autojacobin (\w+) ?(.*)$", made[0], flags=re.MULTILINE)
    assert [name for name, _ in proposed] == ["explore", "search", "train", "reproduce"]
    for name, arguments in proposed:
        assert commands[name].make_context(name, arguments.split(), resilient_parsing=True).args == []


# as after `make demo`, which installs neither; and what the demo has trained is not trained again
WITHOUT_SERVER = """
import sys
sys.modules.update(starlette=None, uvicorn=None)
from autojacobin.explorer import bundle
def train(name, *_):
    raise AssertionError(f"{name} is trained again")
bundle.make_hasher = train
from autojacobin.cli import main; main()
"""


def test_the_page_that_it_proposes_is_made_with_what_the_demo_has(made):
    printed, folder = made
    (arguments,) = re.findall(r"^      autojacobin (explore .*)$", printed, flags=re.MULTILINE)
    command = [sys.executable, "-c", WITHOUT_SERVER, *arguments.split()]
    result = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    assert (folder / "page" / "index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--bits", "0"], 2, "--bits"),
        (["--bits", "65", "--set", "digits"], 1, "bits must be an integer from 1 to 64"),
        (["--set", "nowhere"], 1, "no data set is called 'nowhere'"),
        (["--train", "1"], 2, "--train"),
    ],
)
def test_wrong_use_makes_nothing(command, folder, arguments, code, message):
    result = command("demo", *arguments, "--out", "small")
    assert result.code == code
    assert message in result.err
    assert "Traceback" not in result.err
    assert not (folder / "small").exists()


def test_the_folder_of_another_set_is_refused(command, folder):
    (folder / "small").mkdir()
    (folder / "small" / "results.json").write_text('{"set": {"name": "photos"}}')
    result = command(*SMALL, "--out", "small")
    assert result.code == 1
    assert "holds the results of the set 'photos'" in result.err


@pytest.mark.parametrize("on_path", [True, False])
def test_the_commands_that_it_proposes_can_be_typed(monkeypatch, tmp_path, on_path):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "autojacobin"), "demo"])
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/autojacobin" if on_path else None)
    assert _program_name() == ("autojacobin" if on_path else str(tmp_path / "bin" / "autojacobin"))
