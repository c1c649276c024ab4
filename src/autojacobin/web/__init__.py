"""The old name of :mod:`autojacobin.service` and :mod:`autojacobin.explorer`, kept for programs that import it."""

import sys

from autojacobin import explorer
from autojacobin.service import Access, Client, Limits, ServiceError, serve, serving

__all__ = ["Access", "Client", "Limits", "ServiceError", "explorer", "serve", "serving"]

sys.modules[f"{__name__}.explorer"] = explorer
