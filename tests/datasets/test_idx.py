"""IDX files: pictures are read, and damage is reported before memory is taken for it."""

import gzip

import numpy as np
import pytest

from autojacobin import FormatError, StorageError
from autojacobin.datasets.sources import read_idx

RNG = np.random.RandomState(7)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_pictures_are_read(tmp_path, pack):
    array = RNG.randint(0, 100, (3, 4, 5)).astype(np.uint8)
    (tmp_path / "a").write_bytes(pack(idx(array)))
    assert np.array_equal(read_idx(tmp_path / "a"), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty"),
        (b"\0\0\7\1\0\0\0\1x", "begins with the bytes 00 00 07 01"),
        (b"\0\0\x08\1\0\0\0\1x", "unless it is the file of labels"),
        (b"\0\0\x08", "no IDX file"),
        (b"\0\0\x08\3\0\0", "has 6 bytes, expected 00 00 08 03 and 16"),
        (b"\0\0\x08\3" + b"\0" * 12, "no IDX file"),
        (b"\0\0\x08\3" + b"\xff" * 12 + b"x", "17 bytes, expected .* 79,228,162,458,924,105,385,300,197,391 for"),
        (idx(RNG.randint(0, 9, (2, 3, 4)).astype(np.uint8))[:-1], "has 39 bytes, expected .* 40"),
        (gzip.compress(idx(np.arange(9, dtype=np.uint8)), mtime=0)[:-9], "is not a gzip file"),
        (b"\x1f\x8b garbage", "is not a gzip file"),
    ],
)
def test_damage_is_told(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        read_idx(tmp_path / "a")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(StorageError, match="cannot read .*missing"):
        read_idx(tmp_path / "missing")
