"""The index: vectors in, neighbours out, in memory or in a folder that survives crashes."""

from autojacobin.index.calibration import Calibration
from autojacobin.index.index import Index
from autojacobin.index.repair import Repair, repair

__all__ = ["Calibration", "Index", "Repair", "repair"]
