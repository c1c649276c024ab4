"""The server of `autojacobin explore`: the page alone, for this machine alone, as guarded as the search service."""

import base64
import hashlib
import http.client
import json
import os
import socket
from contextlib import ExitStack
from html.parser import HTMLParser

import pytest

from autojacobin.errors import StorageError
from autojacobin.explorer import export_page
from autojacobin.explorer.page import page_app
from autojacobin.service.access import Limits
from autojacobin.service.server import HttpServer
from tests.explorer.browser import small_bundle


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("explored")
    export_page(small_bundle(pictures=False), home / "page")
    (home / "secret.txt").write_text("secret")
    return home / "page"


@pytest.fixture(scope="module")
def port(folder):
    with page_server(folder) as server, server.running():
        yield int(server.address.rpartition(":")[2])


def page_server(folder, port=0, limits=None):
    return HttpServer(page_app(folder), "127.0.0.1", port, limits=limits or Limits(), what="the page")


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


class Scripts(HTMLParser):
    """Text of the scripts that stand in a page."""

    def __init__(self, html):
        super().__init__()
        self.found, self._inside = [], False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self._inside = tag == "script" and "src" not in dict(attrs)

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.found.append(data)


def test_the_page_and_its_data_are_given_and_nothing_else(port, folder):
    status, headers, body = ask(port, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body == (folder / "index.html").read_bytes()
    assert ask(port, "/data/about.js")[2] == (folder / "data" / "about.js").read_bytes()
    for path in (
        "/data/", "/data", "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/data/../../secret.txt",
        "//etc/passwd", "/etc/passwd", "/no.js", "/index.html%00", "/" + 300 * "n", "/healthz/../../secret.txt",
    ):  # fmt: skip
        status, headers, body = ask(port, path)
        assert (status, headers["Content-Type"]) == (404, "application/problem+json"), path
        assert b"secret\n" not in body
    status, headers, body = ask(port, "/", "POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert "expected GET, HEAD; the page is at /" in json.loads(body)["detail"]


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_symbolic_links_do_not_lead_out_of_the_folder(port, folder):
    links = {
        "file.js": folder.parent / "secret.txt",
        "folder": folder.parent,
        "relative.js": "../secret.txt",
        "inside.js": "data/about.js",
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
    try:
        for path in ("/file.js", "/folder/secret.txt", "/relative.js"):
            status, _, body = ask(port, path)
            assert (status, b"secret" in body.replace(path.encode(), b"")) == (404, False)
        assert ask(port, "/inside.js")[0] == 200
    finally:
        for name in links:
            (folder / name).unlink()


def test_only_the_names_of_this_machine_are_answered(port):
    for host, status in (
        ("127.0.0.1", 200), ("localhost:99", 200), ("[::1]:80", 200), ("evil.example", 421), ("", 421),
        ("127.0.0.1.evil.example:80", 421),
    ):  # fmt: skip
        for path in ("/", "/data/about.js"):
            assert ask(port, path, Host=host)[0] == status, host


@pytest.mark.parametrize("path", ["/", "/data/about.js", "/nothing"])
def test_every_answer_carries_the_headers_of_safety(port, path):
    _, headers, _ = ask(port, path)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Server"] is None


def test_the_one_script_in_the_page_is_the_one_that_may_run(port):
    _, headers, body = ask(port, "/")
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    (script,) = Scripts(body.decode()).found
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["script-src"] == f"'self' 'sha256-{digest}'"
    assert policy["default-src"] == "'self'"


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_an_internal_error_is_reported_without_details(port, folder, caplog):
    (folder / "loop").symlink_to("loop")  # the system refuses to look at it
    try:
        status, headers, body = ask(port, "/loop")
    finally:
        (folder / "loop").unlink()
    assert (status, headers["Content-Type"]) == (500, "application/problem+json")
    assert json.loads(body)["type"] == "urn:autojacobin:problem:internal"
    assert b"Traceback" not in body
    assert str(folder).encode() not in body
    assert ask(port, "/")[0] == 200
    assert any(record.exc_info for record in caplog.records)  # which the log has


def test_idle_connections_keep_no_other_client_out(folder):
    with page_server(folder, limits=Limits(connections=3, body_seconds=10**6)) as server, server.running():
        port = int(server.address.rpartition(":")[2])
        with ExitStack() as crowd:
            for _ in range(20):
                crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
            assert ask(port, "/")[0] == 200


def test_a_taken_port_is_reported_and_a_client_that_leaves_is_no_error(folder, capfd):
    with page_server(folder) as server, server.running():
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(
            StorageError, match=f"cannot listen on 127.0.0.1 port {port}: .*; give another host or port"
        ):
            page_server(folder, port)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()  # before all of the answer has come
    assert capfd.readouterr().err == ""
