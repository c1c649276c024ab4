"""Damage is an error that names the file: it is never searched, never copied on, and what is whole can be saved."""

import json
import os
import shutil
import tracemalloc
import uuid
from pathlib import Path

import numpy as np
import pytest
import xxhash
from typer.testing import CliRunner

from autojacobin import LSH
from autojacobin.cli.indexes import app
from autojacobin.errors import AutoJacobinError, FormatError, StorageError
from autojacobin.index.array_files import BLOCK_BYTES
from autojacobin.index.index import Index
from autojacobin.index.repair import repair
from tests.index.index_model import N_FEATURES, contents, small_hasher

N = 12_000  # the vectors of a segment take several blocks


def vectors(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, N_FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """An index with a file of every kind: one segment with ids of the user's, in another order than the vectors."""
    path = tmp_path_factory.mktemp("damage") / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(N), ids=np.random.default_rng(0).permutation(2 * N)[:N] + 50)
        index.remove(index.ids[::1000])
    return path


@pytest.fixture
def copied(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "index"))


def file_of(path, kind):
    (found,) = path.glob(f"{kind}-*")
    return found


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)


def everything(index):
    if len(index):
        index.search(vectors(3), len(index), candidates=len(index))


@pytest.mark.parametrize("kind", ["codes", "ids", "rows", "vectors"])
def test_a_flipped_bit_is_an_error_of_the_first_search_and_not_a_wrong_answer(copied, kind):
    file = file_of(copied, kind)
    flip(file, 4096 + 120)
    with Index.open(copied) as index, pytest.raises(FormatError, match=file.name):
        everything(index)
    with Index.open(copied, check=False) as index:
        if kind in ("codes", "vectors"):
            everything(index)  # on request nobody looks


