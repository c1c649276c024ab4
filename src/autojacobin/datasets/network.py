"""Network access of downloads: redirects are checked, and only an address that was checked is connected to."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import urllib.request
from collections.abc import Callable
from enum import IntEnum
from typing import Any
from urllib.parse import urljoin, urlsplit

from autojacobin.core.addresses import redacted_address

__all__ = ["Network", "RedirectError", "Scope", "scope_of"]

_REDIRECTS = {("http", "http"), ("http", "https"), ("https", "https")}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class RedirectError(Exception):
    """A server redirects to a forbidden address; the message says to which and why."""


class Scope(IntEnum):
    """From where an address can be reached; nearer scopes come first."""

    THIS_MACHINE = 0
    LINK_LOCAL = 1
    PRIVATE = 2
    PUBLIC = 3

    def __str__(self) -> str:
        return ("an address of this machine", "a link-local address", "a private address", "a public address")[self]


def scope_of(address: str) -> Scope:
    """Give the scope of an IP address; one that no public network routes counts as private.

    Examples
    --------
    >>> from autojacobin.datasets.network import scope_of
    >>> print(scope_of("::ffff:127.0.0.1"))
    an address of this machine
    """
    ip = _unwrapped(ipaddress.ip_address(address.partition("%")[0]))
    if ip.is_loopback or ip.is_unspecified or ip in ipaddress.ip_network("0.0.0.0/8"):
        return Scope.THIS_MACHINE
    if ip.is_link_local:
        return Scope.LINK_LOCAL
    local = ip.is_multicast or ip.is_reserved or (isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local)
    return Scope.PUBLIC if ip.is_global and not local else Scope.PRIVATE


class Network:
    """Opens addresses, and follows redirects unless they lead to a nearer scope than that of an earlier server.

    Parameters
    ----------
    resolve : callable
        Gives the addresses of a name, as :func:`socket.getaddrinfo` does.
    scope_of : callable
        Gives the :class:`Scope` of an IP address.
    """

    def __init__(
        self,
        resolve: Callable[..., list[Any]] = socket.getaddrinfo,
        scope_of: Callable[[str], Scope] = scope_of,
    ) -> None:
        self._resolve, self._scope_of = resolve, scope_of

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        """Send a request and give the response, as ``urllib.request.urlopen`` does, or raise a RedirectError."""
        hops = _Hops(self._resolve, self._scope_of)
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.UnknownHandler(),
            _HTTPHandler(hops),
            _HTTPSHandler(hops),
            urllib.request.FTPHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _RedirectHandler(),
        ):
            opener.add_handler(handler)
        return opener.open(request, timeout=timeout)


class _Hops:
    """The servers of one request: the first one and those that it is redirected to."""

    def __init__(self, resolve: Callable[..., list[Any]], scope_of: Callable[[str], Scope]) -> None:
        self._resolve, self._scope_of = resolve, scope_of
        self._farthest: Scope | None = None  # of the servers so far

    def connection(self, kind: Any, request: urllib.request.Request) -> Callable[..., Any]:
        """Give a function that makes a connection of the class ``kind`` over checked sockets."""
        proxied = request.has_proxy() or getattr(request, "_tunnel_host", None) is not None

        def connect(address: tuple[str, int], timeout: Any, source: Any = None) -> socket.socket:
            if not proxied:
                return self._connected(address, timeout, request)
            # the proxy, which the user chose, resolves the name; the addresses that are known here are checked
            target = urlsplit(request.full_url)
            try:
                found = self._resolve(target.hostname, target.port or 0, type=socket.SOCK_STREAM)
            except OSError:
                found = []  # a name that only the proxy knows
            scopes = self._check(found, request)
            self._farthest = max([self._farthest or Scope.THIS_MACHINE, *(scopes or [Scope.PUBLIC])])
            return socket.create_connection(address, timeout, source)

        def make(host: str, **options: Any) -> Any:
            connection = kind(host, **options)
            connection._create_connection = connect
            return connection

        return make

    def _connected(self, server: tuple[str, int], timeout: Any, request: urllib.request.Request) -> socket.socket:
        found = self._resolve(*server, type=socket.SOCK_STREAM)
        scopes = self._check(found, request)
        trouble: OSError = OSError(f"{server[0]} has no address")
        for (family, kind, protocol, _, address), scope in zip(found, scopes, strict=True):
            channel = socket.socket(family, kind, protocol)
            try:
                if timeout is not socket._GLOBAL_DEFAULT_TIMEOUT:  # type: ignore[attr-defined]
                    channel.settimeout(timeout)
                channel.connect(address)
            except OSError as error:
                channel.close()
                trouble = error
            else:
                self._farthest = max(self._farthest or scope, scope)
                return channel
        raise trouble

    def _check(self, found: list[Any], request: urllib.request.Request) -> list[Scope]:
        scopes = [self._scope_of(str(address[0])) for *_, address in found]
        if self._farthest is not None and scopes and min(scopes) < self._farthest:
            raise RedirectError(
                f"it redirects to {redacted_address(request.full_url)}, which is {min(scopes)}, from {self._farthest}"
            )
        return scopes


class _HTTPHandler(urllib.request.HTTPHandler):
    def __init__(self, hops: _Hops) -> None:
        super().__init__()
        self._hops = hops

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._hops.connection(http.client.HTTPConnection, req), req)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def __init__(self, hops: _Hops) -> None:
        super().__init__()
        self._hops = hops

    def https_open(self, req: urllib.request.Request) -> Any:
        context = ssl.create_default_context()
        return self.do_open(self._hops.connection(http.client.HTTPSConnection, req), req, context=context)


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        location = headers.get("Location") or headers.get("URI")
        if location:
            new = urljoin(req.full_url, location)
            before, after = (address.partition(":")[0].lower() for address in (req.full_url, new))
            if (before, after) not in _REDIRECTS:
                raise RedirectError(
                    f"it redirects from {before} to {redacted_address(new)}, where http or https is expected, and "
                    "after https nothing else"
                )
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _unwrapped(ip: Any) -> Any:
    """The IPv4 address inside an IPv6 address, if there is one."""
    if not isinstance(ip, ipaddress.IPv6Address):
        return ip
    if ip in _NAT64 or (int(ip) >> 32 == 0 and int(ip) > 1):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None) or ip
