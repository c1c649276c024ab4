"""Data sets: files in, vectors out."""

from autojacobin.datasets.catalogue import data_folder, fetch_set, is_here, load_set
from autojacobin.datasets.formats.matrices import Vectors
from autojacobin.datasets.local import VectorSet
from autojacobin.datasets.sources import CATALOGUE, Entry
from autojacobin.datasets.vector_files import open_vectors, write_vectors

__all__ = [
    "CATALOGUE", "Entry", "VectorSet", "Vectors", "data_folder", "fetch_set", "is_here", "load_set", "open_vectors",
    "write_vectors",
]  # fmt: skip
