"""The search service and its clients. Only a call of ``serve`` or ``serving`` imports Starlette and uvicorn."""

from autojacobin.service.access import Access, Limits
from autojacobin.service.calls import ServiceError
from autojacobin.service.client import AsyncClient, Client
from autojacobin.service.server import serve, serving

__all__ = ["Access", "AsyncClient", "Client", "Limits", "ServiceError", "serve", "serving"]
