"""``autojacobin train`` and ``encode``: vectors in, a model out; a model and vectors in, codes out."""

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from autojacobin.cli import options
from autojacobin.cli.console import numbered, print_sentence, progress_bar, report_blocks, wrong
from autojacobin.cli.opening import STREAM, opened, split_part
from autojacobin.cli.options import write_settings
from autojacobin.cli.outputs import check_output, report_output, write_codes
from autojacobin.core.parallel import Progress
from autojacobin.errors import DataError
from autojacobin.hashers import Hasher, Method, find_command, load, methods
from autojacobin.hashers.parameters import check_parameters

# parameters that other options set
_RESERVED = {"n_bits": "--bits", "random_state": "--seed", "device": "--device", "progress": "--quiet"}
_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False}


def method_names() -> list[str]:
    """Names of the registered methods on the command line."""
    return [method.command for method in methods()]


_METHODS = ", ".join(method_names())


def train(
    context: typer.Context,
    vectors: Annotated[list[str], Argument(metavar="VECTORS", help="Files of vectors, PATH::PART, or -.")],
    model: Annotated[Path, Argument(metavar="MODEL", help="Model to write, a .safetensors file.")],
    method: Annotated[
        str, Option("--method", "-m", help=f"Method that learns the codes: {_METHODS}.", autocompletion=method_names)
    ] = "neighbour",
    bits: Annotated[int | None, Option("--bits", "-b", min=1, help="Bits of a code: 64, for sign the width.")] = None,
    parameters: Annotated[
        list[str] | None, Option("--set", "-s", metavar="NAME=VALUE", help="Parameter of the method.")
    ] = None,
    sample: Annotated[int | None, Option(min=1, help="Learn from this many rows, drawn from all files.")] = None,
    metric: options.MetricOption = "euclidean",
    all_rows: Annotated[bool, Option("--all", help="Learn from all rows, and not from 10,000 or so.")] = False,
    format: options.Format = None,
    seed: options.Seed = 0,
    device: options.OnDevice = "cpu",
    overwrite: options.Overwrite = False,
) -> None:
    """Learn from vectors how to turn them into binary codes, and write the model.

    The default method, neighbour, suits engines that compare bits. For an index of this library, binaryautoencoder is
    better. A method that compares settings on held-out vectors says what it chose; -m itq learns in a second. By
    default a method learns from 10,000 rows, drawn at random, or from as many as it needs.

    Example: autojacobin train base.npy model.safetensors --method itq --bits 32 --set n_iter=20

    Example: autojacobin train 'part-*.npy' model.safetensors --method okmeans --sample 1000 --seed 1
    """
    method = _method(method).command
    hasher = make_hasher(method, bits, parameters or [], seed, device)
    check_output(model, "MODEL", overwrite, inputs=vectors, endings=(".safetensors",))
    if sample is not None and all_rows:
        raise wrong("--all", "it takes all rows, and --sample some of them; leave out either")
    rows = None if all_rows or sample is not None else hasher.default_training_points()
    with progress_bar() as progress:
        start = time.perf_counter()
        source: AbstractContextManager[Any] = opened(vectors[0], format)
        if sample is not None or len(vectors) > 1:
            source = nullcontext(_sample(vectors, sample or rows, seed, format, progress))
        with source as matrix:
            shape = int(matrix.shape[0]), int(matrix.shape[1])
            if "progress" in hasher.get_params():
                hasher.set_params(progress=progress)
            else:
                progress(f"training {method}", 0, 0)
            if metric == "euclidean":  # which needs no numba
                hasher.fit(matrix, training_points=rows)
            else:
                from autojacobin.index.metric import Metric

                Metric.of(metric, matrix).fit(hasher, matrix, training_points=rows)
        seconds = time.perf_counter() - start
        hasher.save(model, overwrite=overwrite)
        used = {name: "none" if value is None else value for name, value in settable(hasher).items()}
        write_settings(context, model, set=used)
    learned_from = min(shape[0], rows or shape[0])
    chosen: dict[str, Any] = getattr(hasher, "chosen_", {}) if hasattr(hasher, "search_results_") else {}
    chosen = {name: value for name, value in chosen.items() if value == value}  # without NaN: not used
    facts: dict[str, Any] = {"model": model, "method": method, "bits": hasher.n_bits, "vectors": shape[0]}
    facts |= {"features": shape[1], "seed": seed, "learned_from": learned_from, "seconds": round(seconds, 3)}
    if chosen:
        facts |= {"trained_as": hasher.trained_as, "chosen": chosen}
    number = f"{shape[0]:,}" if learned_from == shape[0] else f"{learned_from:,} of {shape[0]:,}"
    learned = f"{method}, {hasher.n_bits} bits, from {number} vectors of {shape[1]:,} numbers in {seconds:.1f} s"
    settings = f" The result is {hasher.trained_as}." if chosen else ""
    if learned_from < shape[0]:
        settings += " Give --all to learn from all vectors."
    print_sentence(f"Wrote {model}: {learned}, seed {seed}.{settings}", facts)


