"""The search service and its client. Only a call of ``serve`` or ``serving`` imports Starlette and uvicorn."""

from autojacobin.service.access import Access, Limits
from autojacobin.service.client import Client, ServiceError
from autojacobin.service.server import serve, serving

__all__ = ["Access", "Client", "Limits", "ServiceError", "serve", "serving"]
