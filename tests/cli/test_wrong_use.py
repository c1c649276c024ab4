"""Wrong use of every option, and bad input: an exit code, one sentence, nothing written, no traceback."""

import os
import re

import numpy as np
import pytest

from autojacobin.cli.console import report_failures

TRAIN = ["train", "base.npy", "new.safetensors"]
ENCODE = ["encode", "model.safetensors", "base.npy"]
BUILD = ["index", "build", "model.safetensors", "base.npy"]
SEARCH = ["search", "my-index", "queries.npy"]
EVALUATE = ["evaluate", "model.safetensors", "queries.npy"]

WRONG = [
    (["train"], "VECTORS"),
    (["train", "base.npy"], "argument"),
    (["export", "faiss", "my-index", "no-folder/codes.faiss"], "the folder no-folder does not exist"),
    ([*SEARCH, "found.csv", "--recall", "95"], "--recall"),
    (["train", "base.npy", "queries.npy"], "queries.npy must end in one of .safetensors"),
    (["train", "base.npy", "nowhere/new.safetensors"], "the folder nowhere does not exist"),
    (["train", "base.npy", "base.npy/new.safetensors"], "base.npy is a file, expected a folder"),
    ([*TRAIN, "-m", "itq", "--set", "n_iter=９"], "n_iter of ITQ must be an integer from 1 to 1,000,000, got '９'"),
    ([*EVALUATE, "--base", "base.npy", "--measure", "recall@²"], "'recall@²' is not the name of a measure"),
    ([*TRAIN, "--method", "dance"], "dance"),
    ([*TRAIN, "--bits", "0"], "--bits"),
    ([*TRAIN, "--bits", "many"], "--bits"),
    ([*TRAIN, "--seed", "-1"], "--seed"),
    ([*TRAIN, "--threads", "0"], "--threads"),
    ([*TRAIN, "--sample", "0"], "--sample"),
    ([*TRAIN, "--device", "abacus"], "abacus"),
    ([*TRAIN, "-m", "itq", "--device", "cuda"], "ITQ computes on the CPU alone"),
    ([*TRAIN, "--set", "alpha"], "expected name=value, got 'alpha'"),
    ([*TRAIN, "-m", "itq", "--set", "alpha=1"], "itq has no parameter 'alpha'; it has n_iter"),
    ([*TRAIN, "-m", "itq", "--set", "n_iter=0"], "n_iter of ITQ must be an integer from 1 to 1,000,000, got 0"),
    ([*TRAIN, "-m", "itq", "--set", "n_iter=two"], "n_iter of ITQ must be an integer from 1 to 1,000,000, got 'two'"),
    ([*TRAIN, "--set", "random_state=1"], "random_state has an option of its own, --seed"),
    ([*TRAIN, "--sample", "5", "--format", "npy"], "leave out -, ::PART and --format"),
    ([*TRAIN, "--config", "missing.toml"], "missing.toml"),
    ([*TRAIN, "--sing"], "--sing"),
    ([*ENCODE, "codes.xyz"], "codes.xyz must end in one of .npz, .npy"),
    ([*ENCODE, "base.npy"], "base.npy is an input too"),
    ([*ENCODE, "my-index"], "my-index must end in one of"),
    ([*ENCODE, "codes.npz", "--device", "cuda"], "ITQ computes on the CPU alone"),
    ([*SEARCH, "found.csv", "-k", "0"], "'-k'"),
    ([*SEARCH, "found.csv", "--candidates", "0"], "--candidates"),
    ([*SEARCH, "found.csv", "--recall", "1.5"], "--recall"),
    ([*SEARCH, "found.csv", "--recall", "most"], "--recall"),
    ([*EVALUATE, "--base", "base.npy", "--recall", "0.9"], "a model has no vectors to re-rank by"),
    ([*SEARCH, "found.csv", "--distance", "cosine"], "'cosine' is not one of 'hamming', 'asymmetric'"),
    ([*SEARCH, "found.txt"], "found.txt must end in"),
    (EVALUATE, "a model needs --base"),
    ([*EVALUATE, "--base", "base.npy", "-c", "9"], "a model has no vectors to re-rank by"),
    ([*EVALUATE, "--base", "base.npy", "--measure", "joy@3"], "'joy@3' is not the name of a measure"),
    ([*EVALUATE, "--base", "base.npy", "-k", "0"], "'-k'"),
    (["evaluate", "my-index", "queries.npy", "--base", "base.npy"], "an index has its own vectors"),
    (["evaluate", "model.safetensors", "-", "--base", "-"], "give - once at most"),
    ([*BUILD[:-1], "-", "new", "--ids", "-"], "give - once at most"),
    (["index", "remove", "my-index"], "either as arguments or by --ids FILE"),
    (["index", "remove", "my-index", "1", "--ids", "ids.txt"], "either as arguments or by --ids FILE"),
    (["index", "dance"], "dance"),
    (["bench", "--points", "5"], "--points"),
    (["serve"], "INDEX"),
    (["serve", "my-index", "--port", "70000"], "--port"),
    (["serve", "my-index", "--writable", "--device", "cuda"], "--device"),
    (["serve", "my-index", "--limit", "max-k=5"], "there is no limit 'max-k'; there are body_bytes, vectors, k,"),
    (["serve", "my-index", "--limit", "k"], "expected name=value, got 'k'"),
    (["serve", "my-index", "--threads", "0"], "--threads"),
    (["serve", "my-index", "--config", "missing.toml"], "missing.toml"),
    (["bench", "--points", "100", "-k", "101"], "101 is more than the 100 points"),
]

