"""Learned binary codes for nearest-neighbour search: Auto-JacoBin and the methods it is measured against."""

from importlib.metadata import version as _version

from autojacobin.codes import Codes
from autojacobin.errors import AutoJacobinError, DataError, FormatError, MissingExtraError, NotFittedError
from autojacobin.hashers import (
    ITQ,
    LSH,
    AutoBin,
    AutoJacoBin,
    CAutoBin,
    DAutoBin,
    Hasher,
    NOKMeans,
    OKMeans,
    SpectralHashing,
    load,
)

__version__ = _version("autojacobin")

__all__ = [
    "ITQ",
    "LSH",
    "AutoBin",
    "AutoJacoBin",
    "AutoJacobinError",
    "CAutoBin",
    "Codes",
    "DAutoBin",
    "DataError",
    "FormatError",
    "Hasher",
    "MissingExtraError",
    "NOKMeans",
    "NotFittedError",
    "OKMeans",
    "SpectralHashing",
    "__version__",
    "load",
]
