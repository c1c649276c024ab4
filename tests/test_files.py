"""Paths that are none: each function that takes one refuses them in a sentence."""

import os
from pathlib import Path

import numpy as np
import pytest

import autojacobin
from autojacobin import LSH, Codes, Index
from autojacobin.core.files import as_path, no_folder
from autojacobin.datasets import load_set, open_vectors, write_vectors
from autojacobin.errors import DataError, DataTypeError, StorageError
from autojacobin.explorer import open_run
from autojacobin.explorer.page import prepare_folder
from autojacobin.index import repair
from autojacobin.integrations.text_store import TextStore
from autojacobin.jobs import search_index
from autojacobin.jobs.inputs import survey
from autojacobin.paper.reproduction.results import Store
from autojacobin.service.access import read_token
from autojacobin.service.served import open_indexes

X = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)


def hasher():
    return LSH(8, random_state=0).fit(X)


def in_memory():
    index = Index(hasher())
    index.add(X)
    return index


TAKE_A_PATH = {
    "load": autojacobin.load,
    "save": lambda path: hasher().save(path),
    "Codes.load": Codes.load,
    "Codes.save": lambda path: hasher().encode(X).save(path),
    "open_vectors": open_vectors,
    "write_vectors": lambda path: write_vectors(path, X),
    "Index.open": Index.open,
    "Index.create": lambda path: Index.create(path, hasher()),
    "Index.save": lambda path: in_memory().save(path),
    "repair, source": lambda path: repair(path, "new"),
    "repair, target": lambda path: repair(".", path),
    "search_index": lambda path: search_index(path, X, 1, None),
    "survey": survey,
    "survey, several": lambda path: survey([path]),
    "open_indexes": lambda path: open_indexes({"name": path}),
    "load_set": load_set,
    "prepare_folder": prepare_folder,
    "open_run": open_run,
    "Store": Store,
}
OR_NONE = {
    "load_set, folder": lambda path: load_set("mnist", path),
    "Index.from_vectors": lambda path: Index.from_vectors(X, hasher(), path=path),
    "read_token": read_token,
    "TextStore": TextStore,
}


@pytest.mark.parametrize("name", [*TAKE_A_PATH, *OR_NONE])
def test_what_is_no_path_is_refused_in_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = {**TAKE_A_PATH, **OR_NONE}[name]
    for path in (3, 1.5, ["a.npy"], {}, *(() if name in OR_NONE else (None,))):
        if path in ([], {}, ["a.npy"]) and name.startswith("survey"):
            continue  # a list of paths
        with pytest.raises(DataTypeError, match="a path must be text"):
            function(path)
    for path in ("a\0b.npy", b"a\0b", Path("a\0b"), "", b""):
        with pytest.raises(DataError) as error:
            function(path)
        assert "\0" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="Windows has paths of text alone")
def test_a_path_of_bytes_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hasher().save(b"model")
    assert autojacobin.load(b"model").n_bits == 8
    hasher().encode(X).save(b"codes")
    assert len(Codes.load(b"codes")) == 30
    in_memory().save(b"index")
    with Index.open(b"index") as index:
        assert len(index) == 30
    assert len(open_indexes({"a": b"index"})["a"].index) == 30
    write_vectors(b"\xff.npy", X)  # no UTF-8
    assert open_vectors(b"\xff.npy").shape == X.shape
    assert as_path(Path("a")) == Path("a")


def test_a_pipe_is_no_model_and_no_codes(tmp_path):
    if os.name != "posix":
        pytest.skip("Windows has no pipes in folders")
    os.mkfifo(tmp_path / "pipe")
    for read in (autojacobin.load, Codes.load):
        with pytest.raises(StorageError, match="it is a pipe or a device, expected"):
            read(tmp_path / "pipe")


def test_why_there_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    assert no_folder(tmp_path) == ""
    assert no_folder(tmp_path / "a" / "b") == f"the folder {tmp_path / 'a' / 'b'} does not exist; make it first"
    for below in (tmp_path / "file", tmp_path / "file" / "a", tmp_path / "file" / "a" / "b"):
        assert no_folder(below) == f"{tmp_path / 'file'} is a file, expected a folder; give another path"
    with pytest.raises(StorageError, match="is a file, expected a folder"):
        Index.create(tmp_path / "file" / "a", hasher())
    with pytest.raises(OSError, match="is a file, expected a folder"):
        hasher().save(tmp_path / "file" / "model")
