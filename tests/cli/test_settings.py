"""Settings in TOML: what is written is what was used, and can be used again."""

import numpy as np
import pytest

import autojacobin

tomllib = pytest.importorskip("tomllib", reason="which Python has from 3.11 on")


def test_the_settings_of_a_run_stand_beside_its_output_and_give_the_same_output(done, folder):
    done("train", "base.npy", "a.safetensors", "-m", "itq", "-b", 12, "--set", "n_iter=7", "--seed", 5)
    settings = tomllib.loads((folder / "a.safetensors.toml").read_text())
    assert settings == {
        "run": {
            "version": autojacobin.__version__,
            "command": "train",
            "vectors": ["base.npy"],
            "model": "a.safetensors",
        },
        "train": {
            "method": "itq",
            "bits": 12,
            "metric": "euclidean",
            "all": False,
            "seed": 5,
            "device": "cpu",
            "set": {"n_iter": 7},
        },
    }
    done("train", "base.npy", "b.safetensors", "--config", "a.safetensors.toml")
    assert (folder / "a.safetensors").read_bytes() == (folder / "b.safetensors").read_bytes()


def test_defaults_of_the_method_are_written_out(done, folder):
    done("train", "base.npy", "a.safetensors", "-m", "autobin2", "-b", 4, "--set", "n_epochs=1")
    chosen = tomllib.loads((folder / "a.safetensors.toml").read_text())["train"]["set"]
    assert (chosen["batch_size"], chosen["n_epochs"], chosen["alpha"]) == ("none", 1, 0.1)
    done("train", "base.npy", "b.safetensors", "--config", "a.safetensors.toml")
    assert autojacobin.load("b.safetensors").batch_size is None


def test_options_of_the_command_line_win(done, folder):
    (folder / "mine.toml").write_text('[train]\nmethod = "itq"\nbits = 12\nset = { n_iter = 3 }\n[encode]\n')
    done("train", "base.npy", "a.safetensors", "--config", "mine.toml", "--bits", 8)
    model = autojacobin.load("a.safetensors")
    assert (model.n_bits, model.n_iter) == (8, 3)
    (folder / "mine.toml").write_text('[train]\nmethod = "autobin"\nset = ["n_epochs=2", "alpha=0.5"]\n')
    done("train", "base.npy", "b.safetensors", "--config", "mine.toml", "--bits", 8, "--set", "n_epochs=1")
    model = autojacobin.load("b.safetensors")
    assert (model.n_epochs, model.alpha) == (1, 0.5)


def test_one_file_serves_a_pipeline(done, folder):
    (folder / "all.toml").write_text(
        "[train]\nmethod = 'itq'\nbits = 10\n[index.build]\nvectors = false\n[search]\nk = 4\nrerank = false\n"
        "[evaluate]\nk = [2, 3]\n"
    )
    done("train", "base.npy", "m.safetensors", "--config", "all.toml")
    done("index", "build", "m.safetensors", "base.npy", "i", "--config", "all.toml")
    done("search", "i", "queries.npy", "f.npy", "--config", "all.toml")
    assert np.load("f.npy").shape == (40, 4)
    shown = done("evaluate", "m.safetensors", "queries.npy", "--base", "base.npy", "--config", "all.toml").out
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["k", "2", "3"]
    written = tomllib.loads((folder / "i.toml").read_text())
    assert written["index"]["build"] == {"vectors": False}
    assert tomllib.loads((folder / "f.npy.toml").read_text())["search"] == {
        "k": 4,
        "rerank": False,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bits = 8", "has no table [train]"),
        ("[train]\nbit = 8", "sets 'bit', which is unknown here; known are method, bits, set, sample"),
        ("[encode]\n", "has no table [train]"),
        ("train = 3", "has no table [train]"),
        ("[train]\nbits = 'many'", "--bits"),
        ("[train]\nbits = 8.5", "--bits"),
        ("[train]\nbits = 0", "--bits"),
        ("[train]\nbits = true", "--bits"),
        ("[train]\nbits = [8, 9]", "'bits' must be one value, got [8, 9]"),
        ("[train]\nseed = 1979-05-27", "--seed"),
        ("[train]\nquiet = true", "sets 'quiet', which is unknown here"),
        ("[train", "is not a TOML file"),
        ("\udcff", "is not a TOML file"),
    ],
)
def test_wrong_settings_are_wrong_use(command, folder, text, message):
    (folder / "wrong.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    result = command("train", "base.npy", "new.safetensors", "--config", "wrong.toml")
    assert result.code == 2, result.err
    assert message in " ".join(result.err.replace("│", " ").split())
    assert not (folder / "new.safetensors").exists()


@pytest.mark.parametrize(
    ("path", "pattern", "shown"),
    [
        ("/me:sesame@box/base.npy", "me:sesame@box/base.npy", "box"),
        ("/me:open/ses@ame@box/base.npy", "me:open/ses@ame@box/base.npy", "box"),
        ("/me:open ses#ame@box/base.npy", "me:open ses#ame@box/base.npy", "***"),
        ("/box/base.npy?sv=1&sig=sesame", "box/base.npy[?]sv=1&sig=sesame", "box"),
    ],
)
def test_passwords_in_the_addresses_of_inputs_are_not_written_down(done, folder, path, pattern, shown):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe(path, (folder / "base.npy").read_bytes())
    try:
        result = done("train", f"memory://{pattern}", "s.safetensors", "-m", "itq", "-b", 12, "--sample", 200)
    finally:
        memory.rm(path)
    text = (folder / "s.safetensors.toml").read_text()
    assert tomllib.loads(text)["run"]["vectors"] == [f"memory://{shown}"]
    assert "ame" not in text + result.out + result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "base.npy", "new.safetensors", "--method", "itq", "--bits", "4"),
        ("encode", "model.safetensors", "base.npy", "new.npz"),
        ("search", "my-index", "queries.npy", "new.csv"),
    ],
)
def test_a_file_where_the_settings_go_is_replaced_only_if_asked(command, done, folder, arguments):
    output = next(argument for argument in arguments if argument.startswith("new"))
    (folder / f"{output}.toml").write_text("my own")
    refused = command(*arguments)
    assert refused.code == 2
    assert f"{output}.toml, where the settings of the run go, exists already" in " ".join(
        refused.err.replace("│", " ").split()
    )
    assert not (folder / output).exists()
    done(*arguments, "--overwrite")
    assert "[run]" in (folder / f"{output}.toml").read_text()


def test_an_index_is_not_built_where_its_settings_would_replace_a_file(command, folder):
    (folder / "new.toml").write_text("my own")
    refused = command("index", "build", "model.safetensors", "base.npy", "new")
    assert refused.code == 1
    assert "new.toml, where the settings of the run go, exists already" in refused.err
    assert (folder / "new.toml").read_text() == "my own"
