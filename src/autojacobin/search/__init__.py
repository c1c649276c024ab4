"""Search over codes and vectors."""

from importlib import import_module
from typing import Any

from autojacobin.search.asymmetric import asymmetric_topk
from autojacobin.search.euclidean import rerank
from autojacobin.search.hamming import hamming_radius, hamming_topk

__all__ = ["asymmetric_topk", "hamming_radius", "hamming_topk", "rerank"]


def __getattr__(name: str) -> Any:
    if name in ("Calibration", "Index"):  # which moved to autojacobin.index; programs may know them by this name
        return getattr(import_module("autojacobin.index"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
