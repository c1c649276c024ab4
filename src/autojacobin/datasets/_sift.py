"""SIFT: the places of a picture that stand out, a vector for each, and the patch that the vector was made from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.datasets._picture import as_picture, opencv
from autojacobin.errors import DataError

__all__ = ["PLACE", "SiftFeatures", "cut_patches", "sift"]

PLACE = np.dtype([("x", "<f4"), ("y", "<f4"), ("size", "<f4"), ("angle", "<f4"), ("response", "<f4")])

WIDTHS = 6  # the 4×4 histograms of OpenCV's SIFT are 1.5 sizes wide each


@dataclass(frozen=True)
class SiftFeatures:
    """Features of one picture.

    Attributes
    ----------
    vectors : array of uint8, shape (n, 128)
    places : structured array of shape (n,)
        ``x`` and ``y`` in pixels (the middle of the first pixel is 0, 0), ``size`` (twice the scale, in pixels),
        ``angle`` in degrees from the x axis towards the y axis, which points down, and ``response``, the contrast.
    """

    vectors: npt.NDArray[np.uint8]
    places: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: Any) -> SiftFeatures:
        return SiftFeatures(self.vectors[rows], self.places[rows])


def sift(image: Any, *, contrast: float = 0.04, layers: int = 3, limit: int | None = None) -> SiftFeatures:
    """Find the SIFT features of a picture with OpenCV.

    Parameters
    ----------
    image : array of uint8, shape (height, width) or (height, width, 3)
        Grey, or red, green and blue.
    contrast, layers : float, int
        OpenCV's ``contrastThreshold`` and ``nOctaveLayers``: less contrast or more layers give more features.
    limit : int, optional
        Keep at most so many, those of the highest contrast.

    Returns
    -------
    features : SiftFeatures
        Ordered by size, y, x and angle, without equal vectors, so that the order does not depend on OpenCV's threads.
    """
    if not contrast >= 0 or math.isinf(contrast):
        raise DataError(f"contrast must be a number of at least 0, got {contrast!r}; OpenCV's own choice is 0.04")
    for name, count in (("layers", layers), ("limit", limit)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1):
            raise DataError(f"{name} must be an integer of at least 1, got {count!r}")
    cv2 = opencv("SIFT")
    detector = cv2.SIFT_create(nOctaveLayers=layers, contrastThreshold=contrast, enable_precise_upscale=True)
    keypoints, vectors = detector.detectAndCompute(grey_picture(image), None)
    if not keypoints:
        return SiftFeatures(np.empty((0, 128), np.uint8), np.empty(0, PLACE))
    places = np.array([(*point.pt, point.size, point.angle, point.response) for point in keypoints], PLACE)
    order = np.lexsort([places[name] for name in ("response", "angle", "x", "y", "size")])
    features = SiftFeatures(vectors.astype(np.uint8), places)[order]
    _, first = np.unique(features.vectors, axis=0, return_index=True)
    features = features[np.sort(first)]
    if limit is not None and len(features) > limit:
        strongest = np.argsort(-features.places["response"], kind="stable")[:limit]
        features = features[np.sort(strongest)]
    return features


def cut_patches(image: Any, places: npt.NDArray[Any], side: int) -> npt.NDArray[np.uint8]:
    """Cut out what each feature was made from, as grey pictures of ``side`` × ``side`` pixels.

    A patch is centred on its place, as wide as the 4×4 histograms of the descriptor together (6 sizes), and turned so
    that the place's angle points to the right: features that are near each other then look alike. Beyond the edge
    the picture is continued by its outermost pixels. Large patches are taken from a picture that was shrunk
    by halves, so that no pixel is skipped.
    """
    cv2 = opencv("cutting patches")
    pyramid = [grey_picture(image)]
    patches = np.empty((len(places), side, side), np.uint8)
    middle = (side - 1) / 2
    for patch, place in zip(patches, places, strict=True):
        step = WIDTHS * float(place["size"]) / side
        level = max(0, math.floor(math.log2(step)))
        while len(pyramid) <= level:
            pyramid.append(cv2.pyrDown(pyramid[-1]))  # which keeps pixel 2i of the picture as pixel i
        shrunk = 2.0**level
        angle = math.radians(float(place["angle"]))
        along, across = step / shrunk * math.cos(angle), step / shrunk * math.sin(angle)
        x, y = float(place["x"]) / shrunk, float(place["y"]) / shrunk
        to_picture = np.array(
            [
                [along, -across, x - middle * (along - across)],
                [across, along, y - middle * (across + along)],
            ]
        )
        patch[:] = cv2.warpAffine(
            pyramid[level],
            to_picture,
            (side, side),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
    return patches


def grey_picture(image: Any) -> npt.NDArray[np.uint8]:
    """Grey levels as OpenCV rounds them."""
    picture = as_picture(image)
    if picture.ndim == 2:
        return picture
    cv2 = opencv("making a picture grey")
    grey: npt.NDArray[np.uint8] = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    return grey