FAILED = [
    (
        ["search", "queries.npy", "my-index", "new.csv"],
        "queries.npy is a file, expected the folder of an index; give",
    ),
    (["evaluate", "queries.npy", "queries.npy", "--base", "base.npy"], "look at the order of the arguments"),
    (["search", ".", "queries.npy", "new.csv"], "my-index; give that path"),
    (["info", "."], "my-index; give that path"),
    (["train", "missing.npy", "new.safetensors"], "cannot read missing.npy: there is no such file"),
    (["train", "queries.npy", "new.safetensors", "-m", "itq", "--bits", "65"], "more bits than features"),
    (["train", "nan.npy", "new.safetensors", "-m", "itq"], "contains NaN in row 7, column 3"),
    (["encode", "missing", "base.npy", "codes.npz"], "cannot read the model missing: no such file or directory"),
    (
        ["encode", "my-index", "base.npy", "codes.npz"],
        "cannot read the model my-index: it is a folder",
    ),
    (["encode", "base.npy", "base.npy", "codes.npz"], "base.npy is damaged or is not a model saved by autojacobin"),
    (["encode", "model.safetensors", "narrow.npy", "codes.npz"], "is expecting 64 features"),
    (["encode", "model.safetensors", "nan.npy", "codes.npz"], "contains NaN in row 7, column 3"),
    (["encode", "model.safetensors", "odd", "codes.npz"], "or the name of its format, one of fvecs"),
    (["encode", "model.safetensors", "two.npz", "codes.npz"], "name one of them (part=, or PATH::PART in a command)"),
    ([*BUILD, "my-index"], "cannot make my-index: it is a folder with something in it"),
    ([*BUILD, "model.safetensors"], "cannot make model.safetensors: it is a file"),
    ([*BUILD, "nowhere/new"], "the folder nowhere does not exist"),
    ([*BUILD, "base.npy/new"], "cannot make base.npy/new: base.npy is a file, expected a folder; give another path"),
    (["index", "create", "base.npy/a/new", "--bits", "8"], "base.npy is a file, expected a folder; give another path"),
    (["index", "repair", "my-index", "base.npy/new"], "base.npy is a file, expected a folder; give another path"),
    ([*BUILD, "new", "--partitions", "９"], "partitions must be"),
    (["info", "pipe.npy"], "cannot read pipe.npy: it is a pipe or a device, expected a file"),
    (["encode", "pipe.npy", "base.npy", "codes.npz"], "cannot read the model pipe.npy: it is a pipe or a device"),
    ([*BUILD, "new", "--ids", "model.safetensors"], "the ids in model.safetensors cannot be read"),
    ([*BUILD, "new", "--ids", "nan.npy"], "the ids in nan.npy must be a row of whole numbers or strings"),
    ([*BUILD, "new", "--ids", "missing"], "cannot read the ids in missing: no such file"),
    ([*BUILD, "new", "--ids", "three.txt"], "there must be an id for every vector, got 3 ids"),
    (["index", "build", "model.safetensors", "nan.npy", "new"], "contains NaN in row 7, column 3"),
    (["index", "add", "my-index", "narrow.npy"], "is expecting 64 features"),
    (["index", "remove", "my-index", "one"], "the ids of this index are whole numbers from 0 to 2^63 - 1, got 'one'"),
    (["index", "remove", "my-index", "600"], "only ids in the index can be removed, got 600"),
    (
        ["index", "verify", "nowhere"],
        "nowhere: it has no MANIFEST.json; make one with Index.create or `autojacobin index build`",
    ),
    (["index", "verify", "base.npy"], "base.npy is a file, expected the folder of an index"),
    (["search", "my-index", "found.csv", "--like", "600"], "only ids in the index can be searched for, got 600"),
    ([*SEARCH, "found.csv", "-k", "9", "-c", "8"], "candidates must be at least k = 9, got 8"),
    ([*SEARCH, "found.csv", "--recall", "0.9", "-c", "50"], "recall chooses how many candidates to re-rank"),
    (["search", "my-index", "nan.npy", "found.csv"], "contains NaN in row 7, column 3"),
    (["search", "nowhere", "queries.npy", "found.csv"], "or `autojacobin index build`"),
    ([*EVALUATE, "--base", "base.npy", "-k", "601"], "k must be an integer from 1 to 600"),
    ([*EVALUATE, "--base", "base.npy", "--measure", "recall@99999999999"], "no more than the 600 vectors there are"),
    ([*EVALUATE, "--base", "base.npy", "--truth", "base.npy"], "a row for each of the 40 queries, got 600"),
    (["encode", "model.safetensors", "-", "codes.npz"], "standard-input is empty (0 bytes)"),
    (["info", "missing"], "cannot read missing: there is no such file or folder"),
    (["serve", "my-index", "--limit", "connections=0"], "connections must be an integer above 0, got 0"),
    (["serve", "my-index", "--limit", "k=1_0"], "k must be an integer above 0, got '1_0'"),
    (["serve", "nowhere"], "or `autojacobin index build`"),
    (["serve", "my-index", "--host", "0.0.0.0"], "a token is required"),
    (["info", "odd"], "odd is in no known format"),
]


