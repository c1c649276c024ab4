"""Connections that wait for nobody for ever, which uvicorn's own do, and of which there are never too many.

A connection without a request is idle. One with the head of a request but not yet its whole body is half-sent. When
there are too many, one of these is closed: the one that has been silent longest.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from itertools import chain
from typing import Any

from autojacobin.service.limits import Limits

__all__ = ["connection_class"]

_AT_ONCE = struct.pack("ii" if os.name == "posix" else "hh", 1, 0)  # linger, but for no time
_SHARE_TAKEN = 0.1  # of an answer that waits for its reader, each time one looks


def connection_class(limits: Limits) -> type[asyncio.Protocol]:
    """Make uvicorn's connection with a time for the head of a request, one for its reader, and a number of them."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    idle: dict[Any, None] = {}  # the longest first
    half_sent: dict[Any, None] = {}  # the one that has been silent longest first
    most_half_sent = max(1, min(limits.requests, limits.connections // 2))

    class Connection(H11Protocol):
        """Closed when a head does not arrive, or an answer is not taken, within the time."""

        _patience: asyncio.TimerHandle | None = None
        _reading: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()
            idle[self] = None
            if len(self.connections) > limits.connections:
                next((other for other in chain(idle, half_sent) if other is not self), self)._make_room()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            half_sent.pop(self, None)
            if self._is_idle():
                if self._patience is None:
                    self._await_head()
                return
            self._stop_waiting()
            if self.conn.their_state is h11.SEND_BODY:
                half_sent[self] = None
                if len(half_sent) > most_half_sent:
                    next(iter(half_sent))._make_room()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._is_idle():  # and no other request came along with the first
                half_sent.pop(self, None)
                idle[self] = None

        def connection_lost(self, exc: Exception | None) -> None:
            half_sent.pop(self, None)
            self._stop_waiting()
            self._stop_looking()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            size = self.transport.get_write_buffer_size()
            self._reading = self.loop.call_later(limits.body_seconds, self._look_at_reader, size, size)

        def resume_writing(self) -> None:
            self._stop_looking()
            super().resume_writing()

        def _look_at_reader(self, whole: int, before: int) -> None:
            left = self.transport.get_write_buffer_size()
            if before - left < _SHARE_TAKEN * whole:
                _cut(self.transport)
            else:
                self._reading = self.loop.call_later(limits.body_seconds, self._look_at_reader, whole, left)

        def _is_idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _make_room(self) -> None:
            idle.pop(self, None)  # now, because others may come before it is gone
            half_sent.pop(self, None)
            self.transport.abort()

        def _await_head(self) -> None:
            self._patience = self.loop.call_later(limits.body_seconds, self._give_up)

        def _stop_waiting(self) -> None:
            idle.pop(self, None)
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _stop_looking(self) -> None:
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None

        def _give_up(self) -> None:
            self._patience = None
            self.transport.close()

    return Connection


def _cut(transport: Any) -> None:
    """Close without waiting for what is not taken, neither here nor in the kernel."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()
