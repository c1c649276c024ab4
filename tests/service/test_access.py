"""Who may ask, from where, and what every answer carries."""

import base64
import json
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

from autojacobin.cli import app
from autojacobin.errors import DataError, StorageError
from autojacobin.index import Index
from autojacobin.service import Access, Client, ServiceError, serving
from autojacobin.service.access import is_loopback, read_token

TOKEN = "correct-horse-battery-staple"


def ask(address, path, **headers):
    request = urllib.request.Request(address + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


@pytest.fixture(scope="module")
def guarded(index):
    access = Access(TOKEN, origins=("https://example.org",))
    with serving({"points": index}, host="0.0.0.0", access=access) as address:
        yield address.replace("0.0.0.0", "127.0.0.1")


def test_requests_need_the_token(guarded):
    for given in (
        {},
        {"Authorization": "Bearer wrong-token-wrong-token"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic !!!"},
        {"Authorization": f"Digest {TOKEN}"},
    ):
        for path in ("/v1/indexes", "/metrics", "/openapi.json", "/", "/nothing"):
            status, headers, body = ask(guarded, path, **given)
            assert status == 401
            assert headers["WWW-Authenticate"].startswith("Bearer")
            assert TOKEN not in body.decode()
    by_password = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    assert ask(guarded, "/v1/indexes", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert ask(guarded, "/v1/indexes", Authorization=f"Basic {by_password}")[0] == 200
    assert ask(guarded, "/healthz")[0] == 200  # probes bring no token


def test_the_client_brings_the_token(guarded, points):
    with Client(guarded, token=TOKEN) as client:
        assert client.search(points[:1], k=1)[1].tolist() == [[0]]
    with Client(guarded) as client, pytest.raises(ServiceError, match="a token is required") as caught:
        client.indexes()
    assert (caught.value.status, caught.value.kind) == (401, "unauthorized")


def test_only_named_origins_may_ask_from_a_page(guarded, service):
    key = {"Authorization": f"Bearer {TOKEN}"}
    allowed = ask(guarded, "/v1/indexes", Origin="https://example.org", **key)[1]
    assert allowed["Access-Control-Allow-Origin"] == "https://example.org"
    foreign = ask(guarded, "/v1/indexes", Origin="https://elsewhere.example", **key)[1]
    assert foreign["Access-Control-Allow-Origin"] is None
    assert ask(service.address, "/v1/indexes", Origin="https://example.org")[1]["Access-Control-Allow-Origin"] is None


def test_without_a_token_only_the_names_of_this_machine_count(service, index):
    for host, status in (
        ("localhost:99", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 421), ("", 421),
        ("localhost.evil.example", 421), ("127.0.0.1.evil.example:80", 421), ("[evil", 421),
        ("[::1]evil", 421), ("[::1]:80evil", 421), ("[::1", 421), ("::1]", 421), ("localhost:evil", 421),
        ("localhost:80:80", 421), ("[localhost]", 421), ("[::1%evil]", 421), ("[::1]", 200), ("LOCALHOST", 200),
    ):  # fmt: skip
        assert service.ask("GET", "/v1/indexes", headers={"Host": host})[0] == status, host
    with serving({"points": index}, access=Access(hosts=("inside.example",))) as address:
        assert ask(address, "/v1/indexes", Host="inside.example:8571")[0] == 200
        assert ask(address, "/v1/indexes", Host="evil.example")[0] == 421


@pytest.mark.parametrize("path", ["/v1/indexes", "/healthz", "/nothing", "/v1/search", "/"])
def test_every_answer_carries_the_headers_of_safety(service, path):
    _, headers, _ = service.ask("GET", path)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "unsafe-eval" not in headers["Content-Security-Policy"]
    assert headers["Server"] is None
    assert headers["Access-Control-Allow-Origin"] is None


def test_beyond_this_machine_a_token_is_required(folder, monkeypatch):
    monkeypatch.delenv("AUTOJACOBIN_TOKEN", raising=False)
    result = CliRunner().invoke(app, ["serve", str(folder / "points"), "--host", "0.0.0.0", "--port", "0"])
    assert isinstance(result.exception, DataError)  # which the command line prints as a sentence
    assert "a token is required to listen on '0.0.0.0'" in str(result.exception)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
        assert not is_loopback(host)
        with pytest.raises(DataError, match="a token is required"):
            Access().check_address(host)
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        Access().check_address(host)
        assert is_loopback(host)


def test_the_command_takes_no_token_but_a_file_and_shows_an_example():
    text = " ".join(CliRunner().invoke(app, ["serve", "--help"], terminal_width=200).stdout.split())
    assert "--token-file" in text
    assert "--token " not in text
    assert "Example: autojacobin serve my-index" in text
    assert TOKEN not in repr(Access(TOKEN))


def test_where_the_token_comes_from(tmp_path, monkeypatch):
    monkeypatch.delenv("AUTOJACOBIN_TOKEN", raising=False)
    assert read_token() is None
    monkeypatch.setenv("AUTOJACOBIN_TOKEN", TOKEN)
    assert read_token() == TOKEN
    (tmp_path / "token").write_text("  another-token-in-a-file\n")
    assert read_token(tmp_path / "token") == "another-token-in-a-file"
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(DataError, match="is empty"):
        read_token(tmp_path / "empty")
    with pytest.raises(StorageError, match="cannot read the token file .*: no such file"):
        read_token(tmp_path / "missing")
    for poor in ("short", "has a space in its middle", "naïve-naïve-naïve-naïve"):
        with pytest.raises(DataError, match="16 or more ASCII characters") as caught:
            Access(poor)
        assert poor not in str(caught.value)
    with pytest.raises(DataError, match="an origin must look like"):
        Access(origins=("*",))


def test_the_page_comes_with_the_service(service):
    status, headers, body = service.ask("GET", "/")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    assert b"<html" in body
    assert json.loads(service.ask("GET", "/healthz")[2]) == {"status": "ok"}


@pytest.mark.parametrize(
    "path", ["/v1/points/vectors%0A", "/v1/search%0A", "/v1/points/vectors%0D", "/v1/points%00/vectors"]
)
def test_a_control_character_at_the_end_of_a_path_opens_no_door(path, tmp_path, points, index):
    index.save(tmp_path / "points")
    with serving({"points": tmp_path / "points"}) as address:
        body = json.dumps({"vectors": points[:1].tolist(), "ids": [777_777]}).encode()
        request = urllib.request.Request(address + path, body, {"Content-Type": "application/json"}, method="POST")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=30)
        with caught.value as error:
            assert error.code == 404
            assert json.load(error)["type"].endswith("not-found")
    with Index.open(tmp_path / "points") as unchanged:
        assert len(unchanged) == len(index)
