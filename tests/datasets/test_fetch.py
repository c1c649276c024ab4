"""Downloads from a server that breaks off, lies and corrupts: the right file or one sentence, and never half of it."""

import hashlib
import os
import resource
import socket
import ssl
import subprocess
from contextlib import contextmanager

import pytest

from autojacobin import FormatError, StorageError
from autojacobin.datasets.download import fetch_file
from autojacobin.datasets.entries import RemoteFile
from tests.datasets import fetch_server as serve

CONTENT = bytes(range(256)) * 800  # several reads of the client, and of every byte
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with serve.serving(CONTENT) as running:
        yield running


@pytest.fixture(autouse=True)
def _three_quick_tries(monkeypatch):
    monkeypatch.setattr("autojacobin.datasets.download._TRIES", 3)
    monkeypatch.setattr("autojacobin.datasets.download._PAUSE", 0)


def fetch(server, folder, progress=None, checksum=None, most_bytes=10**6):
    fetch_file(RemoteFile(server.url, "file.bin", most_bytes, checksum), folder, progress)
    return (folder / "file.bin").read_bytes()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_file_arrives_alone_and_its_progress_is_told(server, tmp_path):
    told = []
    got = fetch(server, tmp_path, lambda *step: told.append(step), checksum=MD5)
    assert got == CONTENT
    assert names(tmp_path) == ["file.bin"]
    fetching = [(done, total) for stage, done, total in told if stage == "fetching file.bin"]
    assert fetching[0] == (0, len(CONTENT))
    assert fetching[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in fetching] == sorted(done for done, _ in fetching)


def test_corrupt_content_is_deleted_and_told(server, tmp_path):
    server.acts = [serve.corrupting]
    with pytest.raises(FormatError, match=r"its checksum is not 'md5:\w{32}'; the download was deleted") as caught:
        fetch(server, tmp_path, checksum=MD5)
    assert server.url in str(caught.value)
    assert names(tmp_path) == []
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT


def test_sha256_is_checked_too(server, tmp_path):
    right = hashlib.sha256(CONTENT).hexdigest()
    assert fetch(server, tmp_path, checksum=f"sha256:{right}") == CONTENT
    (tmp_path / "file.bin").unlink()
    with pytest.raises(FormatError, match=f"its checksum is not 'sha256:{right[::-1]}'"):
        fetch(server, tmp_path, checksum=f"sha256:{right[::-1]}")


@pytest.mark.parametrize("announced", [1000, len(CONTENT) - 1])
def test_a_server_that_announces_less_than_the_file_is_found_out(server, tmp_path, announced):
    server.acts = [serve.announcing(announced)]
    with pytest.raises(FormatError, match="md5"):
        fetch(server, tmp_path, checksum=MD5)
    assert names(tmp_path) == []


def test_a_server_that_does_not_say_how_long_the_file_is_will_do(server, tmp_path):
    server.acts = [serve.without_length]
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT


@pytest.mark.parametrize("act", [serve.honest, serve.without_length])
def test_a_file_larger_than_expected_is_stopped(server, tmp_path, act):
    server.acts = [act]
    with pytest.raises(FormatError, match="where at most 100,000 are expected"):
        fetch(server, tmp_path, most_bytes=100_000)
    assert names(tmp_path) == []


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_told_at_once(server, tmp_path, status):
    server.acts = [serve.answering(status)]
    with pytest.raises(StorageError, match=rf"the server answered {status} .*put it at .*file\.bin"):
        fetch(server, tmp_path)
    assert len(server.requests) == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(server, tmp_path, status):
    server.acts = [serve.answering(status)] * 2
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    server.acts = [serve.answering(status)] * 9
    (tmp_path / "file.bin").unlink()
    with pytest.raises(StorageError, match=f"the server answered {status} .*, 3 times; run it again later"):
        fetch(server, tmp_path)
    assert names(tmp_path) == []


def test_a_server_that_hangs_up_without_a_word_is_asked_again(server, tmp_path):
    server.acts = [serve.hanging_up, serve.hanging_up]
    assert fetch(server, tmp_path) == CONTENT


def test_a_slow_server_is_waited_for(server, tmp_path):
    server.acts = [serve.dawdling]
    assert fetch(server, tmp_path) == CONTENT
    assert len(server.requests) == 1


