"""Pictures, read and checked, and their descriptors: SIFT, GIST and wavelet texture."""

from __future__ import annotations

import math
import os
import stat
import warnings
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from autojacobin.core.counts import as_count
from autojacobin.errors import DataError, DataTypeError, import_extra, reason_of

MOST_PIXELS = 2**21  # the pyramid of SIFT takes over 200 bytes for each
MOST_BYTES = 2**29
_MOST_PIXELS_PER_BYTE = 2**11  # of a JPEG file; a picture of one colour has some hundred

PLACE = np.dtype([("x", "<f4"), ("y", "<f4"), ("size", "<f4"), ("angle", "<f4"), ("response", "<f4")])
SIDE = 128  # of the squares that GIST and wavelet texture describe
PATCH_SIZES = 6  # width of a patch in sizes of its feature: OpenCV's SIFT has 4×4 histograms, each 1.5 sizes wide

# GIST
BLOCKS = 4
ORIENTATIONS = (8, 8, 4)  # at each scale, from the finest on
CUTOFF = 4 / np.sqrt(np.log(2))  # cycles per picture; the low-pass filter falls to a half at 4
EVENING_MARGIN = 5
FILTER_MARGIN = 32
CONTRAST_FLOOR = 0.2

# Wavelet texture, with Daubechies' wavelet of 8 vanishing moments
LEVELS = 3
# "LH.HL.LL": the first split gave L along y and H along x, the second H along y and L along x, and so on
BANDS = tuple(".".join(path) for path in product(("LL", "LH", "HL", "HH"), repeat=LEVELS))
Floats = npt.NDArray[np.float64]


def opencv(purpose: str) -> Any:
    """Import ``cv2``, or say how to install it."""
    return import_extra("cv2", "data", purpose, "opencv-python-headless")


def read_picture(path: Path) -> npt.NDArray[np.uint8]:
    """Read a file as an RGB picture, shrunk to at most ``MOST_PIXELS`` pixels; a DataError if it cannot be read."""
    cv2 = opencv("reading pictures")
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:  # a pipe would block
            raise DataError(f"cannot read {path}: it is not a file of at most {MOST_BYTES:,} bytes; leave it out")
        _check_sizes(path)
        content = np.fromfile(path, dtype=np.uint8)  # on Windows, cv2.imread cannot open all names
        picture = cv2.imdecode(content, cv2.IMREAD_COLOR)
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


def _check_sizes(path: Path) -> None:
    """Refuse a file that Pillow finds damaged, or a JPEG file of too many pixels: OpenCV believes what they claim."""
    pillow = import_extra("PIL.Image", "data", "reading pictures", "Pillow")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large pictures
            with pillow.open(path) as picture:
                (width, height), is_jpeg = picture.size, picture.format == "JPEG"
                picture.verify()
    except Exception as error:  # Pillow raises errors of many kinds
        reason = reason_of(error).replace(str(path), "the file")
        raise DataError(
            f"cannot decode {path}: it is damaged or no picture ({reason}); convert it to PNG or JPEG, or leave it out"
        ) from error
    n_bytes = path.stat().st_size
    if is_jpeg and height * width > _MOST_PIXELS_PER_BYTE * n_bytes:
        raise DataError(
            f"cannot decode {path}: it is damaged, got {width} × {height} pixels in {n_bytes} bytes; leave it out, or "
            "copy it again"
        )


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


