"""The files of an index: a flipped bit anywhere is found and its file named, and nothing foreign is read."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import xxhash
from typer.testing import CliRunner

from autojacobin import AutoJacobinError, FormatError
from autojacobin.cli import app
from autojacobin.errors import StorageError
from autojacobin.index import array_files
from autojacobin.index.array_files import SegmentLabel
from autojacobin.index.folder import Folder
from autojacobin.index.index import Index
from tests.index.index_model import N_FEATURES, contents, small_hasher


def vectors(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, N_FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """An index that has a file of every kind."""
    path = tmp_path_factory.mktemp("original") / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(20))
        index.add(vectors(20), ids=np.random.default_rng(0).permutation(100)[:20] + 50)
        index.remove([3, 4])
    return path


@pytest.fixture
def copied(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "index"))


KINDS = ["MANIFEST", "hasher", "codes", "ids", "rows", "vectors", "dead"]


def files_of(path, kind):
    return sorted(entry for entry in path.iterdir() if entry.name.startswith(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_anywhere_is_found_and_the_file_named(copied, kind):
    rng = np.random.default_rng(0)
    for file in files_of(copied, kind):
        content = file.read_bytes()
        edges = [0, 1, 9, 13, 40, 4087, 4088, 4095, 4096, 4097, len(content) - 1]
        places = {p for p in edges if p < len(content)} | set(rng.integers(0, len(content), 40).tolist())
        for place in places:
            damaged = bytearray(content)
            damaged[place] ^= 1 << int(rng.integers(8))
            file.write_bytes(damaged)
            with pytest.raises(FormatError) as error:
                Index.open(copied).verify()
            assert file.name in str(error.value), place
        file.write_bytes(content)
    Index.open(copied).verify()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_short_long_gone_or_another_is_never_half_read(copied, kind):
    file = files_of(copied, kind)[0]
    content = file.read_bytes()
    for wrong in (b"", content[:100], content[:-1], content + b"\0", b"x" * len(content)):
        file.write_bytes(wrong)
        with pytest.raises(FormatError, match=file.name):
            Index.open(copied)
    file.unlink()
    with pytest.raises(StorageError if kind == "MANIFEST" else FormatError, match=file.name):
        Index.open(copied)


def test_a_file_of_the_same_kind_from_elsewhere_is_refused(copied):
    first, second = files_of(copied, "codes")
    first.write_bytes(second.read_bytes())
    with pytest.raises(FormatError, match=f"{first.name} is damaged .* another file than the manifest names"):
        Index.open(copied)


@pytest.mark.parametrize(("version", "advice"), [(1, "build the index again from"), (4, "install a newer version")])
def test_a_manifest_of_another_format_says_what_to_do(copied, version, advice):
    file = copied / "MANIFEST.json"
    fields = json.loads(file.read_bytes()) | {"checksum": "0" * 16, "format_version": version}
    content = json.dumps(fields, indent=1).encode() + b"\n"
    file.write_bytes(content.replace(b"0" * 16, xxhash.xxh64_hexdigest(content).encode(), 1))
    with pytest.raises(FormatError, match=f"MANIFEST.json has index format {version}, .*; {advice}"):
        Index.open(copied)


def test_a_newer_array_needs_a_newer_library(copied, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(array_files, "FORMAT_VERSION", 4)
        writer = array_files.start_array(Folder(copied), "ids", np.int64)
        writer.append(np.arange(3))
        with pytest.raises(FormatError, match="ids-.* has index format 4, expected 3; "):
            newer_by_one(writer, newer)


def newer_by_one(writer, patch):
    """Finish an array file that claims to be newer than the reader."""
    read = array_files.open_array

    def open_with_the_real_version(*arguments, **options):
        patch.setattr(array_files, "FORMAT_VERSION", 3)
        return read(*arguments, **options)

    patch.setattr(array_files, "open_array", open_with_the_real_version)
    writer.finish(SegmentLabel.new(0, 3, 8))


def test_a_manifest_may_not_lead_out_of_its_folder(copied):
    file = copied / "MANIFEST.json"
    fields = json.loads(file.read_bytes()) | {"checksum": "0" * 16}
    fields["hasher"]["name"] = "../hasher.safetensors"
    content = json.dumps(fields, indent=1).encode() + b"\n"
    file.write_bytes(content.replace(b"0" * 16, xxhash.xxh64_hexdigest(content).encode(), 1))
    with pytest.raises(FormatError, match="MANIFEST.json is damaged"):
        Index.open(copied)


def test_opening_reads_no_payload_of_codes_and_vectors(copied):
    for kind in ("codes", "vectors", "ids", "rows"):
        for file in files_of(copied, kind):
            content = bytearray(file.read_bytes())
            content[4096] ^= 1
            file.write_bytes(content)
    index = Index.open(copied)
    with pytest.raises(FormatError, match="codes-.* content that does not match its checksum"):
        index.verify()


def test_left_overs_of_a_crash_go_with_the_next_write_and_other_files_stay(copied):
    names = {entry.name for entry in copied.iterdir()}
    for name in ("codes-0123456789abcdef.bin", "hasher-0123456789abcdef.safetensors", "MANIFEST.json.part"):
        (copied / name).write_bytes(b"left over")
    (copied / "notes.txt").write_text("mine")
    with Index.open(copied) as index:
        before = contents(index)
        assert len(list(copied.iterdir())) == len(names) + 4
        index.remove([])
        assert {entry.name for entry in copied.iterdir()} == names | {"notes.txt"}
        assert contents(index) == before


def test_a_reader_that_loses_a_race_with_the_writer_reads_the_new_state(copied, monkeypatch):
    writer = Index.open(copied)
    stale = (copied / "MANIFEST.json").read_bytes()
    writer.compact()
    answers = [stale]
    read = Folder.read_manifest
    monkeypatch.setattr(Folder, "read_manifest", lambda self: answers.pop() if answers else read(self))
    with Index.open(copied) as reader:
        assert contents(reader) == contents(writer)
    writer.close()


# The command line


def test_the_command_line_verifies_and_tells_figures(copied):
    runner = CliRunner()
    result = runner.invoke(app, ["index", "verify", str(copied)])
    assert result.exit_code == 0
    assert "is intact: 38 vectors, 8 files," in result.output
    result = runner.invoke(app, ["info", str(copied)])
    assert result.exit_code == 0
    assert "segments      2\n" in result.output
    file = files_of(copied, "vectors")[0]
    content = bytearray(file.read_bytes())
    content[5000 % len(content)] ^= 1
    file.write_bytes(content)
    result = runner.invoke(app, ["index", "verify", str(copied)])
    assert isinstance(result.exception, AutoJacobinError)  # which the command line prints as one sentence
    assert file.name in str(result.exception)
