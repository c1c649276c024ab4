"""The methods of the paper: vectors in, codes out, one method a file."""

from autojacobin.hashers._base import Hasher, LinearHasher
from autojacobin.hashers._loading import load
from autojacobin.hashers.autobin import AutoBin
from autojacobin.hashers.autojacobin import AutoJacoBin
from autojacobin.hashers.cautobin import CAutoBin
from autojacobin.hashers.dautobin import DAutoBin
from autojacobin.hashers.itq import ITQ
from autojacobin.hashers.lsh import LSH
from autojacobin.hashers.nokmeans import NOKMeans
from autojacobin.hashers.okmeans import OKMeans
from autojacobin.hashers.spectral import SpectralHashing

__all__ = [
    "ITQ",
    "LSH",
    "AutoBin",
    "AutoJacoBin",
    "CAutoBin",
    "DAutoBin",
    "Hasher",
    "LinearHasher",
    "NOKMeans",
    "OKMeans",
    "SpectralHashing",
    "load",
]
