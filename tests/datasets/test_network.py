"""Redirects, followed for real between servers on this machine, of which some are taken for servers elsewhere."""

import os
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import StorageError
from autojacobin.datasets.download import download
from autojacobin.datasets.entries import RemoteFile
from autojacobin.datasets.network import Network, Scope, scope_of
from tests.datasets import fetch_server

CONTENT = b"the file"
# where the servers of a test listen, and what they are taken for; addresses of this machine are real ones
PUBLIC, PRIVATE, LINK_LOCAL, HERE = "127.0.0.9", "127.0.0.8", "127.0.0.7", "127.0.0.1"
SCOPES = {PUBLIC: Scope.PUBLIC, PRIVATE: Scope.PRIVATE, LINK_LOCAL: Scope.LINK_LOCAL}


def _can_listen_at(address):
    with socket.socket() as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            return False
        return True


pytestmark = pytest.mark.skipif(not _can_listen_at(PUBLIC), reason="this system has one loopback address")


def taken_for(address):
    return SCOPES.get(address) or scope_of(address)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Server:
    def __init__(self, url):
        self.url, self.redirect, self.asked = url, None, []


@contextmanager
def serving(host=PUBLIC, port=0, context=None):
    """A server that redirects to ``redirect``, or answers with the content; ``asked`` has what it was asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.path)
            redirect = server.redirect.pop(0) if isinstance(server.redirect, list) else server.redirect
            if redirect:
                self.send_response(302)
                self.send_header("Location", redirect)
                self.end_headers()
            else:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(CONTENT)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer((host, port), Handler) as listener:
        if context is not None:
            listener.socket = context.wrap_socket(listener.socket, server_side=True)
        scheme = "http" if context is None else "https"
        server = Server(f"{scheme}://{host}:{listener.server_port}/file.bin")
        server.port = listener.server_port
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


def fetch(url, folder, network=None):
    remote = RemoteFile(url, "file.bin", most_bytes=1000)
    download(remote, folder / "file.bin", tries=1, timeout=600, pause=0, network=network or Network(scope_of=taken_for))
    return (folder / "file.bin").read_bytes()


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (HERE, HERE), (HERE, PRIVATE), (HERE, PUBLIC), (LINK_LOCAL, PRIVATE), (PRIVATE, PRIVATE), (PRIVATE, PUBLIC),
        (PUBLIC, PUBLIC),
    ],
)  # fmt: skip
def test_redirects_that_lead_no_nearer_are_followed(tmp_path, start, end):
    with serving(start) as first, serving(end) as second:
        first.redirect = second.url
        assert fetch(first.url, tmp_path) == CONTENT
        assert (first.asked, second.asked) == (["/file.bin"], ["/file.bin"])


@pytest.mark.parametrize(
    ("start", "end", "what"),
    [
        (PUBLIC, HERE, "an address of this machine"),
        (PUBLIC, LINK_LOCAL, "a link-local address"),
        (PUBLIC, PRIVATE, "a private address"),
        (PRIVATE, HERE, "an address of this machine"),
        (PRIVATE, LINK_LOCAL, "a link-local address"),
        (LINK_LOCAL, HERE, "an address of this machine"),
    ],
)
def test_redirects_from_the_network_to_nearer_addresses_are_refused(tmp_path, start, end, what):
    with serving(start) as first, serving(end) as second:
        first.redirect = f"{second.url}?token=sesame"
        with pytest.raises(StorageError, match=f"it redirects to http://{end}.*, which is {what}, from") as told:
            fetch(first.url, tmp_path)
        assert "sesame" not in str(told.value)
        assert len(first.asked) == 1  # it is not tried again
        assert second.asked == []
    assert list(tmp_path.iterdir()) == []


def test_every_hop_is_checked_and_not_only_the_last_two(tmp_path):
    with serving(HERE) as first, serving(PUBLIC) as second, serving(PRIVATE) as third:
        first.redirect, second.redirect = second.url, first.url
        with pytest.raises(StorageError, match="which is an address of this machine, from a public address"):
            fetch(first.url, tmp_path)
        second.redirect, third.redirect = third.url, first.url
        with pytest.raises(StorageError, match="which is a private address, from a public address"):
            fetch(first.url, tmp_path)
        assert third.asked == []


def test_a_name_is_judged_by_its_addresses(tmp_path):
    def resolve(host, port, **options):
        return socket.getaddrinfo({"files.example": PUBLIC, "inside.example": HERE}.get(host, host), port, **options)

    network = Network(resolve, taken_for)
    with serving(PUBLIC) as first, serving(HERE) as second:
        first.redirect = f"http://inside.example:{second.port}/file.bin"
        with pytest.raises(StorageError, match="inside.example.*, which is an address of this machine"):
            fetch(f"http://files.example:{first.port}/file.bin", tmp_path, network)
        for name in ("localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"):
            first.redirect = f"http://{name}:{second.port}/file.bin"
            with pytest.raises(StorageError, match="which is an address of this machine"):
                fetch(f"http://files.example:{first.port}/file.bin", tmp_path, network)
        assert second.asked == []


def test_a_name_with_addresses_here_and_there_is_refused(tmp_path):
    def resolve(host, port, **options):
        hosts = (PUBLIC, HERE) if host == "both.example" else (host,)
        return [found for one in hosts for found in socket.getaddrinfo(one, port, **options)]

    with serving(PUBLIC) as first:
        first.redirect = [f"http://both.example:{first.port}/file.bin", None]
        with pytest.raises(StorageError, match="which is an address of this machine"):
            fetch(first.url, tmp_path, Network(resolve, taken_for))
        assert len(first.asked) == 1


def test_the_connection_is_made_to_the_address_that_was_checked(tmp_path):
    """A name server that gives a public address to be checked and one of this machine to connect to."""
    answers = [PUBLIC, HERE]

    def resolve(host, port, **options):
        return socket.getaddrinfo(answers.pop(0) if host == "rebinding.example" else host, port, **options)

    with serving(PUBLIC) as first, serving(PUBLIC) as second, serving(HERE, second.port) as inside:
        first.redirect = f"http://rebinding.example:{second.port}/file.bin"
        assert fetch(first.url, tmp_path, Network(resolve, taken_for)) == CONTENT
        assert answers == [HERE]
        assert (len(second.asked), len(inside.asked)) == (1, 0)


def test_the_next_address_of_a_name_is_tried_if_one_does_not_answer(tmp_path):
    with serving(PUBLIC) as server:

        def resolve(_, port, **options):
            return [found for one in (PRIVATE, PUBLIC) for found in socket.getaddrinfo(one, port, **options)]

        url = f"http://two.example:{server.port}/file.bin"
        assert fetch(url, tmp_path, Network(resolve, taken_for)) == CONTENT


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "gopher://127.0.0.1/"])
def test_redirects_to_other_schemes_are_refused(tmp_path, place):
    with serving(HERE) as server:
        server.redirect = place
        with pytest.raises(StorageError, match="it redirects from http to .*, where http or https is expected"):
            fetch(server.url, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    key, file = folder / "key.pem", folder / "cert.pem"
    name = ["-subj", "/CN=here", "-addext", f"subjectAltName=IP:{HERE},DNS:files.example"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(file)]
    try:
        subprocess.run([*command, *name], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl to make a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return file, context


def test_https_leads_to_https_and_never_to_http(tmp_path, certificate, monkeypatch):
    file, context = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with serving(HERE, context=context) as safe, serving(HERE) as plain:
        assert fetch(safe.url, tmp_path) == CONTENT
        (tmp_path / "file.bin").unlink()
        plain.redirect = safe.url
        assert fetch(plain.url, tmp_path) == CONTENT
        (tmp_path / "file.bin").unlink()
        plain.redirect, safe.redirect = None, plain.url
        with pytest.raises(StorageError, match="it redirects from https to http://.*, and after https nothing else"):
            fetch(safe.url, tmp_path)
        assert len(plain.asked) == 1


def test_certificates_are_checked_by_name_although_addresses_are_connected_to(tmp_path, certificate, monkeypatch):
    file, context = certificate

    def resolve(_, port, **options):
        return socket.getaddrinfo(HERE, port, **options)

    with serving(HERE, context=context) as safe:
        monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
        with pytest.raises(StorageError, match="certificate verify failed"):
            fetch(safe.url, tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        network = Network(resolve, taken_for)
        assert fetch(f"https://files.example:{safe.port}/file.bin", tmp_path, network) == CONTENT
        (tmp_path / "file.bin").unlink()
        with pytest.raises(StorageError, match="certificate verify failed"):
            fetch(f"https://other.example:{safe.port}/file.bin", tmp_path, network)


def test_a_proxy_is_used_and_what_it_is_asked_for_is_checked(tmp_path, monkeypatch):
    known = {"files.example": PUBLIC, "inside.example": HERE}

    def resolve(host, port, **options):
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return socket.getaddrinfo(known[host], port, **options)

    network = Network(resolve, taken_for)
    with serving(HERE) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert fetch("http://only.the.proxy.knows/file.bin", tmp_path, network) == CONTENT
        assert proxy.asked == ["http://only.the.proxy.knows/file.bin"]
        (tmp_path / "file.bin").unlink()
        for start in ("files.example", "only.the.proxy.knows"):
            proxy.redirect = ["http://inside.example/file.bin", None]
            with pytest.raises(StorageError, match="inside.example/file.bin, which is an address of this machine"):
                fetch(f"http://{start}/file.bin", tmp_path, network)
        assert "http://inside.example/file.bin" not in proxy.asked


@pytest.mark.parametrize(
    ("address", "scope"),
    [
        ("127.0.0.1", Scope.THIS_MACHINE), ("127.9.9.9", Scope.THIS_MACHINE), ("0.0.0.0", Scope.THIS_MACHINE),
        ("0.1.2.3", Scope.THIS_MACHINE), ("::1", Scope.THIS_MACHINE), ("::", Scope.THIS_MACHINE),
        ("::ffff:127.0.0.1", Scope.THIS_MACHINE), ("::127.0.0.1", Scope.THIS_MACHINE),
        ("64:ff9b::7f00:1", Scope.THIS_MACHINE), ("2002:7f00:1::", Scope.THIS_MACHINE),
        ("169.254.169.254", Scope.LINK_LOCAL), ("fe80::1", Scope.LINK_LOCAL), ("fe80::1%eth0", Scope.LINK_LOCAL),
        ("::ffff:169.254.169.254", Scope.LINK_LOCAL), ("64:ff9b::a9fe:a9fe", Scope.LINK_LOCAL),
        ("10.0.0.1", Scope.PRIVATE), ("172.16.0.1", Scope.PRIVATE), ("192.168.1.1", Scope.PRIVATE),
        ("100.64.0.1", Scope.PRIVATE), ("198.18.0.1", Scope.PRIVATE), ("224.0.0.1", Scope.PRIVATE),
        ("240.0.0.1", Scope.PRIVATE), ("255.255.255.255", Scope.PRIVATE), ("fc00::1", Scope.PRIVATE),
        ("fec0::1", Scope.PRIVATE), ("ff02::1", Scope.PRIVATE), ("2001:db8::1", Scope.PRIVATE),
        ("2002:a00:1::", Scope.PRIVATE), ("8.8.8.8", Scope.PUBLIC), ("131.254.1.1", Scope.PUBLIC),
        ("2606:4700::1", Scope.PUBLIC), ("64:ff9b::808:808", Scope.PUBLIC), ("::ffff:8.8.8.8", Scope.PUBLIC),
    ],
)  # fmt: skip
def test_scopes(address, scope):
    assert scope_of(address) is scope


@settings(deadline=None)
@given(st.ip_addresses(v=4))
def test_an_address_has_one_scope_however_it_is_written(ip):
    number = int(ip)
    forms = [
        f"::ffff:{ip}",
        f"64:ff9b::{number >> 16:x}:{number & 0xFFFF:x}",
        f"2002:{number >> 16:x}:{number & 0xFFFF:x}::",
    ]
    assert {scope_of(form) for form in forms} == {scope_of(str(ip))}


@pytest.mark.parametrize(
    "url",
    [
        "http://me:sesame@127.0.0.1:9/x", "http://me:open/sesame@127.0.0.1:9/x", "https://me:sesame@[::1/x",
        "http://me:sesame", "http:///sesame@x", "sesame",
    ],
)  # fmt: skip
def test_addresses_with_passwords_are_refused_without_them(tmp_path, url):
    with pytest.raises(StorageError, match="expected an address with http, https or ftp, without a user") as told:
        fetch(url, tmp_path)
    assert url == "sesame" or "sesame" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_signatures_are_in_no_message_and_no_file(tmp_path, scheme):
    with socket.socket() as unused:
        unused.bind((HERE, 0))  # and does not listen
        user = "me:sesame@" if scheme == "ftp" else ""
        url = f"{scheme}://{user}{HERE}:{unused.getsockname()[1]}/file.bin?sig=sesame"
        with pytest.raises(StorageError, match="cannot reach") as told:
            fetch(url, tmp_path)
    assert "sesame" not in str(told.value) + repr(RemoteFile(url, "file.bin", 1))


def test_a_part_that_is_kept_has_no_signature_and_goes_on_with_a_new_one(tmp_path):
    with fetch_server.serving(bytes(200_000)) as server:
        server.acts = [fetch_server.breaking_off_at(70_000), fetch_server.answering(404)]
        remote = RemoteFile(f"{server.url}?sig=sesame", "file.bin", most_bytes=10**6)
        with pytest.raises(StorageError, match="404") as told:
            download(remote, tmp_path / "file.bin", pause=0, timeout=600)
        assert "sesame" not in str(told.value)
        assert not any(b"sesame" in path.read_bytes() for path in tmp_path.iterdir())
        download(RemoteFile(f"{server.url}?sig=new", "file.bin", most_bytes=10**6), tmp_path / "file.bin", timeout=600)
        assert server.requests[-1]["Range"] == "bytes=70000-"
        assert (tmp_path / "file.bin").read_bytes() == bytes(200_000)
