"""Connections that do not wait for ever for the head of a request, which uvicorn's own do."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["connection_class"]


def connection_class(head_seconds: float) -> type[asyncio.Protocol]:
    """Make uvicorn's connection with a limit on the time in which the head of a request has to arrive."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """Closed when a head is begun and not finished, or never begun, within the time."""

        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            idle = self.cycle is None or self.cycle.response_complete
            if not idle:
                self._stop_waiting()
            elif self._patience is None:
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            self._patience = self.loop.call_later(head_seconds, self._give_up)

        def _stop_waiting(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _give_up(self) -> None:
            self._patience = None
            self.transport.close()

    return Connection