def test_only_the_blocks_that_are_read_are_checked(copied):
    file = file_of(copied, "vectors")
    flip(file, 4096 + 5 * BLOCK_BYTES)
    with Index.open(copied) as index:
        positions = np.arange(len(index._state.segments[0].arrays["rows"].array))
        segment = index._state.segments[0]
        row_bytes = 4 * N_FEATURES
        far = positions[segment.rows * row_bytes // BLOCK_BYTES != 5][:100]
        near = positions[segment.rows * row_bytes // BLOCK_BYTES == 5][:1]
        assert segment.vectors_at(far).shape == (100, N_FEATURES)
        with pytest.raises(FormatError, match=file.name):
            segment.vectors_at(near)


def test_the_middle_of_a_long_vector_is_checked_when_its_neighbours_were(tmp_path):
    """Its first and its last block are theirs too."""
    n_features = 9_420  # a vector takes 2.3 blocks
    X = np.random.default_rng(0).normal(size=(9, n_features)).astype(np.float32)
    with Index.create(tmp_path / "index", LSH(8, random_state=0).fit(X)) as index:
        index.add(X)
    flip(file_of(tmp_path / "index", "vectors"), 4096 + 10 * BLOCK_BYTES + 99)
    with Index.open(tmp_path / "index") as index:
        np.testing.assert_array_equal(index.vectors([3, 5]), X[[3, 5]])
        with pytest.raises(FormatError, match="does not match its checksum"):
            index.vectors([4])


@pytest.mark.parametrize("kind", ["codes", "ids", "rows", "vectors"])
@pytest.mark.parametrize("work", ["compact", "save"])
def test_damage_is_not_copied(copied, tmp_path, kind, work):
    index = Index.open(copied)
    index.search(vectors(1), 1)  # what was whole at the first look is checked again before it is copied
    file = file_of(copied, kind)
    flip(file, -2_000)
    names = {entry.name for entry in copied.iterdir()}
    with pytest.raises(FormatError, match=file.name):
        index.compact() if work == "compact" else index.save(tmp_path / "copy")
    assert {entry.name for entry in copied.iterdir()} >= names
    assert not list(tmp_path.glob("copy/*-*"))
    with pytest.raises(FormatError, match=file.name):
        index.verify()
    index.close()


# Repair


def test_what_is_whole_is_saved_and_the_rest_is_counted(copied, tmp_path):
    with Index.open(copied) as index:
        before = contents(index)
    flip(file_of(copied, "vectors"), 4096 + 3 * BLOCK_BYTES + 7)
    flip(file_of(copied, "codes"), 4096)  # codes are made anew
    report = repair(copied, tmp_path / "repaired")
    per_block = BLOCK_BYTES // (4 * N_FEATURES)
    assert 0 < report.lost <= per_block
    assert (report.saved, report.renumbered, report.revived) == (len(before) - report.lost, 0, 0)
    assert len(report.problems) == 2 or file_of(copied, "vectors").name in " ".join(report.problems)
    with Index.open(tmp_path / "repaired") as index:
        index.verify()
        assert contents(index).items() <= before.items()
        assert len(index) == report.saved


@pytest.mark.parametrize("kind", ["ids", "rows"])
def test_vectors_without_their_ids_get_new_ones(copied, tmp_path, kind):
    with Index.open(copied) as index:
        before, next_id = contents(index), index._state.next_id
    flip(file_of(copied, kind), 4096 + 9)
    report = repair(copied, tmp_path / "repaired")
    assert (report.saved, report.lost) == (len(before) + report.revived, 0)
    assert 0 < report.renumbered <= N
    assert bool(report.revived) == (kind == "rows")  # without rows nobody knows which of the vectors were removed
    with Index.open(tmp_path / "repaired") as index:
        found = contents(index)
        assert set(found.values()) >= set(before.values())
        kept = {id: vector for id, vector in found.items() if id < next_id}
        assert len(kept) == len(found) - report.renumbered
        assert kept.items() <= before.items()


def test_a_damaged_list_of_what_was_removed_brings_it_back(copied, tmp_path):
    flip(file_of(copied, "dead"), 4096 + 3)
    report = repair(copied, tmp_path / "repaired")
    assert (report.saved, report.lost, report.revived) == (N, 0, 12)


@pytest.mark.parametrize("loss", ["missing", "damaged"])
def test_without_its_manifest_an_index_is_put_together_from_its_files(copied, tmp_path, loss):
    with Index.open(copied) as index:
        index.add(vectors(40, seed=3))
        before = contents(index)
    manifest = copied / "MANIFEST.json"
    manifest.unlink() if loss == "missing" else flip(manifest, 40)
    report = repair(copied, tmp_path / "repaired")
    assert (report.saved, report.lost, report.renumbered, report.revived) == (len(before), 0, 0, 0)
    with Index.open(tmp_path / "repaired") as index:
        assert contents(index) == before


def test_codes_are_saved_where_no_vectors_are_kept(tmp_path):
    path = tmp_path / "index"
    hasher = LSH(64, random_state=0).fit(vectors(50))
    with Index.create(path, hasher, keep_vectors=False) as index:
        index.add(vectors(6_000))
        wanted = {int(i): index.codes([i]).packed.tobytes() for i in index.ids[::97]}
    flip(file_of(path, "codes"), 4096 + 20_000)
    report = repair(path, tmp_path / "repaired")
    assert 0 < report.lost <= 4096
    with Index.open(tmp_path / "repaired") as index:
        assert len(index) == report.saved == 6_000 - report.lost
        there = [id for id in wanted if id in index]
        assert there
        assert all(index.codes([id]).packed.tobytes() == wanted[id] for id in there)


def test_a_damaged_hasher_can_be_given(copied, tmp_path):
    file = file_of(copied, "hasher")
    flip(file, 300)
    with pytest.raises(StorageError, match="give the model file by --model"):
        repair(copied, tmp_path / "repaired")
    assert not (tmp_path / "repaired").exists()
    report = repair(copied, tmp_path / "repaired", hasher=small_hasher())
    assert report.lost == 0
    Index.open(tmp_path / "repaired").verify()


def test_repair_overwrites_nothing(copied, tmp_path):
    with pytest.raises(StorageError, match="needs a folder of its own"):
        repair(copied, copied)
    with pytest.raises(StorageError, match="holds an index already"):
        repair(copied, Path(shutil.copytree(copied, tmp_path / "other")))
    with pytest.raises(StorageError, match="there is no folder"):
        repair(tmp_path / "nowhere", tmp_path / "new")


def test_the_command_line_repairs_and_reports(copied, tmp_path):
    flip(file_of(copied, "vectors"), 4096)
    result = CliRunner().invoke(app, ["repair", str(copied), str(tmp_path / "repaired")])
    assert result.exit_code == 0
    assert "blocks do not match their checksums" in result.output
    assert "were lost." in result.output
    assert "Saved " in result.output


def test_a_lost_manifest_is_not_answered_with_the_advice_to_create(copied, tmp_path):
    names = {entry.name for entry in copied.iterdir()} - {"MANIFEST.json"}
    (copied / "MANIFEST.json").unlink()
    hasher = small_hasher()
    other = Index(hasher)
    other.add(vectors(3))
    for attempt in (lambda: Index.open(copied), lambda: Index.create(copied, hasher), lambda: other.save(copied)):
        with pytest.raises(StorageError, match="has lost its MANIFEST.json.* autojacobin index repair"):
            attempt()
    assert {entry.name for entry in copied.iterdir()} == names


def test_an_old_manifest_that_is_restored_alone_deletes_nothing(copied, tmp_path):
    old, hasher = (copied / "MANIFEST.json").read_bytes(), small_hasher()
    with Index.open(copied) as index:
        index.compact()
        index.add(vectors(5))
        before = contents(index)
    new = (copied / "MANIFEST.json").read_bytes()
    names = {entry.name for entry in copied.iterdir()}
    (copied / "MANIFEST.json").write_bytes(old)
    with pytest.raises(FormatError, match="no file of that name"):
        Index.open(copied)
    with pytest.raises(StorageError, match="holds an index already"):
        Index.create(copied, hasher)
    assert {entry.name for entry in copied.iterdir()} == names
    (copied / "MANIFEST.json").write_bytes(new)
    index = Index.open(copied)
    (copied / "MANIFEST.json").write_bytes(old)
    with pytest.raises(FormatError, match="no file of that name"):
        index.add(vectors(1))
    assert {entry.name for entry in copied.iterdir()} == names
    (copied / "MANIFEST.json").write_bytes(new)
    index.verify()
    assert contents(index) == before
    index.close()


# Files with valid checksums that nobody honest wrote


def resealed(page):
    return page[:4088] + xxhash.xxh64_intdigest(page[:4088]).to_bytes(8, "little")


def rewritten(path, kind, change):
    """Change the payload of an array file, and make all checksums right again, up to the manifest."""
    file = file_of(path, kind)
    content = bytearray(file.read_bytes())
    manifest = path / "MANIFEST.json"
    fields = json.loads(manifest.read_bytes()) | {"checksum": "0" * 16}
    record = next(s["files"][kind] for s in fields["segments"] if s["files"].get(kind, {}).get("name") == file.name)
    size = np.dtype(bytes(content[20:28]).rstrip(b"\0").decode()).itemsize
    n_bytes = int(np.prod([n for n in np.frombuffer(content[32:64], "<u8") if n])) * size
    payload = content[4096 : 4096 + n_bytes]
    change(payload)
    table = b"".join(
        xxhash.xxh64_intdigest(bytes(payload[i : i + BLOCK_BYTES])).to_bytes(8, "little")
        for i in range(0, n_bytes, BLOCK_BYTES)
    )
    content[64:72] = xxhash.xxh64_intdigest(table).to_bytes(8, "little")
    page = resealed(bytes(content[:4096]))
    file.write_bytes(page + payload + table)
    record["checksum"] = page[4088:][::-1].hex()
    text = json.dumps(fields, indent=1).encode() + b"\n"
    manifest.write_bytes(text.replace(b"0" * 16, xxhash.xxh64_hexdigest(text).encode(), 1))


@pytest.mark.parametrize(
    ("kind", "at", "number", "message"),
    [
        ("rows", 0, (2**32 - 1).to_bytes(4, "little"), "places that are not among the"),
        ("rows", 40, N.to_bytes(4, "little"), f"places that are not among the {N} of the segment"),
        ("ids", 8, (0).to_bytes(8, "little"), "ids that do not ascend"),
        ("ids", 0, (2**64 - 5).to_bytes(8, "little"), "ids that do not ascend"),
        ("codes", 7, b"\xff", "codes with bits beyond their 6"),
        ("dead", 2, b"\xff", "dead codes"),
    ],
)
def test_offsets_of_a_file_are_checked_before_a_kernel_follows_them(copied, kind, at, number, message):
    def change(payload):
        payload[at : at + len(number)] = number

    rewritten(copied, kind, change)
    for check in (True, False):
        with pytest.raises(FormatError, match=message):
            everything(Index.open(copied, check=check))
    with pytest.raises(FormatError, match=message):
        Index.open(copied).verify()


def test_an_id_that_lives_twice_is_found_by_verify(tmp_path):
    path = tmp_path / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(10), ids=np.arange(10) * 2)
        index.add(vectors(10), ids=np.arange(10) * 2 + 1001)
    Index.open(path).verify()
    manifest = path / "MANIFEST.json"
    fields = json.loads(manifest.read_bytes()) | {"checksum": "0" * 16}
    fields["segments"][1] = fields["segments"][0]
    _seal(manifest, fields)
    with pytest.raises(FormatError, match="names a file twice"):
        Index.open(path)
    fields = json.loads(manifest.read_bytes()) | {"checksum": "0" * 16, "next_id": 5}
    fields["segments"] = fields["segments"][:1]
    _seal(manifest, fields)
    with Index.open(path) as index, pytest.raises(FormatError, match="the id 18 and the next free id 5"):
        index.verify()


@pytest.mark.parametrize("kind", [str, lambda number: uuid.UUID(int=number)], ids=["string", "uuid"])
def test_a_name_that_lives_twice_is_found_by_verify(tmp_path, kind):
    path = tmp_path / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(10), ids=[kind(number) for number in range(10)])
        index.upsert(vectors(3), ids=[kind(number) for number in (20, 7, 21)])  # takes the place of the first 7
        index.remove([kind(2)])
        index.verify()
    manifest = path / "MANIFEST.json"
    fields = json.loads(manifest.read_bytes()) | {"checksum": "0" * 16}
    del fields["segments"][0]["files"]["dead"]  # which brings the first 7 back to life
    fields["segments"][0]["n_dead"] = 0
    _seal(manifest, fields)
    with Index.open(path) as index, pytest.raises(FormatError, match="more than once"):
        index.verify()