def as_square(picture: npt.NDArray[Any], side: int) -> npt.NDArray[np.float64]:
    """Cut the largest square out of the middle and scale it to ``side`` × ``side`` pixels, without rounding."""
    cv2 = opencv("scaling pictures")
    whole = min(picture.shape[:2])
    top, left = ((length - whole) // 2 for length in picture.shape[:2])
    square = picture[top : top + whole, left : left + whole].astype(np.float64)
    method = cv2.INTER_AREA if whole > side else cv2.INTER_LINEAR
    return cv2.resize(square, (side, side), interpolation=method)


def describe(image: Any, kind: str) -> npt.NDArray[Any]:
    """Give the vectors of a picture, one per row.

    Parameters
    ----------
    image : array of uint8, shape (height, width) or (height, width, 3)
        Grey, or red, green and blue (OpenCV has blue first: pass ``image[:, :, ::-1]``).
    kind : {"sift", "gist", "wavelet"}
        ``"sift"`` gives a row of 128 uint8 for each feature, ``"gist"`` one row of 960 float32 and
        ``"wavelet"`` one row of 128 float32 for the whole picture.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin.datasets.descriptors import describe
    >>> stripes = np.tile(np.uint8([[0, 0, 255, 255]]), (128, 32))
    >>> describe(stripes, "gist").shape
    (1, 960)
    """
    check_kind(kind)
    return DESCRIPTORS[kind](image)


def check_kind(kind: str) -> None:
    """Raise an error that lists the descriptors if none is called ``kind``."""
    if not isinstance(kind, str) or kind not in DESCRIPTORS:
        raise DataError(f"no descriptor is called {kind!r}, expected one of: {', '.join(DESCRIPTORS)}")


def sift(
    image: Any, *, contrast: float = 0.04, layers: int = 3, limit: int | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Find the SIFT features of a picture with OpenCV.

    Parameters
    ----------
    image : array of uint8, shape (height, width) or (height, width, 3)
        Grey, or red, green and blue.
    contrast, layers : float, int
        OpenCV's ``contrastThreshold`` and ``nOctaveLayers``: less contrast or more layers give more features.
    limit : int, optional
        The most features to keep, those of the highest contrast.

    Returns
    -------
    vectors : array of uint8, shape (n, 128)
        Ordered by size, y, x and angle, without equal ones, so that the order does not depend on OpenCV's threads.
    places : structured array of shape (n,)
        ``x`` and ``y`` in pixels (the middle of the first one is 0, 0); ``size``, twice the scale, in pixels;
        ``angle`` in degrees from the x axis towards the y axis, which points down; ``response``, the contrast.
    """
    if not contrast >= 0 or math.isinf(contrast):
        raise DataError(f"contrast must be a number of at least 0, got {contrast!r}; OpenCV's own choice is 0.04")
    for name, count in (("layers", layers), ("limit", limit)):
        if count is not None:
            as_count(name, count)
    cv2 = opencv("SIFT")
    detector = cv2.SIFT_create(nOctaveLayers=layers, contrastThreshold=contrast, enable_precise_upscale=True)
    keypoints, vectors = detector.detectAndCompute(_grey(image), None)
    if not keypoints:
        return np.empty((0, 128), np.uint8), np.empty(0, PLACE)
    places = np.array([(*point.pt, point.size, point.angle, point.response) for point in keypoints], PLACE)
    rows = np.lexsort([places[name] for name in ("response", "angle", "x", "y", "size")])
    _, first = np.unique(vectors[rows], axis=0, return_index=True)
    rows = rows[np.sort(first)]
    strongest = np.argsort(-places["response"][rows], kind="stable")[:limit]
    rows = rows[np.sort(strongest)]
    return vectors[rows].astype(np.uint8), places[rows]


def cut_patches(image: Any, places: npt.NDArray[Any], side: int) -> npt.NDArray[np.uint8]:
    """Cut out the patch that each feature describes, as grey pictures of ``side`` × ``side`` pixels.

    A patch is centred on its feature, 6 sizes wide like the histograms of the descriptor, and rotated so that the angle
    of the feature points to the right. Beyond the edge of the picture, its outermost pixels are repeated.
    """
    cv2 = opencv("cutting patches")
    pyramid = [_grey(image)]  # large patches are cut from a smaller picture, so that no pixel is skipped
    patches = np.empty((len(places), side, side), np.uint8)
    middle = (side - 1) / 2
    for patch, place in zip(patches, places, strict=True):
        step = PATCH_SIZES * float(place["size"]) / side
        level = max(0, math.floor(math.log2(step)))
        while len(pyramid) <= level:
            pyramid.append(cv2.pyrDown(pyramid[-1]))  # pixel i is centred on pixel 2i of the larger one
        shrunk = 2.0**level
        angle = math.radians(float(place["angle"]))
        along, across = step / shrunk * math.cos(angle), step / shrunk * math.sin(angle)
        x, y = float(place["x"]) / shrunk, float(place["y"]) / shrunk
        shift = (x - middle * (along - across), y - middle * (across + along))
        to_picture = np.array([[along, -across, shift[0]], [across, along, shift[1]]])
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        patch[:] = cv2.warpAffine(
            pyramid[level], to_picture, (side, side), flags=flags, borderMode=cv2.BORDER_REPLICATE
        )
    return patches


def _grey(image: Any) -> npt.NDArray[np.uint8]:
    """Grey levels, rounded as OpenCV does."""
    picture = as_picture(image)
    if picture.ndim == 2:
        return picture
    cv2 = opencv("making a picture grey")
    return cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)


def gist(image: Any) -> npt.NDArray[np.float32]:
    """Describe a whole picture, as in :func:`describe`, by 960 numbers.

    Grey pictures have three equal colours. The numbers are in the order (colour, filter, row of blocks, column of
    blocks). The filters go from the finest scale to the coarsest with 8, 8 and 4 orientations; number j of n responds
    to waves that run in the direction πj/n, from the x axis towards the y axis, which points down.
    """
    square = as_square(as_picture(image), SIDE)
    colours = np.stack([square] * 3) if square.ndim == 2 else np.moveaxis(square, 2, 0)
    even = even_out(colours)
    responses = np.stack([gabor_magnitudes(colour) for colour in even])
    size = SIDE // BLOCKS
    means = responses.reshape(*responses.shape[:2], BLOCKS, size, BLOCKS, size).mean(axis=(3, 5))
    return means.astype(np.float32).ravel()


def even_out(colours: Floats) -> Floats:
    """Subtract the local mean of the logarithm, and divide by the local contrast; ``docs/descriptors.md`` says how."""
    # the margin separates opposite edges, which are neighbours for the Fourier transform
    margin = ((0, 0), (EVENING_MARGIN, EVENING_MARGIN), (EVENING_MARGIN, EVENING_MARGIN))
    logs = np.pad(np.log1p(colours), margin, mode="symmetric")
    detail = logs - _low_pass(logs)
    variance = _low_pass(detail.mean(axis=0) ** 2)
    even = detail / (CONTRAST_FLOOR + np.sqrt(np.maximum(variance, 0.0)))
    return even[:, EVENING_MARGIN:-EVENING_MARGIN, EVENING_MARGIN:-EVENING_MARGIN]


def gabor_magnitudes(channel: Floats, margin: int = FILTER_MARGIN) -> Floats:
    """Magnitude of the response of all 20 filters at every pixel; the edges are mirrored by ``margin`` pixels."""
    side = len(channel)
    padded = np.pad(channel, margin, mode="symmetric")
    responses = scipy.fft.ifft2(scipy.fft.fft2(padded) * gabor_transfer(len(padded)))
    return np.abs(responses[:, margin : margin + side, margin : margin + side])


@cache
def gabor_transfer(side: int) -> Floats:
    """Transfer functions of the 20 filters of ``docs/descriptors.md`` on the grid of the Fourier transform.

    Each filter is on one side of the origin, so that the magnitude of its response is the envelope of the wave and not
    the wave. Frequencies without a direction are left out: zero, and the highest one of an even grid.
    """
    frequency = scipy.fft.fftfreq(side)
    fy, fx = np.meshgrid(frequency, frequency, indexing="ij")
    radius, direction = np.hypot(fx, fy), np.arctan2(fy, fx)
    directed = (radius > 0) & (np.abs(fx) < 0.5) & (np.abs(fy) < 0.5)
    filters = []
    for scale, n in enumerate(ORIENTATIONS):
        centre = 0.3 / 1.85**scale
        for j in range(n):
            offset = direction - np.pi * j / n
            offset -= 2 * np.pi * np.round(offset / (2 * np.pi))
            exponent = -3.5 * (radius / centre - 1) ** 2 - 2 * np.pi * (n / 8) ** 2 * offset**2
            filters.append(directed * np.exp(exponent))
    transfer = np.stack(filters)
    transfer.flags.writeable = False  # it is shared by all callers
    return transfer


def _low_pass(images: Floats) -> Floats:
    side = images.shape[-1]
    cycles = scipy.fft.fftfreq(side) * side
    transfer = np.exp(-(cycles[:, None] ** 2 + cycles[: side // 2 + 1] ** 2) / CUTOFF**2)
    return scipy.fft.irfft2(scipy.fft.rfft2(images) * transfer, s=images.shape[-2:])


def wavelet_texture(image: Any) -> npt.NDArray[np.float32]:
    """Describe the texture of a whole picture, as in :func:`describe`, by 128 numbers.

    Each band of ``BANDS`` gives two numbers, ln(1 + mean |w|) and ln(1 + standard deviation of |w|), where w are its
    coefficients divided by 8, so that the band LL.LL.LL holds local means of the picture.
    """
    square = as_square(as_picture(image), SIDE)
    grey = square if square.ndim == 2 else square @ np.array([0.299, 0.587, 0.114])  # as in ITU-R BT.601
    magnitudes = np.abs(split_bands(grey, LEVELS)) / 2**LEVELS
    numbers = np.stack([magnitudes.mean(axis=(1, 2)), magnitudes.std(axis=(1, 2))], axis=1)
    return np.log1p(numbers).astype(np.float32).ravel()


def split_bands(picture: Floats, levels: int) -> Floats:
    """Split a picture, and each band of it again, into bands LL, LH, HL, HH of (y, x); orthonormal and periodic."""
    pywt = import_extra("pywt", "data", "wavelet texture", "PyWavelets")
    rolled = np.roll(picture, 2**levels - 1, axis=(0, 1))  # so that each filter begins at the first pixel
    packet = pywt.WaveletPacket2D(rolled, "db8", mode="periodization", maxlevel=levels)
    return np.stack([packet["".join(path)].data for path in product("avhd", repeat=levels)])


DESCRIPTORS: dict[str, Callable[[Any], npt.NDArray[Any]]] = {
    "sift": lambda image: sift(image)[0],
    "gist": lambda image: gist(image)[None],
    "wavelet": lambda image: wavelet_texture(image)[None],
}
