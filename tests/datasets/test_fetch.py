"""Downloads from a server that breaks off, lies and corrupts: the right file or one sentence, and never half of it."""

import hashlib
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import FormatError, StorageError
from autojacobin.datasets.download import download
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


def fetch(server, folder, progress=None, tries=3, timeout=600.0, **known):
    remote = RemoteFile(server.url, "file.bin", **{"most_bytes": 10**6, **known})
    download(remote, folder / "file.bin", progress, tries=tries, timeout=timeout, pause=0)
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
    assert told[-1] == ("checking file.bin", len(CONTENT), len(CONTENT))


def test_a_download_that_broke_off_is_resumed(server, tmp_path):
    server.acts = [serve.breaking_off_at(70_000), serve.breaking_off_at(150_000)]
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert [request.get("Range") for request in server.requests] == [None, "bytes=70000-", "bytes=150000-"]
    assert names(tmp_path) == ["file.bin"]


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(1, len(CONTENT) - 1), max_size=6))
def test_any_series_of_breaks_gives_the_same_bytes(cuts, tmp_path_factory):
    with serve.serving(CONTENT) as server:
        server.acts = [serve.breaking_off_at(cut) for cut in sorted(set(cuts))]
        assert fetch(server, tmp_path_factory.mktemp("cuts"), checksum=MD5) == CONTENT
        assert len(server.requests) == len(set(cuts)) + 1


def test_a_later_run_resumes_what_an_earlier_one_left(server, tmp_path):
    server.acts = [serve.breaking_off_at(70_000)] + [serve.hanging_up] * 3
    with pytest.raises(StorageError, match="3 times without getting further; 70,000 bytes are kept"):
        fetch(server, tmp_path, checksum=MD5)
    assert names(tmp_path) == ["file.bin.part"]
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert server.requests[-1]["Range"] == "bytes=70000-"
    assert names(tmp_path) == ["file.bin"]


def test_a_file_that_changed_in_between_is_refused_by_its_checksum(server, tmp_path):
    def break_off_and_change(handler, it):
        serve.honest(handler, it, 70_000)
        it.content = CONTENT[::-1]

    server.acts = [break_off_and_change]
    with pytest.raises(FormatError, match="md5 .* the download was deleted"):
        fetch(server, tmp_path, checksum=MD5)
    assert names(tmp_path) == []


def test_a_server_that_continues_elsewhere_is_asked_for_the_whole_file(server, tmp_path):
    server.acts = [serve.breaking_off_at(70_000), serve.continuing_elsewhere]
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert [request.get("Range") for request in server.requests] == [None, "bytes=70000-", None]


def test_a_server_that_cannot_go_on_sends_all_of_it_again(server, tmp_path):
    server.acts = [serve.breaking_off_at(70_000), serve.ignoring_range]
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert len(server.requests) == 2


def test_a_server_that_always_starts_over_and_breaks_off_is_given_up(server, tmp_path):
    server.acts = [serve.ignoring_range_and_breaking_off] * 20
    with pytest.raises(StorageError, match="broke off at 102,400 of 204,800 bytes, 3 times without getting further"):
        fetch(server, tmp_path)
    assert len(server.requests) == 4  # one that brought something, and three that did not


@pytest.mark.parametrize("known", [{}, {"checksum": MD5}, {"unpacked_bytes": 10**6}])
def test_only_a_file_that_can_be_checked_is_resumed(server, tmp_path, known):
    server.acts = [serve.breaking_off_at(70_000)]
    assert fetch(server, tmp_path, **known) == CONTENT
    assert server.requests[1].get("Range") == ("bytes=70000-" if known else None)


