"""Columns of every Arrow type, two additions of each, and every operation on them, compared with Python's values."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from autojacobin import LSH
from autojacobin.errors import DataError
from autojacobin.index.index import Index
from autojacobin.index.repair import repair
from autojacobin.service.responses import as_json_value
from tests.fuzz.mutations import mutated_bytes

_DAY = datetime.datetime(2020, 1, 1)
_PLAIN: list[tuple[Any, Callable[[Random], Any]]] = [
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    *[(kind, lambda rng: rng.randrange(100)) for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.uint32())],
    (pa.int64(), lambda rng: rng.choice((-(2**63), 2**63 - 1, rng.randrange(9)))),
    (pa.uint64(), lambda rng: rng.choice((2**64 - 1, 0))),
    *[(kind, lambda rng: rng.choice((0.5, -0.0, 1.0))) for kind in (pa.float16(), pa.float32(), pa.float64())],
    *[(kind, lambda rng: rng.choice(("", "a", "é", "long " * 9))) for kind in (pa.string(), pa.large_string())],
    *[(kind, lambda rng: rng.choice((b"", b"\0", b"\xff" * 40))) for kind in (pa.binary(), pa.large_binary())],
    (pa.binary(2), lambda rng: rng.choice((b"ab", b"\0\0"))),
    (pa.decimal128(10, 2), lambda rng: decimal.Decimal(rng.randrange(10**6)) / 100),
    (pa.decimal256(50, 3), lambda rng: decimal.Decimal(rng.randrange(10**6)) / 1000),
    *[(kind, lambda rng: datetime.date(2020, 1, rng.randrange(1, 29))) for kind in (pa.date32(), pa.date64())],
    *[
        (kind, lambda rng: _DAY + datetime.timedelta(seconds=rng.randrange(10**6)))
        for kind in (pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"))
    ],
    (pa.timestamp("us", tz="UTC"), lambda rng: _DAY.replace(tzinfo=datetime.timezone.utc)),
    *[(kind, lambda rng: datetime.time(rng.randrange(24))) for kind in (pa.time32("s"), pa.time64("us"))],
    (pa.duration("us"), lambda rng: datetime.timedelta(rng.randrange(900))),
    (pa.month_day_nano_interval(), lambda rng: (rng.randrange(9), 1, 1)),
]  # fmt: skip
_VIEWS = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}


def check_columns(content: bytes, folder: Path) -> None:
    """Let a file of any bytes choose a type, values and operations. A type is refused at once, or works for ever."""
    rng = Random(content)
    kind = _type(rng, 3)
    in_folder, path = rng.random() < 0.3, folder / "index"
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(folder / "repaired", ignore_errors=True)
    index = Index.create(path, _HASHER) if in_folder else Index(_HASHER)
    first = _array(rng, kind, 4)
    index.add(_vectors(4), payload={"x": first, "n": [1, 2, 3, 4]})  # refused here or never
    expected = dict(enumerate(first.to_pylist()))
    try:
        for step in rng.choices(("add", "upsert", "update", "compact", "remove", "add none"), k=3):
            _change(index, expected, step, kind, rng)
            _check(index, expected)
        if in_folder:
            index.verify()
            index.close()
            report = repair(path, folder / "repaired")
            assert (report.saved, report.problems) == (len(expected), [])
            index = Index.open(folder / "repaired")
            _change(index, expected, "add", kind, rng)
            _change(index, expected, "compact", kind, rng)
            _check(index, expected)
    except DataError as error:
        raise AssertionError(f"a column of {kind} was accepted, and then refused") from error
    finally:
        index.close()


def _change(index: Index, expected: dict[int, Any], step: str, kind: Any, rng: Random) -> None:
    free, known = index.next_id, sorted(expected)
    some = rng.sample(known[1:], min(2, len(known) - 1))  # vector 0 keeps the columns alive
    if step == "remove":
        index.remove(some)
        for id in some:
            del expected[id]
    elif step == "compact":
        index.compact()
    elif step == "add none":
        index.add(_vectors(1))
        expected[free] = None
    elif step in ("add", "upsert", "update"):
        ids = [free, free + 1, free + 2] if step == "add" else some if step == "update" else [*some, free]
        column = _array(rng, kind, len(ids))
        if step == "update":
            index.update(ids, payload={"x": column})
        else:
            getattr(index, step)(_vectors(len(ids)), ids, {"x": column})
        expected |= dict(zip(ids, column.to_pylist(), strict=True))


def _check(index: Index, expected: dict[int, Any]) -> None:
    ids = sorted(expected)
    found = index.get(ids, ["x"])
    assert _comparable(found["x"].to_pylist()) == _comparable([expected[id] for id in ids])
    json.dumps(as_json_value(found.to_pylist()))
    _, near, table = index.search(_vectors(1), len(ids), columns=["x"], rerank=False)
    assert _comparable(table["x"].to_pylist()) == _comparable([expected[id] for id in near[0]])
    near = index.search(_vectors(1), len(ids), where="x is not null")[1][0]
    assert sorted(near[near >= 0]) == [id for id in ids if expected[id] is not None]
    index.search(_vectors(1), 1, columns=["x"], as_table=True)


def _comparable(value: Any) -> Any:
    """Values with the pairs of a map and the fields of a struct in one form."""
    return json.dumps(as_json_value(value), sort_keys=True)


def _vectors(n: int) -> Any:
    return np.random.RandomState(n).standard_normal((n, 3)).astype(np.float32)


_HASHER = LSH(5, random_state=0).fit(_vectors(20))


def _type(rng: Random, depth: int) -> Any:
    """A type without any encoding."""
    form = rng.randrange(9) if depth else 9
    if form == 0:
        return pa.list_(_type(rng, depth - 1))
    if form == 1:
        return pa.large_list(_type(rng, depth - 1))
    if form == 2:
        return pa.list_(_type(rng, depth - 1), 2)
    if form == 3:
        return pa.struct([(name, _type(rng, depth - 1)) for name in "ab"[: rng.randrange(3)]])
    if form == 4:
        return pa.map_(pa.string(), _type(rng, depth - 1))
    if form == 5:
        return rng.choice(
            (pa.null(), pa.uuid(), pa.bool8(), pa.json_(pa.string()), pa.dense_union([pa.field("u", pa.int8())]))
        )
    return rng.choice(_PLAIN)[0]


def _array(rng: Random, kind: Any, n: int, encoded: bool = False) -> pa.Array:
    """Values of a type, in any encoding, unless they are those of one already."""
    mask = pa.array([rng.random() < 0.2 for _ in range(n)], pa.bool_())
    encoding = rng.randrange(8)
    if encoded and encoding < 2:
        encoding = 7
    if encoding == 0:
        size = rng.choice((1, 3, 200))
        indices = pa.array([rng.randrange(size) for _ in range(n)], rng.choice((pa.int16(), pa.uint8(), pa.int64())))
        return pa.DictionaryArray.from_arrays(indices, _array(rng, kind, size, encoded=True))
    if encoding == 1 and n and not pa.types.is_nested(kind):
        ends = pa.array(range(1, n + 1), pa.int32())
        return pa.RunEndEncodedArray.from_arrays(ends, _array(rng, kind, n, encoded=True))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(
            _array(rng, kind.value_type, n * kind.list_size, encoded), kind.list_size
        )
    if pa.types.is_map(kind):
        keys = pa.array([str(number) for number in range(2 * n)], pa.string())
        return pa.MapArray.from_arrays(
            pa.array(range(0, 2 * n + 1, 2)), keys, _array(rng, kind.item_type, 2 * n, encoded)
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = [0]
        for _ in range(n):
            offsets.append(offsets[-1] + rng.randrange(3))
        values, large = _array(rng, kind.value_type, offsets[-1], encoded), pa.types.is_large_list(kind)
        made = pa.LargeListArray if large else pa.ListArray
        return made.from_arrays(pa.array(offsets, pa.int64() if large else pa.int32()), values, mask=mask)
    if pa.types.is_struct(kind):
        fields = [_array(rng, field.type, n, encoded) for field in kind]
        if not fields:
            return pa.array([{}] * n, kind)
        return pa.StructArray.from_arrays(fields, names=[field.name for field in kind], mask=mask)
    if pa.types.is_union(kind):
        return pa.UnionArray.from_dense(
            pa.array([0] * n, pa.int8()), pa.array(range(n), pa.int32()), [pa.array([1] * n, pa.int8())], ["u"]
        )
    if pa.types.is_null(kind):
        return pa.nulls(n)
    if isinstance(kind, pa.BaseExtensionType):
        value = {"arrow.uuid": b"x" * 16, "arrow.bool8": 1, "arrow.json": "{}"}[kind.extension_name]
        return pa.ExtensionArray.from_storage(kind, pa.array([value] * n, kind.storage_type))
    draw = dict(_PLAIN)[kind]
    values = [None if mask[row].as_py() else draw(rng) for row in range(n)]
    if encoding == 2 and kind in _VIEWS:
        kind = _VIEWS[kind]
    return pa.array(values, kind)


# Files


def arrow_files() -> list[bytes]:
    """Payloads in Arrow's format, plain and with categories."""
    rows, rng = range(6), Random(0)
    tables = [
        pa.table({"n": pa.array(rows), "s": [f"text {row}" for row in rows], "l": [[row] * row for row in rows]}),
        pa.table({"c": pa.array(["a", "b", None] * 2).dictionary_encode(), "b": [True, None] * 3}),
        *[pa.table({"n": pa.array(rows), "x": _array(rng, kind, 6)}) for kind, _ in rng.sample(_PLAIN, 6)],
    ]
    return [_arrow_file(table) for table in tables]


