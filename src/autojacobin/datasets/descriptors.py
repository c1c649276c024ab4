"""The features that the paper hashes, from pictures: SIFT, GIST and wavelet texture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from autojacobin.datasets._gist import gist
from autojacobin.datasets._sift import SiftFeatures, cut_patches, sift
from autojacobin.datasets._wavelet import wavelet_texture
from autojacobin.errors import DataError

__all__ = ["DESCRIPTORS", "SiftFeatures", "checked_kind", "cut_patches", "describe", "gist", "sift", "wavelet_texture"]

DESCRIPTORS: dict[str, Callable[[Any], npt.NDArray[Any]]] = {
    "sift": lambda image: sift(image).vectors,
    "gist": lambda image: gist(image)[None],
    "wavelet": lambda image: wavelet_texture(image)[None],
}


def describe(image: Any, kind: str) -> npt.NDArray[Any]:
    """Give the vectors of a picture, one a row.

    Parameters
    ----------
    image : array of uint8, shape (height, width) or (height, width, 3)
        Grey, or red, green and blue (OpenCV has blue first: pass ``image[:, :, ::-1]``).
    kind : {"sift", "gist", "wavelet"}
        ``"sift"`` gives a row of 128 uint8 for each place that stands out, ``"gist"`` one row of 960 float32 and
        ``"wavelet"`` one row of 128 float32 for the whole picture.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin.datasets.descriptors import describe
    >>> stripes = np.tile(np.uint8([[0, 0, 255, 255]]), (128, 32))
    >>> describe(stripes, "gist").shape
    (1, 960)
    """
    return DESCRIPTORS[checked_kind(kind)](image)


def checked_kind(kind: str) -> str:
    """Give the name of a descriptor, or say which there are."""
    if not isinstance(kind, str) or kind not in DESCRIPTORS:
        raise DataError(f"no descriptor is called {kind!r}, expected one of: {', '.join(DESCRIPTORS)}")
    return kind
