"""Problems: the errors of the service as problem+json (RFC 9457), each with one sentence for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

__all__ = ["MEDIA_TYPE", "Problem", "busy", "invalid"]

MEDIA_TYPE = "application/problem+json"

_RETRY_SECONDS = 1


class Problem(Exception):  # noqa: N818 (RFC 9457 calls it so)
    """A request that cannot be answered.

    Programs distinguish problems by ``kind``, a short name that never changes. ``detail`` is the sentence for people.
    """

    def __init__(self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """Give the JSON document."""
        fields = {
            "type": f"urn:autojacobin:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", errors="replace")


def busy(detail: str) -> Problem:
    """Give the problem of a service that has no room for a request now."""
    return Problem(503, "busy", detail, {"Retry-After": str(_RETRY_SECONDS)})


def invalid(detail: str) -> Problem:
    """Give the problem of a request that is wrong or cannot be fulfilled."""
    return Problem(400, "invalid-request", detail)
