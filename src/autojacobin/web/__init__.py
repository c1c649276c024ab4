"""The search service, its client and the explorer page; Starlette and uvicorn are imported by those who serve."""

from autojacobin.web.access import Access
from autojacobin.web.client import Client, ServiceError
from autojacobin.web.limits import Limits
from autojacobin.web.server import serve, serving

__all__ = ["Access", "Client", "Limits", "ServiceError", "serve", "serving"]