def encode(
    context: typer.Context,
    model: options.ModelPath,
    vectors: Annotated[str, Argument(metavar="VECTORS", help="File of vectors, PATH::PART, or -.")],
    codes: Annotated[Path, Argument(metavar="CODES", help="File to write: .npz, .npy, .parquet, .csv, .jsonl, -.")],
    format: options.Format = None,
    bitorder: options.BitOrderOption = "little",
    device: options.OnDevice = "cpu",
    overwrite: options.Overwrite = False,
) -> None:
    """Turn vectors into binary codes with a model.

    The ending of CODES gives the format. Codes.load reads an .npz file; an .npy file holds the packed bytes. Other
    programs may expect these bytes with --bitorder big.

    Example: autojacobin encode model.safetensors base.npy codes.npz

    Example: autojacobin encode model.safetensors - - < base.npy
    """
    check_output(codes, "CODES", overwrite, inputs=[str(model), vectors])
    if bitorder == "big" and codes.suffix.lower() == ".npz":
        raise wrong("--bitorder", "an .npz file has the bit order of Codes.load; leave it out, or write .npy")
    hasher = load(model)
    _move_to(hasher, device)
    with progress_bar() as progress, opened(vectors, format) as matrix:
        start, blocks = time.perf_counter(), matrix.blocks()
        if hasher.metric_ != "euclidean":  # which needs no numba
            from autojacobin.index.metric import Metric

            metric = Metric.for_hasher(hasher)
            blocks = (metric.prepare(block, row) for row, block in numbered(blocks))
        made = hasher.encode(report_blocks(blocks, len(matrix), progress, "encoding"))
        seconds = time.perf_counter() - start
        write_codes(codes, made, bitorder)
    facts = {"codes": codes, "vectors": len(made), "bits": made.n_bits, "seconds": round(seconds, 3)}
    sentence = f"Wrote {codes}: {len(made):,} codes of {made.n_bits} bits in {seconds:.1f} s."
    report_output(context, codes, sentence, facts)


def _method(name: str) -> Method:
    """Find a method by its name on the command line; an unknown one is wrong use of ``--method``."""
    try:
        return find_command(name)
    except DataError as error:
        raise wrong("--method", str(error)) from None


def make_hasher(name: str, bits: int | None, given: list[str], seed: int, device: str) -> Hasher:
    """Make an unfitted hasher. Parameters that it does not accept are wrong use of ``--set``."""
    hasher = _method(name).make(bits, seed=seed)
    known = settable(hasher)
    for parameter, value in (parse_setting("--set", setting) for setting in given):
        if parameter in _RESERVED:
            raise wrong("--set", f"{parameter} has an option of its own, {_RESERVED[parameter]}")
        if parameter not in known:
            raise wrong("--set", f"{name} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}")
        hasher.set_params(**{parameter: value})
    _move_to(hasher, device)
    try:
        check_parameters(hasher, hasher._limits)
    except DataError as error:
        raise wrong("--set", str(error).partition("; ")[0]) from None
    return hasher


def settable(hasher: Hasher) -> dict[str, Any]:
    """Parameters that ``--set`` takes, with their values."""
    return {name: value for name, value in hasher.get_params(deep=False).items() if name not in _RESERVED}


def _move_to(hasher: Hasher, device: str) -> None:
    if "device" in hasher.get_params():
        hasher.set_params(device=device)
    elif device != "cpu":
        name = type(hasher).__name__
        raise wrong("--device", f"{name} computes on the CPU alone; leave it out")


def parse_setting(option: str, setting: str) -> tuple[str, Any]:
    """Read NAME=VALUE, where a value is a number, none, true, false or text."""
    name, _, text = (part.strip() for part in setting.partition("="))
    if not name or not text:
        raise wrong(option, f"expected name=value, got {setting!r}")
    if text.lower() in _WORDS:
        return name, _WORDS[text.lower()]
    for kind in (int, float) if text.isascii() and "_" not in text else ():
        try:
            return name, kind(text)
        except ValueError:
            continue
    return name, text


def _sample(names: list[str], most: int | None, seed: int, format: str | None, progress: Progress) -> Any:
    """Draw ``most`` rows of some files, or all if there are fewer or it is None."""
    from autojacobin.jobs.inputs import draw_sample, survey

    if format is not None or any(name == STREAM or split_part(name)[1] is not None for name in names):
        raise wrong("--sample", "rows are drawn from whole files; leave out -, ::PART and --format")
    n = survey(names).rows
    return draw_sample(names, n if most is None else min(most, n), random_state=seed, progress=progress)
