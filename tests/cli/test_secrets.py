"""Nothing that a command prints has the password or the signature of an address among its arguments."""

import warnings

import pytest

from autojacobin.cli.console import report_failures

ADDRESSES = [
    "https://me:sesame@host/x.npy",
    "https://me:open/sesame@host/x.npy",
    "s3://me:open@sesame@host/x.npy",
    "tls://me:open sesame@host:1/x.npy",
    "https://me:sesame",
    "https://host/x.npy?sv=1&sig=sesame",
    "https://host/x.npy?X-Amz-Credential=a/b&X-Amz-Signature=sesame#x",
    "host=h password='open sesame' user=me",
    "me:sesame@host/x.npy",
]
COMMANDS = [
    ["train", "ADDRESS", "new.safetensors"],
    ["train", "base.npy", "ADDRESS"],
    ["train", "base.npy", "ADDRESS", "new.safetensors"],
    ["train", "ADDRESS", "new.safetensors", "--sample", "5"],
    ["train", "base.npy", "new.safetensors", "-m", "ADDRESS"],
    ["train", "base.npy", "new.safetensors", "-b", "ADDRESS"],
    ["train", "base.npy", "new.safetensors", "--set", "ADDRESS"],
    ["train", "base.npy", "new.safetensors", "--config", "ADDRESS"],
    ["encode", "ADDRESS", "base.npy", "c.npz"],
    ["encode", "model.safetensors", "ADDRESS", "c.npz"],
    ["encode", "model.safetensors", "base.npy", "c.npz", "ADDRESS"],
    ["index", "build", "model.safetensors", "ADDRESS", "new"],
    ["index", "verify", "ADDRESS"],
    ["index", "add", "my-index", "more.npy", "--ids", "ADDRESS"],
    ["index", "ADDRESS"],
    ["search", "my-index", "ADDRESS", "f.npz"],
    ["search", "my-index", "queries.npy", "ADDRESS"],
    ["evaluate", "my-index", "ADDRESS"],
    ["info", "ADDRESS"],
    ["data", "info", "ADDRESS"],
    ["data", "fetch", "ADDRESS"],
    ["cluster", "build", "model.safetensors", "base.npy", "new", "--cluster", "ADDRESS"],
    ["cluster", "truth", "ADDRESS", "queries.npy", "t.ivecs", "--cluster", "ADDRESS"],
    ["export", "lancedb", "ADDRESS", "lance", "--table", "t"],
    ["export", "milvus", "my-index", "ADDRESS", "--collection", "two words"],
    ["export", "pgvector", "my-index", "ADDRESS", "--table", "a.b.c"],
    ["ADDRESS"],
]


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[" ".join(arguments) for arguments in COMMANDS])
def test_a_command_that_fails_prints_no_password(command, folder, number):
    for debug, shift in ((), 0), (("--debug",), 4):
        address = ADDRESSES[(number + shift) % len(ADDRESSES)]
        result = command(*debug, *(address if word == "ADDRESS" else word for word in COMMANDS[number]))
        assert result.code in (1, 2), result.err
        plain = "".join(result.err.replace("│", " ").split())  # long words are broken at the edge of a box
        assert "sesame" not in plain + result.out
        assert not [path for path in folder.rglob("*") if "sesame" in path.name]


def test_a_settings_file_with_a_password_is_not_quoted(command, folder):
    (folder / "mine.toml").write_text('[train]\nbits = ["https://me:sesame@host/x", 3]\n')
    result = command("train", "base.npy", "new.safetensors", "--config", "mine.toml")
    assert result.code == 2
    assert "must be one value" in result.err
    assert "sesame" not in result.err


def test_a_warning_is_printed_without_passwords(capsys):
    with report_failures():
        warnings.simplefilter("always")
        warnings.warn("slow: https://me:sesame@host/x", stacklevel=1)
    assert capsys.readouterr().err == "autojacobin: note: slow: https://host\n"
