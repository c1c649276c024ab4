"""The search service, its client and the explorer page; Starlette and uvicorn are imported by those who serve."""

from autojacobin.service.access import Access, Limits
from autojacobin.service.client import Client, ServiceError
from autojacobin.service.server import serve, serving

__all__ = ["Access", "Client", "Limits", "ServiceError", "serve", "serving"]
