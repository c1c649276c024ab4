"""Names, columns and filters at the command line."""

import csv
import json
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from autojacobin import DataError, FormatError, Index
from autojacobin.cli.opening import read_ids, read_payload

NAMES = [f"digit, {number} ü" for number in range(600)]
TABLE = pa.table({"size": list(range(600)), "lang": ["de", "en"] * 300})
BUILD = ("index", "build", "model.safetensors", "base.npy", "new")


@pytest.fixture
def named(folder, fitted, digits):
    """An index with names and columns, in the folder ``named``."""
    with Index.create("named", fitted) as index:
        index.add(digits.base, NAMES, TABLE)
    return "named"


def write_names(kind):
    if kind == "names.txt":
        with open(kind, "w", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in NAMES)
    elif kind == "names.npy":
        np.save(kind, np.array(NAMES))
    else:
        pa.parquet.write_table(TABLE.append_column("name", pa.array(NAMES)), kind.partition("::")[0])
    return kind


@pytest.mark.parametrize("kind", ["names.txt", "names.npy", "names.parquet::name"])
def test_build_takes_names(done, folder, kind):
    facts = json.loads(done(*BUILD, "--ids", write_names(kind), "--json").out)
    assert (facts["ids"], facts["vectors"]) == ("string", 600)
    with Index.open("new") as index:
        assert index.ids.tolist() == NAMES


def test_a_parquet_file_with_one_column_needs_no_name(done, folder):
    pa.parquet.write_table(pa.table({"id": [7 * number for number in range(600)]}), "ids.parquet")
    done(*BUILD, "--ids", "ids.parquet")
    with Index.open("new") as index:
        assert index.ids.tolist() == [7 * number for number in range(600)]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "arrow"])
def test_build_and_add_take_a_payload(done, folder, kind):
    def write(name, table):
        if kind == "parquet":
            pa.parquet.write_table(table, name)
        elif kind == "csv":
            pa.csv.write_csv(table, name)
        elif kind == "arrow":
            pa.feather.write_feather(table, name)
        else:
            with open(name, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
        return name

    done(*BUILD, "--ids", write_names("names.txt"), "--payload", write(f"facts.{kind}", TABLE))
    (folder / "more.txt").write_text("".join(f"{number}\n" for number in range(100)))  # names too, in this index
    more = pa.table({"lang": ["fr"] * 100})
    done("index", "add", "new", "more.npy", "--ids", "more.txt", "--payload", write(f"more.{kind}", more))
    with Index.open("new") as index:
        assert index.get(NAMES).to_pylist() == TABLE.to_pylist()
        assert index.get(["99"]).to_pylist() == [{"size": None, "lang": "fr"}]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("null", "got null"),
        ("3", "got 3"),
        ('"text"', 'got "text"'),
        ("[1, 2]", "got [1, 2]"),
        ('{"n": 1', "Expecting"),
        ('{"n": 1} {"n": 2}', "Extra data"),
        (b'{"n": "\xff"}', "can't decode"),
        *[(f'{{"n": {"[" * depth}{"]" * depth}}}', "32 lists and objects") for depth in (33, 300)],
        (f'{{"n": {"[" * 3000}{"]" * 3000}}}', ""),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, ""),
    ],
    ids=range(11),
)
def test_a_line_that_is_no_flat_object_is_named(folder, line, problem):
    content = line if isinstance(line, bytes) else line.encode()
    (folder / "p.jsonl").write_bytes(b'{"n": 1}\n\n' + content + b"\n")
    with pytest.raises(FormatError, match=r"^line 3 of .*p.jsonl is no JSON object of columns: ") as error:
        read_payload(folder / "p.jsonl", 2)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_json_lines_may_have_columns_that_come_late_and_whole_numbers_before_others(folder, monkeypatch):
    monkeypatch.setattr("autojacobin.cli.opening._LINES_AT_ONCE", 10)
    lines = ['{"n": 1, "tags": ["x"]}'] * 30 + ['{"n": 2.5, "late": "z"}', ""]
    (folder / "p.jsonl").write_text("\n".join(lines), encoding="utf-8-sig")
    table = read_payload(folder / "p.jsonl", 31)
    assert table.slice(29).to_pylist() == [
        {"n": 1.0, "tags": ["x"], "late": None},
        {"n": 2.5, "tags": None, "late": "z"},
    ]


