"""Pictures: read them from files, check them, make them grey, and scale them to squares."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError, DataTypeError, import_extra

MOST_PIXELS = 2**21
MOST_BYTES = 2**29
_MOST_PIXELS_PER_BYTE = 2**11  # of a JPEG file; a picture of one colour has some hundred
_JPEG_MAGIC = b"\xff\xd8"
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of frame headers
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def opencv(purpose: str) -> Any:
    """Import ``cv2``, or say how to install it."""
    return import_extra("cv2", "data", purpose, "opencv-python-headless")


def read_picture(path: Path) -> npt.NDArray[np.uint8]:
    """Read a file as an RGB picture of at most ``MOST_PIXELS`` pixels.

    Larger ones are shrunk by averaging over areas: the pyramid of SIFT takes over 200 bytes per pixel, and a folder may
    hold a picture of any size. A file that cannot be read or decoded is a DataError.
    """
    cv2 = opencv("reading pictures")
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:  # a pipe would block
            raise DataError(f"cannot read {path}: it is not a file of at most {MOST_BYTES:,} bytes; leave it out")
        content = np.fromfile(path, dtype=np.uint8)  # on Windows, cv2.imread cannot open all names
        _check_sizes(content, path)
        picture = cv2.imdecode(content, cv2.IMREAD_COLOR) if len(content) else None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
    except cv2.error as error:
        raise DataError(f"cannot decode {path}: {error.err}; convert it to PNG or JPEG") from error
    if picture is None or not picture.size:
        raise DataError(
            f"cannot decode {path}: it is damaged or in no format that OpenCV knows; convert it to PNG or JPEG"
        )
    shrink = math.sqrt(MOST_PIXELS / (picture.shape[0] * picture.shape[1]))
    if shrink < 1:
        height, width = (max(1, math.floor(side * shrink)) for side in picture.shape[:2])
        picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(picture[:, :, ::-1])


def _check_sizes(content: npt.NDArray[np.uint8], path: Path) -> None:
    """Refuse a PNG file that claims a longer chunk, or a JPEG file more pixels, than it has: OpenCV believes them."""
    if content[:2].tobytes() == _JPEG_MAGIC:
        height, width = _jpeg_size(content.tobytes())
        if height * width > _MOST_PIXELS_PER_BYTE * len(content):
            raise DataError(
                f"cannot decode {path}: it is damaged, got {width} × {height} pixels in {len(content)} bytes; "
                "leave it out, or copy it again"
            )
    if content[:8].tobytes() != _PNG_MAGIC:
        return
    start = 8
    while start + 8 <= len(content):
        head = content[start : start + 8].tobytes()
        length = int.from_bytes(head[:4], "big")
        if start + 12 + length > len(content):
            raise DataError(
                f"cannot decode {path}: it is damaged, got a chunk of {length} bytes at byte {start} of "
                f"{len(content)}; leave it out, or copy it again"
            )
        if head[4:] == b"IEND":
            return
        start += 12 + length


def _jpeg_size(content: bytes) -> tuple[int, int]:
    """Height and width in the first frame header, found from segment to segment as libjpeg does; 0 if there is none."""
    start = 2
    while (start := content.find(b"\xff", start)) >= 0 and start + 9 <= len(content):
        marker = content[start + 1]
        if marker == 0xFF:
            start += 1
        elif marker <= 0x01 or 0xD0 <= marker <= 0xD9:  # has no length
            start += 2
        elif marker in _JPEG_FRAMES:
            height, width = (int.from_bytes(content[start + at : start + at + 2], "big") for at in (5, 7))
            return height, width
        else:
            start += 2 + int.from_bytes(content[start + 2 : start + 4], "big")
    return 0, 0


def as_picture(image: Any) -> npt.NDArray[np.uint8]:
    """Convert ``image`` to a uint8 array of shape (height, width) or (height, width, 3), without its transparency."""
    picture = np.asarray(image)
    if picture.dtype != np.uint8:
        hint = "np.round(255 * image).astype(np.uint8) if its values go from 0 to 1"
        raise DataTypeError(f"a picture must be an array of uint8, got {picture.dtype}; pass {hint}")
    if picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] not in (1, 3, 4)):
        raise DataError(
            f"a picture must have the shape (height, width) or (height, width, 3), got {picture.shape}; "
            "pass one picture at a time, with the colours red, green, blue in the last axis"
        )
    if not picture.size:
        raise DataError(f"a picture must have at least one pixel, got the shape {picture.shape}; leave empty ones out")
    if picture.ndim == 3:
        picture = picture[:, :, 0] if picture.shape[2] == 1 else picture[:, :, :3]
    return np.ascontiguousarray(picture)


def grey_levels(picture: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Brightness from 0 to 255, with the weights of ITU-R BT.601."""
    if picture.ndim == 2:
        return picture.astype(np.float64)
    weighted: npt.NDArray[np.float64] = picture.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    return weighted


def as_square(picture: npt.NDArray[Any], side: int) -> npt.NDArray[np.float64]:
    """Cut the largest square out of the middle and scale it to ``side`` × ``side`` pixels, without rounding.

    A picture that shrinks is averaged over areas, and one that grows is interpolated linearly.
    """
    cv2 = opencv("scaling pictures")
    whole = min(picture.shape[:2])
    top, left = ((length - whole) // 2 for length in picture.shape[:2])
    square = picture[top : top + whole, left : left + whole].astype(np.float64)
    method = cv2.INTER_AREA if whole > side else cv2.INTER_LINEAR
    scaled: npt.NDArray[np.float64] = cv2.resize(square, (side, side), interpolation=method)
    return scaled