def test_a_redirection_is_followed(server, tmp_path):
    server.acts = [serve.redirecting_to(server.url.replace("file.bin", "moved.bin"))]
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "place",
    [
        "http://localhost:{port}/file.bin?token=sesame", "http://[::ffff:127.0.0.1]:{port}/file.bin", "file:///etc/passwd",
        "ftp://127.0.0.1/x", "data:,x", "gopher://127.0.0.1/",
    ],
)  # fmt: skip
def test_redirects_to_another_server_or_scheme_are_refused(server, tmp_path, place):
    port = server.url.split(":")[2].split("/")[0]
    server.acts = [serve.redirecting_to(place.format(port=port))] * 9
    with pytest.raises(StorageError) as caught:
        fetch(server, tmp_path)
    assert "sesame" not in str(caught.value)
    assert names(tmp_path) == []
    if "localhost" in place:
        assert "the server answered 302 and redirects to http://localhost:" in str(caught.value)
        assert len(server.requests) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    key, file = folder / "key.pem", folder / "cert.pem"
    name = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(file)]
    try:
        subprocess.run([*command, *name], check=True, capture_output=True, timeout=1200)
    except FileNotFoundError:
        pytest.skip("needs openssl to make a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return file, context


def test_http_redirects_to_https_and_never_the_other_way(server, tmp_path, certificate, monkeypatch):
    file, context = certificate
    with serve.serving(CONTENT, context) as safe:
        monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
        with pytest.raises(StorageError, match="certificate verify failed"):
            fetch(safe, tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        server.acts = [serve.redirecting_to(safe.url)]
        assert fetch(server, tmp_path) == CONTENT
        (tmp_path / "file.bin").unlink()
        safe.acts = [serve.redirecting_to(server.url)]
        with pytest.raises(StorageError, match="redirects to http://.* which is another server or not http or https"):
            fetch(safe, tmp_path)
        assert len(server.requests) == 1


def test_a_proxy_is_used(server, tmp_path, monkeypatch):
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", server.url)
    fetch_file(RemoteFile("http://only.the.proxy.knows/file.bin", "file.bin", most_bytes=10**6), tmp_path)
    assert server.requests[0]["Host"] == "only.the.proxy.knows"


@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
def test_no_network_is_told_plainly_and_at_once(tmp_path, scheme):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        remote = RemoteFile(f"{scheme}://127.0.0.1:{unused.getsockname()[1]}/file.bin", "file.bin", most_bytes=10)
        with pytest.raises(StorageError) as caught:
            fetch_file(remote, tmp_path)
    message = str(caught.value)
    assert "cannot reach 127.0.0.1 (" in message
    assert "Connection refused" in message
    assert "): there is no network, or the server is down" in message
    assert f"put it at {tmp_path / 'file.bin'}" in message
    assert names(tmp_path) == []


@contextmanager
def no_file_larger_than(n):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_fit_is_not_begun(server, tmp_path):
    server.acts = [serve.announcing(10**14)]
    with pytest.raises(StorageError, match="100,000,000,000,000 bytes are to come and .* are free"):
        fetch(server, tmp_path, most_bytes=10**15)
    assert names(tmp_path) == []


@pytest.mark.parametrize("act", [serve.breaking_off_at(70_000), serve.announcing(len(CONTENT) + 5)])
def test_a_download_that_broke_off_begins_again(server, tmp_path, act):
    server.acts = [act] * 2
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert len(server.requests) == 3
    (tmp_path / "file.bin").unlink()
    server.acts = [act] * 3
    with pytest.raises(StorageError, match=r"broke off at .* bytes, 3 times; run it again later"):
        fetch(server, tmp_path, checksum=MD5)
    assert names(tmp_path) == []


def test_silence_counts_as_a_break(server, tmp_path, monkeypatch):
    def fall_silent(handler, it):
        serve.honest(handler, it, len(CONTENT) // 2)
        handler.wfile.flush()
        handler.connection.recv(1)  # until the client hangs up

    monkeypatch.setattr("autojacobin.datasets.download._TIMEOUT", 0.3)
    server.acts = [fall_silent] * 3
    with pytest.raises(StorageError, match="timed out, 3 times"):
        fetch(server, tmp_path)


def test_a_disk_that_takes_no_more_is_told(server, tmp_path):
    with no_file_larger_than(100_000), pytest.raises(StorageError, match=r"cannot write .*: .*make room"):
        fetch(server, tmp_path)
    assert names(tmp_path) == []


def test_a_file_that_is_there_is_checked_and_not_fetched(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    (tmp_path / "file.bin").write_bytes(b"another")
    with pytest.raises(FormatError, match=r"its checksum is not 'md5:.*'; delete .*file\.bin and fetch it again"):
        fetch(server, tmp_path, checksum=MD5)
    assert server.requests == []