def test_a_payload_without_columns_says_so(folder):
    (folder / "p.jsonl").write_text("{}\n{}\n")
    with pytest.raises(DataError, match="p.jsonl has no columns"):
        read_payload(folder / "p.jsonl", 2)


def test_a_forged_arrow_file_is_refused_before_anything_is_written(command, folder):
    offsets = pa.py_buffer(np.array([0, *[2**30] * 599, 1], dtype=np.int32))
    column = pa.Array.from_buffers(pa.string(), 600, [None, offsets, pa.py_buffer(b"a")])
    with pa.OSFile("forged.arrow", "wb") as sink, pa.ipc.new_file(sink, pa.schema([("t", pa.string())])) as writer:
        writer.write_table(pa.table({"t": column}))
    failed = command(*BUILD, "--payload", "forged.arrow")
    assert failed.code == 1
    assert "the column 't' (string) cannot be read" in failed.err
    assert not (folder / "new").exists()


def test_get_of_a_damaged_payload_is_an_error(command, named, folder):
    (file,) = (folder / named).glob("payload-*.arrow")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    for more in ((), ("--columns", "lang")):
        failed = command("index", "get", named, NAMES[3], *more)
        assert failed.code == 1
        assert failed.out == ""
        assert file.name in failed.err


def test_remove_and_get_take_names(done, command, named):
    got = done("index", "get", named, NAMES[3], NAMES[0])
    rows = [json.loads(line) for line in got.out.splitlines()]
    assert rows == [{"id": NAMES[3], "size": 3, "lang": "en"}, {"id": NAMES[0], "size": 0, "lang": "de"}]
    one = done("index", "get", named, NAMES[3], "--columns", "lang").out
    assert json.loads(one) == {"id": NAMES[3], "lang": "en"}
    assert "Removed 2 vectors" in done("index", "remove", named, NAMES[3], NAMES[0]).out
    assert "Removed 1 vector from" in done("index", "remove", named, "--ids", "-", stdin=f"{NAMES[9]}\n".encode()).out
    failed = command("index", "get", named, NAMES[3])
    assert failed.code == 1
    assert f"got {NAMES[3]!r}, which is not; leave it out" in failed.err


def test_get_works_without_a_payload(done, command, folder):
    assert [json.loads(line) for line in done("index", "get", "my-index", 3, 14).out.splitlines()] == [
        {"id": 3},
        {"id": 14},
    ]
    failed = command("index", "get", "my-index", 600)
    assert failed.code == 1
    assert "got 600, which is not; leave it out" in failed.err
    failed = command("index", "get", "my-index", 3, "--columns", "size")
    assert "give one with index.add(…, payload=…) or --payload" in failed.err


def test_uuids_are_typed_as_text(done, command, folder, fitted, digits):
    ids = [uuid.UUID(int=number) for number in range(600)]
    with Index.create("by-uuid", fitted) as index:
        index.add(digits.base, ids)
    assert json.loads(done("index", "get", "by-uuid", str(ids[5])).out) == {"id": str(ids[5])}
    done("index", "remove", "by-uuid", str(ids[5]))
    failed = command("index", "remove", "by-uuid", "5")
    assert failed.code == 1
    assert "the ids of this index are UUIDs" in failed.err
    done("search", "by-uuid", "queries.npy", "found.jsonl", "-k", 2)
    first = json.loads((folder / "found.jsonl").read_text().splitlines()[0])
    with Index.open("by-uuid") as index:
        assert first["ids"] == [str(id) for id in index.search(digits.queries[:1], 2)[1][0]]


