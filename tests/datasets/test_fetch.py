"""Downloads from a server that breaks off, lies and corrupts: the right file or one sentence, and never half of it."""

import hashlib
import resource
import socket
from contextlib import contextmanager

import pytest

from autojacobin import FormatError, StorageError
from autojacobin.datasets.catalogue import fetch_file
from autojacobin.datasets.sources import RemoteFile
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
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)


def fetch(server, folder, progress=None, checksum=None):
    fetch_file(RemoteFile(server.url, "file.bin", checksum), folder, progress)
    return (folder / "file.bin").read_bytes()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_file_arrives_alone_and_its_progress_is_told(server, tmp_path):
    told = []
    got = fetch(server, tmp_path, lambda *step: told.append(step), checksum=MD5)
    assert got == CONTENT
    assert names(tmp_path) == ["file.bin"]
    fetching = [(done, total) for stage, done, total in told if stage == "fetching file.bin"]
    assert fetching[0] == (0, 0)
    assert fetching[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in fetching] == sorted(done for done, _ in fetching)


def test_corrupt_content_is_deleted_and_told(server, tmp_path):
    server.acts = [serve.corrupting] * 3
    with pytest.raises(FormatError, match=r"its checksum is not 'md5:\w{32}'; fetch it again") as caught:
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
    server.acts = [serve.announcing(announced)] * 3
    with pytest.raises(FormatError, match="md5"):
        fetch(server, tmp_path, checksum=MD5)
    assert names(tmp_path) == []


def test_a_server_that_does_not_say_how_long_the_file_is_will_do(server, tmp_path):
    server.acts = [serve.without_length]
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT


@pytest.mark.parametrize("status", [404, 503])
def test_a_server_that_refuses_is_asked_again_and_then_named(server, tmp_path, status):
    server.acts = [serve.answering(status)] * 2
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    server.acts = [serve.answering(status)] * 9
    (tmp_path / "file.bin").unlink()
    with pytest.raises(StorageError, match=rf"{status} .*put file\.bin at .*file\.bin by hand"):
        fetch(server, tmp_path)
    assert len(server.requests) == 6
    assert names(tmp_path) == []


def test_a_server_that_hangs_up_without_a_word_is_asked_again(server, tmp_path):
    server.acts = [serve.hanging_up, serve.hanging_up]
    assert fetch(server, tmp_path) == CONTENT


def test_a_redirection_is_followed(server, tmp_path):
    server.acts = [serve.redirecting_to(server.url.replace("file.bin", "moved.bin"))]
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert len(server.requests) == 2


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_redirects_to_what_is_no_server_are_refused(server, tmp_path, place):
    server.acts = [serve.redirecting_to(place)] * 9
    with pytest.raises(StorageError):
        fetch(server, tmp_path)
    assert names(tmp_path) == []


def test_a_proxy_is_used(server, tmp_path, monkeypatch):
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", server.url)
    fetch_file(RemoteFile("http://only.the.proxy.knows/file.bin", "file.bin"), tmp_path)
    assert server.requests[0]["Host"] == "only.the.proxy.knows"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_network_is_told_plainly_and_at_once(tmp_path, scheme):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        remote = RemoteFile(f"{scheme}://127.0.0.1:{unused.getsockname()[1]}/file.bin", "file.bin")
        with pytest.raises(StorageError) as caught:
            fetch_file(remote, tmp_path)
    message = str(caught.value)
    assert "Connection refused" in message
    assert f"put file.bin at {tmp_path / 'file.bin'} by hand" in message
    assert names(tmp_path) == []


@contextmanager
def no_file_larger_than(n):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("act", [serve.breaking_off_at(70_000), serve.announcing(len(CONTENT) + 5)])
def test_a_download_that_broke_off_begins_again(server, tmp_path, act):
    server.acts = [act] * 2
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert len(server.requests) == 3
    (tmp_path / "file.bin").unlink()
    server.acts = [act] * 3
    with pytest.raises(StorageError, match="cannot fetch .* bytes read"):
        fetch(server, tmp_path, checksum=MD5)
    assert names(tmp_path) == []


def test_silence_counts_as_a_break(server, tmp_path, monkeypatch):
    def fall_silent(handler, it):
        serve.honest(handler, it, len(CONTENT) // 2)
        handler.wfile.flush()
        handler.connection.recv(1)  # until the client hangs up

    monkeypatch.setattr("autojacobin.datasets.catalogue._TIMEOUT", 0.3)
    server.acts = [fall_silent] * 3
    with pytest.raises(StorageError, match="timed out"):
        fetch(server, tmp_path)


def test_a_disk_that_takes_no_more_is_told(server, tmp_path):
    with no_file_larger_than(100_000), pytest.raises(StorageError, match="cannot fetch .*File too large"):
        fetch(server, tmp_path)
    assert names(tmp_path) == []


def test_a_file_that_is_there_is_checked_and_not_fetched(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert server.requests == []
    (tmp_path / "file.bin").write_bytes(b"another")
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert len(server.requests) == 1
