"""Every table and figure of the paper, for any data set, from one call; what was computed once is kept."""

from autojacobin.reproduction.artefacts import ARTEFACTS
from autojacobin.reproduction.run import Reproduction, reproduce
from autojacobin.reproduction.settings import Settings
from autojacobin.reproduction.tables import Table

__all__ = ["ARTEFACTS", "Reproduction", "Settings", "Table", "reproduce"]
