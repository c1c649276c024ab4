"""Access and limits: who may read and write (tokens, hosts, origins), and how much a request may ask for."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, fields

from autojacobin.core.files import as_path, clear_os_errors
from autojacobin.errors import DataError
from autojacobin.service.responses import Problem

TOKEN_VARIABLE = "AUTOJACOBIN_TOKEN"
WRITE_TOKEN_VARIABLE = "AUTOJACOBIN_WRITE_TOKEN"
PUBLIC_PATHS = frozenset({"/healthz", "/readyz"})  # probes carry no token, and learn only yes or no
VECTORS_TOGETHER = 512  # most vectors of several requests that one call searches for

_SHORTEST_TOKEN = 16
_TOKEN = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"https?://[^/\s*]+")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]*)(?::[0-9]*)?")  # a name or an address, and perhaps a port
_WRITE_PATH = re.compile(r"/v1/[^/]+/vectors")
_CHALLENGE = 'Bearer realm="autojacobin", Basic realm="autojacobin", charset="UTF-8"'


@dataclass(frozen=True)
class Access:
    """Who may send requests, and who may write.

    Parameters
    ----------
    token : str, optional
        Every request must have it, as a bearer token or as the password of HTTP Basic, which browsers ask for. It is
        required if the service listens beyond this machine.
    hosts : tuple of str
        Host names that requests without a token may use, besides those of this machine.
    origins : tuple of str
        Origins, such as ``https://example.org``, whose pages may send requests from a browser; none by default.
    write_token : str, optional
        Requests that add or remove vectors must have it, as a bearer token. It also allows everything that ``token``
        does. Without it, the service only reads.
    """

    token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    write_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for token in (self.token, self.write_token):
            if token is not None and (len(token) < _SHORTEST_TOKEN or not _TOKEN.fullmatch(token)):
                raise DataError(
                    f"a token must be {_SHORTEST_TOKEN} or more ASCII characters without spaces, got one that is not; "
                    "make one with: openssl rand -hex 32"
                )
        if self.write_token is not None and self.write_token == self.token:
            raise DataError("the token for writing must differ from the one for reading, got the same; make another")
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise DataError(f"an origin must look like https://example.org, got {origin!r}; name each one")

    def check_address(self, host: str) -> None:
        """Refuse to listen beyond this machine without a token."""
        if self.token is None and not is_loopback(host):
            raise DataError(
                f"a token is required to listen on {host!r}, which others may reach, got none; put one into a file "
                f"for --token-file or into {TOKEN_VARIABLE}, or listen on 127.0.0.1"
            )

    def check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Refuse a request without access."""
        if path in PUBLIC_PATHS:
            return
        bearer, password = _given_tokens(headers.get(b"authorization", b""))
        if _is_token(bearer, self.write_token):  # not a password, which browsers send by themselves
            return
        if self.token is None:
            self._check_host(headers.get(b"host", b"").decode("latin-1"))
        elif not _is_token(bearer or password, self.token):
            detail = "a token is required, got none or a wrong one; send it as Authorization: Bearer TOKEN"
            raise Problem(401, "unauthorized", detail, {"WWW-Authenticate": _CHALLENGE})
        if is_write_path(path):
            if self.write_token is None:
                detail = "this service is read-only, got a request to write; start it with --writable to allow that"
                raise Problem(403, "read-only", detail)
            detail = "the token for writing is required, got none or another; send it as Authorization: Bearer TOKEN"
            raise Problem(401, "unauthorized", detail, {"WWW-Authenticate": "Bearer"})

    def _check_host(self, host: str) -> None:
        form = _HOST.fullmatch(host.lower())
        name = host.lower() if form is None else form[1]
        if form is None or not (is_loopback(name.strip("[]")) or name in self.hosts):
            detail = f"this service has no host name {name[:80]!r}; use the name of this machine, or start it with "
            raise Problem(421, "unknown-host", detail + "--allow-host")


@dataclass(frozen=True)
class Limits:
    """Limits of the service; requests beyond them are refused before they cost anything.

    Parameters
    ----------
    body_bytes : int
        Length of a request's body.
    vectors : int
        Vectors or ids in a request.
    k : int
        Neighbours per query.
    candidates : int
        Candidates per query.
    work : int
        Vectors of a request times their candidates, or times k where nothing is re-ranked.
    requests : int
        Requests that wait or run at once, and bodies that are half-sent; the response to further requests is 503.
    waiting_vectors : int
        Vectors that wait for their turn, of all requests together; this bounds how long the last of them waits.
    request_seconds : float
        Time from the last byte of a request to its response.
    body_seconds : float
        Time for a request's head to arrive, and again for its body, and for each tenth of a response to be read.
    connections : int
        Connections that are open at once; one more takes the place of the one that has been idle longest.
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
        for limit in fields(self):
            value, kind = getattr(self, limit.name), (int,) if limit.type == "int" else (int, float)
            if type(value) not in kind or not 0 < value < math.inf:
                what = "an integer" if limit.type == "int" else "a finite number of seconds"
                raise DataError(f"{limit.name} must be {what} above 0, got {value!r}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_write_path(path: str) -> bool:
    """Return whether requests to a path change an index."""
    return _WRITE_PATH.fullmatch(path) is not None


def read_token(file: str | os.PathLike[str] | None = None, variable: str = TOKEN_VARIABLE) -> str | None:
    """Give the token in a file, else the one in a variable of the environment, else none."""
    if file is None:
        return os.environ.get(variable, "").strip() or None
    file = as_path(file)
    with clear_os_errors(f"read the token file {file}", "give a file that holds it"):
        token = file.read_text(encoding="utf-8", errors="replace").strip()
    if not token:
        raise DataError(f"the token file {file} is empty, expected a token; make one with: openssl rand -hex 32")
    return token


def _is_token(given: bytes, token: str | None) -> bool:
    """Compare in a time that does not depend on where the two differ."""
    return token is not None and hmac.compare_digest(given, token.encode())


def _given_tokens(authorization: bytes) -> tuple[bytes, bytes]:
    """The bearer token and the password of HTTP Basic, one of which is empty."""
    scheme, _, value = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip(), b""
    if scheme.lower() == b"basic":
        with suppress(binascii.Error):
            return b"", base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    return b"", b""
