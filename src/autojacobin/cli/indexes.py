"""``autojacobin index``: make, change, check and repair indexes on disk."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from autojacobin.cli.console import print_facts, print_sentence, progress_bar, wrong
from autojacobin.cli.opening import (
    add_files,
    all_opened,
    as_ids,
    check_streams,
    learn_hasher,
    load_model,
    metric_for,
    names_of,
    open_index,
    read_ids,
    read_payload,
    saved_bits,
)
from autojacobin.cli.options import (
    BitOrderOption,
    Columns,
    Format,
    IndexPath,
    KeepVectors,
    Metric,
    Partitions,
    settings_path,
    split_columns,
)
from autojacobin.cli.outputs import report_output
from autojacobin.core.counts import count_of
from autojacobin.core.files import whole_folder
from autojacobin.errors import StorageError

if TYPE_CHECKING:
    from autojacobin.datasets import Vectors
    from autojacobin.index.index import Index

app = typer.Typer(help="Make, change, check and repair indexes on disk.", no_args_is_help=True)

_Vectors = Annotated[
    list[str], typer.Argument(metavar="VECTORS", help="Files of vectors, each a path, PATH::PART, or -.")
]
_Ids = Annotated[
    str | None,
    typer.Option(
        "--ids",
        metavar="FILE",
        help="An id for each vector, whole numbers or names: text with one per line, .npy, x.parquet::COLUMN, or -.",
    ),
]
_Payload = Annotated[
    Path | None,
    typer.Option(
        "--payload", metavar="FILE", help="Columns to keep with the vectors: .parquet, .csv, .jsonl or .arrow."
    ),
]
_Listed = Annotated[
    str | None,
    typer.Option("--ids", metavar="FILE", help="File of ids: text with one per line, .npy, x.parquet::COLUMN, or -."),
]


_IdKindOption = Annotated[
    Literal["integer", "string", "uuid"] | None,
    typer.Option(
        "--id-kind",
        metavar="KIND",
        help="Kind of the ids of a new index: integer, string or uuid. By default integer if all ids are whole "
        "numbers, and otherwise string.",
    ),
]


@app.command()
def build(
    context: typer.Context,
    vectors: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] VECTORS",
            help="Files of vectors, each a path, PATH::PART, or -. Before them a model that `autojacobin train` wrote, "
            "a .safetensors file; without it, a BinaryAutoencoder learns from the vectors.",
        ),
    ],
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder to make; it must not exist, or be empty.")],
    ids: _Ids = None,
    id_kind: _IdKindOption = None,
    payload: _Payload = None,
    keep_vectors: KeepVectors = True,
    partitions: Partitions = None,
    metric: Annotated[
        Metric | None,
        typer.Option("--metric", metavar="NAME", help="How vectors are compared; by default as the model was trained."),
    ] = None,
    format: Format = None,
) -> None:
    """Make an index of vectors. It is written atomically.

    Without a model, the bits are chosen for the vectors, and inverted lists are made where they pay.

    Example: autojacobin index build base.npy my-index

    Example: autojacobin index build model.safetensors base.npy my-index --ids names.txt --payload facts.csv
    """
    from autojacobin.index.index import Index

    has_model = vectors[0].endswith(".safetensors")
    names = vectors[1:] if has_model else vectors
    if not names:
        raise wrong("VECTORS", "there are none; give files of vectors after the model")
    check_streams("VECTORS", *names, ids)
    _check_new_folder(index)
    hasher = load_model(Path(vectors[0])) if has_model else None
    lists = int(partitions) if partitions is not None and partitions.isdecimal() else partitions
    given = _read_new_ids(ids, id_kind)
    with (
        progress_bar() as progress,
        all_opened(names, format) as files,
        whole_folder(index.absolute(), "free some space, or give another path") as folder,
    ):
        if hasher is None:
            lists = "auto" if lists is None and keep_vectors else lists
            hasher = learn_hasher(files, metric or "euclidean", lists, progress)
        measure = metric_for(metric, files, hasher)
        hasher.__dict__["progress"] = progress  # of a training that an index with lists begins by itself
        with Index.create(folder, hasher, keep_vectors=keep_vectors, partitions=lists, metric=measure) as made:
            chosen = names_of(files) if ids is None else given
            add_files(made, files, chosen, _payload_of(files, payload), progress)
            figures = made.info()
    code = f"{figures['bits']} bits each by {figures['hasher']}"
    sentence = f"Made {index}: {figures['vectors']:,} vectors, {code}, {figures['bytes']:,} bytes."
    report_output(context, index, sentence, {"index": index, **figures})


@app.command()
def create(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder to make; it must not exist, or be empty.")],
    codes: Annotated[
        list[str] | None,
        typer.Option("--codes", metavar="FILE", help="Packed codes, a row of bytes each; may be given several times."),
    ] = None,
    bits: Annotated[
        int | None, typer.Option("--bits", "-b", min=1, help="Length of a code; by default 8 times the bytes of a row.")
    ] = None,
    bitorder: BitOrderOption = "little",
    ids: _Ids = None,
    id_kind: _IdKindOption = None,
    payload: _Payload = None,
    format: Format = None,
) -> None:
    """Make an index of codes that another program made, without a model.

    `index add` adds more codes, and `search` takes codes as queries. Without --codes the index is empty.

    Example: autojacobin index create codes-index --codes codes.npy --bitorder big

    Example: autojacobin index create codes-index --bits 256
    """
    from autojacobin.index.index import Index

    if codes is None and bits is None:
        raise wrong("--bits", "an empty index needs the length of its codes; give --bits")
    for name, given in (("--ids", ids), ("--payload", payload)):
        if codes is None and given is not None:
            raise wrong(name, "it belongs to codes; give --codes too")
    check_streams("VECTORS", *(codes or []), ids)
    _check_new_folder(index)
    chosen = _read_new_ids(ids, id_kind)
    with (
        progress_bar() as progress,
        all_opened(codes or [], format) as files,
        whole_folder(index.absolute(), "free some space, or give another path") as folder,
        Index.create(folder, n_bits=bits or saved_bits(files[0]) or 8 * files[0].shape[1], bitorder=bitorder) as made,
    ):
        if files:
            add_files(made, files, chosen, _payload_of(files, payload), progress, "adding codes")
        figures = made.info()
    sentence = f"Made {index}: {figures['vectors']:,} codes of {figures['bits']} bits, {figures['bytes']:,} bytes."
    report_output(context, index, sentence, {"index": index, **figures})


def _payload_of(files: list[Vectors], name: Path | None) -> Any:
    """Read the payload of the rows of some files, if there is one."""
    return None if name is None else read_payload(name, sum(map(len, files)))


def _read_new_ids(ids: str | None, kind: str | None, known: str | None = None) -> Any:
    """Read ids for vectors that are added; ``known`` is the kind that the index has already."""
    if ids is None:
        if kind is not None:
            raise wrong("--id-kind", "it is the kind of the ids in --ids; give these too")
        return None
    if kind is not None and known not in (None, kind):
        raise wrong("--id-kind", f"the ids of this index are of the kind {known}")
    return read_ids(ids, known if kind is None else kind)


@app.command()
def add(
    index: IndexPath,
    vectors: _Vectors,
    ids: _Ids = None,
    id_kind: _IdKindOption = None,
    payload: _Payload = None,
    upsert: Annotated[
        bool, typer.Option("--upsert", help="Replace vectors whose id exists; columns that are not given stay.")
    ] = False,
    format: Format = None,
) -> None:
    """Add vectors to an index. Ids that exist are refused, unless --upsert is given. Either all are added or none.

    If `index create` made the index, give packed codes instead of vectors.

    Example: autojacobin index add my-index more.npy
    """
    check_streams("VECTORS", *vectors, ids)
    with open_index(index) as opened, progress_bar() as progress:
        kind = None if not len(opened) and opened.info()["ids"] == "integer" else str(opened.info()["ids"])
        given = _read_new_ids(ids, id_kind, kind)
        with all_opened(vectors, format) as files:
            count = sum(map(len, files))
            chosen = names_of(files) if ids is None and kind != "integer" else given
            if upsert and chosen is None:
                raise wrong("--upsert", "it replaces vectors by their ids; give --ids too")
            add_files(opened, files, chosen, _payload_of(files, payload), progress, upsert=upsert)
        figures = opened.info()
    done = f"{'Wrote' if upsert else 'Added'} {count_of(count, 'vector')}"
    sentence = f"{done} to {index}, which now holds {figures['vectors']:,}."
    print_sentence(sentence, {"index": index, "added": count, **figures})


@app.command()
def remove(
    index: IndexPath,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids to remove.")] = None,
    listed: _Listed = None,
) -> None:
    """Remove vectors from an index by their ids. If one id is unknown, none is removed.

    Example: autojacobin index remove my-index 3 14 15
    """
    _check_either(ids, listed)
    with open_index(index) as opened, progress_bar() as progress:
        progress("removing vectors", 0, 0)
        before = len(opened)
        opened.remove(_ids_in(opened, ids, listed))
        left = len(opened)
    sentence = f"Removed {count_of(before - left, 'vector')} from {index}, which now holds {left:,}."
    facts = {"index": index, "removed": before - left, "vectors": left}
    print_sentence(sentence, facts)


@app.command()
def get(
    index: IndexPath,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids to look up.")] = None,
    listed: _Listed = None,
    columns: Columns = None,
) -> None:
    """Print the payload of vectors as JSON lines. If one id is unknown, nothing is printed.

    Example: autojacobin index get my-index 3 14 15
    """
    from autojacobin.service.responses import as_json_value

    _check_either(ids, listed)
    with open_index(index) as opened:
        wanted = _ids_in(opened, ids, listed)
        if columns is None and not opened.info()["columns"]:
            opened.codes(wanted)  # raises if one is unknown
            rows: list[dict[str, Any]] = [{} for _ in wanted]
        else:
            rows = opened.get(wanted, split_columns(columns)).to_pylist()
    for id, row in zip(wanted, rows, strict=True):
        shown = int(id) if isinstance(id, np.integer) else str(id)
        typer.echo(json.dumps({"id": shown, **as_json_value(row)}, ensure_ascii=False))


def _check_either(ids: list[str] | None, listed: str | None) -> None:
    if bool(ids) == (listed is not None):
        raise wrong("ID", "give the ids either as arguments or by --ids FILE")


def _ids_in(index: Index, ids: list[str] | None, listed: str | None) -> Any:
    kind = str(index.info()["ids"])
    return read_ids(listed, kind) if listed is not None else as_ids(ids or [], kind)


@app.command()
def compact(index: IndexPath) -> None:
    """Rewrite an index without the removed vectors, in as few segments as possible, which makes searches faster.

    Example: autojacobin index compact my-index
    """
    with open_index(index) as opened, progress_bar() as progress:
        progress("compacting", 0, 0)
        before = opened.info()
        opened.compact()
        after = opened.info()
    sizes = f"{before['segments']} → {after['segments']} segments, {before['bytes']:,} → {after['bytes']:,} bytes"
    print_sentence(f"Compacted {index}: {sizes}.", {"index": index, **after})


@app.command()
def verify(path: IndexPath) -> None:
    """Read every byte of an index and compare it with its checksums. Names the first damaged file.

    Example: autojacobin index verify my-index
    """
    with open_index(path) as index, progress_bar() as progress:
        progress("reading all files", 0, 0)
        index.verify()
        figures = index.info()
    sizes = f"{figures['vectors']:,} vectors, {figures['files']} files, {figures['bytes']:,} bytes"
    facts = {"index": path, "intact": True, **figures}
    print_sentence(f"{path} is intact: {sizes}.", facts)


@app.command()
def repair(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder of the damaged index; it is not changed.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to make; it must not exist, or be empty.")],
    model: Annotated[
        Path | None, typer.Option("--model", metavar="MODEL", help="Model of the index, if its own copy is damaged.")
    ] = None,
) -> None:
    """Save the undamaged part of an index to a new one, and report what was lost.

    Example: autojacobin index repair my-index repaired
    """
    from autojacobin.index.repair import repair as repair_index

    with progress_bar() as progress:
        progress("reading what is undamaged", 0, 0)
        report = repair_index(source, target, None if model is None else load_model(model))
    sentence = f"Saved {report.saved:,} vectors of {source} to {target}; {report.lost:,} were lost."
    if report.renumbered:
        sentence += f" {report.renumbered:,} lost their ids and got new ones."
    if report.revived:
        sentence += f" {report.revived:,} that were removed may be back."
    print_sentence("\n".join([*report.problems, sentence]), {"target": target, **asdict(report)})


@app.command()
def info(path: IndexPath) -> None:
    """Print the figures of an index: vectors, bits, kind of ids, columns, lists, segments, bytes.

    Example: autojacobin index info my-index
    """
    with open_index(path) as index:
        print_facts(index.info())


def _check_new_folder(path: Path) -> None:
    target = path.absolute()
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        what = "a folder with something in it" if target.is_dir() else "a file"
        raise StorageError(f"cannot make {path}: it is {what}, expected a new path or an empty folder; give another")
    if not target.parent.is_dir():
        raise StorageError(f"cannot make {path}: the folder {path.parent} does not exist; make it first")
    if settings_path(path).exists():
        raise StorageError(
            f"{settings_path(path)}, where the settings of the run go, exists already; give another path, or remove it"
        )
