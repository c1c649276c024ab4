"""Repair loses no more than it must, whatever is damaged, and leaves a whole index or none."""

import errno
import io
import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from autojacobin import LSH
from autojacobin.errors import DataError, FormatError, StorageError
from autojacobin.index import index as index_module
from autojacobin.index.array_files import BLOCK_BYTES
from autojacobin.index.folder import Folder
from autojacobin.index.index import Index
from autojacobin.index.repair import repair
from tests.index.faults import Faults
from tests.index.index_model import N_FEATURES, contents, small_hasher
from tests.index.test_damage import file_of, flip, vectors

N = 5_000


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Two segments, of which the first has a file of every kind."""
    path = tmp_path_factory.mktemp("repair") / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(N), ids=np.random.default_rng(0).permutation(2 * N)[:N])
        index.remove(index.ids[::1000])
        index.add(vectors(3_000, seed=1))
    return path


@pytest.fixture
def copied(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "index"))


def repaired(path, **options):
    target = path.parent / "repaired"
    report = repair(path, target, **options)
    with Index.open(target) as index:
        index.verify()
        assert len(index) == report.saved
        return report, contents(index)


def files_of(path):
    return sorted(path.glob("*-*.bin"))


@pytest.mark.parametrize("place", [9, 13, 33, 66, 75, 90, 2_000, 4_090, -3], ids=str)
@pytest.mark.parametrize("kind", ["codes", "ids", "rows", "vectors", "dead"])
def test_a_damaged_header_or_table_of_checksums_costs_no_vector(copied, kind, place):
    """Places in the header: version, kind, length, checksums, label, nothing; and in the table."""
    with Index.open(copied) as index:
        before = contents(index)
    for file in copied.glob(f"{kind}-*"):
        flip(file, place)
    report, found = repaired(copied)
    assert report.problems
    if place > 0:
        assert found == before
        assert (report.lost, report.renumbered, report.revived) == (0, 0, 0)
    elif kind == "vectors":
        assert 0 < report.lost <= 2 * BLOCK_BYTES // (4 * N_FEATURES)
        assert found.items() <= before.items()
    elif kind == "dead":  # the one entry of the table guards the whole list
        assert report.revived == 5
        assert before.items() <= found.items()
    else:
        assert report.lost == 0
        assert set(found.values()) >= set(before.values())


@pytest.mark.parametrize("manifest", ["whole", "lost"])
@pytest.mark.parametrize("loss", ["gone", "cut", "empty", "of another segment", "random"])
@pytest.mark.parametrize("kind", ["codes", "ids", "rows", "vectors", "dead"])
def test_a_lost_file_costs_what_was_in_it_and_nothing_else(copied, kind, loss, manifest):
    with Index.open(copied) as index:
        before = contents(index)
        second = {i: vector for i, vector in before.items() if i >= index._state.segments[1].first_id}
    first = next(path for path in copied.glob(f"{kind}-*") if path.stat().st_mtime_ns == min(
        other.stat().st_mtime_ns for other in copied.glob(f"{kind}-*")))  # fmt: skip
    content = first.read_bytes()
    if loss == "gone":
        first.unlink()
    elif loss == "of another segment":
        others = [path for path in copied.glob(f"{kind}-*") if path != first]
        first.write_bytes(others[0].read_bytes() if others else b"")
    else:
        first.write_bytes({"cut": content[:4_200], "empty": b"", "random": os.urandom(len(content))}[loss])
    if manifest == "lost":
        (copied / "MANIFEST.json").unlink()
    report, found = repaired(copied)
    values = set(found.values())
    assert all(found.get(i) == vector or vector in values for i, vector in second.items())
    if kind == "vectors":
        assert report.lost == len(before) - len(second)
        assert found == second
    elif kind == "codes":
        assert found == before
    elif kind == "dead":
        assert before.items() <= found.items()
    elif kind == "ids":
        assert (report.lost, report.renumbered) == (0, len(before) - len(second))
        assert sorted(before.values()) == sorted(found.values())
    else:  # without rows nobody knows which of the vectors were removed
        assert (report.lost, report.renumbered, report.revived) == (0, N, 5)
        assert values > set(before.values())
        assert second.items() <= found.items()
        assert not set(found) & (set(before) - set(second))


def test_vectors_of_whole_segments_are_kept_when_another_segment_lost_its_own(copied):
    (copied / "MANIFEST.json").unlink()
    for file in copied.glob("vectors-*"):
        if file.stat().st_size < 4 * N_FEATURES * N:
            file.unlink()
    report, found = repaired(copied)
    assert report.lost == 3_000
    assert len(found) == N - 5


def test_only_a_damaged_block_of_removals_comes_back(tmp_path):
    path, n = tmp_path / "index", 2 * 8 * BLOCK_BYTES
    hasher = LSH(8, random_state=0).fit(vectors(50))
    with Index.create(path, hasher, keep_vectors=False) as index:
        index.add(np.zeros((n, N_FEATURES), dtype=np.float32))
        index.remove([1, 2, n - 3, n - 2, n - 1])
    flip(file_of(path, "dead"), 4096)
    report = repair(path, tmp_path / "repaired")
    assert (report.revived, report.lost, report.saved) == (2, 0, n - 3)


@pytest.mark.parametrize("fault", ["no space", "error", "interrupt after", "crash"])
def test_a_repair_that_fails_leaves_no_index_and_can_be_repeated(copied, tmp_path, monkeypatch, fault):
    with Index.open(copied) as index:
        before = contents(index)
    target = tmp_path / "repaired"
    for at in itertools.count(1):
        faults = Faults(at, fault)
        with monkeypatch.context() as patch:
            patch.setattr(index_module, "Folder", faults.folder)
            try:
                repair(copied, target)
                break
            except BaseException as error:
                assert fault not in ("no space", "error") or isinstance(error, StorageError)
        try:
            with Index.open(target) as index:
                assert contents(index) == before  # the fault came after the commit
            shutil.rmtree(target)
        except StorageError as error:
            assert "there is no index" in str(error)
    assert at > 15
    with Index.open(target) as index:
        assert contents(index) == before


def test_an_index_that_is_written_meanwhile_is_repaired_as_it_is_then(copied, tmp_path, monkeypatch):
    writer, read = Index.open(copied), Folder.read_manifest
    changes = [writer.compact, lambda: writer.add(vectors(4, seed=8))]

    def read_and_write(self):
        content = read(self)
        if changes and self.path == copied and self is not writer._folder:
            changes.pop()()
        return content

    monkeypatch.setattr(Folder, "read_manifest", read_and_write)
    report = repair(copied, tmp_path / "repaired")
    assert not changes
    assert (report.lost, report.problems) == (0, [])
    with Index.open(tmp_path / "repaired") as index:
        assert contents(index) == contents(writer)
    writer.close()


def test_a_hasher_of_another_index_is_refused(copied, tmp_path):
    flip(file_of(copied, "hasher"), 300)
    with pytest.raises(DataError, match="makes codes of 9 bits from 4 features, expected 6 from 4"):
        repair(copied, tmp_path / "repaired", hasher=LSH(9, random_state=0).fit(vectors(50)))
    assert not (tmp_path / "repaired").exists()


def test_the_source_is_no_target_by_another_name_either(copied, tmp_path):
    (tmp_path / "link").symlink_to(copied)
    (copied / "MANIFEST.json").unlink()
    (copied / "UNFINISHED").touch()
    names = {entry.name for entry in copied.iterdir()}
    with pytest.raises(StorageError, match="needs a folder of its own"):
        repair(copied, tmp_path / "link")
    assert {entry.name for entry in copied.iterdir()} == names


def test_a_file_that_cannot_be_read_costs_what_is_in_it(copied, tmp_path, monkeypatch):
    """A bad sector: the system reports an error and gives nothing."""
    bad, read = file_of_first(copied, "vectors"), Folder.open

    def open_or_fail(self, name):
        if name == bad.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return read(self, name)

    monkeypatch.setattr(Folder, "open", open_or_fail)
    report = repair(copied, tmp_path / "repaired")
    assert report.saved in (3_000, N - 5)
    assert bad.name in report.problems[0]
    with pytest.raises((FormatError, StorageError)):
        Index.open(copied)


@pytest.mark.parametrize("kind", ["codes", "ids", "rows", "vectors"])
def test_a_bad_sector_costs_one_block(copied, tmp_path, monkeypatch, kind):
    """The system reports an error when it is read; a memory map would end the process."""
    with Index.open(copied) as index:
        before = contents(index)
    bad, read = max(copied.glob(f"{kind}-*"), key=lambda file: file.stat().st_size), Folder.open

    class BadSector(io.BufferedReader):
        def read(self, size=-1):
            if self.tell() <= 4096 + 20 < self.tell() + size and self.tell():
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read(size)

    def open_with_it(self, name):
        stream = read(self, name)
        return stream if name != bad.name else BadSector(stream.detach())

    monkeypatch.setattr(Folder, "open", open_with_it)
    report = repair(copied, tmp_path / "repaired")
    assert (0 < report.lost <= BLOCK_BYTES // (4 * N_FEATURES)) if kind == "vectors" else not report.lost
    assert bad.name in " ".join(report.problems)
    with pytest.raises((FormatError, StorageError), match="cannot be read|input/output error"):
        Index.open(copied).verify()
    with Index.open(tmp_path / "repaired") as index:
        found = contents(index)
    assert len(set(before.values()) - set(found.values())) == report.lost


def file_of_first(path, kind):
    return sorted(path.glob(f"{kind}-*"))[0]


@pytest.mark.parametrize("metric", ["cosine", "inner_product"])
def test_a_repaired_index_has_the_metric_of_the_old_one(tmp_path, metric):
    base = vectors(300)
    Index.from_vectors(base, small_hasher(), path=tmp_path / "index", metric=metric).close()
    flip(file_of(tmp_path / "index", "codes"), -3)
    report, _ = repaired(tmp_path / "index")
    assert report.saved == 300
    with Index.open(tmp_path / "repaired") as index:
        assert index.info()["metric"] == metric
        values, ids = index.search(base[:5], 3, recall=1)
    products = base[:5].astype(np.float64) @ base.astype(np.float64).T
    if metric == "cosine":
        products /= np.outer(np.linalg.norm(base[:5], axis=1), np.linalg.norm(base, axis=1))
    np.testing.assert_array_equal(ids, np.argsort(-products, axis=1)[:, :3])
    np.testing.assert_allclose(values, -np.sort(-products, axis=1)[:, :3], rtol=1e-3)


def test_a_lost_manifest_loses_the_metric_and_the_report_says_so(copied):
    (copied / "MANIFEST.json").unlink()
    report, _ = repaired(copied)
    assert "The metric is not known without the manifest; that of the model is euclidean." in report.problems