def _arrow_file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def mutated_file(content: bytes, rng: Random) -> bytes:
    """Change some bytes at their places, mostly, so that the file can still be read."""
    if not rng.randrange(4):
        return mutated_bytes(content, rng)
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.choice((0, 1, 2, 255, rng.randrange(256)))
    return bytes(changed)


def check_file(content: bytes, folder: Path, *, name: str) -> None:
    """Keep the payload of a file, as far as it is accepted; then everything works, and a repair loses nothing."""
    from autojacobin.cli.opening import read_payload

    path = folder / name
    path.write_bytes(content)
    for made in ("index", "repaired"):
        shutil.rmtree(folder / made, ignore_errors=True)
    table = _table(read_payload, path)
    n = max(1, min(table.num_rows, 50))
    with Index.create(folder / "index", _HASHER) as index:
        index.add(_vectors(n), payload=table.slice(0, n))
        names = list(index.info()["columns"] or [])
        if not names:
            return
        index.add(_vectors(n), payload=table.slice(0, n))
        whole = index.get(index.ids)
        index.compact()
        assert _shown(whole) == _shown(index.get(index.ids))
        index.verify()
        for name in names:
            quoted = name.replace('"', '""')
            if name.isprintable() and name:
                index.search(_vectors(1), 1, where=f'"{quoted}" is not null')
    assert repair(folder / "index", folder / "repaired").problems == []
    with Index.open(folder / "repaired") as index:
        assert index.get(index.ids).schema == whole.schema
        assert _shown(whole) == _shown(index.get(index.ids))


