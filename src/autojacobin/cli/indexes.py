"""``autojacobin index``: make, change, check and repair indexes on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from typer import Argument, Option

from autojacobin.cli import opening, options
from autojacobin.cli.console import check_standard_output, print_sentence, progress_bar, wrong
from autojacobin.cli.outputs import check_new_folder, report_output
from autojacobin.core.counts import count_of, typed_number
from autojacobin.core.files import whole_folder
from autojacobin.hashers import load
from autojacobin.service.responses import as_json_value

if TYPE_CHECKING:
    from autojacobin.index.index import Index

app = typer.Typer(help="Make, change, check and repair indexes on disk.", no_args_is_help=True)

_NewIndex = Annotated[Path, Argument(metavar="INDEX", help="Folder to make; it must not exist, or be empty.")]
_IDS_HELP = "text with one per line, .npy, x.parquet::COLUMN, or -."
_Ids = Annotated[str | None, Option("--ids", metavar="FILE", help=f"An id for each vector: {_IDS_HELP}")]
_Listed = Annotated[str | None, Option("--ids", metavar="FILE", help=f"File of ids: {_IDS_HELP}")]
_Payload = Annotated[Path | None, Option(metavar="FILE", help="Columns to keep: .parquet, .csv, .jsonl, .arrow.")]
_IdKind = Annotated[
    Literal["integer", "string", "uuid"] | None,
    Option(metavar="KIND", help="Kind of new ids: integer, string or uuid; by default integer if all are numbers."),
]


@app.command()
def build(
    context: typer.Context,
    vectors: Annotated[
        list[str],
        Argument(
            metavar="[MODEL] VECTORS",
            help="Files of vectors, each a path, PATH::PART, or -. Before them a model that `autojacobin train` wrote, "
            "a .safetensors file; without it, a BinaryAutoencoder learns from the vectors.",
        ),
    ],
    index: _NewIndex,
    ids: _Ids = None,
    id_kind: _IdKind = None,
    payload: _Payload = None,
    keep_vectors: options.KeepVectors = True,
    partitions: options.Partitions = None,
    metric: Annotated[
        options.Metric | None, Option("--metric", metavar="NAME", help="How vectors are compared; a model knows it.")
    ] = None,
    format: options.Format = None,
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

    def create(folder: Path, files: list[Any], progress: Any) -> Index:
        number = typed_number(partitions or "")
        lists: Any = partitions if number is None else number
        if has_model:
            hasher = load(Path(vectors[0]))
        else:
            lists = "auto" if lists is None and keep_vectors else lists
            hasher = opening.learn_hasher(files, metric or "euclidean", lists, progress)
        measure = opening.metric_for(metric, files, hasher)
        hasher.__dict__["progress"] = progress  # of a training that an index with lists begins by itself
        return Index.create(folder, hasher, keep_vectors=keep_vectors, partitions=lists, metric=measure)

    _make(context, index, create, names, format, ids, id_kind, payload)


@app.command()
def create(
    context: typer.Context,
    index: _NewIndex,
    codes: Annotated[list[str] | None, Option(metavar="FILE", help="Packed codes, a row of bytes each.")] = None,
    bits: Annotated[int | None, Option("--bits", "-b", min=1, help="Bits of a code; by default all of a row.")] = None,
    bitorder: options.BitOrderOption = "little",
    ids: _Ids = None,
    id_kind: _IdKind = None,
    payload: _Payload = None,
    format: options.Format = None,
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

    def create(folder: Path, files: list[Any], _: Any) -> Index:
        n_bits = bits or opening.saved_bits(files[0]) or 8 * files[0].shape[1]
        return Index.create(folder, n_bits=n_bits, bitorder=bitorder)

    _make(context, index, create, codes or [], format, ids, id_kind, payload)


def _make(
    context: typer.Context,
    path: Path,
    create: Callable[[Path, list[Any], Any], Index],
    names: list[str],
    format: str | None,
    ids: str | None,
    id_kind: str | None,
    payload: Path | None,
) -> None:
    """Make an index of the rows of some files; ``create(folder, files, progress)`` makes the empty one."""
    opening.check_streams("VECTORS", *names, ids)
    check_new_folder(path)
    if ids is None and id_kind is not None:
        raise wrong("--id-kind", "it is the kind of the ids in --ids; give these too")
    given = None if ids is None else opening.read_ids(ids, id_kind)
    with (
        progress_bar() as progress,
        opening.all_opened(names, format) as files,
        whole_folder(path.absolute(), "free some space, or give another path") as folder,
        create(folder, files, progress) as made,
    ):
        if files:
            opening.add_files(made, files, opening.names_of(files) if ids is None else given, payload, progress)
        figures = made.info()
    code = f"{figures['bits']} bits each" + (f" by {figures['hasher']}" if figures["hasher"] != "OwnCodes" else "")
    sentence = f"Made {path}: {figures['vectors']:,} vectors, {code}, {figures['bytes']:,} bytes."
    report_output(context, path, sentence, {"index": path, **figures})


@app.command()
def add(
    index: options.IndexPath,
    vectors: Annotated[list[str], Argument(metavar="VECTORS", help="Files of vectors, PATH::PART, or -.")],
    ids: _Ids = None,
    payload: _Payload = None,
    upsert: Annotated[bool, Option("--upsert", help="Replace vectors whose id exists.")] = False,
    format: options.Format = None,
) -> None:
    """Add vectors to an index. Ids that exist are refused, unless --upsert is given. Either all are added or none.

    If `index create` made the index, give packed codes instead of vectors.

    Example: autojacobin index add my-index more.npy
    """
    opening.check_streams("VECTORS", *vectors, ids)
    with opening.open_index(index) as opened, progress_bar() as progress:
        kind = None if not len(opened) and opened.info()["ids"] == "integer" else str(opened.info()["ids"])
        given = None if ids is None else opening.read_ids(ids, kind)
        with opening.all_opened(vectors, format) as files:
            count = sum(map(len, files))
            chosen = opening.names_of(files) if ids is None and kind != "integer" else given
            if upsert and chosen is None:
                raise wrong("--upsert", "it replaces vectors by their ids; give --ids too")
            opening.add_files(opened, files, chosen, payload, progress, upsert=upsert)
        figures = opened.info()
    done = f"{'Wrote' if upsert else 'Added'} {count_of(count, 'vector')}"
    sentence = f"{done} to {index}, which now holds {figures['vectors']:,}."
    print_sentence(sentence, {"index": index, "added": count, **figures})


@app.command()
def remove(
    index: options.IndexPath,
    ids: Annotated[list[str] | None, Argument(metavar="ID", help="Ids to remove.")] = None,
    listed: _Listed = None,
) -> None:
    """Remove vectors from an index by their ids. If one id is unknown, none is removed.

    Example: autojacobin index remove my-index 3 14 15
    """
    with opening.open_index(index) as opened, progress_bar() as progress:
        progress("removing vectors", 0, 0)
        before = len(opened)
        opened.remove(_ids_in(opened, ids, listed))
        left = len(opened)
    sentence = f"Removed {count_of(before - left, 'vector')} from {index}, which now holds {left:,}."
    print_sentence(sentence, {"index": index, "removed": before - left, "vectors": left})


@app.command()
def get(
    index: options.IndexPath,
    ids: Annotated[list[str] | None, Argument(metavar="ID", help="Ids to look up.")] = None,
    listed: _Listed = None,
    columns: options.Columns = None,
) -> None:
    """Print the payload of vectors as JSON lines. If one id is unknown, nothing is printed.

    Example: autojacobin index get my-index 3 14 15
    """
    check_standard_output()
    with opening.open_index(index) as opened:
        wanted = _ids_in(opened, ids, listed)
        if columns is None and opened.info()["columns"] == []:  # None if they are damaged
            opened.codes(wanted)  # raises if one is unknown
            rows: list[dict[str, Any]] = [{} for _ in wanted]
        else:
            rows = opened.get(wanted, options.split_columns(columns)).to_pylist()
    for id, row in zip(wanted, rows, strict=True):
        shown = int(id) if isinstance(id, np.integer) else str(id)
        typer.echo(json.dumps({"id": shown, **as_json_value(row)}, ensure_ascii=False))


def _ids_in(index: Index, ids: list[str] | None, listed: str | None) -> Any:
    if bool(ids) == (listed is not None):
        raise wrong("ID", "give the ids either as arguments or by --ids FILE")
    kind = str(index.info()["ids"])
    return opening.read_ids(listed, kind) if listed is not None else opening.as_ids(ids or [], kind)


@app.command()
def compact(index: options.IndexPath) -> None:
    """Rewrite an index without the removed vectors, in as few segments as possible, which makes searches faster.

    Example: autojacobin index compact my-index
    """
    with opening.open_index(index) as opened, progress_bar() as progress:
        progress("compacting", 0, 0)
        before = opened.info()
        opened.compact()
        after = opened.info()
    sizes = f"{before['segments']} → {after['segments']} segments, {before['bytes']:,} → {after['bytes']:,} bytes"
    print_sentence(f"Compacted {index}: {sizes}.", {"index": index, **after})


@app.command()
def verify(path: options.IndexPath) -> None:
    """Read every byte of an index and compare it with its checksums. Names the first damaged file.

    Example: autojacobin index verify my-index
    """
    with opening.open_index(path) as index, progress_bar() as progress:
        progress("reading all files", 0, 0)
        index.verify()
        figures = index.info()
    sizes = f"{figures['vectors']:,} vectors, {figures['files']} files, {figures['bytes']:,} bytes"
    print_sentence(f"{path} is intact: {sizes}.", {"index": path, "intact": True, **figures})


@app.command()
def repair(
    source: Annotated[Path, Argument(metavar="SOURCE", help="Folder of the damaged index; it is not changed.")],
    target: Annotated[Path, Argument(metavar="TARGET", help="Folder to make; it must not exist, or be empty.")],
    model: Annotated[Path | None, Option(metavar="MODEL", help="Model of the index, if its copy is damaged.")] = None,
) -> None:
    """Save the undamaged part of an index to a new one, and report what was lost.

    Example: autojacobin index repair my-index repaired
    """
    from autojacobin.index.repair import repair as repair_index

    with progress_bar() as progress:
        progress("reading what is undamaged", 0, 0)
        report = repair_index(source, target, None if model is None else load(model))
    sentence = f"Saved {report.saved:,} vectors of {source} to {target}; {report.lost:,} were lost."
    if report.renumbered:
        sentence += f" {report.renumbered:,} lost their ids and got new ones."
    if report.revived:
        sentence += f" {report.revived:,} that were removed may be back."
    print_sentence("\n".join([*report.problems, sentence]), {"target": target, **asdict(report)})
