"""Archives: good ones come out as they went in, malicious and damaged ones leave nothing behind, inside or outside."""

import gzip
import io
import subprocess
import tarfile
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import AutoJacobinError, FormatError, StorageError
from autojacobin.datasets.catalogue import unpack

MEMBERS = {"sift/sift_base.fvecs": b"base" * 5000, "sift/deep/er/x.ivecs": b"", "readme.txt": "é".encode()}


def tar_of(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(content) if member.type == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(content))
    return path


def zip_of(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as container:
        for name, content in members.items():
            container.writestr(name, content)
    return path


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(archive, match):
    folder = archive.parent / "place"
    folder.mkdir()
    before = sorted(archive.parent.rglob("*"))
    with pytest.raises(FormatError, match=match):
        unpack(archive, folder / "out")
    assert sorted(archive.parent.rglob("*")) == before


@pytest.mark.parametrize("kind", ["a.tar.gz", "a.zip"])
def test_what_went_in_comes_out(tmp_path, kind):
    archive = zip_of(tmp_path / kind, MEMBERS) if kind.endswith(".zip") else tar_of(tmp_path / kind, MEMBERS)
    unpack(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == MEMBERS
    assert sorted(path.name for path in tmp_path.iterdir()) == [kind, "out"]


def test_archives_of_the_usual_programs_come_out(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("one.txt")
    subprocess.run(["tar", "-czf", tmp_path / "a.tar.gz", "-C", tmp_path, "./in"], check=True, timeout=1200)
    unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert tree(tmp_path / "out") == {"in/one.txt": b"one.txt"}


def test_an_archive_in_an_archive_is_unpacked_in_its_place(tmp_path):
    inner = tar_of(tmp_path / "SIFT10M.tar.gz", {"SIFT10M/SIFT10Mfeatures.mat": b"features"}).read_bytes()
    archive = zip_of(tmp_path / "sift10m.zip", {"SIFT10M.tar.gz": inner, "note": b"n"})
    unpack(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == {"SIFT10M/SIFT10Mfeatures.mat": b"features", "note": b"n"}


def test_what_somebody_else_unpacked_meanwhile_stays(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs").write_text("theirs")
    unpack(tar_of(tmp_path / "a.tar.gz", MEMBERS), tmp_path / "out")
    assert tree(tmp_path / "out") == {"theirs": b"theirs"}


@pytest.mark.parametrize("make", [tar_of, zip_of])
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/tmp/evil-of-autojacobin", ".."])
def test_no_path_leaves_the_folder(tmp_path, make, name):
    archive = make(tmp_path / "a.tar.gz", {"good": b"good", name: b"evil"})
    (tmp_path / "place").mkdir()
    try:
        unpack(archive, tmp_path / "place" / "out")
    except FormatError:
        assert list((tmp_path / "place").iterdir()) == []
    else:  # the way out was cut off the name
        assert list((tmp_path / "place").iterdir()) == [tmp_path / "place" / "out"]
        assert tree(tmp_path / "place" / "out")["good"] == b"good"
    assert not list(tmp_path.glob("*evil*"))
    assert not (tmp_path.parent / "evil").exists()
    subprocess.run(["test", "!", "-e", "/tmp/evil-of-autojacobin"], check=True, timeout=1200)


@pytest.mark.parametrize("kind", [b"2", b"3", b"4", b"6"])  # soft link, devices, pipe
def test_links_that_lead_out_devices_and_pipes_are_refused(tmp_path, kind):
    member = tarfile.TarInfo("innocent")
    member.type, member.linkname = kind, "/etc/passwd"
    refused(tar_of(tmp_path / "a.tar.gz", {"good": b"1", member: b""}), "'innocent' is a")


def test_a_link_that_a_later_member_would_follow_is_refused(tmp_path):
    link = tarfile.TarInfo("out")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    refused(tar_of(tmp_path / "a.tar.gz", {link: b"", "out/evil": b"evil"}), "'out' is a")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"hello, I am a web page", b"\x1f\x8b", b"PK\3\4", bytes(512)])
def test_what_is_no_archive_is_told(tmp_path, content):
    (tmp_path / "a.tar.gz").write_bytes(content)
    refused(tmp_path / "a.tar.gz", "is damaged or not the expected one")


@pytest.mark.parametrize("make", [tar_of, zip_of])
@pytest.mark.parametrize("name", ["good/below", "x" * 256])
def test_names_that_no_file_can_have_are_refused(tmp_path, make, name):
    refused(make(tmp_path / "a.tar.gz", {"good": b"1", name: b"1"}), "is damaged or not the expected one")


def test_a_header_that_claims_more_than_the_file_holds_is_reported(tmp_path):
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, 2**33
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))
    refused(tmp_path / "a.tar.gz", "is damaged")


@given(data=st.data(), kind=st.sampled_from(["a.tar.gz", "a.zip"]))
def test_damaged_archives_are_told_or_come_out(data, kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    (zip_of if kind == "a.zip" else tar_of)(folder / kind, {"a/one": b"0123456789" * 30, "zwölf": bytes(600)})
    content = bytearray((folder / kind).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    (folder / kind).write_bytes(content)
    try:
        unpack(folder / kind, folder / "out")
    except AutoJacobinError:
        assert [path.name for path in folder.iterdir()] == [kind]
    else:
        assert sorted(path.name for path in folder.iterdir()) == sorted([kind, "out"])


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(StorageError, match="cannot write .*missing.*; check that the folder exists"):
        unpack(tar_of(tmp_path / "a.tar.gz", MEMBERS), tmp_path / "missing" / "out")
