"""A set from a folder of pictures: what is in it, what is left out, and that it is there whole or not at all."""

import csv
import errno
import json
import os

import cv2
import numpy as np
import pytest
from sklearn.datasets import load_sample_image

from autojacobin.datasets import descriptors
from autojacobin.datasets.descriptors import as_square, cut_patches, describe, read_picture, sift
from autojacobin.datasets.pictures import SHARES, BuiltSet, build_set
from autojacobin.errors import DataError, StorageError

SUFFIXES = ("png", "jpg", "bmp", "tif", "webp", "jpeg", "PNG")


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    """Fourteen pictures in three folders, and some files that are none."""
    folder = tmp_path_factory.mktemp("album")
    crops = [
        load_sample_image("china.jpg")[top : top + 130, left : left + 150]
        for top in (150, 290)
        for left in range(0, 490, 70)
    ]
    for number, crop in enumerate(crops):
        place = folder / ("", "more", "more/ännu fler")[number % 3]
        place.mkdir(parents=True, exist_ok=True)
        suffix = SUFFIXES[number % len(SUFFIXES)]
        written, content = cv2.imencode(f".{suffix}", crop[:, :, ::-1])
        assert written
        (place / f"picture {number:02}.{suffix}").write_bytes(content.tobytes())
    (folder / "damaged.jpg").write_bytes(b"\xff\xd8\xff" + bytes(100))
    (folder / "empty.png").write_bytes(b"")
    (folder / "notes.txt").write_text("no picture")
    (folder / "._picture 00.png").write_bytes(b"what macOS leaves behind")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "picture.png").write_bytes(b"not looked at")
    return folder


