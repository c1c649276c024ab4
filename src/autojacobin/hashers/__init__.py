"""The methods: vectors in, codes out, and the registry that names them all."""

from autojacobin.hashers.autobin import AutoBin, CAutoBin, DAutoBin
from autojacobin.hashers.autojacobin import AutoJacoBin
from autojacobin.hashers.base import Hasher, LinearHasher, check_fitted
from autojacobin.hashers.binary_autoencoder import BinaryAutoencoder
from autojacobin.hashers.itq import ITQ, PCARotation
from autojacobin.hashers.lsh import LSH
from autojacobin.hashers.neighbour import NeighbourHashing
from autojacobin.hashers.nokmeans import NOKMeans
from autojacobin.hashers.okmeans import OKMeans
from autojacobin.hashers.own_codes import OwnCodes
from autojacobin.hashers.partitioned_autoencoder import PartitionedAutoencoder
from autojacobin.hashers.partitioned_hasher import PartitionedHasher
from autojacobin.hashers.persistence import Tensor
from autojacobin.hashers.registry import Method, find_command, find_method, load, methods, register
from autojacobin.hashers.sgh import SGH
from autojacobin.hashers.sign import Sign
from autojacobin.hashers.spectral import SpectralHashing
from autojacobin.hashers.spherical import SphericalHashing

__all__ = [
    "ITQ",
    "LSH",
    "SGH",
    "AutoBin",
    "AutoJacoBin",
    "BinaryAutoencoder",
    "CAutoBin",
    "DAutoBin",
    "Hasher",
    "LinearHasher",
    "Method",
    "NOKMeans",
    "NeighbourHashing",
    "OKMeans",
    "OwnCodes",
    "PCARotation",
    "PartitionedAutoencoder",
    "PartitionedHasher",
    "Sign",
    "SpectralHashing",
    "SphericalHashing",
    "Tensor",
    "check_fitted",
    "find_command",
    "find_method",
    "load",
    "methods",
    "register",
]  # fmt: skip
