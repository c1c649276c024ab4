"""Every target, on the files to start from and on some fixed changes of them; ``make fuzz`` goes further."""

import sys
import tracemalloc
import zlib
from random import Random

import pytest
from numba.core.dispatcher import Dispatcher

from tests.fuzz.index_files import GOLDEN, sealed_folder
from tests.fuzz.one_target import compiled_modules
from tests.fuzz.targets import CORPUS, TARGETS, run

CHANGES = 60
MOST_MEMORY = 16 * 2**20  # for files of some kilobytes, with the buffers of gzip and zip
OF_FILES = [name for name in TARGETS if not name.startswith("index-")]
OF_INDEXES = [name for name in TARGETS if name.startswith("index-")]


@pytest.mark.parametrize("name", TARGETS)
def test_the_files_to_start_from_are_read(name, tmp_path):
    seeds = TARGETS[name].make_seeds()
    assert seeds
    assert [run(TARGETS[name], content, tmp_path) for content in seeds] == [""] * len(seeds)


@pytest.mark.parametrize("name", OF_FILES)
def test_changed_files_are_read_or_refused(name, tmp_path):
    target = TARGETS[name]
    outcomes, peak = {run(target, target.make_seeds()[0], tmp_path)}, 0  # modules that the first one loads do not count
    for content in _changed(name, CHANGES):
        tracemalloc.start()
        try:
            outcomes.add(run(target, content, tmp_path))
        finally:
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert {"", target.errors[0].__name__} <= outcomes
    assert peak < MOST_MEMORY


@pytest.mark.parametrize("name", OF_INDEXES)
def test_changed_indexes_are_read_or_refused(name, tmp_path):
    outcomes = {run(TARGETS[name], content, tmp_path) for content in _changed(name, CHANGES // 5)}
    # a repair passes over damaged segments, and is refused where nothing is left
    assert {"index-repair": "StorageError", "index-columns": "DataError"}.get(name, "FormatError") in outcomes


@pytest.mark.parametrize("name", OF_FILES)
def test_noise_is_refused(name, tmp_path):
    rng = Random(zlib.crc32(name.encode()))
    outcomes = {run(TARGETS[name], rng.randbytes(rng.randrange(300)), tmp_path) for _ in range(20)}
    assert TARGETS[name].errors[0].__name__ in outcomes


@pytest.mark.parametrize("golden", GOLDEN)
def test_the_checksums_of_an_index_are_computed_as_the_library_does(golden):
    assert sealed_folder(GOLDEN[golden]) == GOLDEN[golden]


@pytest.mark.parametrize("name", OF_FILES)
def test_the_checksums_of_a_file_are_computed_as_its_writer_did(name):
    for content in TARGETS[name].make_seeds():
        assert TARGETS[name].seal(content) == content


def test_no_compiled_function_is_counted_by_atheris():
    compiled = {
        value.py_func.__module__
        for name, module in sys.modules.items()
        if name.startswith("autojacobin.")
        for value in vars(module).values()
        if isinstance(value, Dispatcher)
    }
    assert len(compiled) > 3
    assert compiled <= set(compiled_modules())


def test_what_is_kept_for_a_target_belongs_to_one():
    assert {path.name for path in CORPUS.glob("*")} <= TARGETS.keys()


def _changed(name, count):
    """Files that once failed, and changes of those to start from, the same ones in every run."""
    target = TARGETS[name]
    seeds = target.seeds(name)
    yield from seeds
    for number in range(count):
        rng = Random(zlib.crc32(f"{name} {number}".encode()))
        yield target.mutate(rng.choice(seeds), rng)
