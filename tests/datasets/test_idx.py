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
        (b"", r"begins with the bytes \(none\)"),
        (b"\0\0\7\1\0\0\0\1x", "begins with the bytes 00 00 07 01"),
        (b"\0\1\x08\1\0\0\0\1x", "not an IDX file"),
        (b"\0\0\x08\0", "not an IDX file"),
        (b"\0\0\x08\3\0\0", "ends inside its header, at byte 6"),
        (b"\0\0\x08\1\0\0\0\0", "announces an array of shape"),
        (b"\0\0\x08\3" + b"\xff" * 12 + b"x", "announces an array of shape"),
        (b"\0\0\x08\1\0\0\0\5abcd", "expected 5 bytes of values after the header, got only 4"),
        (b"\0\0\x08\1\x40\0\0\0abcd", "expected 1,073,741,824 bytes of values after the header, got only 4"),
        (b"\0\0\x08\1\0\0\0\3abcd", "expected 3 bytes of values after the header, got more"),
        (gzip.compress(idx(np.arange(9, dtype=np.uint8)), mtime=0)[:-9], "cannot be unpacked"),
        (b"\x1f\x8b garbage", "cannot be unpacked"),
    ],
)
def test_damage_is_told(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        read_idx(tmp_path / "a")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(StorageError, match="cannot read .*missing"):
        read_idx(tmp_path / "missing")
