"""Picture files that are not what they say."""

import cv2
import numpy as np
import pytest

from autojacobin.datasets.descriptors import read_picture
from autojacobin.errors import DataError

PNG = cv2.imencode(".png", np.arange(7 * 9 * 3, dtype=np.uint8).reshape(7, 9, 3))[1].tobytes()


def test_a_chunk_longer_than_its_file_is_refused_before_it_takes_memory(tmp_path):
    path = tmp_path / "a.png"
    start = PNG.index(b"IDAT") - 4
    path.write_bytes(PNG[:start] + b"\xff\x7f\0\x36" + PNG[start + 4 :])  # for which OpenCV takes four gigabytes
    with pytest.raises(DataError, match="cannot decode .*a.png: it is damaged"):
        read_picture(path)


@pytest.mark.parametrize("behind", [b"", b"\xff" * 100])
def test_what_is_behind_the_end_of_a_picture_does_no_harm(tmp_path, behind):
    (tmp_path / "a.png").write_bytes(PNG + behind)
    assert read_picture(tmp_path / "a.png").shape == (7, 9, 3)


def test_a_jpeg_file_of_more_pixels_than_it_can_have_is_refused(tmp_path):
    """OpenCV takes six bytes for each of them, and fills in what is missing."""
    path = tmp_path / "a.jpg"
    plain = cv2.imencode(".jpg", np.full((3000, 4000, 3), 255, dtype=np.uint8))[1].tobytes()
    path.write_bytes(plain)
    assert read_picture(path).mean() > 250
    small = cv2.imencode(".jpg", np.zeros((7, 9, 3), dtype=np.uint8))[1].tobytes()
    assert small.count(b"\x08\0\x07\0\x09") == 1
    path.write_bytes(small.replace(b"\x08\0\x07\0\x09", b"\x08\x20\0\x20\0"))
    with pytest.raises(DataError, match=rf"got 8192 × 8192 pixels in {len(small)} bytes"):
        read_picture(path)


def test_a_profile_that_contains_the_bytes_of_a_frame_header_is_passed_over(tmp_path):
    small = cv2.imencode(".jpg", np.zeros((7, 9, 3), dtype=np.uint8))[1].tobytes()
    profile = b"ICC_PROFILE\0\1\1" + b"\xff\xc0\0\x11\x08\xc0\x7b\xc0\x5c" + b"\0" * 20
    segment = b"\xff\xff\xe2" + (len(profile) + 2).to_bytes(2, "big") + profile  # a marker may begin with several 255s
    (tmp_path / "a.jpg").write_bytes(small[:2] + segment + small[2:])
    assert read_picture(tmp_path / "a.jpg").shape == (7, 9, 3)
