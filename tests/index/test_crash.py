"""Crash safety for real: processes killed at random moments, and a disk on which each operation fails in turn."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autojacobin.errors import StorageError
from autojacobin.index import index as index_module
from autojacobin.index.index import Index
from tests.index.faults import Crash, Faults
from tests.index.index_model import N_FEATURES, contents, small_hasher

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks up open files in /proc")

ROOT = Path(__file__).parents[2]
ERRORS = ["error", "no space", "torn error"]
CRASHES = ["crash", "torn crash"]
POWER_CUTS = [f"power cut, undoing {what}" for what in ("nothing", "all", "creations", "renames", "deletions")]


def vectors(n, seed):
    return np.random.default_rng(seed).normal(size=(n, N_FEATURES)).astype(np.float32)


# Together they write every kind of file, replace and drop segments, and delete files.
CHANGES = [
    lambda index: index.add(vectors(20, 1)),
    lambda index: index.upsert(vectors(20, 2), ids=np.random.default_rng(0).permutation(60)[:20]),
    lambda index: index.remove(index.ids[::3]),
    lambda index: index.compact(),
    lambda index: index.remove(index.ids[:2]),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """An index, the states it goes through, and the number of file operations after each change."""
    path = tmp_path_factory.mktemp("crash") / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(10, 0))
    working = path.parent / "working"
    shutil.copytree(path, working)
    faults, states, counts = Faults(), [], []
    with opened(working, faults) as index:
        states.append(contents(index))
        for change in CHANGES:
            change(index)
            states.append(contents(index))
            counts.append(faults.count)
    assert len({str(sorted(state)) for state in states}) == len(CHANGES)  # compaction alone changes no content
    return path, states, counts


def opened(path, faults):
    index = Index.open(path)
    index._folder = faults.folder(path)
    return index


def state_on_disk(path):
    with Index.open(path) as index:
        index.verify()
        return contents(index)


def names_on_disk(path):
    return {entry.name for entry in path.iterdir()} - {"LOCK", "MANIFEST.json"}


def check_that_it_can_be_written_again(path):
    with opened(path, Faults()) as index:
        before = len(index)
        index.add(vectors(1, 9))
        assert names_on_disk(path) == index._state.manifest.names()  # nothing left over
    assert len(state_on_disk(path)) == before + 1


@pytest.mark.parametrize("fault", CRASHES + POWER_CUTS)
def test_a_crash_at_any_operation_leaves_a_committed_state(prepared, tmp_path, fault, instants):
    original, states, counts = prepared
    for at in instants(counts[-1]):
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        index, done = opened(path, Faults(at, fault)), 0
        with pytest.raises(Crash):  # noqa: PT012
            for change in CHANGES:
                change(index)
                done += 1
        index._folder.lock.release()  # as the operating system does for the dead
        assert state_on_disk(path) in (states[done], states[done + 1]), at
        check_that_it_can_be_written_again(path)
        shutil.rmtree(path)


@pytest.mark.parametrize("fault", ERRORS)
def test_an_error_at_any_operation_changes_nothing_and_the_index_goes_on(prepared, tmp_path, fault, instants):
    original, states, counts = prepared
    for at in instants(counts[-1]):
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        with opened(path, faults := Faults(at, fault)) as index:
            for done, change in enumerate(CHANGES):
                try:
                    change(index)
                except StorageError as error:
                    assert "nothing was changed" in str(error)
                    assert ("no space left" if fault == "no space" else "input/output error") in str(error)
                    assert contents(index) == states[done]
                    assert state_on_disk(path) == states[done]
                    assert names_on_disk(path) == index._state.manifest.names()
                    change(index)  # the fault was there once
                assert contents(index) == states[done + 1]
            assert faults.count > at
        assert state_on_disk(path) == states[-1]
        check_that_it_can_be_written_again(path)
        shutil.rmtree(path)


def test_a_disk_that_fails_for_good_leaves_a_committed_state_and_the_index_goes_on_when_it_is_fixed(
    prepared, tmp_path, instants
):
    original, states, counts = prepared
    for at in instants(counts[-1]):
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        faults, done = Faults(at, "errors from here"), 0
        index = opened(path, faults)
        with pytest.raises(StorageError):  # noqa: PT012
            for change in (*CHANGES, CHANGES[0]):  # once more, if only a deletion failed, which does not matter
                change(index)
                done += 1
        found = state_on_disk(path)
        assert contents(index) == states[done]
        assert found in states[done : done + 2]
        faults.at = 0
        index.add(vectors(3, 9))
        assert len(index) == len(found) + 3
        assert state_on_disk(path) == contents(index)
        assert names_on_disk(path) == index._state.manifest.names()
        index.close()
        shutil.rmtree(path)


def replacement():
    index = Index(small_hasher())
    index.add(vectors(15, 5), ids=np.arange(15)[::-1] * 2)
    index.remove([4])
    return index


@pytest.mark.parametrize("fault", ERRORS + CRASHES + POWER_CUTS)
@pytest.mark.parametrize("over_another", [False, True])
def test_saving_is_all_or_nothing(prepared, tmp_path, monkeypatch, fault, over_another, instants):
    original, states, _ = prepared
    new, counting = replacement(), Faults()
    shutil.copytree(original, tmp_path / "counted")
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "Folder", counting.folder)
        new.save(tmp_path / "counted", overwrite=True)
    for at in instants(counting.count):
        path = tmp_path / str(at)
        if over_another:
            shutil.copytree(original, path)
        faulty, failed = Faults(at, fault), False
        with monkeypatch.context() as patch:
            patch.setattr(index_module, "Folder", faulty.folder)
            try:
                new.save(path, overwrite=True)
            except (StorageError, Crash):
                failed = True
        if over_another:
            found = state_on_disk(path)
            assert found in ([states[0], contents(new)] if failed else [contents(new)])
            if failed and fault in ERRORS:
                assert found == states[0]
            check_that_it_can_be_written_again(path)
        elif not failed:
            assert state_on_disk(path) == contents(new)
        new.save(path, overwrite=True)  # what is left of the first attempt is no obstacle
        assert state_on_disk(path) == contents(new)
        assert len(names_on_disk(path)) == len(Index.open(path)._state.manifest.names())
        shutil.rmtree(path)


@pytest.mark.parametrize("fault", ERRORS + CRASHES + POWER_CUTS)
def test_making_an_index_is_all_or_nothing(tmp_path, monkeypatch, fault, instants):
    hasher = small_hasher()

    def create(path, faults):
        with monkeypatch.context() as patch:
            patch.setattr(index_module, "Folder", faults.folder)
            Index.create(path, hasher).close()

    create(tmp_path / "counted", counting := Faults())
    assert counting.count > 8
    for at in instants(counting.count):
        path, failed = tmp_path / str(at), False
        try:
            create(path, Faults(at, fault))
        except (StorageError, Crash):
            failed = True
        try:
            assert state_on_disk(path) == {}
        except StorageError as error:
            assert failed
            assert "there is no index" in str(error)  # and not half of one
            Index.create(path, hasher).close()


@pytest.mark.parametrize("kills", [30, pytest.param(300, marks=pytest.mark.rare)])
def test_a_process_killed_at_random_moments_leaves_a_committed_state(tmp_path, kills):
    # forks among threads are warned of from Python 3.12 on; these children do next to nothing
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-m",
        "tests.index.crash_child",
        str(tmp_path),
        str(kills),
        "1",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1200
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    tally = ast.literal_eval(result.stdout)
    assert sum(tally.values()) == kills
    if kills > 100:
        assert {"add", "upsert", "remove", "compact", "save"} <= tally.keys()
