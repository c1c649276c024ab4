"""Learned binary codes for nearest-neighbour search: Auto-JacoBin and the methods it is measured against."""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from autojacobin.codes import Codes
from autojacobin.errors import (
    AutoJacobinError,
    DataError,
    FormatError,
    IndexLockedError,
    MissingExtraError,
    NotFittedError,
    StorageError,
)
from autojacobin.hashers import (
    ITQ,
    LSH,
    SGH,
    AutoBin,
    AutoJacoBin,
    BinaryAutoencoder,
    CAutoBin,
    DAutoBin,
    Hasher,
    NOKMeans,
    OKMeans,
    PartitionedAutoencoder,
    PCARotation,
    Sign,
    SpectralHashing,
    SphericalHashing,
    load,
    register,
)

if TYPE_CHECKING:
    from autojacobin.index import Index, Metric

__version__ = _version("autojacobin")

__all__ = [
    "ITQ",
    "LSH",
    "SGH",
    "AutoBin",
    "AutoJacoBin",
    "AutoJacobinError",
    "BinaryAutoencoder",
    "CAutoBin",
    "Codes",
    "DAutoBin",
    "DataError",
    "FormatError",
    "Hasher",
    "Index",
    "IndexLockedError",
    "Metric",
    "MissingExtraError",
    "NOKMeans",
    "NotFittedError",
    "OKMeans",
    "PCARotation",
    "PartitionedAutoencoder",
    "Sign",
    "SpectralHashing",
    "SphericalHashing",
    "StorageError",
    "__version__",
    "load",
    "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("Index", "Metric"):  # they bring numba along, which only those who search should wait for
        from autojacobin import index

        return getattr(index, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
