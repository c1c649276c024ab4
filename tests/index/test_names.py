"""Ids that are strings or UUIDs, against a dict; and what faults and damage do to their files."""

import copy
import json
import pickle
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.errors import DataError, DataTypeError, FormatError, StorageError
from autojacobin.index import names as names_module
from autojacobin.index.index import Index
from autojacobin.index.names import NameTable
from autojacobin.index.repair import repair
from tests.index.faults import Crash, Faults
from tests.index.index_model import small_hasher, vectors
from tests.index.test_damage import _seal, rewritten

NAME_FILES = ["names", "ends", "hashes", "places"]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def contents(index):
    """Vectors and rows of the payload by name, read back one by one and all at once."""
    index.verify()
    found = {}
    ids = index.ids.tolist()
    has_payload = bool(index.info()["columns"])
    rows = index.get(ids).to_pylist() if has_payload and ids else [None] * len(ids)
    for name, vector, row in zip(ids, index.vectors(ids), rows, strict=True):
        assert name in index
        assert name not in found, "a name lives twice"
        found[name] = (vector.tobytes(), str(row))
    assert len(index) == len(found)
    return found


def nearest_names(index, queries, k):
    return index.search(queries, k, candidates=len(index))[1]


# The table


@given(st.lists(NAMES, unique=True, min_size=1, max_size=30), st.lists(NAMES, max_size=10), st.sampled_from([1, 3, 64]))
def test_a_table_finds_the_names_that_it_has_even_if_hashes_are_equal(names, others, n_hashes):
    stored = [name.encode() for name in names]
    wanted = [name.encode() for name in [*others, *names[::2]]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            names_module, "_hashes", lambda names: np.array([hash(n) % n_hashes for n in names], dtype=np.uint64)
        )
        table = NameTable.of(stored)
        places, positions = table.find(wanted)
    assert table.at(np.arange(len(stored))) == stored
    expected = [(place, stored.index(name)) for place, name in enumerate(wanted) if name in stored]
    assert list(zip(places.tolist(), positions.tolist(), strict=True)) == expected
    assert table.problem("string") is None


@given(st.lists(NAMES, unique=True, min_size=1, max_size=8), st.data())
def test_ends_and_text_that_do_not_belong_together_are_a_problem(names, data):
    table = NameTable.of([name.encode() for name in names])
    assert table._replace(text=table.text[:-1]).problem("string")
    assert table._replace(text=np.append(table.text, np.uint8(65))).problem("string")
    broken = table.text.copy()
    broken[data.draw(st.integers(0, len(broken) - 1))] = 0xFF
    assert table._replace(text=broken).problem("string") == "names that are not UTF-8"
    if table.ends.tolist() != [16 * (place + 1) for place in range(len(names))]:
        assert table.problem("uuid") == "names that are not UUIDs"


def test_a_name_that_ends_within_a_character_is_a_problem():
    table = NameTable.of(["é".encode(), b"x"])
    assert table._replace(ends=np.array([1, 3])).problem("string") == "names that end within a character"


# The index


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.lists(NAMES, unique=True, min_size=1, max_size=6), st.sampled_from(["f4", "f8", "u1"])
        ),
        st.tuples(st.just("remove"), st.integers(0, 5), st.none()),
        st.tuples(st.sampled_from(["compact", "reopen", "copy", "pickle"]), st.none(), st.none()),
    ),
    min_size=1,
    max_size=8,
)


