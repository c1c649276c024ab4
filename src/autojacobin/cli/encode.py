"""``autojacobin encode``: a model and vectors in, codes out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from autojacobin.cli._inputs import load_model, opened
from autojacobin.cli._methods import move_to
from autojacobin.cli._options import AsJson, Config, Debug, Device, Format, OnDevice, Quiet, Threads
from autojacobin.cli._outputs import check_output, is_stream, write_codes
from autojacobin.cli._progress import progress_bar, told_blocks
from autojacobin.cli._report import print_sentence
from autojacobin.cli._settings import write_settings

__all__ = ["encode"]


def encode(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model that `autojacobin train` wrote.")],
    vectors: Annotated[str, typer.Argument(metavar="VECTORS", help="File of vectors, PATH::PART, or -.")],
    codes: Annotated[
        Path, typer.Argument(metavar="CODES", help="Codes to write: .npz, .npy, .parquet, .csv, .jsonl, or -.")
    ],
    format: Format = None,
    device: OnDevice = Device.cpu,
    _threads: Threads = None,
    _config: Config = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Turn vectors into binary codes with a model.

    The ending of CODES tells the format. An .npz file is what Codes.load reads, a .npy file holds the packed bytes.

    Example: autojacobin encode model.safetensors base.npy codes.npz

    Example: autojacobin encode model.safetensors - - < base.npy
    """
    check_output(codes, "CODES", inputs=[str(model), vectors])
    hasher = load_model(model)
    move_to(hasher, device.value)
    with opened(vectors, format) as matrix, progress_bar(quiet=quiet or as_json) as tell:
        start = time.perf_counter()
        made = hasher.encode(told_blocks(matrix.blocks(), len(matrix), tell, "encoding"))
        seconds = time.perf_counter() - start
        write_codes(codes, made)
        if not is_stream(codes):
            write_settings(context, codes)
    facts = {"codes": codes, "vectors": len(made), "bits": made.n_bits, "seconds": round(seconds, 3)}
    sentence = f"Wrote {codes}: {len(made):,} codes of {made.n_bits} bits in {seconds:.1f} s."
    if is_stream(codes):  # whose reader wants codes and nothing else
        return
    print_sentence(sentence, facts, quiet=quiet, as_json=as_json)
