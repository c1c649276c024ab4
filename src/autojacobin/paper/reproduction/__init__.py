"""Every table and figure of the paper, for any data set, from one call. Outcomes of trials are kept and reused."""

from autojacobin.paper.reproduction.artefacts import ARTEFACTS
from autojacobin.paper.reproduction.report import Table
from autojacobin.paper.reproduction.run import Reproduction, reproduce
from autojacobin.paper.reproduction.trials import Settings

__all__ = ["ARTEFACTS", "Reproduction", "Settings", "Table", "reproduce"]