@given(operations=OPERATIONS, n_hashes=st.sampled_from([2, 2**60]))
def test_an_index_with_names_is_a_dict(tmp_path_factory, operations, n_hashes):
    hashes = names_module._hashes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names_module, "_hashes", lambda names: hashes(names) % np.uint64(n_hashes))
        index, model = Index(small_hasher()), {}
        for number, (operation, what, dtype) in enumerate(operations):
            if operation == "add":
                new = np.abs(vectors(len(what), number)).astype(dtype)
                index.upsert(new, ids=what)
                model |= dict(zip(what, new, strict=True))
            elif operation == "remove" and model:
                gone = sorted(model)[: what % len(model)]
                index.remove(gone)
                for name in gone:
                    del model[name]
            elif operation == "compact":
                index.compact()
            elif operation == "copy":
                index = copy.deepcopy(index)
            elif operation == "pickle":
                index = pickle.loads(pickle.dumps(index))
            elif operation == "reopen":
                path = tmp_path_factory.mktemp("names") / "index"
                index.save(path)
                with Index.open(path) as opened:
                    contents(opened)
                    assert set(opened.ids) == set(model)
            assert set(index.ids) == set(model)
            assert len(index) == len(model)
        if model:
            wanted = list(model)
            assert np.array_equal(index.vectors(wanted), np.stack([model[name] for name in wanted]))
            found = nearest_names(index, np.stack([model[wanted[0]]]).astype("f4"), len(model))
            assert set(found[0]) == set(model)
            assert np.array_equal(model[found[0, 0]], model[wanted[0]])  # at distance 0


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "β" * 3000, "名前", "🦊\0 ", "a\n"],
        np.array(["a", "bc", "d", "e", "f"]),
        np.array(["a", "bc", "d", "e", "f"], dtype=np.dtypes.StringDType()),
        np.array(["a", "bc", "d", "e", "f"], dtype=object),
        [uuid.UUID(int=number << 90) for number in (5, 3, 1, 0, 9)],
    ],
    ids=["texts", "numpy", "numpy StringDType", "objects", "UUIDs"],
)
def test_names_of_every_type_come_back_as_they_went_in(tmp_path, ids):
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(3), ids=list(ids[:3]))
        index.add(vectors(5, 1)[3:], ids=ids[3:])
    with Index.open(tmp_path / "index") as index:
        assert index.ids.tolist() == list(ids)
        assert type(index.ids[0]) is (uuid.UUID if isinstance(ids[0], uuid.UUID) else str)
        assert np.array_equal(index.vectors([ids[4], ids[0]]), [vectors(5, 1)[4], vectors(3)[0]])
        assert np.array_equal(index.vectors(ids[1]), vectors(3)[1:2])  # one alone
        assert ids[2] in index
        assert "nobody" not in index
        assert 3 not in index
        assert index.search(vectors(3)[:1], 2)[1][0, 0] in list(ids)
        assert len(index.codes(ids[:2])) == 2
        index.remove(ids[0])
        assert ids[0] not in index


def test_a_stream_has_names_too():
    index = Index(small_hasher())
    index.add(iter([vectors(3), vectors(4, 1)]), ids=[f"row {number}" for number in range(7)])
    assert np.array_equal(index.vectors(["row 5", "row 0"]), [vectors(4, 1)[2], vectors(3)[0]])
    with pytest.raises(DataError, match="got 2 ids for"):
        index.add(iter([vectors(3)]), ids=["x", "y"])
    assert len(index) == 7


def test_names_keep_their_vectors_over_several_segments_and_lists(monkeypatch):
    from autojacobin import PartitionedAutoencoder
    from autojacobin.index import segment

    monkeypatch.setattr(segment, "_FEWEST_IN_LISTS", 1)
    base = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    index = Index(PartitionedAutoencoder(12, n_lists=4, n_iterations=2, random_state=0).fit(base))
    for start in (0, 100, 200):
        index.add(base[start : start + 100], ids=[f"n{row}" for row in range(start, start + 100)])
    index.upsert(base[:5] + 1, ids=[f"n{row}" for row in range(5)])
    base[:5] += 1
    assert index.search(base, 1, recall=1)[1].ravel().tolist() == [f"n{row}" for row in range(300)]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "a"], "ids must be unique, got 'a' more than once"),
        (["a", "", "c"], "empty string at place 1"),
        (["a", 2, "c"], "are strings, got 2 of type int at place 1"),
        (["a", None, "c"], "of type NoneType at place 1"),
        (["a", "\ud800", "c"], "remove lone surrogates"),
        ([uuid.UUID(int=1), "b", "c"], r"are UUIDs \(uuid.UUID\), got 'b'"),
        (["a", "b"], "got 2 ids for 3 vectors"),
        ((name for name in "abc"), r"got an iterator \(generator\); use list\(ids\)"),
        ([b"a", b"b", b"c"], "ids must be a list of integers"),
        ([1, 2, 3], "of one kind, which its first vectors decide: here string, got ids of the kind integer"),
        ([uuid.UUID(int=n) for n in range(3)], "here string, got ids of the kind uuid"),
        (None, "here string, got none"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids, message):
    index = Index(small_hasher())
    index.add(vectors(1), ids=["first"])
    with pytest.raises(DataError, match=message):
        index.add(vectors(3), ids=ids)
    assert index.ids.tolist() == ["first"]


