"""Search: codes and queries in, neighbours out."""

from autojacobin.search._calibration import Calibration
from autojacobin.search.asymmetric import asymmetric_topk
from autojacobin.search.hamming import hamming_topk
from autojacobin.search.index import Index
from autojacobin.search.radius import hamming_radius
from autojacobin.search.rerank import rerank

__all__ = ["Calibration", "Index", "asymmetric_topk", "hamming_radius", "hamming_topk", "rerank"]