def test_info_shows_ids_columns_and_lists(done, named):
    shown = done("info", named).out
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (lines["ids"], lines["columns"], lines["lists"]) == ("string", "size, lang", "none")


def expected(digits, **how):
    with Index.open("named") as index:
        return index.search(digits.queries, 3, **how)


def test_results_hold_names_in_every_format(done, named, folder, digits):
    distances, ids = expected(digits)
    for ending in ("npy", "npz", "parquet", "csv", "jsonl"):
        done("search", named, "queries.npy", f"f.{ending}", "-k", 3)
    assert np.load("f.npy").tolist() == ids.tolist()
    with np.load("f.npz") as found:
        assert found["ids"].tolist() == ids.tolist()
        assert np.array_equal(found["distances"], distances)
    assert pa.parquet.read_table("f.parquet")["ids"].to_pylist() == ids.tolist()
    with open("f.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ids.ravel().tolist()
    lines = [json.loads(line) for line in (folder / "f.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["ids"] for line in lines] == ids.tolist()


def test_columns_and_missing_neighbours_in_every_format(done, named, folder, digits):
    where = "size < 2"
    distances, ids, table = expected(digits, where=where, columns=["size", "lang"])
    assert ids[0, 2] is None
    asked = ("search", named, "queries.npy")
    for ending in ("parquet", "csv", "jsonl"):
        done(*asked, f"f.{ending}", "-k", 3, "--where", where, "--columns", "size,lang")
    found = pa.parquet.read_table("f.parquet")
    assert found["ids"].to_pylist() == ids.tolist()
    assert [row[2] for row in found["distances"].to_pylist()] == [None] * 40
    assert [size for row in found["size"].to_pylist() for size in row] == table["size"].to_pylist()
    with open("f.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [id for id in ids.ravel() if id is not None]
    assert {(row["id"], row["size"], row["lang"]) for row in rows} == {(NAMES[0], "0", "de"), (NAMES[1], "1", "en")}
    first = json.loads((folder / "f.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["ids"] == ids[0].tolist()
    assert first["distances"] == [*distances[0, :2].tolist(), None]
    assert first["payload"] == [*table.to_pylist()[:2], None]
    for ending in ("npy", "npz"):
        done(*asked, f"f.{ending}", "-k", 3, "--where", where)
    assert np.load("f.npy")[0].tolist() == [*ids[0, :2], ""]
    with np.load("f.npz") as arrays:
        assert np.isnan(arrays["distances"][:, 2]).all()


def test_among_takes_a_file_of_ids(done, folder, named, digits):
    (folder / "some.txt").write_text("\n".join(NAMES[:50]), encoding="utf-8")
    said = done("search", named, "queries.npy", "f.npy", "-k", 3, "--among", "some.txt").out
    assert f"among those allowed of {len(digits.base)} vectors in " in said
    assert np.load("f.npy").tolist() == expected(digits, among=NAMES[:50])[1].tolist()
    done("search", "my-index", "queries.npy", "g.npy", "-k", 3, "--among", "-", "--recall", 0.9, stdin=b"1\n2\n")
    found = np.load("g.npy")
    assert set(found.ravel()) == {1, 2, -1}
    assert (found[:, 2] == -1).all()


def test_evaluate_measures_an_index_with_names(done, named):
    by_name = json.loads(done("evaluate", named, "queries.npy", "--json").out)
    by_number = json.loads(done("evaluate", "my-index", "queries.npy", "--json").out)
    assert by_name["k"] == by_number["k"]


WRONG = [
    (("search", "named", "queries.npy", "f.npy", "--columns", "size"), 2, "write .csv, .jsonl or .parquet"),
    (("search", "named", "-", "f.npy", "--among", "-"), 2, "give - once at most"),
    (("search", "named", "queries.npy", "f.csv", "--columns", "weight"), 1, "there is no column 'weight'"),
    (("search", "named", "queries.npy", "f.csv", "--where", "weight < 3"), 1, "names the column 'weight', but"),
    (("search", "my-index", "queries.npy", "f.csv", "--where", "a < 3"), 1, "or --payload"),
    (("search", "my-index", "queries.npy", "f.csv", "--among", "names.txt"), 1, "this index are whole numbers"),
    (("evaluate", "named", "queries.npy", "--truth", "base.npy"), 2, "this index has names"),
    (
        ("index", "remove", "my-index", "zero"),
        1,
        "the ids of this index are whole numbers from 0 to 2^63 - 1, got 'zero'",
    ),
    (("index", "add", "named", "more.npy"), 1, "here string, got none"),
    (("index", "add", "named", "more.npy", "--ids", "names.txt"), 1, "got 600 ids for 100 vectors"),
    ((*BUILD, "--payload", "short.csv"), 1, "must have one row for each of the 600 vectors, got 1"),
    ((*BUILD, "--payload", "facts.txt"), 2, "must end in one of .parquet"),
    ((*BUILD, "--payload", "missing.csv"), 1, "cannot read missing.csv: there is no such file"),
    ((*BUILD, "--payload", "broken.parquet"), 1, "broken.parquet cannot be read"),
    ((*BUILD, "--ids", "two.parquet"), 1, "expected two.parquet::COLUMN with one of size, lang"),
    ((*BUILD, "--ids", "two.parquet::weight"), 1, "got no column 'weight'"),
    ((*BUILD, "--ids", "nulls.parquet"), 1, "every vector needs an id, got 1 nulls"),
    (("export", "milvus", "named", "codes.db", "--collection", "c"), 1, "Milvus takes integers as ids here"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), WRONG, ids=[" ".join(given) for given, _, _ in WRONG])
def test_what_cannot_be_is_reported_in_a_sentence(command, named, folder, arguments, code, words):
    write_names("names.txt")
    (folder / "short.csv").write_text("a\n1\n")
    (folder / "broken.parquet").write_bytes(b"PAR1 but not really")
    pa.parquet.write_table(TABLE, "two.parquet")
    pa.parquet.write_table(pa.table({"id": [1, None]}), "nulls.parquet")
    failed = command(*arguments)
    assert failed.code == code, failed.err
    assert words in " ".join(failed.err.replace("│", " ").split())
    assert "Traceback" not in failed.err
    assert failed.err.count("expected") <= 1
    assert not (folder / "new").exists()


@pytest.mark.parametrize("kind", ["ids.txt", "ids.npy", "ids.parquet", "bytes.parquet"])
def test_an_index_of_uuids_is_begun_and_extended(done, command, folder, kind):
    ids = [uuid.UUID(int=7 * number) for number in range(700)]

    def write(part):
        if kind == "ids.txt":
            (folder / kind).write_text("".join(f"{id}\n" for id in part))
        elif kind == "ids.npy":
            np.save(kind, np.array([str(id) for id in part]))
        else:
            values = [id.bytes for id in part] if kind == "bytes.parquet" else [str(id) for id in part]
            pa.parquet.write_table(pa.table({"id": values}), kind)
        return kind

    facts = json.loads(done(*BUILD, "--ids", write(ids[:600]), "--id-kind", "uuid", "--json").out)
    assert facts["ids"] == "uuid"
    done("index", "add", "new", "more.npy", "--ids", write(ids[600:]))
    with Index.open("new") as index:
        assert index.ids.tolist() == ids


def test_whole_numbers_can_be_names(done, folder):
    (folder / "ids.txt").write_text("".join(f"{number}\n" for number in range(600)))
    done(*BUILD, "--ids", "ids.txt", "--id-kind", "string")
    with Index.open("new") as index:
        assert index.ids.tolist() == [str(number) for number in range(600)]


def test_the_words_of_a_text_file_are_the_ids(done, folder, digits):
    def write(name, words, vectors):
        rows = zip(words, vectors.tolist(), strict=True)
        (folder / name).write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows))

    write("words.txt", [f"word{number}" for number in range(600)], digits.base)
    write("more.txt", [f"other{number}" for number in range(100)], digits.more)
    done("index", "build", "model.safetensors", "words.txt", "new")
    done("index", "add", "new", "more.txt")
    done("search", "new", "more.txt", "found.csv", "-k", "1", "--recall", "1")
    with Index.open("new") as index:
        assert len(index) == 700
        assert index.ids[599:601].tolist() == ["word599", "other0"]
        np.testing.assert_array_equal(index.vectors(["word3"]), digits.base[3:4])
    with open("found.csv", newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)][:2] == ["other0", "other1"]
    piped = (folder / "more.txt").read_bytes()
    done("index", "build", "model.safetensors", "-", "piped", "--format", "text", stdin=piped)
    with Index.open("piped") as index:
        assert index.ids[:2].tolist() == ["other0", "other1"]


def test_ids_of_files_are_what_is_written_there(tmp_path):
    words = ["007", "0815", "42"]
    pyarrow.parquet.write_table(pa.table({"sku": words}), tmp_path / "sku.parquet")
    np.save(tmp_path / "sku.npy", np.array(words))
    (tmp_path / "sku.txt").write_text("\ufeff007\n0815\n42\n", encoding="utf-8")
    for name in ("sku.parquet::sku", "sku.npy", "sku.txt"):
        assert read_ids(str(tmp_path / name)) == words
    (tmp_path / "names.txt").write_text("a\u2028b\nc\n", encoding="utf-8")
    assert read_ids(str(tmp_path / "names.txt")) == ["a\u2028b", "c"]
    (tmp_path / "zeros.txt").write_text("007\n8\n", encoding="utf-8")
    assert read_ids(str(tmp_path / "zeros.txt"), "integer").tolist() == [7, 8]
    (tmp_path / "names.txt").write_text("a\n\nc\n", encoding="utf-8")
    with pytest.raises(DataError, match="have an empty line, number 2, expected an id each"):
        read_ids(str(tmp_path / "names.txt"))


def test_row_numbers_that_pandas_wrote_are_no_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1, 2, 3]})
    frame.to_csv(tmp_path / "all.csv")
    frame[frame.x > 1].to_parquet(tmp_path / "some.parquet")
    assert read_payload(tmp_path / "all.csv", 3).column_names == ["x"]
    assert read_payload(tmp_path / "some.parquet", 2).column_names == ["x"]