def test_a_part_that_is_complete_is_only_checked(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert len(server.requests) == 1


def test_a_part_longer_than_the_file_is_begun_anew(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT


def test_corrupt_content_is_deleted_and_told(server, tmp_path):
    server.acts = [serve.corrupting]
    with pytest.raises(
        FormatError, match=r"its md5 is \w{32} where \w{32} is published; the download was deleted"
    ) as caught:
        fetch(server, tmp_path, checksum=MD5)
    assert server.url in str(caught.value)
    assert names(tmp_path) == []
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT


def test_sha256_is_checked_too(server, tmp_path):
    right = hashlib.sha256(CONTENT).hexdigest()
    assert fetch(server, tmp_path, checksum=f"sha256:{right}") == CONTENT
    (tmp_path / "file.bin").unlink()
    with pytest.raises(FormatError, match=f"its sha256 is {right} where {right[::-1]} is published"):
        fetch(server, tmp_path, checksum=f"sha256:{right[::-1]}")


@pytest.mark.parametrize("announced", [1000, len(CONTENT) - 1])
def test_a_server_that_announces_less_than_the_file_is_found_out(server, tmp_path, announced):
    server.acts = [serve.announcing(announced)]
    with pytest.raises(FormatError, match="md5"):
        fetch(server, tmp_path, checksum=MD5)
    assert names(tmp_path) == []


def test_a_server_that_announces_more_than_it_has_is_given_up(server, tmp_path):
    server.acts = [serve.announcing(len(CONTENT) + 5)] * 10
    with pytest.raises(StorageError, match="the server answered 416|broke off at 204,800 of 204,805 bytes"):
        fetch(server, tmp_path)
    assert "file.bin" not in names(tmp_path)


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
    assert fetch(server, tmp_path) == CONTENT
    server.acts = [serve.answering(status)] * 9
    (tmp_path / "file.bin").unlink()
    with pytest.raises(StorageError, match=f"the server answered {status} .*, 3 times without getting further"):
        fetch(server, tmp_path)
    assert names(tmp_path) == []


def test_a_server_that_hangs_up_without_a_word_is_asked_again(server, tmp_path):
    server.acts = [serve.hanging_up, serve.hanging_up]
    assert fetch(server, tmp_path) == CONTENT


def test_silence_counts_as_a_break(server, tmp_path):
    part = tmp_path / "file.bin.part"

    def fall_silent_until_something_is_written(handler, it):
        kept = part.stat().st_size
        serve.honest(handler, it, None if kept else len(CONTENT) // 2)
        if not kept:
            handler.wfile.flush()
            handler.connection.recv(1)  # until the client hangs up

    server.acts = [fall_silent_until_something_is_written] * 10_000
    assert fetch(server, tmp_path, timeout=0.3, tries=10_000, checksum=MD5) == CONTENT
    assert "bytes=65536-" in [request.get("Range") for request in server.requests]  # what had been written down by then


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
        "ftp://127.0.0.1/x", "data:,x", "gopher://127.0.0.1/", "http://[broken/",
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
        subprocess.run([*command, *name], check=True, capture_output=True)
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
    remote = RemoteFile("http://only.the.proxy.knows/file.bin", "file.bin", most_bytes=10**6)
    download(remote, tmp_path / "file.bin", tries=1, timeout=600, pause=0)
    assert server.requests[0]["Host"] == "only.the.proxy.knows"


@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
def test_no_network_is_told_plainly_and_at_once(tmp_path, scheme):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        remote = RemoteFile(f"{scheme}://127.0.0.1:{unused.getsockname()[1]}/file.bin", "file.bin", most_bytes=10)
        with pytest.raises(StorageError) as caught:
            download(remote, tmp_path / "file.bin", pause=60)
    message = str(caught.value)
    assert "cannot reach 127.0.0.1 (" in message
    assert "Connection refused" in message
    assert "): there is no network, or the server is down" in message
    assert f"put it at {tmp_path / 'file.bin'}" in message
    assert names(tmp_path) == []


@pytest.mark.parametrize("url", ["file:///etc/hosts", "data:,x", "nonsense"])
def test_only_addresses_of_the_network_are_fetched(tmp_path, url):
    with pytest.raises(StorageError, match="expected an address with http, https or ftp"):
        download(RemoteFile(url, "file.bin", most_bytes=10**6), tmp_path / "file.bin", pause=0)
    assert names(tmp_path) == []


@contextmanager
def no_file_larger_than(n):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more_is_told_and_what_is_there_is_gone_on_with(server, tmp_path):
    with (
        no_file_larger_than(100_000),
        pytest.raises(StorageError, match=r"cannot write .*file\.bin\.part: .*make room"),
    ):
        fetch(server, tmp_path)
    assert "file.bin" not in names(tmp_path)
    kept = (tmp_path / "file.bin.part").stat().st_size
    assert 0 < kept <= 100_000
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert server.requests[-1]["Range"] == f"bytes={kept}-"


def test_a_file_that_cannot_fit_is_not_begun(server, tmp_path):
    server.acts = [serve.announcing(10**14)]
    with pytest.raises(StorageError, match="100,000,000,000,000 bytes are to come and .* are free"):
        fetch(server, tmp_path, most_bytes=10**15)
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_told(server, tmp_path):
    with pytest.raises(StorageError, match="cannot write .*missing.*; choose another folder"):
        fetch(server, tmp_path / "missing")


def test_two_at_once_do_not_mix(server, tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def wait_in_the_middle(handler, it):
        serve.honest(handler, it, 1)
        handler.wfile.flush()
        begun.set()
        go_on.wait()
        handler.wfile.write(it.content[1:])

    server.acts = [wait_in_the_middle]
    results = []
    first = threading.Thread(target=lambda: results.append(fetch(server, tmp_path)))
    first.start()
    begun.wait()
    try:
        with pytest.raises(StorageError, match="file.bin is being fetched into .* by another process; wait"):
            fetch(server, tmp_path)
    finally:
        go_on.set()
        first.join()
    assert results == [CONTENT]
    assert names(tmp_path) == ["file.bin"]


def test_a_killed_process_leaves_what_the_next_one_goes_on_with(server, tmp_path):
    def stop_in_the_middle(handler, it):
        serve.honest(handler, it, 150_000)
        handler.wfile.flush()
        handler.connection.recv(1)  # until the client is killed

    server.acts = [stop_in_the_middle]
    code = (
        "import sys; from pathlib import Path; from autojacobin.datasets.download import download\n"
        "from autojacobin.datasets.entries import RemoteFile\n"
        "tell = lambda stage, done, total: print(done, flush=True)\n"
        "remote = RemoteFile(sys.argv[1], 'file.bin', most_bytes=10**6)\n"
        "download(remote, Path(sys.argv[2]) / 'file.bin', tell, timeout=86400)"
    )
    environment = {**os.environ, "no_proxy": "*"}
    command = [sys.executable, "-c", code, server.url, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        while int(child.stdout.readline()) < 65_536:
            pass
        child.kill()
    kept = (tmp_path / "file.bin.part").stat().st_size
    assert kept >= 65_536
    assert fetch(server, tmp_path, checksum=MD5) == CONTENT
    assert server.requests[-1]["Range"] == f"bytes={kept}-"


@pytest.mark.parametrize(
    "url",
    [
        "http://me:sesame@127.0.0.1:9/x", "http://me:open/sesame@127.0.0.1:9/x", "https://me:sesame@[::1/x",
        "http://me:sesame", "http:///sesame@x", "sesame",
    ],
)  # fmt: skip
def test_addresses_with_passwords_are_refused_without_them(tmp_path, url):
    with pytest.raises(StorageError, match="expected an address with http, https or ftp, without a user") as caught:
        download(RemoteFile(url, "file.bin", most_bytes=1000), tmp_path / "file.bin", tries=1, timeout=600)
    assert url == "sesame" or "sesame" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_signatures_are_in_no_message_and_no_file(tmp_path, scheme):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        user = "me:sesame@" if scheme == "ftp" else ""
        url = f"{scheme}://{user}127.0.0.1:{unused.getsockname()[1]}/file.bin?sig=sesame"
        with pytest.raises(StorageError, match="cannot reach") as caught:
            download(RemoteFile(url, "file.bin", most_bytes=1000), tmp_path / "file.bin", tries=1, timeout=600)
    assert "sesame" not in str(caught.value) + repr(RemoteFile(url, "file.bin", 1))
