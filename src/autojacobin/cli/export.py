"""``autojacobin export``: write codes to other search engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autojacobin.cli.console import print_sentence, progress_bar
from autojacobin.cli.failures import stoppable
from autojacobin.cli.files import check_output
from autojacobin.cli.options import AsJson, BitOrder, BitOrderOption, Debug, Overwrite, Quiet
from autojacobin.codes import Codes
from autojacobin.core.parallel import Progress
from autojacobin.errors import DataError, StorageError

if TYPE_CHECKING:
    from autojacobin.engines import Engine
    from autojacobin.index.index import Index

app = typer.Typer(help="Write codes to FAISS, PostgreSQL, Milvus, LanceDB or SQLite.", no_args_is_help=True)

_ROWS_PER_BLOCK = 2**16
_Source = Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder of an index, or a file of codes.")]
_Vectors = Annotated[bool, typer.Option("--vectors/--no-vectors", help="Write the vectors too, if the index has them.")]
_DSN_HELP = "Server, such as postgresql://user@host/database; PGPASSWORD or ~/.pgpass may hold the password."


class Kind(str, Enum):
    """Kind of index for FAISS."""

    flat = "flat"
    ivf = "ivf"
    hnsw = "hnsw"
    hasher = "hasher"


class BinaryIndex(str, Enum):
    """Kind of index for Milvus."""

    flat = "BIN_FLAT"
    ivf = "BIN_IVF_FLAT"


@app.command()
def faiss(
    source: _Source,
    destination: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    kind: Annotated[
        Kind, typer.Option(help="flat is exact; ivf and hnsw are faster and may miss some; hasher also encodes.")
    ] = Kind.flat,
    bitorder: BitOrderOption = BitOrder.little,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Write a file that FAISS can read and search without this library.

    Example: autojacobin export faiss my-index codes.faiss
    """
    from autojacobin.engines.faiss import hasher_to_faiss, to_faiss, write_faiss
    from autojacobin.index.index import Index

    check_output(destination, "FILE", overwrite, inputs=[str(source)], endings=None, settings=False)
    with _open(source) as origin, progress_bar(quiet=quiet or as_json) as progress:
        if kind is Kind.hasher:
            if not isinstance(origin, Index):
                raise DataError(f"{source} holds codes and no hasher, expected an index; give its folder")
            if bitorder is BitOrder.big:
                raise typer.BadParameter(
                    "a hasher of FAISS has the order little; leave it out", param_hint="'--bitorder'"
                )
            made = hasher_to_faiss(origin.hasher, origin)
        else:
            made = to_faiss(origin, kind.value, bitorder=bitorder.value, progress=progress)
        write_faiss(made, destination)
        figures = {"codes": len(origin), "bits": _n_bits(origin), "vectors": False, **_ranking(origin)}
    _report({"destination": str(destination), **figures}, quiet, as_json)


