"""Which library is loaded, and what is said where none can be."""

import os
import subprocess
import sys

import numpy as np
import pytest

from autojacobin import _native
from tests.waiting import SECONDS


def level_of_new_process(named):
    """Load the kernels with a level that the environment names; gives what was printed, and the error."""
    result = subprocess.run(
        [sys.executable, "-c", "from autojacobin import _native; print(_native.LEVEL, _native.kernels.__name__)"],
        env={**os.environ, "AUTOJACOBIN_LEVEL": named}, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    return result.stdout.strip(), result.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("level", _native.levels())
def test_the_level_that_is_named_is_loaded(level):
    assert level_of_new_process(level)[0] == f"{level} autojacobin._native.{level.replace('-', '_')}"


def test_without_a_name_the_best_is_loaded():
    assert level_of_new_process("")[0].split()[0] == _native.levels()[-1]


def test_a_name_that_is_none_is_an_error():
    printed, error = level_of_new_process("fastest")
    assert not printed
    assert "AUTOJACOBIN_LEVEL must be one of" in error
    assert f"{_native.levels()[0]}" in error
    assert "got 'fastest'" in error


@pytest.mark.parametrize(
    ("runs", "installed", "message"),
    [
        (["low"], ["low", "high"], "AUTOJACOBIN_LEVEL is high, which this CPU cannot run; it runs low"),
        (["low", "high"], ["low"], "AUTOJACOBIN_LEVEL is high, whose library is not installed; use low, or build"),
    ],
)
def test_a_level_that_cannot_be_loaded_is_an_error(runs, installed, message, monkeypatch):
    use(runs, installed, monkeypatch)
    monkeypatch.setenv("AUTOJACOBIN_LEVEL", "high")
    with pytest.raises(_native.AutoJacobinError, match=message):
        _native._chosen_level()


def test_no_level_that_can_be_loaded_is_an_error(monkeypatch):
    use([], ["low", "high"], monkeypatch)
    with pytest.raises(_native.AutoJacobinError, match="no installed library runs on this CPU"):
        _native._chosen_level()


def use(runs, installed, monkeypatch):
    monkeypatch.delenv("AUTOJACOBIN_LEVEL", raising=False)
    monkeypatch.setattr(_native.cpu, "known_levels", lambda: ["low", "high"])
    monkeypatch.setattr(_native.cpu, "levels", lambda: runs)
    monkeypatch.setattr(_native, "_is_installed", lambda level: level in installed)


def test_levels_are_in_order_and_the_lowest_is_always_there():
    known = _native.cpu.known_levels()
    assert _native.levels()[0] == known[0]
    assert [level for level in known if level in _native.cpu.levels()] == _native.cpu.levels()


def test_arrays_are_taken_as_they_are_or_not_at_all(kernels):
    """No copy is made of an array of another type, or with gaps, and a wrong shape is an error."""
    words, queries = np.zeros((1, 1, 8, 256), dtype=np.uint64), np.zeros((2, 1), dtype=np.uint64)
    planes, allowed = np.empty((0, 0, 0), dtype=np.uint64), np.zeros(32, dtype=np.uint64)
    radii = np.zeros(2, dtype=np.int64)
    good = [words, queries, planes, 65, allowed, radii, 1]
    for array in (words, queries, allowed, radii):
        array.flags.writeable = False
    assert [part.shape for part in kernels.scan_slices(*good)] == [(2, 1), (2, 1)]
    for place, wrong in [(0, words.astype(np.int64)), (1, np.zeros((2, 2), dtype=np.uint64)[:, ::2]), (5, radii[None])]:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            kernels.scan_slices(*good[:place], wrong, *good[place + 1 :])
    for place, wrong in [(1, np.zeros((2, 2), dtype=np.uint64)), (3, 10**6), (4, allowed[:-1]), (6, 0)]:
        with pytest.raises(ValueError, match="wrong argument of a kernel"):
            kernels.scan_slices(*good[:place], wrong, *good[place + 1 :])
