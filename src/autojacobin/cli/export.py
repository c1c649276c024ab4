"""``autojacobin export``: write codes to other search engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from typer import Argument, Option

from autojacobin.cli.console import print_sentence, progress_bar, stoppable, wrong
from autojacobin.cli.options import BitOrderOption, Overwrite
from autojacobin.cli.outputs import check_output
from autojacobin.codes import Codes
from autojacobin.core.files import atomic_writer
from autojacobin.errors import DataError, StorageError
from autojacobin.hashers import OwnCodes

if TYPE_CHECKING:
    from autojacobin.index.index import Index

app = typer.Typer(help="Write codes to FAISS, PostgreSQL, Milvus, LanceDB or SQLite.", no_args_is_help=True)

_Source = Annotated[Path, Argument(metavar="SOURCE", help="Folder of an index, or a file of codes.")]
_Vectors = Annotated[bool, Option("--vectors/--no-vectors", help="Write the vectors too, if the index has them.")]
_DSN_HELP = "Server, such as postgresql://user@host/database; PGPASSWORD or ~/.pgpass may hold the password."


@app.command()
def faiss(
    source: _Source,
    destination: Annotated[Path, Argument(metavar="FILE", help="File to write.")],
    kind: Annotated[
        Literal["flat", "ivf", "hnsw", "hasher"],
        Option(help="flat is exact, ivf and hnsw are not; hasher also encodes."),
    ] = "flat",
    bitorder: BitOrderOption = "little",
    overwrite: Overwrite = False,
) -> None:
    """Write a file that FAISS can read and search without this library.

    FAISS takes integers as ids. If those of the index are names, they are written to FILE.names.npy, in their order.

    Example: autojacobin export faiss my-index codes.faiss
    """
    from autojacobin.engines.faiss import hasher_to_faiss, to_faiss, write_faiss

    check_output(destination, "FILE", overwrite, inputs=[str(source)], endings=None)
    with _open(source) as origin, progress_bar() as progress:
        if kind == "hasher":
            if isinstance(origin.hasher, OwnCodes):
                raise DataError(f"{source} holds codes and no hasher, expected an index; give its folder")
            if bitorder == "big":
                raise wrong("--bitorder", "a hasher of FAISS has the order little; leave it out")
            made = hasher_to_faiss(origin.hasher, origin)
        else:
            made = to_faiss(origin, kind, bitorder=bitorder, progress=progress)
        if origin.info()["ids"] != "integer":
            beside = Path(f"{destination}.names.npy")
            check_output(beside, "FILE", overwrite, endings=None)
            with atomic_writer(beside) as file:
                np.save(file, np.array([str(name) for name in origin.ids], dtype=np.str_))
        write_faiss(made, destination)
        _report(str(destination), origin, keeps=False)


@app.command()
def pgvector(
    source: _Source,
    dsn: Annotated[str, Argument(metavar="DSN", envvar="AUTOJACOBIN_DSN", show_envvar=True, help=_DSN_HELP)],
    table: Annotated[str, Option(help="Table to write to; made if it does not exist.")],
    vectors: _Vectors = True,
) -> None:
    """Write codes to a table of PostgreSQL. Existing ids are replaced.

    Example: autojacobin export pgvector my-index postgresql://localhost/shop --table items
    """
    from autojacobin.engines.pgvector import PgVector

    _export(source, partial(PgVector, dsn, table), vectors, f"the table {table}")


@app.command()
def milvus(
    source: _Source,
    uri: Annotated[str, Argument(metavar="URI", help="A file that ends in .db, or the address of a server.")],
    collection: Annotated[str, Option(help="Collection to write to; made if it does not exist.")],
    vectors: _Vectors = True,
    bitorder: BitOrderOption = "little",
) -> None:
    """Write codes to a collection of Milvus. Existing ids are replaced. MILVUS_TOKEN is the token of a server.

    Example: autojacobin export milvus my-index codes.db --collection items
    """
    from autojacobin.engines.milvus import Milvus

    made = partial(Milvus, uri, collection, token=os.environ.get("MILVUS_TOKEN"), bitorder=bitorder)
    _export(source, made, vectors, f"the collection {collection}", takes_names=False)


@app.command()
def lancedb(
    source: _Source,
    uri: Annotated[str, Argument(metavar="URI", help="Folder of the database, or its address in a store.")],
    table: Annotated[str, Option(help="Table to write to; made if it does not exist.")],
    vectors: _Vectors = True,
    bitorder: BitOrderOption = "little",
) -> None:
    """Write codes to a table of LanceDB. Existing ids are replaced.

    Example: autojacobin export lancedb my-index my-lance --table items
    """
    from autojacobin.engines.lancedb import LanceDB

    _export(source, partial(LanceDB, uri, table, bitorder=bitorder), vectors, f"the table {table}")


@app.command()
def sqlite(
    source: _Source,
    database: Annotated[Path, Argument(metavar="FILE", help="SQLite database; made if it does not exist.")],
    table: Annotated[str, Option(help="Table to write to; made if it does not exist.")],
    vectors: _Vectors = True,
    bitorder: BitOrderOption = "little",
) -> None:
    """Write codes to a table of SQLite that sqlite-vec searches. Existing ids are replaced.

    Example: autojacobin export sqlite my-index my.db --table items
    """
    from autojacobin.engines.sqlite import SQLite

    _export(source, partial(SQLite, database, table, bitorder=bitorder), vectors, f"the table {table}")


def _export(
    source: Path, open_engine: Callable[..., Any], vectors: bool, destination: str, takes_names: bool = True
) -> None:
    """Write everything to an engine, and report it."""
    from autojacobin.index.names import from_names

    with _open(source) as origin, progress_bar() as progress:
        figures = origin.info()
        keeps = vectors and bool(figures["vectors_kept"])
        kind, options = figures["ids"], dict[str, Any](n_features=int(origin.hasher.n_features_in_) if keeps else None)
        if kind != "integer":
            if not takes_names:
                raise DataError(
                    f"Milvus takes integers as ids here, but those of {source} are names; export to PostgreSQL, "
                    "LanceDB or SQLite, or build an index with integers as ids"
                )
            options["id_kind"] = "string"
        kept, done = "the codes written so far stay, and the same command writes all of them again", 0
        with open_engine(n_bits=figures["bits"], **options) as engine, stoppable(kept):
            for part in origin.parts():
                progress("writing codes", done, len(origin))
                ids = part.ids if part.names is None else [str(name) for name in from_names(part.names, kind)]
                engine.write(part.codes, ids, part.vectors if keeps else None)
                done += len(part.codes)
        _report(destination, origin, keeps)


@contextmanager
def _open(source: Path) -> Iterator[Index]:
    from autojacobin.index.index import Index

    if source.is_dir():
        with Index.open(source) as index:
            yield index
    elif source.exists():
        yield Index.from_codes(Codes.load(source))
    else:
        raise StorageError(
            f"cannot read {source}: it does not exist; expected the folder of an index or a file of codes, which "
            "`autojacobin index build` and `autojacobin encode` make"
        )


def _report(destination: str, origin: Index, keeps: bool) -> None:
    best = origin.hasher.distances[0]
    facts = {"destination": destination, "codes": len(origin), "bits": int(origin.hasher.n_bits), "vectors": keeps}
    sentence = f"Wrote {facts['codes']:,} codes of {facts['bits']} bits{' with their vectors' if keeps else ''} to "
    sentence += f"{destination}."
    if best not in ("hamming", "asymmetric"):
        sentence += (
            f" They rank best by the distance {best}, but engines compare codes by their Hamming distance, which "
            "finds fewer neighbours; re-rank by the vectors, or train with --method autojacobin."
        )
    print_sentence(sentence, {**facts, "best_distance": best})