def test_wrong_ids_of_an_index_with_names_are_one_sentence():
    index = Index(small_hasher())
    index.add(vectors(2), ids=["a", "b"])
    for call in (index.vectors, index.codes, index.remove, index.get):
        with pytest.raises(DataTypeError, match="are strings, got 5 of type int"):
            call(5)
        with pytest.raises(DataError, match="got 'c', which is not"):
            call(["a", "c"])


def test_an_index_with_integers_refuses_names():
    index = Index(small_hasher())
    index.add(vectors(2))
    with pytest.raises(DataError, match="here integer, got ids of the kind string"):
        index.add(vectors(1), ids=["a"])
    with pytest.raises(DataTypeError, match="ids must be a list of integers, got (np.str_.)?'a'"):
        index.remove("a")


# Faults


def named(number, start=0):
    return [f"name {row}" for row in range(start, start + number)]


CHANGES = [
    lambda index: index.upsert(vectors(6, 1), ids=named(6, 3), payload={"n": list(range(6))}),
    lambda index: index.remove(index.ids[::3]),
    lambda index: index.update("name 4", payload={"t": ["new"]}),
    lambda index: index.compact(),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """An index with names and a payload, the states it goes through, and the number of file operations."""
    path = tmp_path_factory.mktemp("faults") / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(5), ids=named(5), payload={"n": [1, 2, 3, 4, 5], "t": ["a"] * 5})
    working = Path(shutil.copytree(path, path.parent / "working"))
    faults, states = Faults(), []
    with opened(working, faults) as index:
        states.append(contents(index))
        for change in CHANGES:
            change(index)
            states.append(contents(index))
    return path, states, faults.count


def opened(path, faults):
    index = Index.open(path)
    index._folder = faults.folder(path)
    return index


def state_on_disk(path):
    with Index.open(path) as index:
        return contents(index)


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks up open files in /proc")


@needs_proc
@pytest.mark.parametrize("fault", ["crash", "torn crash", "power cut, undoing all", "power cut, undoing renames"])
def test_a_crash_at_any_operation_leaves_a_committed_state(prepared, tmp_path, fault, instants):
    original, states, count = prepared
    for at in instants(count, 4):
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        index, done = opened(path, Faults(at, fault)), 0
        with pytest.raises(Crash):  # noqa: PT012
            for change in CHANGES:
                change(index)
                done += 1
        index._folder.lock.release()
        assert state_on_disk(path) in (states[done], states[done + 1]), at
        with Index.open(path) as index:
            index.add(vectors(1, 9), ids=["one more"])
            named_files = index._state.manifest.names()
        assert {entry.name for entry in path.iterdir()} - {"LOCK", "MANIFEST.json"} == named_files
        shutil.rmtree(path)


@needs_proc
@pytest.mark.parametrize("fault", ["error", "no space", "torn error"])
def test_an_error_at_any_operation_changes_nothing(prepared, tmp_path, fault, instants):
    original, states, count = prepared
    for at in instants(count, 4):
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        with opened(path, Faults(at, fault)) as index:
            for done, change in enumerate(CHANGES):
                try:
                    change(index)
                except StorageError as error:
                    assert "nothing was changed" in str(error)
                    assert contents(index) == states[done]
                    change(index)  # the fault was there once
                assert contents(index) == states[done + 1]
        assert state_on_disk(path) == states[-1]
        shutil.rmtree(path)


# Damage


N = 3_000


def names_of_all():
    return [f"the name of {row} é" for row in range(N)]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged-names") / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(N), ids=names_of_all(), payload={"row": np.arange(N), "text": names_of_all()})
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


