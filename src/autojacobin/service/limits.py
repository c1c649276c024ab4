"""How much a request may ask for, and how much may be under way at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from autojacobin.errors import DataError

__all__ = ["VECTORS_TOGETHER", "Limits"]

VECTORS_TOGETHER = 512  # of several requests, that are searched for in one call


@dataclass(frozen=True)
class Limits:
    """Limits of the service; what goes beyond them is refused before it costs anything.

    Parameters
    ----------
    body_bytes : int
        Length of a request's body.
    vectors : int
        Vectors or ids in a request.
    k : int
        Neighbours a query.
    candidates : int
        Candidates a query.
    work : int
        Vectors of a request times their candidates, or times k where nothing is re-ranked.
    requests : int
        Requests that wait or are being answered at once; further ones are answered with 503. A request counts when
        its body is whole, so that clients who send slowly keep nobody out. As many bodies may be half-sent, but no
        more than half of ``connections``; one more takes the place of the one that has been silent longest.
    waiting_vectors : int
        Vectors that wait for their turn, of all requests together; this bounds how long the last of them waits. A
        request that finds nobody waiting is always let in.
    request_seconds : float
        Time from the last byte of a request to its answer.
    body_seconds : float
        Time for a request's head to arrive, and again for its body, and for each tenth of an answer to be taken.
    connections : int
        Connections that are open at once. One more takes the place of the one that has been without a request
        longest. Half of the files that the process may open is the most there can be.
    """

    body_bytes: int = 8 * 2**20
    vectors: int = 1024
    k: int = 1000
    candidates: int = 10_000
    work: int = 1_000_000
    requests: int = 128
    waiting_vectors: int = 2048
    request_seconds: float = 10.0
    body_seconds: float = 10.0
    connections: int = 512

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.type == "int"
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise DataError(f"{field.name} must be {'an integer' if whole else 'a number'}, got {value!r}")
            if not (value >= 1 if whole else 0 < value < math.inf):
                expected = "at least 1" if whole else "a finite number of seconds above 0"
                raise DataError(f"{field.name} must be {expected}, got {value!r}")