@app.command()
def pgvector(
    source: _Source,
    dsn: Annotated[str, typer.Argument(metavar="DSN", envvar="AUTOJACOBIN_DSN", show_envvar=True, help=_DSN_HELP)],
    table: Annotated[str, typer.Option(help="Table to write to; made if it does not exist.")],
    vectors: _Vectors = True,
    half: Annotated[bool, typer.Option("--half", help="Keep the vectors in half precision.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Do not use the extension pgvector.")] = False,
    hnsw: Annotated[bool, typer.Option("--hnsw", help="Then make an index for approximate search.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Write codes to a table of PostgreSQL. Existing ids are replaced.

    Example: autojacobin export pgvector my-index postgresql://localhost/shop --table items
    """
    from autojacobin.engines.pgvector import PgVector

    with _open(source) as origin, progress_bar(quiet=quiet or as_json) as progress:
        width = _n_features(origin, vectors)
        with PgVector(dsn, table, _n_bits(origin), width, "halfvec" if half else "vector", plain) as engine:
            figures = _write(origin, engine, progress)
            if hnsw:
                progress("making the index", 0, 0)
                engine.create_index()
    _report({"destination": f"the table {table}", **figures}, quiet, as_json)


@app.command()
def milvus(
    source: _Source,
    uri: Annotated[str, typer.Argument(metavar="URI", help="A file that ends in .db, or the address of a server.")],
    collection: Annotated[str, typer.Option(help="Collection to write to; made if it does not exist.")],
    vectors: _Vectors = True,
    index: Annotated[
        BinaryIndex | None,
        typer.Option(
            metavar="KIND",
            help="Kind of index, BIN_FLAT or BIN_IVF_FLAT; BIN_FLAT for a new collection, otherwise what it has.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN", envvar="MILVUS_TOKEN", show_envvar=True, help="Token of the server, such as user:password."
        ),
    ] = None,
    bitorder: BitOrderOption = BitOrder.little,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Write codes to a collection of Milvus. Existing ids are replaced.

    Example: autojacobin export milvus my-index codes.db --collection items
    """
    from autojacobin.engines.milvus import Milvus

    with _open(source) as origin, progress_bar(quiet=quiet or as_json) as progress:
        width = _n_features(origin, vectors)
        with Milvus(
            uri,
            collection,
            _n_bits(origin),
            width,
            None if index is None else index.value,
            token,
            bitorder=bitorder.value,
        ) as engine:
            figures = _write(origin, engine, progress)
    _report({"destination": f"the collection {collection}", **figures}, quiet, as_json)


@app.command()
def lancedb(
    source: _Source,
    uri: Annotated[str, typer.Argument(metavar="URI", help="Folder of the database, or its address in a store.")],
    table: Annotated[str, typer.Option(help="Table to write to; made if it does not exist.")],
    vectors: _Vectors = True,
    bitorder: BitOrderOption = BitOrder.little,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Write codes to a table of LanceDB. Existing ids are replaced.

    Example: autojacobin export lancedb my-index my-lance --table items
    """
    from autojacobin.engines.lancedb import LanceDB

    with (
        _open(source) as origin,
        progress_bar(quiet=quiet or as_json) as progress,
        LanceDB(uri, table, _n_bits(origin), _n_features(origin, vectors), bitorder=bitorder.value) as engine,
    ):
        figures = _write(origin, engine, progress)
    _report({"destination": f"the table {table}", **figures}, quiet, as_json)


@app.command()
def sqlite(
    source: _Source,
    database: Annotated[Path, typer.Argument(metavar="FILE", help="SQLite database; made if it does not exist.")],
    table: Annotated[str, typer.Option(help="Table to write to; made if it does not exist.")],
    vectors: _Vectors = True,
    bitorder: BitOrderOption = BitOrder.little,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Write codes to a table of SQLite that sqlite-vec searches. Existing ids are replaced.

    Example: autojacobin export sqlite my-index my.db --table items
    """
    from autojacobin.engines.sqlite import SQLite

    with (
        _open(source) as origin,
        progress_bar(quiet=quiet or as_json) as progress,
        SQLite(database, table, _n_bits(origin), _n_features(origin, vectors), bitorder.value) as engine,
    ):
        figures = _write(origin, engine, progress)
    _report({"destination": f"the table {table}", **figures}, quiet, as_json)


@contextmanager
def _open(source: Path) -> Iterator[Index | Codes]:
    from autojacobin.engines.contract import check_integer_ids
    from autojacobin.index.index import Index

    if source.is_dir():
        with Index.open(source) as index:
            check_integer_ids(index)
            yield index
    elif source.exists():
        yield Codes.load(source)
    else:
        raise StorageError(
            f"cannot read {source}: it does not exist; expected the folder of an index or a file of codes, which "
            "`autojacobin index build` and `autojacobin encode` make"
        )


def _n_bits(origin: Index | Codes) -> int:
    return int(origin.hasher.n_bits) if hasattr(origin, "hasher") else origin.n_bits


def _n_features(origin: Index | Codes, wanted: bool) -> int | None:
    """Width of the vectors to write, as the index keeps them; None if no vectors are written."""
    if not wanted or isinstance(origin, Codes) or not origin.info()["vectors_kept"]:
        return None
    return int(origin.hasher.n_features_in_)


def _write(origin: Index | Codes, engine: Engine, progress: Progress) -> dict[str, Any]:
    done, total = 0, len(origin)
    progress("writing codes", done, total)
    with stoppable("the codes written so far stay, and the same command writes all of them again"):
        for ids, codes, vectors in _blocks(origin):
            engine.write(codes, ids, vectors if engine.n_features is not None else None)
            done += len(codes)
            progress("writing codes", done, total)
    return {"codes": done, "bits": engine.n_bits, "vectors": engine.n_features is not None, **_ranking(origin)}


def _ranking(origin: Index | Codes) -> dict[str, Any]:
    """Name the distance by which the codes rank best, if their hasher is known."""
    return {} if isinstance(origin, Codes) else {"best_distance": origin.hasher.distances[0]}


def _blocks(origin: Index | Codes) -> Iterator[tuple[Any, Codes, Any]]:
    if hasattr(origin, "parts"):
        yield from ((part.ids, part.codes, part.vectors) for part in origin.parts())
        return
    for start in range(0, len(origin), _ROWS_PER_BLOCK):
        block = origin[start : start + _ROWS_PER_BLOCK]
        yield range(start, start + len(block)), block, None


def _report(facts: dict[str, Any], quiet: bool, as_json: bool) -> None:
    kept = " with their vectors" if facts["vectors"] else ""
    sentence = f"Wrote {facts['codes']:,} codes of {facts['bits']} bits{kept} to {facts['destination']}."
    if facts.get("best_distance", "hamming") not in ("hamming", "asymmetric"):
        sentence += (
            f" They rank best by the distance {facts['best_distance']}, but engines compare codes by their Hamming "
            "distance, which finds fewer neighbours; re-rank by the vectors, or train with --method autojacobin."
        )
    print_sentence(sentence, facts, quiet=quiet, as_json=as_json)
