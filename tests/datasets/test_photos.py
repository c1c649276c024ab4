"""The set ``photos``: the same every time, split by photograph, and each patch cut from where it is said to be from."""

import csv
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import resources

import cv2
import numpy as np
import pytest
import scipy.ndimage

from autojacobin.datasets import photos
from autojacobin.datasets.photos import Recipe, build_photos, open_photos
from autojacobin.datasets.prepared import cache_folder
from autojacobin.errors import DataError, FormatError, MissingExtraError, StorageError
from tests.waiting import SECONDS

SMALL = Recipe(train=("coins.png",), base=("chelsea.png",), queries=(("rocket.jpg", 20), ("flower.jpg", 10)))
FEW = Recipe(
    train=("coins.png", "brick.png"),
    base=("motorcycle_left.png", "chelsea.png"),
    queries=(("motorcycle_right.png", 60), ("flower.jpg", 30)),
)
ARRAYS = ["train", "base", "base_patches", "queries", "query_patches"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def in_cache(cache, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(cache))
    monkeypatch.setattr(photos, "PHOTOS", FEW)
    return cache


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    build_photos(folder, recipe=SMALL)
    return folder


@pytest.fixture
def arrays(in_cache):
    return open_photos()


@pytest.fixture
def table(in_cache, arrays):
    return table_of(in_cache)


def table_of(cache):
    with next(cache.glob("prepared/photos-*/features.csv")).open(newline="") as stream:
        return list(csv.DictReader(stream))


def grey_photograph(name):
    home = ("sklearn", "datasets/images") if name in ("china.jpg", "flower.jpg") else ("skimage", "data")
    path = resources.files(home[0]).joinpath(home[1], name)
    return cv2.cvtColor(cv2.imread(str(path), cv2.IMREAD_COLOR), cv2.COLOR_BGR2GRAY)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_arrays_are_read_from_the_disk(arrays):
    assert sorted(arrays) == sorted(ARRAYS)
    assert all(isinstance(array, np.memmap) and array.dtype == np.uint8 for array in arrays.values())
    assert arrays["queries"].shape == (90, 128)
    assert arrays["base_patches"].shape == (len(arrays["base"]), 32, 32)
    assert arrays["query_patches"].shape == (90, 32, 32)


def test_no_photograph_is_in_two_parts_and_no_vector_is_there_twice(arrays, table):
    pictures = {part: {line["picture"] for line in table if line["part"] == part} for part in ARRAYS}
    assert pictures["train"] == set(FEW.train)
    assert pictures["base"] == set(FEW.base)
    assert pictures["queries"] == {name for name, _ in FEW.queries}
    assert len(set().union(*pictures.values())) == sum(len(names) for names in pictures.values())
    together = np.concatenate([arrays["train"], arrays["base"], arrays["queries"]])
    assert len(np.unique(together, axis=0)) == len(together)


def test_the_first_rows_to_learn_from_are_of_all_photographs(table):
    first = [line["picture"] for line in table if line["part"] == "train"][:1000]
    assert set(first) == set(FEW.train)


def test_patches_are_where_the_table_says(arrays, table):
    patches = {"base": arrays["base_patches"], "queries": arrays["query_patches"]}
    # larger ones are cut from a shrunk picture
    lines = [line for line in table if line["part"] in patches and 6 * float(line["size"]) < 64][::10]
    assert {line["picture"] for line in lines} == {*FEW.base, *(name for name, _ in FEW.queries)}
    steps = (np.arange(32) + 0.5) / 32 - 0.5
    grid = steps[None] + 1j * steps[:, None]
    pictures = {name: grey_photograph(name).astype(float) for name in {line["picture"] for line in lines}}
    for line in lines:
        x, y, size, angle = (float(line[name]) for name in ("x", "y", "size", "angle"))
        where = x + 1j * y + 6 * size * grid * np.exp(1j * np.radians(angle))
        pixels = scipy.ndimage.map_coordinates(
            pictures[line["picture"]], [where.imag, where.real], order=1, mode="nearest"
        )
        assert np.abs(patches[line["part"]][int(line["row"])] - pixels).mean() < 1.5


@pytest.mark.rare
def test_there_are_tens_of_thousands_and_the_second_view_of_the_motorcycle_finds_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path))
    arrays, table = open_photos(), table_of(tmp_path)
    # another version of OpenCV may find some more or fewer
    assert 12_000 < len(arrays["train"]) < 20_000
    assert 30_000 < len(arrays["base"]) < 40_000
    assert arrays["queries"].shape == (1000, 128)
    lines = {part: [line for line in table if line["part"] == part] for part in ("base", "queries")}
    asked = np.array([line["picture"] == "motorcycle_right.png" for line in lines["queries"]])
    right = arrays["queries"][asked].astype(np.float32)
    base = arrays["base"].astype(np.float32)
    nearest = ((base * base).sum(axis=1) - 2 * right @ base.T).argmin(axis=1)
    rows = [line for line in lines["queries"] if line["picture"] == "motorcycle_right.png"]
    # in a stereo pair a thing is at the same height in both, and further to the right in the left view
    on_line = [
        abs(float(row["y"]) - float(found["y"])) < 3 and 0 < float(found["x"]) - float(row["x"]) < 80
        for row, found in zip(rows, (lines["base"][i] for i in nearest), strict=True)
        if found["picture"] == "motorcycle_left.png"
    ]
    assert len(on_line) > len(rows) / 2
    assert np.mean(on_line) > 0.7


