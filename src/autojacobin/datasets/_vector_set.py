"""What every data set comes out as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["VectorSet"]


@dataclass(frozen=True)
class VectorSet:
    """Vectors split for an experiment: ``train`` to learn from, ``base`` to search in, ``queries`` to ask with.

    Attributes
    ----------
    name, description : str
        What the set is called, and one sentence on what it holds.
    train, base, queries : array-like of shape (n, dimension)
        The vectors as they are stored, not scaled; memory-mapped where their files allow it.
    truth : array-like of int of shape (n_queries, k), optional
        Ids of the true neighbours in ``base``, nearest first, if they came with the set.
    base_patches, query_patches : array-like of uint8 of shape (n, height, width) or (n, height, width, 3), optional
        The pictures that the vectors describe, in the same order.
    source, licence, citation : str
        Where the set is from, under what terms it may be used, and what to cite; empty where that is not known.
    """

    name: str
    description: str
    train: Any
    base: Any
    queries: Any
    truth: Any = None
    base_patches: Any = None
    query_patches: Any = None
    source: str = ""
    licence: str = ""
    citation: str = ""
