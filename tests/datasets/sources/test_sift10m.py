"""SIFT10M, laid out small as its archive is: fetched, unpacked, split and loaded as the real ones are."""

import builtins
import errno
import io
import tarfile
import zipfile
from dataclasses import replace

import h5py
import numpy as np
import pytest

from autojacobin import FormatError, StorageError
from autojacobin.datasets import fetch_set, is_here, load_set
from autojacobin.datasets.sources import Split
from tests.datasets.fetch_server import serving
from tests.datasets.sources.written import rows_of

RNG = np.random.RandomState(7)


def pictures_of(features):
    """Pictures of 3×3 that tell which vector they belong to, and are not symmetric."""
    return np.asarray(features)[:, :9].reshape(-1, 3, 3)


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
        with pytest.raises(
            FormatError,
            match=r"patches\.mat holds (float64|uint8) of shape \(\d+, \d\), expected a square grey picture",
        ):
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
            if stage == "unpacking" and not others:
                others.append(stage)
                others.append(fetch_set("sift10m", tmp_path / "data"))

        data = fetch_set("sift10m", tmp_path / "data", somebody_else)
        assert np.array_equal(data.base, others[1].base)
        assert sorted(path.name for path in home.iterdir()) == ["sift10m"]

    def test_an_archive_that_cannot_be_read_is_told(self, shrunk, tmp_path, monkeypatch):
        (tmp_path / "sift10m").mkdir()
        (tmp_path / "sift10m" / "sift10m.zip").write_bytes(b"PK")
        opened = builtins.open

        def refuse(path, *arguments, **more):
            if str(path).endswith("sift10m.zip"):  # the superuser, who may run this, is refused nothing
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return opened(path, *arguments, **more)

        monkeypatch.setattr(builtins, "open", refuse)
        with pytest.raises(StorageError, match="permission denied"):
            fetch_set("sift10m", tmp_path)

    @pytest.mark.parametrize(
        ("shape", "message"),
        [
            ((300, 127), "has 300 vectors of 127 values, expected 300 of 128"),
            ((301, 128), "has 301 vectors of 128 values"),
        ],
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
