"""The index: vectors in, neighbours out, in memory or in a folder that survives crashes."""

from autojacobin.index.calibration import Calibration
from autojacobin.index.index import Index
from autojacobin.index.metrics import METRICS, Metric
from autojacobin.index.repair import Repair, repair

__all__ = ["METRICS", "Calibration", "Index", "Metric", "Repair", "repair"]
