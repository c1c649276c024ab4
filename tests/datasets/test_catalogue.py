"""The catalogue: every entry is complete, and every name leads to a set or to a sentence that helps."""

import errno
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import DataError, StorageError
from autojacobin.datasets import CATALOGUE, data_folder, fetch_set, is_here, load_set
from autojacobin.datasets.prepared import draw
from autojacobin.datasets.sources import Split


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOJACOBIN_DATA", raising=False)


class TestEntries:
    def test_every_entry_says_where_it_is_from_and_under_what_terms(self):
        for name, entry in CATALOGUE.items():
            assert entry.name == name
            assert all((entry.description, entry.source, entry.licence, entry.citation))
            assert bool(entry.by_hand) == (entry.kind != "built in")
            for remote in entry.files:
                assert re.fullmatch(r"(https?|ftp)://\S+/" + re.escape(remote.url.rsplit("/", 1)[1]), remote.url)

    def test_every_file_is_checked_by_what_its_owners_publish_where_they_do(self):
        files = [remote for entry in CATALOGUE.values() for remote in entry.files]
        assert [remote.name for remote in files if remote.checksum is None] == ["sift10m.zip"]
        sums = {remote.checksum for remote in files if remote.checksum is not None}
        assert len(sums) == len(files) - 1
        assert all(re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", checksum) for checksum in sums)

    def test_the_sizes_are_those_of_table_one_with_the_base_of_nus_wide_corrected(self):
        table = {"sift1m": (128, 10**6, 10**4), "sift10m": (128, 10**7, 10**4), "gist1m": (960, 10**6, 10**3)}
        for name, (dimension, base, queries) in table.items():
            entry = CATALOGUE[name]
            assert (entry.dimension, entry.split.base, entry.split.queries) == (dimension, base, queries)
            assert entry.split.train == 10**4
        pictures = 269_648
        assert CATALOGUE["nus-wide"].split == Split(train=10**4, base=pictures - 10**4, queries=10**4)
        assert CATALOGUE["nus-wide"].rows == 161_789 + 107_859 == pictures


class TestDigits:
    def test_they_are_split_and_always_the_same(self):
        data, again = load_set("digits"), load_set("digits")
        assert data.base.shape == (1497, 64)
        assert data.queries.shape == (300, 64)
        assert np.array_equal(data.queries, again.queries)
        assert data.base.dtype == np.uint8
        together = np.concatenate([data.base, data.queries])
        assert len(np.unique(together, axis=0)) == len(together)  # no query stands in the base

    def test_they_need_no_cache(self, monkeypatch):
        monkeypatch.setenv("AUTOJACOBIN_CACHE", "/dev/null/no")
        assert len(load_set("digits").base) == 1497
        assert is_here("digits")


@pytest.mark.parametrize("address", ["https://me:open/sesame@host/x", "s3://bucket/x?token=sesame"])
def test_an_address_is_no_set_and_is_named_without_its_password(address):
    for use in (load_set, fetch_set):
        with pytest.raises(DataError, match=r"no data set is called '(https://host|s3://bucket)'") as told:
            use(address)
        assert "sesame" not in str(told.value)


def test_what_is_here_can_be_asked_without_a_cache(monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", "/dev/null/no")
    assert {name for name in CATALOGUE if is_here(name)} >= {"digits", "photos"}
    assert not is_here("gist1m")
    with pytest.raises(StorageError, match="cannot keep the files of gist1m in the folder /dev/null/no/sets/gist1m"):
        fetch_set("gist1m")


def test_a_folder_that_cannot_be_looked_at_has_no_set_in_it(monkeypatch, tmp_path):
    (tmp_path / "sift1m").mkdir()

    def refuse(path):  # the superuser, who may run this, is refused nothing
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert not is_here("sift1m", tmp_path)
    with pytest.raises(StorageError, match=r"cannot read the folder .*sift1m: permission denied"):
        load_set("sift1m", tmp_path)


@pytest.mark.parametrize("name", [["digits"], None, 3])
def test_names_that_are_no_names_are_told(name):
    for call in (fetch_set, is_here):
        with pytest.raises(DataError, match=r"no data set is called .*, expected one of: digits"):
            call(name)


def test_photos_come_with_their_patches(monkeypatch):
    arrays = {
        "train": np.zeros((3, 128), np.uint8),
        "base": np.ones((4, 128), np.uint8),
        "queries": np.zeros((2, 128), np.uint8),
        "base_patches": np.zeros((4, 32, 32), np.uint8),
        "query_patches": np.zeros((2, 32, 32), np.uint8),
    }
    monkeypatch.setattr(
        # its own tests build the real ones
        "autojacobin.datasets.pictures.open_photos",
        lambda: arrays,
    )
    data = load_set("photos")
    assert all(getattr(data, role) is array for role, array in arrays.items())
    assert "scikit-image" in data.source


class TestDraw:
    @given(n=st.integers(0, 500), data=st.data())
    def test_the_parts_are_disjoint_ascending_and_always_the_same(self, n, data):
        first = data.draw(st.integers(0, n))
        second = data.draw(st.integers(0, n - first))
        parts = draw(n, first, second)
        assert [len(part) for part in parts] == [first, second]
        assert all(np.all(np.diff(part) > 0) for part in parts)
        union = set(parts[0].tolist()) | set(parts[1].tolist())
        assert len(union) == first + second
        assert union <= set(range(n))
        assert all(np.array_equal(*pair) for pair in zip(parts, draw(n, first, second), strict=True))

    def test_every_row_is_as_likely(self):
        chosen = draw(100_000, 50_000)[0]
        assert abs(chosen.mean() - 50_000) < 500  # the deviation of the mean is some 91


class TestNames:
    @pytest.mark.parametrize("name", ["digit", "", "no/such/place", "a" * 5000, "zero\0"])
    def test_an_unknown_one_is_told(self, name, tmp_path):
        with pytest.raises(DataError, match="no data set is called .*, expected one of: digits, photos, siftsmall"):
            load_set(name, tmp_path)

    def test_one_that_is_not_here_says_how_to_get_it(self, tmp_path):
        told = rf"fetch it with: autojacobin data fetch gist1m --data {tmp_path}, which .* put there: gist\.tar\.gz"
        with pytest.raises(StorageError, match=told):
            load_set("gist1m", tmp_path)
        with pytest.raises(StorageError, match="fetch it with: autojacobin data fetch gist1m, which downloads it"):
            load_set("gist1m")

    def test_the_folder_is_the_one_given_or_that_of_the_environment_or_in_the_cache(self, monkeypatch, tmp_path):
        assert data_folder() == tmp_path / "cache" / "sets"
        monkeypatch.setenv("AUTOJACOBIN_DATA", str(tmp_path / "env"))
        assert data_folder() == tmp_path / "env"
        assert data_folder(tmp_path / "given") == tmp_path / "given"
        assert data_folder("~/x") == Path.home() / "x"

    def test_built_in_sets_need_not_be_fetched(self):
        assert len(fetch_set("digits").base) == 1497