@pytest.fixture
def bad_files(folder, digits):
    broken = digits.queries.copy()
    broken[7, 3] = np.nan
    np.save(folder / "nan.npy", broken)
    np.save(folder / "narrow.npy", digits.queries[:, :5])
    np.savez(folder / "two.npz", a=digits.queries, b=digits.queries)
    (folder / "odd").write_bytes(b"what is this")
    (folder / "three.txt").write_text("1\n2\n3\n")
    if os.name == "posix":
        os.mkfifo(folder / "pipe.npy")  # to which nobody writes
    else:
        (folder / "pipe.npy").touch()
    return folder


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_use_has_the_exit_code_2(command, folder, arguments, message):
    before = everything(folder)
    result = command(*arguments)
    assert result.code == 2, result.err
    plain = " ".join(result.err.replace("│", " ").split())
    assert message in plain
    assert "Traceback" not in result.err
    assert everything(folder) == before


@pytest.mark.parametrize(("arguments", "message"), FAILED, ids=[" ".join(arguments) for arguments, _ in FAILED])
def test_bad_input_has_the_exit_code_1_and_one_sentence(command, bad_files, monkeypatch, arguments, message):
    monkeypatch.delenv("AUTOJACOBIN_TOKEN", raising=False)
    before = everything(bad_files)
    result = command(*arguments, *([] if arguments[0] == "serve" or "info" in arguments else ["--quiet"]))
    assert result.code == 1, result.err
    assert result.out == ""
    assert result.err.startswith("autojacobin: ")
    assert len(result.err.splitlines()) == 1
    assert message in result.err
    assert everything(bad_files) == before


def test_no_command_shows_the_help(command):
    result = command()
    assert "autojacobin index build base.npy my-index" in result.out + result.err
    assert result.code in (0, 2)  # as the version of typer has it


def test_debug_shows_the_traceback_and_is_forgotten_afterwards(command):
    for arguments in (["encode", "missing", "base.npy", "c.npz", "--debug"], ["--debug", "index", "verify", "nowhere"]):
        result = command(*arguments)
        assert result.code == 1
        assert result.err.startswith("Traceback")
        assert re.search("StorageError: .*(nowhere|missing).*\n$", result.err)
    result = command("encode", "missing", "base.npy", "c.npz")
    assert result.code == 1
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ZeroDivisionError("by nothing"), "this should not have happened, got ZeroDivisionError: by nothing"),
        (FileNotFoundError(2, "No such file or directory", "a b"), "a b: no such file or directory"),
        (MemoryError(), "there is not enough memory"),
        (OSError("the disk sings"), "the disk sings"),
        (OSError(28, "No space left on device"), "reading or writing failed: no space left on device; make room"),
    ],
)
def test_errors_of_other_libraries_are_reported_in_a_sentence_too(error, sentence, capsys):
    with pytest.raises(SystemExit) as end, report_failures():
        raise error
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith(f"autojacobin: {sentence}")


