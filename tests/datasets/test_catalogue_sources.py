"""Small files laid out as those of each set: fetched, unpacked, split and loaded as the real ones are."""

import errno
import gzip
import hashlib
import io
import shutil
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from autojacobin import AutoJacobinError, FormatError, StorageError
from autojacobin.datasets import CATALOGUE, fetch_set, is_here, load_set
from autojacobin.datasets._entries import Split
from tests.datasets.fetch_server import serving

RNG = np.random.RandomState(7)


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOJACOBIN_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def shrunk(monkeypatch):
    """Gives an entry of the catalogue other sizes or files, and nothing else."""

    def shrink(name, **changes):
        monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], **{"elsewhere": (), **changes}))
        return CATALOGUE[name]

    return shrink


def vecs(array):
    """The bytes of .fvecs, .bvecs and .ivecs, packed row by row."""
    return b"".join(struct.pack("<i", len(row)) + row.tobytes() for row in array)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def rows_of(array):
    return {row.tobytes() for row in np.ascontiguousarray(array)}


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
            entry = shrunk("sift1m", rows=60, split=self.split)
            shrunk("sift1m", files=(replace(entry.files[0], url=server.url),))
            assert not is_here("sift1m", tmp_path / "data")
            told = []
            self.check(fetch_set("sift1m", tmp_path / "data", lambda *step: told.append(step)), files)
            assert {stage for stage, _, _ in told} >= {"fetching sift.tar.gz", "unpacking"}
            assert is_here("sift1m", tmp_path / "data")
            self.check(load_set("sift1m", tmp_path / "data"), files)
            self.check(fetch_set("sift1m", tmp_path / "data"), files)
            assert len(server.requests) == 1
        home = tmp_path / "data" / "sift1m"
        assert sorted(path.name for path in home.iterdir()) == ["sift", "sift.tar.gz.sha256"]

    def test_an_archive_put_there_by_hand_is_used(self, shrunk, tmp_path):
        files = self.files()
        entry = shrunk("sift1m", rows=60, split=self.split)
        shrunk("sift1m", files=(replace(entry.files[0], url="http://127.0.0.1:9/none"),))
        home = tmp_path / "data" / "sift1m"
        home.mkdir(parents=True)
        (home / "sift.tar.gz").write_bytes(self.archive(files))
        self.check(fetch_set("sift1m", tmp_path / "data"), files)

    def test_another_file_than_at_the_first_fetch_is_refused(self, shrunk, tmp_path):
        first, second = self.archive(self.files()), self.archive(self.files())
        entry = shrunk("sift1m", rows=60, split=self.split)
        with serving(first) as server:
            shrunk("sift1m", files=(replace(entry.files[0], url=server.url),))
            fetch_set("sift1m", tmp_path / "data")
            home = tmp_path / "data" / "sift1m"
            record = (home / "sift.tar.gz.sha256").read_text()
            assert record == f"{hashlib.sha256(first).hexdigest()}  sift.tar.gz\n"
            shutil.rmtree(home / "sift")
            server.content = second
            with pytest.raises(FormatError, match="where that of the first fetch was .* says sift.tar.gz.sha256"):
                fetch_set("sift1m", tmp_path / "data")
            assert [path.name for path in home.iterdir()] == ["sift.tar.gz.sha256"]
            server.content = first
            assert len(fetch_set("sift1m", tmp_path / "data").base) == 30

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
            entry = shrunk("sift1m", rows=60, split=self.split)
            shrunk("sift1m", files=(replace(entry.files[0], url=server.url),))
            with pytest.raises(FormatError, match="what was fetched for the set sift1m does not hold its files"):
                fetch_set("sift1m", tmp_path)

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"base": 29}, "has 59 vectors, expected 60"),
            ({"base": 29, "learn": 21}, "29 vectors in its base and 10 queries, expected 30 and 10"),
            ({"width": 64}, "its vectors have 64 values, expected 128"),
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