USES = [
    lambda index: index.search(vectors(2), 3, columns=["row"]),
    lambda index: index.vectors(["the name of 7 é"]),
    lambda index: index.remove(["the name of 7 é"]),
    lambda index: index.upsert(vectors(1), ids=["the name of 7 é"], payload={"row": [7], "text": ["t"]}),
    lambda index: index.search(vectors(2), 3, among=["the name of 7 é"], columns=["text"]),
    lambda index: index.ids,
]


@pytest.mark.parametrize("kind", NAME_FILES)
@pytest.mark.parametrize("use", range(len(USES)))
def test_a_flipped_bit_is_an_error_that_names_the_file(copied, kind, use):
    file = file_of(copied, kind)
    flip(file, 4096 + 130)
    with Index.open(copied) as index, pytest.raises(FormatError, match=file.name):
        USES[use](index)
    with Index.open(copied) as index, pytest.raises(FormatError, match=file.name):
        index.verify()


@pytest.mark.parametrize("kind", [*NAME_FILES, "payload"])
@pytest.mark.parametrize("loss", ["missing", "short", "empty", "other"])
def test_a_file_that_is_not_whole_is_named_when_the_index_is_opened(copied, kind, loss):
    file = file_of(copied, kind)
    content = file.read_bytes()
    if loss == "missing":
        file.unlink()
    else:
        other = b"x" * (len(content) + 1)
        file.write_bytes({"short": content[:-1], "empty": b"", "other": other}[loss])
    with pytest.raises(FormatError, match=file.name):
        Index.open(copied)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("kind", "at", "forged", "message"),
    [
        ("ends", -8, (10**6).to_bytes(8, "little"), "bytes of names that end at 1000000"),
        ("ends", 0, (0).to_bytes(8, "little"), "do not follow each other"),
        ("ends", 8, (2**63 - 1).to_bytes(8, "little"), "do not follow each other"),
        ("places", 4, N.to_bytes(4, "little"), f"places that are not among the {N} of the segment"),
        ("places", 0, b"\xff\xff\xff\xff", "places that are not among the"),
        ("hashes", 0, b"\xff" * 8, "hashes that do not ascend"),
        ("names", 3, b"\xff", "not UTF-8"),
    ],
)
def test_forged_contents_are_refused_with_and_without_checksums(copied, kind, at, forged, message, check):
    def change(payload):
        start = at % len(payload)
        payload[start : start + len(forged)] = forged

    rewritten(copied, kind, change)
    for use in USES:
        with Index.open(copied, check=check) as index, pytest.raises(FormatError, match=message):
            use(index)
    with Index.open(copied, check=check) as index, pytest.raises(FormatError, match=message):
        index.verify()


@pytest.mark.parametrize("kind", ["integer", "uuid", None])
def test_a_manifest_with_another_kind_of_ids_is_refused(copied, kind):
    manifest = copied / "MANIFEST.json"
    _seal(manifest, json.loads(manifest.read_bytes()) | {"checksum": "0" * 16, "id_kind": kind})
    with pytest.raises(FormatError, match="ids of the kind (integer|None)|not UUIDs"):
        contents(Index.open(copied))


def test_a_manifest_with_names_for_an_index_with_integers_is_refused(tmp_path):
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(5))
    manifest = tmp_path / "index" / "MANIFEST.json"
    _seal(manifest, json.loads(manifest.read_bytes()) | {"checksum": "0" * 16, "id_kind": "string"})
    with pytest.raises(FormatError, match="ids of the kind string"):
        Index.open(tmp_path / "index")


# Repair


def by_row(index):
    """Row of the payload of each name."""
    return dict(zip(index.ids.tolist(), index.get(index.ids)["row"].to_pylist(), strict=True))


def test_repair_saves_names_and_payload(copied, tmp_path):
    with Index.open(copied) as index:
        index.upsert(vectors(3, 1), ids=["x", "y", "the name of 5 é"], payload={"row": [-1, -2, -3]})
        before = contents(index)
    report = repair(copied, tmp_path / "repaired")
    assert (report.saved, report.lost, report.renumbered, report.problems) == (len(before), 0, 0, [])
    assert state_on_disk(tmp_path / "repaired") == before


