"""The index: vectors in, neighbours out, in memory or in a folder that survives crashes."""

from autojacobin.index.index import Index
from autojacobin.index.metric import Metric
from autojacobin.index.plan import Plan
from autojacobin.index.repair import Repair, repair
from autojacobin.search.distances import METRICS

__all__ = ["METRICS", "Index", "Metric", "Plan", "Repair", "repair"]
