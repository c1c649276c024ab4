"""Data sets: files in, vectors out."""

from autojacobin.datasets.catalogue import SETS, VectorSet, load_set

__all__ = ["SETS", "VectorSet", "load_set"]
