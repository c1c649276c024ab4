"""Archives: good ones come out as they went in, malicious and damaged ones leave nothing behind, inside or outside."""

import gzip
import io
import stat
import subprocess
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import AutoJacobinError, FormatError, StorageError
from autojacobin.datasets.unpack import unpack

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


def refused(archive, match, most_bytes=10**6):
    folder = archive.parent / "place"
    folder.mkdir()
    before = sorted(archive.parent.rglob("*"))
    with pytest.raises(FormatError, match=match):
        unpack(archive, folder / "out", most_bytes)
    assert sorted(archive.parent.rglob("*")) == before


@pytest.mark.parametrize("kind", ["a.tar.gz", "a.tgz", "a.zip"])
def test_what_went_in_comes_out(tmp_path, kind):
    archive = zip_of(tmp_path / kind, MEMBERS) if kind.endswith(".zip") else tar_of(tmp_path / kind, MEMBERS)
    told = []
    unpack(archive, tmp_path / "out", 10**6, progress=lambda *step: told.append(step))
    assert tree(tmp_path / "out") == MEMBERS
    assert told[-1][0] == "unpacking"
    assert told[-1][1] >= sum(map(len, MEMBERS.values()))
    assert sorted(path.name for path in tmp_path.iterdir()) == [kind, "out"]


def test_archives_of_the_usual_programs_come_out(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("one.txt", "two.txt"):
        (tmp_path / "in" / name).write_text(name)
    subprocess.run(["tar", "-czf", tmp_path / "a.tar.gz", "-C", tmp_path, "./in"], check=True)
    unpack(tmp_path / "a.tar.gz", tmp_path / "out", 10**6)
    assert tree(tmp_path / "out") == {"in/one.txt": b"one.txt", "in/two.txt": b"two.txt"}


@pytest.mark.parametrize("name", ["x" * 256, "ä" * 128, "folder/" * 800 + "x"])
def test_names_that_no_file_can_have_are_refused(tmp_path, name):
    refused(zip_of(tmp_path / "a.zip", {name: b"1"}), "is damaged: .*File name too long")


def test_an_archive_in_an_archive_is_unpacked_in_its_place(tmp_path):
    inner = tar_of(tmp_path / "SIFT10M.tar.gz", {"SIFT10M/SIFT10Mfeatures.mat": b"features"}).read_bytes()
    archive = zip_of(tmp_path / "sift10m.zip", {"SIFT10M.tar.gz": inner, "note": b"n"})
    unpack(archive, tmp_path / "out", 10**6, inner="SIFT10M.tar.gz")
    assert tree(tmp_path / "out") == {"SIFT10M/SIFT10Mfeatures.mat": b"features", "note": b"n"}


def test_what_somebody_else_unpacked_meanwhile_stays(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs").write_text("theirs")
    unpack(tar_of(tmp_path / "a.tar.gz", MEMBERS), tmp_path / "out", 10**6)
    assert tree(tmp_path / "out") == {"theirs": b"theirs"}


OUTWARD = ["../evil", "a/../../evil", "/tmp/evil", "..", "a\\..\\evil", "C:evil", "C:/evil"]
EITHER = [(make, name) for make in (tar_of, zip_of) for name in OUTWARD]


@pytest.mark.parametrize(("make", "name"), [*EITHER, (tar_of, "")])
def test_no_path_leaves_the_folder(tmp_path, make, name):
    refused(make(tmp_path / "a.tar.gz", {"good": b"good", name: b"evil"}), "leads out of the folder")


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"6", b"S"])  # hard and soft link, devices, pipe, sparse
def test_links_devices_pipes_and_holes_are_refused(tmp_path, kind):
    member = tarfile.TarInfo("innocent")
    member.type, member.linkname = kind, "/etc/passwd"
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("good"))
        tar.addfile(member)
    refused(archive, "link, a device or a sparse file")


def test_a_link_that_a_later_member_would_follow_is_refused(tmp_path):
    link = tarfile.TarInfo("out")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    refused(tar_of(tmp_path / "a.tar.gz", {link: b"", "out/evil": b"evil"}), "'out' is a link")
    assert not (tmp_path / "evil").exists()


