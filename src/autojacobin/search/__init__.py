"""Search over codes and vectors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autojacobin.search.asymmetric import asymmetric_topk
    from autojacobin.search.decoded import decoded_topk
    from autojacobin.search.euclidean import rerank
    from autojacobin.search.hamming import hamming_radius, hamming_topk
    from autojacobin.search.spherical import spherical_topk

__all__ = ["asymmetric_topk", "decoded_topk", "hamming_radius", "hamming_topk", "rerank", "spherical_topk"]

_MODULES = {
    "asymmetric_topk": "autojacobin.search.asymmetric",
    "decoded_topk": "autojacobin.search.decoded",
    "hamming_radius": "autojacobin.search.hamming",
    "hamming_topk": "autojacobin.search.hamming",
    "rerank": "autojacobin.search.euclidean",
    "spherical_topk": "autojacobin.search.spherical",
}


def __getattr__(name: str) -> Any:
    # The searches import numba, which those who only need the names of the distances should not wait for.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