def test_it_is_built_once(arrays, in_cache):
    folder = next(in_cache.glob("prepared/photos-*"))
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    calls = []
    again = open_photos(lambda *call: calls.append(call))
    assert not calls
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert all(np.array_equal(again[name], arrays[name]) for name in arrays)
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_another_version_of_opencv_has_a_folder_of_its_own(arrays, in_cache, monkeypatch):
    monkeypatch.setattr(cv2, "__version__", "4.9.0")
    monkeypatch.setattr(photos, "PHOTOS", SMALL)
    small = open_photos()
    assert len(small["queries"]) == 30
    folders = sorted(in_cache.glob("prepared/photos-*"))
    assert len(folders) == 2
    versions = {json.loads((folder / "photos.json").read_text())["versions"]["opencv"] for folder in folders}
    assert "4.9.0" in versions
    for folder in folders:
        if len(np.load(folder / "queries.npy")) == 30:
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()


@pytest.mark.parametrize("number", [1, 4])
def test_a_set_built_twice_is_the_same_whatever_the_threads(tmp_path, small, number):
    calls = []
    threads = cv2.getNumThreads()
    try:
        cv2.setNumThreads(number)
        build_photos(tmp_path, lambda *call: calls.append(call), recipe=SMALL)
    finally:
        cv2.setNumThreads(threads)
    assert contents(tmp_path) == contents(small)
    assert calls == [("describing photographs", done, 4) for done in range(5)]
    assert np.load(tmp_path / "queries.npy").shape == (30, 128)


def test_a_vector_that_was_there_before_is_not_taken_again(tmp_path, small):
    recipe = Recipe(
        train=("coins.png",), base=("coins.png", "rocket.jpg"), queries=(("coins.png", 9), ("flower.jpg", 7))
    )
    build_photos(tmp_path, recipe=recipe)
    assert np.array_equal(np.load(tmp_path / "train.npy"), np.load(small / "train.npy"))
    with (tmp_path / "features.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert {line["picture"] for line in table if line["part"] == "base"} == {"rocket.jpg"}
    assert [line["picture"] for line in table if line["part"] == "queries"] == ["flower.jpg"] * 7


def test_two_that_build_at_once_do_not_break_each_other(tmp_path, small, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path))
    monkeypatch.setattr(photos, "PHOTOS", SMALL)
    with ThreadPoolExecutor(2) as pool:
        built = [future.result(SECONDS) for future in [pool.submit(open_photos) for _ in range(2)]]
    assert len(list((tmp_path / "prepared").iterdir())) == 1
    for arrays in built:
        assert all(np.array_equal(arrays[name], np.load(small / f"{name}.npy")) for name in ARRAYS)


def test_a_photograph_that_is_not_there_is_named_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path))
    monkeypatch.setattr(photos, "PHOTOS", Recipe(("coins.png",), ("mountain.png",), (("rocket.jpg", 5),)))
    with pytest.raises(DataError, match=r"photograph mountain.png cannot be read .*pip install --force-reinstall"):
        open_photos()
    assert not list((tmp_path / "prepared").iterdir())


def test_a_damaged_cache_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path))
    monkeypatch.setattr(photos, "PHOTOS", SMALL)
    open_photos()
    folder = next(tmp_path.glob("prepared/photos-*"))
    whole = contents(folder)
    for name in [*(f"{array}.npy" for array in ARRAYS), "prepared.json"]:
        for content in (None, b"", whole[name][: len(whole[name]) // 2]):
            (folder / name).unlink()
            if content is not None:
                (folder / name).write_bytes(content)
            with pytest.raises(FormatError, match="is damaged.*remove this folder"):
                open_photos()
            (folder / name).write_bytes(whole[name])
    assert len(open_photos()["queries"]) == 30


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError, match=r"'photos' needs the package 'opencv-python-headless'"):
        open_photos()
    assert not list(tmp_path.iterdir())


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "a" / "b"))
    assert cache_folder() == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    monkeypatch.delenv("AUTOJACOBIN_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "autojacobin"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "autojacobin"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "autojacobin"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "autojacobin"


def test_a_cache_that_cannot_be_written_to_is_told_in_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StorageError, match=r"cannot make the cache folder .*; set AUTOJACOBIN_CACHE to a folder"):
        open_photos()
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="set AUTOJACOBIN_CACHE"):
        open_photos()