def test_add_refuses_names_that_exist_and_upsert_replaces_them(done, command, named, folder, digits):
    np.save("two.npy", digits.base[10:12])
    (folder / "two.txt").write_text(f"{NAMES[0]}\nnew one\n")
    failed = command("index", "add", named, "two.npy", "--ids", "two.txt")
    assert failed.code == 1
    assert (
        f"must be new, got {NAMES[0]!r}, which is in the index already; replace it by upsert (--upsert)" in failed.err
    )
    assert command("index", "add", named, "two.npy", "--upsert").code == 2
    assert "Wrote 2 vectors" in done("index", "add", named, "two.npy", "--ids", "two.txt", "--upsert").out
    with Index.open(named) as index:
        assert np.array_equal(index.vectors([NAMES[0], "new one"]), digits.base[10:12])
        assert index.get([NAMES[0]]).to_pylist() == TABLE.slice(0, 1).to_pylist()
        assert index.get(["new one"])["size"].to_pylist() == [None]


def test_a_wrong_number_of_ids_is_noticed_before_anything_is_encoded(command, folder):
    (folder / "short.txt").write_text("".join(f"{number}\n" for number in range(599)))
    failed = command(*BUILD, "--ids", "short.txt")
    assert failed.code == 1
    assert "got 599 ids for 600 vectors" in failed.err
    assert "adding vectors" not in failed.err
    assert not (folder / "new").exists()
