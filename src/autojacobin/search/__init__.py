"""Search over codes and vectors."""

from autojacobin.search._calibration import Calibration
from autojacobin.search.asymmetric import asymmetric_topk
from autojacobin.search.euclidean import rerank
from autojacobin.search.hamming import hamming_radius, hamming_topk
from autojacobin.search.index import Index

__all__ = ["Calibration", "Index", "asymmetric_topk", "hamming_radius", "hamming_topk", "rerank"]
