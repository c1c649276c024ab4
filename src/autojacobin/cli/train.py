"""``autojacobin train``: vectors in, a model out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from autojacobin.cli._inputs import STREAM, opened, split_part
from autojacobin.cli._methods import make_hasher, method_names, settable
from autojacobin.cli._options import AsJson, Config, Debug, Device, Format, OnDevice, Quiet, Seed, Threads
from autojacobin.cli._outputs import check_output
from autojacobin.cli._progress import Tell, progress_bar
from autojacobin.cli._report import print_sentence
from autojacobin.cli._settings import write_settings

__all__ = ["train"]

_METHODS = ", ".join(method_names())


def train(
    context: typer.Context,
    vectors: Annotated[
        list[str],
        typer.Argument(
            metavar="VECTORS", help="File of vectors, PATH::PART, or -; with --sample several, or patterns."
        ),
    ],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model to write, a .safetensors file.")],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-m",
            metavar="METHOD",
            help=f"What learns the codes: {_METHODS}.",
            autocompletion=method_names,
        ),
    ] = "autojacobin",
    bits: Annotated[int, typer.Option("--bits", "-b", min=1, help="Length of a code.")] = 64,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="Parameter of the method; may be given several times."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Learn from so many rows, drawn evenly over all files.")
    ] = None,
    format: Format = None,
    seed: Seed = 0,
    device: OnDevice = Device.cpu,
    _threads: Threads = None,
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Learn from vectors how to turn them into binary codes, and write the model.

    The default method, autojacobin, chooses its own settings by trials on a held-out part of the vectors, which takes
    about 2.4 times as long as one training. For the settings of the paper give -m autojacobin-published. The fastest
    to learn are itq and lsh.

    Example: autojacobin train base.npy model.safetensors --method itq --bits 32 --set n_iter=20

    Example: autojacobin train 'part-*.npy' model.safetensors --method okmeans --sample 1000 --seed 1
    """
    from_file = (context.default_map or {}).get("parameters", [])  # which those given here join, and do not replace
    hasher = make_hasher(method, bits, [*from_file, *(parameters or [])], seed, device.value)
    check_output(model, "MODEL", inputs=vectors, endings=(".safetensors",))
    if sample is None and len(vectors) > 1:
        raise typer.BadParameter(f"got {len(vectors)} files to draw from; give --sample N", param_hint="'VECTORS'")
    with progress_bar(quiet=quiet or as_json) as tell:
        start = time.perf_counter()
        if sample is None:
            with opened(vectors[0], format) as matrix:
                shape = _fit(hasher, matrix, method, tell)
        else:
            shape = _fit(hasher, _drawn(vectors, sample, seed, format, tell), method, tell)
        seconds = time.perf_counter() - start
        hasher.save(model)
        used = {name: "none" if value is None else value for name, value in settable(hasher).items()}
        write_settings(context, model, set=used)
    facts: dict[str, Any] = {
        "model": model,
        "method": method,
        "bits": bits,
        "vectors": shape[0],
        "features": shape[1],
        "seed": seed,
        "seconds": round(seconds, 3),
    }
    chosen = _chosen(hasher)
    if chosen:
        facts["chosen"] = chosen
    learned = f"{method}, {bits} bits, from {shape[0]:,} vectors of {shape[1]:,} numbers in {seconds:.1f} s"
    settings = f" It chose {', '.join(f'{name} {value}' for name, value in chosen.items())}." if chosen else ""
    print_sentence(f"Wrote {model}: {learned}, seed {seed}.{settings}", facts, quiet=quiet, as_json=as_json)


def _fit(hasher: Any, matrix: Any, method: str, tell: Tell) -> tuple[int, int]:
    if "progress" in hasher.get_params():
        hasher.set_params(progress=tell)
    else:
        tell(f"training {method}", 0, 0)
    hasher.fit(matrix)
    return int(matrix.shape[0]), int(matrix.shape[1])


def _chosen(hasher: Any) -> dict[str, Any]:
    """Settings that a method found out for itself; none of one that was told all."""
    if not hasattr(hasher, "search_results_"):
        return {}
    return {name: value for name, value in hasher.chosen_.items() if value == value}  # NaN: has no part in it


def _drawn(names: list[str], sample: int, seed: int, format: str | None, tell: Tell) -> Any:
    from autojacobin.jobs.sampling import draw_sample

    if format is not None or any(name == STREAM or split_part(name)[1] is not None for name in names):
        raise typer.BadParameter(
            "rows are drawn from whole files whose names tell their format; leave out -, ::PART and --format",
            param_hint="'--sample'",
        )
    return draw_sample(names, sample, random_state=seed, progress=tell)