class TestSift10M:
    split = Split(train=20, base=200, queries=30)

    def write(self, home, transposed, several=False, patches=False):
        home.mkdir(parents=True)
        features = RNG.randint(0, 256, (300, 128)).astype(np.uint8)
        with h5py.File(home / "SIFT10Mfeatures.mat", "w", userblock_size=512) as file:
            stored = features.T if transposed else features
            file.create_dataset("fea", data=stored, chunks=(16, 16), compression="gzip")
            if several:
                file.create_dataset("scale", data=np.ones((300, 2)))
        if patches:
            with h5py.File(home / "SIFT10Mpatches.mat", "w", userblock_size=512) as file:
                file.create_dataset("patches", data=pictures_of(features).transpose(0, 2, 1).reshape(300, -1))
        return features

    @pytest.mark.parametrize("transposed", [False, True])
    @pytest.mark.parametrize("several", [False, True])
    def test_either_way_round_it_is_split_into_disjoint_parts(self, shrunk, tmp_path, transposed, several):
        shrunk("sift10m", rows=300, split=self.split)
        features = self.write(tmp_path / "sift10m" / "sift10m" / "SIFT10M", transposed, several)
        data = load_set("sift10m", tmp_path)
        parts = [data.train, data.base, data.queries]
        assert [part.shape for part in parts] == [(20, 128), (200, 128), (30, 128)]
        places = [[features.tolist().index(row) for row in np.asarray(part).tolist()] for part in parts]
        assert all(place == sorted(place) for place in places)
        assert len({row for place in places for row in place}) == 250
        assert isinstance(data.base, np.memmap)
        again = load_set("sift10m", tmp_path)
        assert np.array_equal(again.queries, data.queries)

    def test_patches_stay_with_their_vectors(self, shrunk, tmp_path):
        shrunk("sift10m", rows=300, split=self.split)
        self.write(tmp_path / "sift10m", transposed=False, patches=True)
        data = load_set("sift10m", tmp_path)
        assert np.array_equal(data.base_patches, pictures_of(data.base))
        assert np.array_equal(data.query_patches, pictures_of(data.queries))

    @pytest.mark.parametrize(
        "patches", [np.zeros((300, 9)), np.zeros((300, 8), np.uint8), np.zeros((299, 9), np.uint8)]
    )
    def test_patches_of_another_kind_are_told(self, shrunk, tmp_path, patches):
        shrunk("sift10m", rows=300, split=self.split)
        self.write(tmp_path / "sift10m", transposed=False)
        with h5py.File(tmp_path / "sift10m" / "patches.mat", "w") as file:
            file.create_dataset("patches", data=patches)
        with pytest.raises(FormatError, match=r"patches\.mat holds (float64|uint8|a matrix)"):
            load_set("sift10m", tmp_path)
        assert not list((tmp_path / "cache" / "prepared").iterdir())

    def test_the_archive_of_the_repository_is_unpacked_to_the_bottom(self, shrunk, tmp_path):
        features = self.write(tmp_path / "made", transposed=False)
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            tar.add(tmp_path / "made" / "SIFT10Mfeatures.mat", "SIFT10M/SIFT10Mfeatures.mat")
        outer = io.BytesIO()
        with zipfile.ZipFile(outer, "w") as container:
            container.writestr("SIFT10M.tar.gz", content.getvalue())
        with serving(outer.getvalue()) as server:
            entry = shrunk("sift10m", rows=300, split=self.split)
            shrunk("sift10m", files=(replace(entry.files[0], url=server.url),))
            data = fetch_set("sift10m", tmp_path / "data")
        assert rows_of(data.base) < rows_of(features)

    def test_two_that_unpack_at_once_do_not_disturb_each_other(self, shrunk, tmp_path):
        self.write(tmp_path / "made", transposed=False)
        home = tmp_path / "data" / "sift10m"
        home.mkdir(parents=True)
        with zipfile.ZipFile(home / "sift10m.zip", "w") as container:
            container.write(tmp_path / "made" / "SIFT10Mfeatures.mat", "SIFT10Mfeatures.mat")
        shrunk("sift10m", rows=300, split=self.split)
        others = []

        def somebody_else(stage, done, total):
            if not others:
                others.append(stage)
                others.append(fetch_set("sift10m", tmp_path / "data"))

        data = fetch_set("sift10m", tmp_path / "data", somebody_else)
        assert others[0] == "unpacking"
        assert np.array_equal(data.base, others[1].base)
        assert sorted(path.name for path in home.iterdir()) == ["sift10m", "sift10m.zip.sha256"]

    def test_an_archive_that_cannot_be_read_is_told(self, shrunk, tmp_path, monkeypatch):
        (tmp_path / "sift10m").mkdir()
        (tmp_path / "sift10m" / "sift10m.zip").write_bytes(b"PK")
        (tmp_path / "sift10m" / "sift10m.zip.sha256").write_text("0123")
        opened = Path.open

        def refuse(path, *arguments, **more):
            if path.name == "sift10m.zip":  # the superuser, who may run this, is refused nothing
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return opened(path, *arguments, **more)

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(StorageError, match=r"cannot read or keep .*sift10m\.zip: Permission denied"):
            fetch_set("sift10m", tmp_path)

    @pytest.mark.parametrize(
        ("shape", "message"), [((300, 127), "expected a side of 128"), ((301, 128), "has 301 vectors, expected 300")]
    )
    def test_another_matrix_is_refused(self, shrunk, tmp_path, shape, message):
        shrunk("sift10m", rows=300, split=self.split)
        (tmp_path / "sift10m").mkdir()
        with h5py.File(tmp_path / "sift10m" / "SIFT10Mfeatures.mat", "w") as file:
            file.create_dataset("fea", data=np.zeros(shape, np.uint8))
        with pytest.raises(FormatError, match=message):
            load_set("sift10m", tmp_path)

    def test_what_a_killed_unpacking_left_is_passed_over(self, shrunk, tmp_path):
        self.write(tmp_path / "sift10m" / ".sift10m-0123.part" / "SIFT10M", transposed=False)
        assert not is_here("sift10m", tmp_path)

    def test_a_file_that_is_no_hdf5_is_told(self, shrunk, tmp_path):
        (tmp_path / "sift10m").mkdir()
        (tmp_path / "sift10m" / "SIFT10Mfeatures.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
        with pytest.raises(FormatError, match="SIFT10Mfeatures.mat is damaged or is no"):
            load_set("sift10m", tmp_path)


def pictures_of(features):
    """Pictures of 3×3 that tell which vector they belong to, and are not symmetric."""
    return np.asarray(features)[:, :9].reshape(-1, 3, 3)


class TestNusWide:
    split = Split(train=15, base=170, queries=30)

    def write(self, path, n):
        values = RNG.rand(n, 128).round(6)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(" ".join(f"{value:g}" for value in row) + " \n" for row in values))
        return values.astype(np.float32)

    @pytest.mark.parametrize("where", [".", "NUS_WID_Low_Level_Features/Low_Level_Features"])
    def test_training_and_test_files_are_put_together_and_split(self, shrunk, tmp_path, where):
        shrunk("nus-wide", rows=200, split=self.split)
        home = tmp_path / "nus-wide" / where
        values = [self.write(home / f"{kind}_Normalized_WT.dat", n) for kind, n in (("Train", 120), ("Test", 80))]
        self.write(home / "Train_Normalized_CH.dat", 5)
        data = load_set("nus-wide", tmp_path)
        assert (data.train.shape, data.base.shape, data.queries.shape) == ((15, 128), (170, 128), (30, 128))
        together = np.concatenate([data.base, data.queries])
        assert rows_of(together) == rows_of(np.concatenate(values))
        assert rows_of(data.train) < rows_of(data.base)
        assert data.base.dtype == np.float32
        assert len(rows_of(data.queries) & rows_of(values[0])) not in (0, 30)  # drawn from both files

    def test_the_one_file_of_all_pictures_will_do(self, shrunk, tmp_path):
        shrunk("nus-wide", rows=200, split=self.split)
        values = self.write(tmp_path / "nus-wide" / "Normalized_WT.dat", 200)
        data = load_set("nus-wide", tmp_path)
        assert rows_of(np.concatenate([data.base, data.queries])) == rows_of(values)

    def test_a_changed_file_is_not_mistaken_for_the_old_one(self, shrunk, tmp_path):
        shrunk("nus-wide", rows=200, split=self.split)
        path = tmp_path / "nus-wide" / "Normalized_WT.dat"
        self.write(path, 200)
        old = np.array(load_set("nus-wide", tmp_path).base)
        values = self.write(path, 200)
        new = load_set("nus-wide", tmp_path).base
        assert rows_of(new) < rows_of(values)
        assert not rows_of(new) & rows_of(old)

    def test_it_is_said_what_to_put_where(self, tmp_path):
        for call in (load_set, fetch_set):
            with pytest.raises(
                AutoJacobinError, match=r"cannot be fetched by a program; put there Normalized_WT\.dat"
            ) as caught:
                call("nus-wide", tmp_path)
            assert str(tmp_path / "nus-wide") in str(caught.value)

    def test_a_short_file_is_told_and_nothing_is_left_in_the_cache(self, tmp_path):
        self.write(tmp_path / "nus-wide" / "Normalized_WT.dat", 5)
        with pytest.raises(FormatError, match="has 5 vectors, expected 269,648"):
            load_set("nus-wide", tmp_path)
        assert not list((tmp_path / "cache").rglob("*.npy"))


