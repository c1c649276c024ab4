"""SIFT1M and GIST1M, laid out small as their archives are: fetched, split and loaded as the real ones are."""

import hashlib
import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from autojacobin import FormatError
from autojacobin.datasets import CATALOGUE, fetch_set, is_here, load_set
from autojacobin.datasets.sources import Split
from tests.datasets.fetch_server import serving
from tests.datasets.sources.written import rows_of, vecs

RNG = np.random.RandomState(7)


class TestTexmex:
    split = Split(train=12, base=30, queries=10)

    def files(self, learn=20, base=30, queries=10, width=128):
        def vectors(n):
            return RNG.randint(0, 256, (n, width)).astype("<f4")

        return {
            "learn.fvecs": vectors(learn),
            "base.fvecs": vectors(base),
            "query.fvecs": vectors(queries),
            "groundtruth.ivecs": RNG.randint(0, base, (queries, 100)).astype("<i4"),
        }

    def archive(self, files):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            for name, array in files.items():
                member = tarfile.TarInfo(f"sift/sift_{name}")
                member.size = len(vecs(array))
                tar.addfile(member, io.BytesIO(vecs(array)))
        return content.getvalue()

    def served(self, shrunk, content, url, checksum=""):
        """Make the entry small, and its file the content at this address."""
        entry = shrunk("sift1m", rows=60, split=self.split)
        published = f"md5:{hashlib.md5(content).hexdigest()}" if checksum == "" else checksum
        shrunk("sift1m", files=(replace(entry.files[0], url=url, checksum=published),))

    def check(self, data, files):
        assert np.array_equal(data.base, files["base.fvecs"])
        assert np.array_equal(data.queries, files["query.fvecs"])
        assert np.array_equal(data.truth, files["groundtruth.ivecs"])
        assert data.train.shape == (12, 128)
        assert rows_of(data.train) <= rows_of(files["learn.fvecs"])
        assert len(rows_of(data.train)) == 12
        assert data.licence == CATALOGUE["sift1m"].licence
        assert not data.base.flags.owndata  # mapped, not read

    def test_it_is_fetched_unpacked_and_loaded(self, shrunk, tmp_path):
        files = self.files()
        with serving(self.archive(files)) as server:
            self.served(shrunk, server.content, server.url)
            assert not is_here("sift1m", tmp_path / "data")
            told = []
            self.check(fetch_set("sift1m", tmp_path / "data", lambda *step: told.append(step)), files)
            assert {stage for stage, _, _ in told} >= {"fetching sift.tar.gz", "unpacking"}
            assert is_here("sift1m", tmp_path / "data")
            self.check(load_set("sift1m", tmp_path / "data"), files)
            self.check(fetch_set("sift1m", tmp_path / "data"), files)
            assert len(server.requests) == 1
        home = tmp_path / "data" / "sift1m"
        assert sorted(path.name for path in home.iterdir()) == ["sift"]

    def test_another_file_than_the_published_one_is_refused(self, shrunk, tmp_path, monkeypatch):
        monkeypatch.setattr("autojacobin.datasets.catalogue._RETRIES", 0)  # each would wait for some seconds
        files = self.files()
        with serving(self.archive(files)) as server:
            shrunk("sift1m", files=(replace(CATALOGUE["sift1m"].files[0], url=server.url),))
            with pytest.raises(FormatError, match="is not 'md5:b23d1b3b2ee8469d819b61ca900ef0ed'; fetch it again"):
                fetch_set("sift1m", tmp_path / "data")
        assert list((tmp_path / "data" / "sift1m").iterdir()) == []

    def test_an_archive_put_there_by_hand_is_used(self, shrunk, tmp_path):
        files = self.files()
        home = tmp_path / "data" / "sift1m"
        home.mkdir(parents=True)
        (home / "sift.tar.gz").write_bytes(self.archive(files))
        self.served(shrunk, (home / "sift.tar.gz").read_bytes(), "http://127.0.0.1:9/none")
        self.check(fetch_set("sift1m", tmp_path / "data"), files)

    def test_the_unpacked_files_alone_will_do_and_no_learning_set_is_cut_for_siftsmall(self, shrunk, tmp_path):
        files = self.files()
        shrunk("siftsmall", rows=60, split=Split(train=None, base=30, queries=10))
        home = tmp_path / "data" / "siftsmall"
        home.mkdir(parents=True)
        for name, array in files.items():
            (home / f"siftsmall_{name}").write_bytes(vecs(array))
        assert np.array_equal(load_set("siftsmall", tmp_path / "data").train, files["learn.fvecs"])

    def test_an_archive_of_something_else_is_told(self, shrunk, tmp_path):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            tar.addfile(tarfile.TarInfo("readme"))
        with serving(content.getvalue()) as server:
            self.served(shrunk, server.content, server.url)
            with pytest.raises(FormatError, match="the download of the set sift1m lacks some of its files"):
                fetch_set("sift1m", tmp_path)

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"base": 29}, "has 59 vectors of 128 values, .*, expected 60 of 128"),
            ({"base": 29, "learn": 21}, "29 in its base and 10 queries, expected .*, 30 and 10"),
            ({"width": 64}, "has 60 vectors of 64 values, .*, expected 60 of 128"),
        ],
    )
    def test_another_set_under_its_name_is_refused(self, shrunk, tmp_path, other, message):
        shrunk("gist1m", dimension=128, rows=60, split=self.split)
        home = tmp_path / "data" / "gist1m"
        home.mkdir(parents=True)
        for name, array in self.files(**other).items():
            (home / f"gist_{name}").write_bytes(vecs(array))
        with pytest.raises(FormatError, match=message):
            load_set("gist1m", tmp_path / "data")
