"""MNIST and Fashion-MNIST, laid out small as their files are: fetched, split and loaded as the real ones are."""

import gzip
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from autojacobin import FormatError
from autojacobin.datasets import fetch_set, load_set
from autojacobin.datasets.sources import Split
from tests.datasets.fetch_server import serving
from tests.datasets.sources.written import idx, rows_of

RNG = np.random.RandomState(7)


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
        with pytest.raises(FormatError, match="unless it is the file of labels"):
            load_set("mnist", tmp_path)