class TestMnist:
    split = Split(train=10, base=40, queries=20)

    def pictures(self):
        return [RNG.randint(0, 256, (n, 28, 28)).astype(np.uint8) for n in (40, 20)]

    def check(self, data, base, queries):
        assert np.array_equal(data.base, base.reshape(40, 784))
        assert np.array_equal(data.queries, queries.reshape(20, 784))
        assert data.train.shape == (10, 784)
        assert rows_of(data.train) < rows_of(data.base)

    @pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
    @pytest.mark.parametrize("packed", [True, False])
    def test_idx_files_come_out_as_vectors_and_pictures(self, shrunk, tmp_path, name, packed):
        shrunk(name, rows=60, split=self.split)
        pictures = self.pictures()
        (tmp_path / name).mkdir()
        for kind, array in zip(("train", "t10k"), pictures, strict=True):
            path = tmp_path / name / f"{kind}-images-idx3-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
        data = load_set(name, tmp_path)
        self.check(data, *pictures)
        assert np.array_equal(data.base_patches, pictures[0])
        assert np.array_equal(data.query_patches, pictures[1])

    def test_both_files_are_fetched_and_checked(self, shrunk, tmp_path):
        pictures = self.pictures()
        packed = [gzip.compress(idx(array)) for array in pictures]
        with serving(packed[0]) as first, serving(packed[1]) as second:
            entry = shrunk("mnist", rows=60, split=self.split)
            files = [
                replace(file, url=server.url, checksum=f"md5:{hashlib.md5(server.content).hexdigest()}")
                for file, server in zip(entry.files, (first, second), strict=True)
            ]
            shrunk("mnist", files=tuple(files))
            self.check(fetch_set("mnist", tmp_path), *pictures)
            (tmp_path / "mnist" / files[1].name).unlink()
            self.check(fetch_set("mnist", tmp_path), *pictures)
            assert (len(first.requests), len(second.requests)) == (1, 2)
        assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(file.name for file in files)

    def test_a_damaged_file_that_is_there_is_told_and_kept(self, shrunk, tmp_path):
        (tmp_path / "mnist").mkdir()
        wrong = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
        wrong.write_bytes(b"a web page")
        with pytest.raises(FormatError, match=rf"where f68b3c2dcbeaaa9fbdd348bbdeb89873 is published; delete {wrong}"):
            fetch_set("mnist", tmp_path)
        assert wrong.read_bytes() == b"a web page"

    def test_the_file_of_ann_benchmarks_will_do(self, shrunk, tmp_path):
        shrunk("fashion-mnist", rows=60, split=self.split)
        base, queries = self.pictures()
        truth = RNG.randint(0, 40, (20, 100))
        (tmp_path / "fashion-mnist").mkdir()
        with h5py.File(tmp_path / "fashion-mnist" / "fashion-mnist-784-euclidean.hdf5", "w") as file:
            file["train"] = base.reshape(40, 784).astype(np.float32)
            file["test"] = queries.reshape(20, 784).astype(np.float32)
            file["neighbors"], file["distances"] = truth, np.zeros((20, 100), np.float32)
        data = load_set("fashion-mnist", tmp_path)
        self.check(data, base.astype(np.float32), queries.astype(np.float32))
        assert np.array_equal(data.truth, truth)

    def test_a_package_of_the_system_will_do(self, shrunk, tmp_path):
        shrunk("mnist", rows=60, split=self.split, elsewhere=(str(tmp_path / "usr"),))
        pictures = self.pictures()
        (tmp_path / "usr").mkdir()
        for kind, array in zip(("train", "t10k"), pictures, strict=True):
            (tmp_path / "usr" / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(array)))
        self.check(load_set("mnist", tmp_path / "data"), *pictures)
        self.check(fetch_set("mnist", tmp_path / "data"), *pictures)  # which fetches nothing

    def test_labels_instead_of_pictures_are_told(self, shrunk, tmp_path):
        (tmp_path / "mnist").mkdir()
        for kind in ("train", "t10k"):
            labels = idx(np.zeros(60, np.uint8))
            (tmp_path / "mnist" / f"{kind}-images-idx3-ubyte").write_bytes(labels)
        with pytest.raises(FormatError, match=r"uint8 of shape \(60,\), expected pictures"):
            load_set("mnist", tmp_path)