def read_table(folder):
    with (folder / "pictures.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("kind", ["sift", "gist", "wavelet"])
def test_every_vector_is_that_of_the_picture_in_the_table(album, tmp_path, kind):
    calls = []
    built = build_set(album, tmp_path / "set", kind, progress=lambda *call: calls.append(call))
    assert isinstance(built, BuiltSet)
    assert built.pictures == {"learn": 5, "base": 8, "query": 1}
    assert [name for name, _ in built.skipped] == ["damaged.jpg", "empty.png"]
    assert calls == [("describing pictures", done, 16) for done in range(17)]
    table = read_table(built.folder)
    names = {part: list(dict.fromkeys(line["picture"] for line in table if line["part"] == part)) for part in SHARES}
    assert len(set().union(*names.values())) == sum(len(of) for of in names.values()) == 14
    for part in SHARES:
        vectors = np.load(built.folder / f"{part}.npy", mmap_mode="r")
        assert len(vectors) == built.vectors[part] == sum(line["part"] == part for line in table)
        pictures = [read_picture(album / name) for name in names[part]]
        assert np.array_equal(vectors, np.concatenate([describe(picture, kind) for picture in pictures]))
        if part == "learn":
            continue
        patches = np.load(built.folder / f"{part}_patches.npy", mmap_mode="r")
        if kind == "sift":
            expected = [cut_patches(picture, sift(picture)[1], 32) for picture in pictures]
            assert np.array_equal(patches, np.concatenate(expected))
        else:
            expected = [np.round(as_square(picture, 32)) for picture in pictures]
            assert np.array_equal(patches, expected)
    expected_files = {"build.json", "pictures.csv", "base_patches.npy", "query_patches.npy"}
    assert set(contents(built.folder)) == expected_files | {f"{part}.npy" for part in SHARES}


def test_the_table_says_where_in_the_picture(album, tmp_path):
    built = build_set(album, tmp_path / "set", "sift", limit=20)
    lines = [line for line in read_table(built.folder) if line["part"] == "query"]
    places = sift(read_picture(album / lines[0]["picture"]), limit=20)[1]
    assert len(lines) == len(places) <= 20
    for line, place in zip(lines, places, strict=True):
        for name in ("x", "y", "size", "angle"):
            assert abs(float(line[name]) - float(place[name])) < 0.006


def test_the_same_seed_gives_the_same_set_and_another_gives_another(album, tmp_path):
    one, other, third = (
        contents(build_set(album, tmp_path / name, "wavelet", seed=seed).folder)
        for name, seed in (("one", 0), ("other", 0), ("third", 1))
    )
    assert one == other
    assert one["pictures.csv"] != third["pictures.csv"]
    about = json.loads(third["build.json"])
    assert about["seed"] == 1
    assert about["descriptor"] == "wavelet"
    assert about["versions"]["opencv"] == cv2.__version__


def test_each_part_gets_its_share_and_one_picture_at_least(album, tmp_path):
    built = build_set(album, tmp_path / "set", "wavelet")
    assert built.pictures == {"learn": 5, "base": 8, "query": 1}
    few = tmp_path / "few"
    few.mkdir()
    for number in range(3):
        (few / f"{number}.png").write_bytes((album / "picture 00.png").read_bytes())
    assert build_set(few, tmp_path / "smallest", "wavelet").pictures == {"learn": 1, "base": 1, "query": 1}


def test_a_picture_without_features_is_left_out(album, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes((album / "picture 00.png").read_bytes())
    cv2.imwrite(str(folder / "blank.png"), np.full((50, 50), 9, np.uint8))
    assert build_set(folder, tmp_path / "local", "sift").skipped == (("blank.png", "no features were found in it"),)
    assert build_set(folder, tmp_path / "global", "gist").skipped == ()


def test_what_cannot_be_opened_is_listed_and_not_waited_for(album, tmp_path, monkeypatch):
    folder = tmp_path / "pictures"
    (folder / "locked").mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.png").write_bytes((album / "picture 00.png").read_bytes())
    os.mkfifo(folder / "pipe.png")
    (folder / "dangling.png").symlink_to("nowhere")
    monkeypatch.setattr(descriptors, "MOST_BYTES", 10**6)
    with (folder / "vast.png").open("wb") as file:
        file.truncate(10**6 + 1)

    def scan(path, scan=os.scandir):
        if os.fspath(path) == str(folder / "locked"):  # the superuser, who may run this, is refused nothing
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan)
    built = build_set(folder, tmp_path / "set", "wavelet")
    assert sum(built.vectors.values()) == 3
    assert [name for name, _ in built.skipped] == ["dangling.png", "locked", "pipe.png", "vast.png"]
    reasons = dict(built.skipped)
    assert "No such file" in reasons["dangling.png"]
    assert reasons["locked"] == "cannot read this folder: Permission denied"
    assert all("is not a file of at most 1,000,000 bytes" in reasons[name] for name in ("pipe.png", "vast.png"))
    told = json.loads((tmp_path / "set" / "build.json").read_text())
    assert told["skipped"] == [list(pair) for pair in built.skipped]


def test_what_is_there_is_not_overwritten(album, tmp_path):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    for place in (tmp_path / "file", tmp_path / "empty", tmp_path / "dangling", "."):
        with pytest.raises(StorageError, match="something is there already; give another folder"):
            build_set(album, place, "wavelet", progress=lambda *_: pytest.fail("it began all the same"))
    with pytest.raises(StorageError, match=r"folder .*nowhere does not exist; make it first"):
        build_set(album, tmp_path / "nowhere" / "set", "wavelet")


def test_a_folder_that_appears_meanwhile_is_not_overwritten(album, tmp_path):
    def somebody_else(stage, done, total):
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / "theirs").write_text("precious")

    with pytest.raises(StorageError, match="another process has written there"):
        build_set(album, tmp_path / "set", "wavelet", progress=somebody_else)
    assert contents(tmp_path / "set") == {"theirs": b"precious"}
    assert os.listdir(tmp_path) == ["set"]


def test_an_interrupted_build_leaves_nothing(album, tmp_path):
    def interrupt(stage, done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_set(album, tmp_path / "set", "wavelet", progress=interrupt)
    assert not os.listdir(tmp_path)


def test_too_few_pictures_are_told_with_the_first_trouble(album, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    with pytest.raises(DataError, match=r"there is no picture in .*, expected files that end in"):
        build_set(folder, tmp_path / "set", "gist")
    (folder / "a.png").write_bytes((album / "picture 00.png").read_bytes())
    (folder / "b.png").write_bytes(b"no picture")
    with pytest.raises(
        DataError, match=r"at least 3 pictures .*got 1 of 2 .*the first problem was: b.png: cannot decode"
    ):
        build_set(folder, tmp_path / "set", "gist")
    with pytest.raises(StorageError, match="it is not a folder"):
        build_set(folder / "a.png", tmp_path / "set", "gist")
    assert os.listdir(tmp_path) == ["pictures"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seed": -1}, "seed must be an integer from 0 to 4294967295, got -1"),
        ({"limit": 0}, "limit must be an integer from 1 to 4294967295, got 0"),
        ({"descriptor": "surf"}, "no descriptor is called 'surf'"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_read(tmp_path, wrong, words):
    with pytest.raises(DataError, match=words):
        build_set(**{"images": tmp_path / "nothing", "out": tmp_path / "set", "descriptor": "sift", **wrong})
