"""Learned binary codes for nearest-neighbour search: Auto-JacoBin and the methods it is measured against."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from autojacobin.codes import Codes
from autojacobin.core.version import VERSION as _VERSION
from autojacobin.errors import (
    AutoJacobinError,
    DataError,
    FormatError,
    IdExistsError,
    IndexLockedError,
    MissingExtraError,
    StorageError,
    UnknownIdError,
)

if TYPE_CHECKING:
    from autojacobin.errors import NotFittedError
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
        NeighbourHashing,
        NOKMeans,
        OKMeans,
        PartitionedAutoencoder,
        PartitionedHasher,
        PCARotation,
        Sign,
        SpectralHashing,
        SphericalHashing,
        load,
        register,
    )
    from autojacobin.index import Index, Metric

__version__ = _VERSION

__all__ = [
    "ITQ", "LSH", "SGH", "AutoBin", "AutoJacoBin", "AutoJacobinError", "BinaryAutoencoder", "CAutoBin", "Codes",
    "DAutoBin", "DataError", "FormatError", "Hasher", "IdExistsError", "Index", "IndexLockedError", "Metric",
    "MissingExtraError", "NOKMeans", "NeighbourHashing", "NotFittedError", "OKMeans", "PCARotation",
    "PartitionedAutoencoder", "PartitionedHasher", "Sign", "SpectralHashing", "SphericalHashing", "StorageError",
    "UnknownIdError", "__version__", "load", "register",
]  # fmt: skip


_MODULES = {"Index": "index", "Metric": "index", "NotFittedError": "errors"}  # of names not in hashers


def __getattr__(name: str) -> Any:
    # numba takes half a second to load, and only those who use an index should wait for it
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_MODULES.get(name, 'hashers')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