def _shown(table: Any) -> list[str]:
    """All values as Arrow shows them: Python has no dates beyond the year 9999, and NaN is not equal to itself."""
    return [column.combine_chunks().to_string(window=100) for column in table.columns]


def _table(read: Callable[[Path, int], Any], path: Path) -> Any:
    """Read a payload of any number of rows."""
    try:
        return read(path, -1)
    except DataError as error:
        n = str(error).rpartition("got ")[2]
        if not n.isdecimal() or int(n) > 10**6:
            raise
        return read(path, int(n))


_JSON = ["null", "true", "1", "-2.5e300", '"a"', '"\\ud800"', "[]", "{}", "1e999", "NaN", str(2**64), '"2020-01-01"']


def json_lines() -> list[bytes]:
    """Payloads as JSON lines: flat, nested, with columns that come late."""
    lines = ['{"n": 1, "s": "a"}', '{"n": null, "t": ["x", "y"]}', '{"n": 2, "o": {"k": 1.5}}', ""]
    return ["\n".join(lines).encode(), b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2.5}\n', b'{"a": [[1], []]}\n{}\n']


def mutated_json(content: bytes, rng: Random) -> bytes:
    """Put values of every shape in the place of values, keys and lines."""
    lines = content.decode(errors="replace").split("\n")
    for _ in range(rng.randint(1, 3)):
        value = rng.choice(_JSON)
        for _ in range(rng.choice((0, 0, 1, 2, 31, 40, 300, 3000))):
            value = f"[{value}]" if rng.random() < 0.7 else f'{{"k": {value}}}'
        line = rng.choice((value, f'{{"n": {value}}}', f'{{"s": {value}, "n": 1}}', f'{{"n": {value}', '{"n": 1} {}'))
        lines[rng.randrange(len(lines)) : rng.randrange(len(lines) + 1)] = [line]
    return "\n".join(lines).encode(errors="surrogatepass")
