"""The methods: vectors in, codes out, and the registry that names them all."""

from autojacobin.hashers.autoencoders.autobin import AutoBin, CAutoBin, DAutoBin
from autojacobin.hashers.autoencoders.autojacobin import AutoJacoBin
from autojacobin.hashers.autoencoders.binary_autoencoder import BinaryAutoencoder
from autojacobin.hashers.autoencoders.partitioned_autoencoder import PartitionedAutoencoder
from autojacobin.hashers.base import Hasher, LinearHasher, check_fitted
from autojacobin.hashers.data_independent import LSH, OwnCodes, Sign
from autojacobin.hashers.graph_hashing import SGH, SpectralHashing
from autojacobin.hashers.itq import ITQ, PCARotation
from autojacobin.hashers.kmeans_hashing import NOKMeans, OKMeans
from autojacobin.hashers.list_hasher import PartitionedHasher
from autojacobin.hashers.neighbour import NeighbourHashing
from autojacobin.hashers.persistence import Tensor
from autojacobin.hashers.registry import Method, find_command, find_method, load, methods, register
from autojacobin.hashers.spherical_hashing import SphericalHashing

__all__ = [
    "ITQ", "LSH", "SGH", "AutoBin", "AutoJacoBin", "BinaryAutoencoder", "CAutoBin", "DAutoBin", "Hasher",
    "LinearHasher", "Method", "NOKMeans", "NeighbourHashing", "OKMeans", "OwnCodes", "PCARotation",
    "PartitionedAutoencoder", "PartitionedHasher", "Sign", "SpectralHashing", "SphericalHashing", "Tensor",
    "check_fitted", "find_command", "find_method", "load", "methods", "register",
]  # fmt: skip
