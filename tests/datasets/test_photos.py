"""The set ``photos``: the same every time, split by photograph, and each patch cut from where it is said to be from."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources

import cv2
import numpy as np
import pytest
import scipy.ndimage

from autojacobin.datasets import pictures
from autojacobin.datasets.descriptors import sift
from autojacobin.datasets.pictures import Recipe, build_photos, open_photos, read_photograph
from autojacobin.datasets.prepared import cache_path
from autojacobin.errors import DataError, FormatError, MissingExtraError, StorageError
from tests.waiting import SECONDS

SMALL = Recipe(train=("coins.png",), base=("chelsea.png",), queries=(("rocket.jpg", 20), ("flower.jpg", 10)))
FEW = Recipe(
    train=("coins.png", "brick.png"),
    base=("motorcycle_left.png", "chelsea.png"),
    queries=(("motorcycle_right.png", 60), ("flower.jpg", 30)),
)
ARRAYS = ["train", "base", "base_patches", "base_places", "queries", "query_patches", "query_places"]


@pytest.fixture(scope="module")
def folder_of_caches(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def in_cache(folder_of_caches, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(folder_of_caches))
    monkeypatch.setattr(pictures, "PHOTOS", FEW)
    return folder_of_caches


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    build_photos(folder, recipe=SMALL)
    return folder


@pytest.fixture
def arrays(in_cache):
    return open_photos()


@cache
def grey_photograph(name):
    home = ("sklearn", "datasets/images") if name in ("china.jpg", "flower.jpg") else ("skimage", "data")
    path = resources.files(home[0]).joinpath(home[1], name)
    return cv2.cvtColor(cv2.imread(str(path), cv2.IMREAD_COLOR), cv2.COLOR_BGR2GRAY).astype(float)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_arrays_are_read_from_the_disk(arrays):
    assert sorted(arrays) == sorted(ARRAYS)
    assert all(isinstance(array, np.memmap) for array in arrays.values())
    assert all(array.dtype == np.uint8 for name, array in arrays.items() if not name.endswith("places"))
    assert arrays["queries"].shape == (90, 128)
    assert arrays["base_patches"].shape == (len(arrays["base"]), 32, 32)
    assert arrays["query_patches"].shape == (90, 32, 32)


def test_no_photograph_is_in_two_parts_and_no_vector_is_there_twice(arrays):
    assert set(arrays["base_places"]["picture"]) == set(FEW.base)
    assert set(arrays["query_places"]["picture"]) == {name for name, _ in FEW.queries}
    together = np.concatenate([arrays["train"], arrays["base"], arrays["queries"]])
    assert len(np.unique(together, axis=0)) == len(together)


def test_the_first_rows_to_learn_from_are_of_all_photographs(arrays):
    first = {row.tobytes() for row in arrays["train"][:1000]}
    features = [sift(read_photograph(name), contrast=FEW.contrast, layers=FEW.layers)[0] for name in FEW.train]
    found = [{row.tobytes() for row in vectors} for vectors in features]
    assert first == (first & found[0]) | (first & found[1])
    assert all(first & vectors for vectors in found)


def test_patches_are_where_they_are_said_to_be(arrays):
    steps = (np.arange(32) + 0.5) / 32 - 0.5
    grid = steps[None] + 1j * steps[:, None]
    seen = set()
    for part in ("base", "query"):
        rows = np.flatnonzero(arrays[f"{part}_places"]["side"] < 64)[::10]  # larger ones are cut from a shrunk picture
        for patch, place in zip(arrays[f"{part}_patches"][rows], arrays[f"{part}_places"][rows], strict=True):
            where = place["x"] + 1j * place["y"] + place["side"] * grid * np.exp(1j * np.radians(place["angle"]))
            pixels = scipy.ndimage.map_coordinates(
                grey_photograph(place["picture"]), [where.imag, where.real], order=1, mode="nearest"
            )
            assert np.abs(patch - pixels).mean() < 1.5
            seen.add(str(place["picture"]))
    assert seen == {*FEW.base, *(name for name, _ in FEW.queries)}


@pytest.mark.rare
def test_there_are_tens_of_thousands_and_the_second_view_of_the_motorcycle_finds_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path))
    arrays = open_photos()
    # another version of OpenCV may find some more or fewer
    assert 12_000 < len(arrays["train"]) < 20_000
    assert 30_000 < len(arrays["base"]) < 40_000
    assert arrays["queries"].shape == (1000, 128)
    rows = np.flatnonzero(arrays["query_places"]["picture"] == "motorcycle_right.png")
    right = arrays["queries"][rows].astype(np.float32)
    base = arrays["base"].astype(np.float32)
    nearest = ((base * base).sum(axis=1) - 2 * right @ base.T).argmin(axis=1)
    # in a stereo pair a thing is at the same height in both, and further to the right in the left view
    on_line = [
        abs(asked["y"] - found["y"]) < 3 and 0 < found["x"] - asked["x"] < 80
        for asked, found in zip(arrays["query_places"][rows], arrays["base_places"][nearest], strict=True)
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
    monkeypatch.setattr(pictures, "PHOTOS", SMALL)
    small = open_photos()
    assert len(small["queries"]) == 30
    folders = sorted(in_cache.glob("prepared/photos-*"))
    assert len(folders) == 2
    recipes = [json.loads((folder / "prepared.json").read_text())["recipe"] for folder in folders]
    versions = {json.loads(recipe)["versions"]["opencv"] for recipe in recipes}
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
    assert set(np.load(tmp_path / "base_places.npy")["picture"]) == {"rocket.jpg"}
    assert np.load(tmp_path / "query_places.npy")["picture"].tolist() == ["flower.jpg"] * 7


def test_two_that_build_at_once_do_not_break_each_other(tmp_path, small, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path))
    monkeypatch.setattr(pictures, "PHOTOS", SMALL)
    with ThreadPoolExecutor(2) as pool:
        built = [future.result(SECONDS) for future in [pool.submit(open_photos) for _ in range(2)]]
    assert len(list((tmp_path / "prepared").iterdir())) == 1
    for arrays in built:
        assert all(np.array_equal(arrays[name], np.load(small / f"{name}.npy")) for name in ARRAYS)


def test_a_photograph_that_is_not_there_is_named_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path))
    monkeypatch.setattr(pictures, "PHOTOS", Recipe(("coins.png",), ("mountain.png",), (("rocket.jpg", 5),)))
    with pytest.raises(DataError, match=r"photograph mountain.png cannot be read .*pip install --force-reinstall"):
        open_photos()
    assert not list((tmp_path / "prepared").iterdir())


def test_a_damaged_cache_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path))
    monkeypatch.setattr(pictures, "PHOTOS", SMALL)
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
    assert cache_path() == tmp_path / "a" / "b"
    monkeypatch.delenv("AUTOJACOBIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_path() == tmp_path / "xdg" / "autojacobin"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_path() == tmp_path / ".cache" / "autojacobin"


def test_a_cache_that_cannot_be_written_to_is_told_in_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StorageError, match=r"cannot make the cache folder .*; set AUTOJACOBIN_CACHE to a folder"):
        open_photos()
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="set AUTOJACOBIN_CACHE"):
        open_photos()