@pytest.mark.parametrize("loss", ["missing", "damaged"])
def test_repair_without_a_manifest_saves_names(copied, tmp_path, loss):
    with Index.open(copied) as index:
        index.upsert(vectors(3, 1), ids=["x", "y", "the name of 5 é"], payload={"row": [-1, -2, -3]})
        names = set(index.ids)
    manifest = copied / "MANIFEST.json"
    manifest.unlink() if loss == "missing" else flip(manifest, 40)
    report = repair(copied, tmp_path / "repaired")
    assert (report.saved, report.lost, report.renumbered) == (len(names), 0, 0)
    with Index.open(tmp_path / "repaired") as index:
        assert set(index.ids) == names
        assert np.array_equal(index.vectors(["the name of 5 é"]), vectors(3, 1)[2:])


@pytest.mark.parametrize("kind", ["names", "ends"])
def test_repair_gives_new_names_where_they_are_damaged(copied, tmp_path, kind):
    file = file_of(copied, kind)
    with Index.open(copied) as index:
        before, vectors_before = by_row(index), index.vectors(index.ids)
        index.add(vectors(2, 1), ids=["recovered-0", "whole"])
    flip(file, 4096 + 20_000)
    report = repair(copied, tmp_path / "repaired")
    assert (report.saved, report.lost) == (len(before) + 2, 0)
    assert 0 < report.renumbered < len(before)  # those of one block
    assert file.name in " ".join(report.problems)
    with Index.open(tmp_path / "repaired") as index:
        index.verify()
        after = by_row(index)
        new = {name for name in after if name not in before and name not in ("recovered-0", "whole")}
        assert len(new) == report.renumbered
        assert all(name.startswith("recovered-") for name in new)
        assert "recovered-0" in index
        assert all(after[name] == before[name] for name in before.keys() & after.keys())
        rows = sorted(row for row in after.values() if row is not None)
        assert rows == sorted(before.values())
        known = [name for name in before if name in after]
        assert np.array_equal(index.vectors(known), vectors_before[[list(before).index(name) for name in known]])


@pytest.mark.parametrize("kind", ["hashes", "places"])
def test_damage_of_what_can_be_computed_again_costs_no_name(copied, tmp_path, kind):
    flip(file_of(copied, kind), 4096 + 99)
    with Index.open(copied) as index:
        n = len(index)
    report = repair(copied, tmp_path / "repaired")
    assert (report.saved, report.lost, report.renumbered) == (n, 0, 0)
    with Index.open(tmp_path / "repaired") as index:
        assert set(index.ids) <= set(names_of_all())


def test_repair_gives_new_uuids(tmp_path):
    path, ids = tmp_path / "index", [uuid.uuid4() for _ in range(10)]
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(10), ids=ids)
    file_of(path, "names").unlink()
    report = repair(path, tmp_path / "repaired")
    assert (report.saved, report.lost, report.renumbered) == (10, 0, 10)
    with Index.open(tmp_path / "repaired") as index:
        assert not set(index.ids) & set(ids)
        assert all(isinstance(id, uuid.UUID) for id in index.ids)
        assert np.array_equal(np.sort(index.vectors(index.ids), axis=0), np.sort(vectors(10), axis=0))


@pytest.mark.parametrize("loss", ["flipped", "missing", "empty"])
def test_repair_saves_vectors_without_a_damaged_payload(copied, tmp_path, loss):
    file = file_of(copied, "payload")
    with Index.open(copied) as index:
        index.add(vectors(2, 1), ids=["x", "y"], payload={"row": [-1, -2]})
        names = index.ids.tolist()
    if loss == "flipped":
        flip(file, 3_000)
    else:
        file.unlink() if loss == "missing" else file.write_bytes(b"")
    report = repair(copied, tmp_path / "repaired")
    assert (report.saved, report.lost, report.renumbered) == (len(names), 0, 0)
    assert len(report.problems) == 1
    assert file.name in report.problems[0]
    with Index.open(tmp_path / "repaired") as index:
        index.verify()
        assert set(index.ids) == set(names)
        assert index.get(["x", names[0]])["row"].to_pylist() == [-1, None]
