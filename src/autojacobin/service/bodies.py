"""Bodies of requests: read within a size and a time, and never more of them than that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from autojacobin.service.limits import Limits
from autojacobin.service.problems import Problem

__all__ = ["ClientGone", "gone", "read_body"]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):  # noqa: N818 (nobody's error)
    """The other side hung up, so nobody waits for an answer."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], limits: Limits) -> bytes:
    """Read a body to its end."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        detail = "a body must come as it is, got one with a Content-Encoding; leave the compression out"
        raise Problem(415, "unsupported-media-type", detail)
    if int(headers.get(b"content-length", b"0")) > limits.body_bytes:  # h11 has checked that it is a number
        raise _too_large(limits, asked_first=b"expect" in headers)
    try:
        return await asyncio.wait_for(_read(receive, limits), limits.body_seconds)
    except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
        detail = f"a body must arrive within {limits.body_seconds:g} s, got less than all of it; send it faster"
        raise Problem(408, "slow-body", detail, {"Connection": "close"}) from None


async def gone(receive: Receive) -> None:
    """Come back when the other side has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(receive: Receive, limits: Limits) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limits.body_bytes:
            raise _too_large(limits, asked_first=False)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limits: Limits, *, asked_first: bool) -> Problem:
    detail = f"a body may have {limits.body_bytes} bytes, got more; send fewer vectors at once, or send them as float32"
    # One who asked before sending will not send. Of others the connection stays open, and takes in and forgets the
    # rest: were it cut while they still send, they would never see the answer.
    return Problem(413, "body-too-large", detail, {"Connection": "close"} if asked_first else None)
