"""IDX files: every type is read, and damage is told before memory is taken for it."""

import gzip

import numpy as np
import pytest

from autojacobin import FormatError, StorageError
from autojacobin.datasets.sources import read_idx

RNG = np.random.RandomState(7)


def idx(array, code=8):
    return bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
def test_every_type_is_read(tmp_path, code, dtype):
    array = RNG.randint(0, 100, (3, 4, 5)).astype(dtype)
    (tmp_path / "a").write_bytes(idx(array, code))
    got = read_idx(tmp_path / "a")
    assert np.array_equal(got, array)
    assert got.dtype.isnative


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty"),
        (b"\0\0\7\1\0\0\0\1x", "begins with the bytes 00 00 07 01"),
        (b"\0\1\x08\1\0\0\0\1x", "not an IDX file"),
        (b"\0\0\x08\0", "not an IDX file"),
        (b"\0\0\x08", "not an IDX file"),
        (b"\0\0\x08\3\0\0", "it has 6 bytes where 16 are expected"),
        (b"\0\0\x08\1\0\0\0\0", r"where 8 are expected for an array of shape \(0,\)"),
        (b"\0\0\x08\3" + b"\xff" * 12 + b"x", "it has 17 bytes where 79,228,162,458,924,105,385,300,197,391 are"),
        (b"\0\0\x08\1\0\0\0\5abcd", "it has 12 bytes where 13 are expected"),
        (b"\0\0\x08\1\0\0\0\3abcd", "it has 12 bytes where 11 are expected"),
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