def test_links_in_a_zip_are_refused(tmp_path):
    member = zipfile.ZipInfo("innocent")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    refused(zip_of(tmp_path / "a.zip", {member: b"/etc/passwd"}), "'innocent' is a link or a device")


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_a_bomb_is_stopped(tmp_path, make):
    archive = make(tmp_path / "a.tar.gz", {"bomb": bytes(5_000_000)})
    assert archive.stat().st_size < 10_000
    refused(archive, "more than the 1,000,000 bytes expected", most_bytes=1_000_000)


def test_a_bomb_in_the_archive_inside_is_stopped(tmp_path):
    inner = tar_of(tmp_path / "in.tar.gz", {"bomb": bytes(5_000_000)}).read_bytes()
    archive = zip_of(tmp_path / "a.zip", {"in.tar.gz": inner})
    with pytest.raises(FormatError, match="more than the 1,000,000 bytes expected"):
        unpack(archive, tmp_path / "out", 1_000_000, inner="in.tar.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "in.tar.gz"]


def test_a_header_that_claims_more_than_the_file_holds_is_reported(tmp_path):
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, 2**33
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))
    refused(tmp_path / "a.tar.gz", "is damaged")


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_a_flood_of_empty_members_is_stopped(tmp_path, make):
    archive = make(tmp_path / "a.tar.gz", {str(number): b"" for number in range(50)})
    refused(archive, "more than the 20,000 bytes expected", most_bytes=20_000)


def test_the_same_name_twice_is_refused(tmp_path):
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("twice"))
        tar.addfile(tarfile.TarInfo("twice"))
    refused(archive, "'twice' comes twice")


def test_encrypted_members_are_refused(tmp_path):
    content = bytearray(zip_of(tmp_path / "a.zip", {"secret": b"secret"}).read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    refused(tmp_path / "a.zip", "encrypted")


@pytest.mark.parametrize("content", [b"", b"hello, I am a web page", b"\x1f\x8b", b"PK\3\4", bytes(512)])
def test_what_is_no_archive_is_told(tmp_path, content):
    (tmp_path / "a.tar.gz").write_bytes(content)
    refused(tmp_path / "a.tar.gz", "is not an archive|is damaged")


@pytest.mark.parametrize("make", [tar_of, zip_of])
@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("a", "a/b/c"), ("a", "a/")])
def test_a_file_that_is_a_folder_too_is_refused(tmp_path, make, names):
    members = {}
    for name in names:
        member = tarfile.TarInfo(name)
        member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
        members[member if make is tar_of else name] = b"" if name.endswith("/") else b"x"
    refused(make(tmp_path / "archive.tar.gz", members), "is a file and a folder at once|comes twice")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_below_the_zip_is_told_as_damage(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as container:
        container.writestr("one", bytes(range(256)) * 9)
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[60:80] = bytes(20)
    (tmp_path / "a.zip").write_bytes(content)
    refused(tmp_path / "a.zip", r"a\.zip is damaged: ")


def test_a_name_that_is_no_text_is_told(tmp_path):
    archive = zip_of(tmp_path / "a.zip", {"é": b"content"})
    archive.write_bytes(archive.read_bytes().replace("é".encode(), b"\xff\xff"))
    refused(archive, r"a\.zip is damaged: 'utf-8' codec")


@settings(max_examples=150)
@given(data=st.data(), kind=st.sampled_from(["a.tar.gz", "a.zip"]))
def test_damaged_archives_are_told_or_come_out_bounded(data, kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    members = {"a/one": b"0123456789" * 30, "zwölf": bytes(600)}
    if kind == "a.zip":
        zip_of(folder / kind, members)
    else:
        tar_of(folder / kind, members)
    content = bytearray((folder / kind).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    (folder / kind).write_bytes(content)
    try:
        unpack(folder / kind, folder / "out", 10**6)
    except AutoJacobinError:
        assert [path.name for path in folder.iterdir()] == [kind]
    else:
        assert sum(len(value) for value in tree(folder / "out").values()) <= 10**6
        assert sorted(path.name for path in folder.iterdir()) == sorted([kind, "out"])


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(StorageError, match="cannot write .*missing.*; check that the folder exists"):
        unpack(tar_of(tmp_path / "a.tar.gz", MEMBERS), tmp_path / "missing" / "out", 10**6)