def _seal(manifest, fields):
    text = json.dumps(fields, indent=1).encode() + b"\n"
    manifest.write_bytes(text.replace(b"0" * 16, xxhash.xxh64_hexdigest(text).encode(), 1))


WRONG = [None, True, -1, 0, 1.5, 1e300, 2**70, 10**400, "x", "../x", [], {}, [[]], {"name": 3}]


def test_a_forged_manifest_ends_in_a_format_error(original, tmp_path):
    path = Path(shutil.copytree(original, tmp_path / "index"))
    manifest = path / "MANIFEST.json"
    fields = json.loads(manifest.read_bytes()) | {"checksum": "0" * 16}

    def places(node, keys=()):
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            yield (*keys, key)
            yield from places(value, (*keys, key))

    seen = 0
    for keys in places(fields):
        if keys[0] in ("checksum", "format", "library_version"):
            continue
        for wrong in WRONG:
            forged = json.loads(json.dumps(fields))
            node = forged
            for key in keys[:-1]:
                node = node[key]
            node[keys[-1]] = wrong
            _seal(manifest, forged)
            try:
                with Index.open(path) as index:
                    index.verify()
                    everything(index)
            except (FormatError, StorageError):
                seen += 1
    assert seen > 100


def test_a_forged_number_of_codes_takes_no_memory(copied, tmp_path):
    """Neither a manifest nor, without one, a header may ask for more codes than a segment can have."""
    manifest = copied / "MANIFEST.json"
    fields = json.loads(manifest.read_bytes()) | {"checksum": "0" * 16}
    fields["segments"][0]["n"] = 2**31
    _seal(manifest, fields)
    with pytest.raises(FormatError, match="n is 2147483648"):
        Index.open(copied)
    assert repair(copied, tmp_path / "repaired").saved > 0  # by the headers
    fields["segments"][0]["n"] = 2**22
    _seal(manifest, fields | {"checksum": "0" * 16})
    tracemalloc.start()
    try:
        assert repair(copied, tmp_path / "again").lost > 2**21
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_forged_header_ends_in_a_format_error(original, tmp_path):
    """Every field of every header in turn, with the checksums made right again."""
    path = Path(shutil.copytree(original, tmp_path / "index"))
    manifest = path / "MANIFEST.json"
    good, rng = manifest.read_bytes(), np.random.default_rng(0)
    dtypes = [b"|O", b"<U4", b"<M8[s]", b"|V8", b">f4", b"\xff\xfe", b"<f4", b"|b1", b"<c8"]
    for kind in ("codes", "ids", "rows", "vectors", "dead"):
        file = file_of(path, kind)
        content = file.read_bytes()
        forgeries = [(20, dtype.ljust(8, b"\0")) for dtype in dtypes]
        forgeries += [(at, bytes([value])) for at in (8, 12, 28, 32, 40, 63, 72, 80, 88, 96) for value in (0, 1, 255)]
        forgeries += [(int(rng.integers(8, 110)), rng.bytes(1)) for _ in range(15)]
        for at, value in forgeries:
            page = resealed(content[:at] + value + content[at + len(value) : 4096])
            file.write_bytes(page + content[4096:])
            fields = json.loads(good) | {"checksum": "0" * 16}
            for segment in fields["segments"]:
                if segment["files"].get(kind, {}).get("name") == file.name:
                    segment["files"][kind]["checksum"] = page[4088:][::-1].hex()
            _seal(manifest, fields)
            try:
                with Index.open(path) as index:
                    index.verify()
                    everything(index)
            except AutoJacobinError as error:
                assert isinstance(error, FormatError)
        file.write_bytes(content)


@pytest.mark.skipif(os.name != "posix", reason="makes symbolic links")
def test_files_that_are_links_out_of_the_folder_are_refused(tmp_path):
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(10), ids=list("abcdefghij"), payload={"n": list(range(10))})
    (tmp_path / "elsewhere").mkdir()
    names = sorted(set(os.listdir(tmp_path / "index")) - {"LOCK"})
    assert len(names) >= 7
    for name in names:
        file, moved = tmp_path / "index" / name, tmp_path / "elsewhere" / name
        file.rename(moved)
        file.symlink_to(moved)
        with pytest.raises(StorageError, match=f"{name} is a link, expected a file"):
            Index.open(tmp_path / "index").verify()
        file.unlink()
        moved.rename(file)
    with Index.open(tmp_path / "index") as index:
        index.verify()
