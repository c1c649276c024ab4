"""NUS-WIDE, laid out small as its archives are: fetched, unpacked, split and loaded as the real ones are."""

import numpy as np
import pytest

from autojacobin import AutoJacobinError, FormatError
from autojacobin.datasets import fetch_set, load_set
from autojacobin.datasets.sources import Split
from tests.datasets.sources.written import rows_of

RNG = np.random.RandomState(7)


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
        with pytest.raises(FormatError, match="has 5 vectors of 128 values, expected 269,648 of 128"):
            load_set("nus-wide", tmp_path)
        assert not list((tmp_path / "cache").rglob("*.npy"))
