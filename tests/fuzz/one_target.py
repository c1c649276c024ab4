"""Fuzzes one target in a process of its own, which a signal may end.

    python -m tests.fuzz.one_target NAME RUNS FOLDER WORK SEED

libFuzzer, by way of atheris, keeps the inputs that reach new lines of this library's Python code, and changes these.
Without atheris, which not every machine can build, the files to start from are changed at random. A failure is noted
and does not end the run; of failures at the same place the first input is kept.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import importlib
import mmap
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.failures import BOARD, BOARD_BYTES, note_failure

_SOURCES = Path(__file__).parent.parent.parent / "src" / "autojacobin"
_MOST_MEMORY = 2**28  # bytes that reading one file of some kilobytes may take
_MOST_ADDRESSES = 2**33  # bytes; beyond them memory is refused, so that a failure does not take the whole machine


def main() -> None:
    """Run as many inputs as asked for."""
    name, runs, folder, work, seed = sys.argv[1], *sys.argv[2:6]
    try:
        import atheris
    except ImportError:
        fuzz_at_random(name, int(runs), Path(folder), Path(work), int(seed))
        return
    of_parsers = ["autojacobin", "zipfile", "gzip", "tarfile", "json"]
    with atheris.instrument_imports(include=of_parsers, exclude=compiled_modules()):
        targets = importlib.import_module("tests.fuzz.targets")
    target = targets.TARGETS[name]
    corpus = Path(folder) / "corpus"
    seeds = target.seeds(name)
    for content in seeds:
        (corpus / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)

    def mutated(content: bytes, most: int, number: int) -> bytes:
        rng, changed = Random(number), content
        if rng.random() < 0.5:
            try:
                changed = target.mutate(content or rng.choice(seeds), rng)
            except Exception as error:  # which would end the process without a word
                note_failure(Path(folder), f"the change itself: {_place_of(error)}", content, traceback.format_exc())
        return bytes(atheris.Mutate(content, most) if changed == content or len(changed) > most else changed)

    options: dict[str, Any] = {
        "runs": runs,
        "seed": seed,
        "max_len": 2**17,
        "timeout": 10**6,  # none: whoever started this process watches over it
        "rss_limit_mb": 0,
        "close_fd_mask": 3,
        "verbosity": 0,
        "artifact_prefix": f"{folder}/",
        **{f"handle_{signal}": 0 for signal in ("segv", "bus", "abrt", "ill", "fpe", "int", "term", "xfsz")},
    }
    one_input = watched(lambda content: targets.run(target, content, Path(work)), Path(folder))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    arguments = [sys.argv[0], *(f"-{key}={value}" for key, value in options.items()), str(corpus)]
    atheris.Setup(arguments, one_input, custom_mutator=mutated)
    with contextlib.suppress(KeyboardInterrupt):
        atheris.Fuzz()


def fuzz_at_random(name: str, runs: int, folder: Path, work: Path, seed: int) -> None:
    """Change the files to start from a few times each."""
    targets = importlib.import_module("tests.fuzz.targets")
    target, rng = targets.TARGETS[name], Random(seed)
    seeds = [*target.seeds(name), *(path.read_bytes() for path in sorted((folder / "corpus").iterdir()))]
    one_input = watched(lambda content: targets.run(target, content, work), folder)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    for _ in range(runs):
        content = rng.choice(seeds)
        for _ in range(rng.randint(1, 3)):
            content = target.mutate(content, rng)
        one_input(content)


def compiled_modules() -> list[str]:
    """Modules with functions for numba, which could not compile them with the counters of atheris in them."""
    found = []
    for path in _SOURCES.rglob("*.py"):
        if "numba" in (text := path.read_text()) or "kernel" in text:
            found.append(".".join(("autojacobin", *path.relative_to(_SOURCES).with_suffix("").parts)))
    return found


def watched(read: Callable[[bytes], Any], folder: Path) -> Callable[[bytes], None]:
    """Give a function that reads an input, and notes it beforehand, for a signal, and afterwards if it failed."""
    faulthandler.enable((folder / "signal.txt").open("w"))
    with (folder / "board").open("r+b") as file:
        board = mmap.mmap(file.fileno(), BOARD_BYTES)
    forget_peak = os.open("/proc/self/clear_refs", os.O_WRONLY) if os.path.exists("/proc/self/clear_refs") else None
    done = first = BOARD.unpack_from(board)[0]

    def one_input(content: bytes) -> None:
        nonlocal done
        done += 1
        kept = content[: BOARD_BYTES - BOARD.size]
        board[: BOARD.size + len(kept)] = BOARD.pack(done, len(kept)) + kept
        if forget_peak is not None:
            os.pwrite(forget_peak, b"5", 0)
        before = _peak_memory()
        try:
            read(content)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # among them what is not an Exception, as Rust libraries raise it
            note_failure(folder, _place_of(error), content, traceback.format_exc())
        taken = _peak_memory() - before
        if taken > _MOST_MEMORY and done > first + 10:  # the first inputs load libraries
            note_failure(folder, "more memory than a file may take", content, f"{taken} bytes")

    return one_input


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _place_of(error: BaseException) -> str:
    """Give the kind of an error and where it came from, which make two failures the same one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "autojacobin" in Path(frame.filename).parts[:-1]]
    named = {f"{Path(frame.filename).name}:{frame.lineno} {frame.name}": None for frame in [*own[-1:], *frames[-1:]]}
    return f"{type(error).__name__} at {', '.join(named)}"


if __name__ == "__main__":
    main()
