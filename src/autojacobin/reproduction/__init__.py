"""Every table and figure of the paper, for any data set, from one call. Outcomes of trials are kept and reused."""

from autojacobin.reproduction.artefacts import ARTEFACTS
from autojacobin.reproduction.report import Table
from autojacobin.reproduction.run import Reproduction, reproduce
from autojacobin.reproduction.trials import Settings

__all__ = ["ARTEFACTS", "Reproduction", "Settings", "Table", "reproduce"]