def test_warnings_are_notes_of_one_line(capsys):
    import warnings

    with report_failures():
        warnings.simplefilter("always")
        warnings.warn("two\nlines", stacklevel=1)
    assert capsys.readouterr().err == "autojacobin: note: two lines\n"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(command, folder):
    (folder / "closed").mkdir(mode=0o500)
    assert command("encode", "model.safetensors", "base.npy", "closed/codes.npz").code == 2


@pytest.mark.parametrize(
    ("output", "arguments"),
    [
        ("model.safetensors", ["train", "base.npy", "model.safetensors", "--method", "lsh", "--bits", "8"]),
        ("codes.npz", ["encode", "model.safetensors", "base.npy", "codes.npz"]),
        ("found.csv", ["search", "my-index", "queries.npy", "found.csv"]),
        ("codes.faiss", ["export", "faiss", "my-index", "codes.faiss"]),
        ("found.npz", ["cluster", "search", "my-index", "queries.npy", "found.npz", "--cluster", "local:1"]),
        ("truth.npy", ["cluster", "truth", "base.npy", "queries.npy", "truth.npy", "--cluster", "local:1"]),
    ],
)
def test_an_existing_output_is_kept_without_overwrite(command, folder, output, arguments):
    (folder / output).write_bytes(b"mine")
    refused = command(*arguments)
    assert refused.code == 2
    assert f"{output} exists already" in " ".join(refused.err.split())
    assert "--overwrite" in refused.err
    assert (folder / output).read_bytes() == b"mine"
    if arguments[0] != "cluster":
        assert command(*arguments, "--overwrite").code == 0
        assert (folder / output).read_bytes() != b"mine"


def test_a_demo_does_not_replace_an_index_of_somebody_else(command, folder):
    (folder / "index").mkdir()
    refused = command("demo", "--set", "digits", "--out", folder)
    assert refused.code == 1
    assert "which no demo has made; choose another folder with --out" in refused.err


@pytest.mark.parametrize("word", ["９", "٣", "1_0", "+3", "-0", " 3", "３", "²", "0x3", ""])
def test_ids_are_typed_in_ascii_digits(command, done, folder, word):
    (folder / "ids.txt").write_text(f"{word.strip() or '_'}\n", encoding="utf-8")
    for command_name, options in (("get", [word]), ("remove", [word]), ("remove", ["--ids", "ids.txt"])):
        if options == ["--ids", "ids.txt"] and word.strip().isascii() and word.strip().isdecimal():
            continue  # a line may have spaces around it
        result = command("index", command_name, "my-index", "--", *options) if word.startswith("-") else command(
            "index", command_name, "my-index", *options
        )  # fmt: skip
        assert result.code == 1, result.out
        assert "the ids of this index are whole numbers from 0 to 2^63 - 1" in result.err
    assert "600 vectors" in done("index", "verify", "my-index").out


@pytest.mark.parametrize(
    "arguments", [["search", "my-index", "-", "new.csv"], ["index", "get", "my-index", "--ids", "-"]]
)
def test_a_closed_standard_input_is_one_sentence(command, arguments):
    result = command(*arguments, stdin=None)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "cannot read -: the standard input is closed; give a file" in result.err


@pytest.mark.parametrize(
    "arguments",
    [[*SEARCH, "-"], [*ENCODE, "-"], ["index", "get", "my-index", "3"], ["info", "my-index"], ["info", "--json"]],
)
def test_a_result_for_a_closed_standard_output_is_one_sentence(command, arguments):
    result = command(*arguments, has_stdout=False)
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "the standard output is closed" in result.err


def test_what_needs_no_standard_output_runs_without_one(command, folder):
    assert command("index", "remove", "my-index", "3", has_stdout=False).code == 0
    assert command(*SEARCH, "new.csv", has_stdout=False).code == 0
    assert (folder / "new.csv").exists()
