"""Fuzzes all targets, or some, and prints a table: python -m tests.fuzz [--runs N] [TARGET ...].

Inputs are chosen by the lines that they reach if the package atheris is there (pip install 'autojacobin[fuzz]'), and
at random if not. Everything is kept in build/fuzz: the corpus of each target, from which the next run starts, and the
inputs that failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.failures import BOARD_BYTES, last_input, note_failure
from tests.fuzz.targets import TARGETS

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
_MOST_CRASHES = 20  # after which a target is given up
_SECONDS = 300  # at one input, or at the start, after which a process never ends
_NO_END = 1000  # which is no exit status


def main() -> int:
    """Run the targets one after another; the exit status says whether one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}; by default all")
    parser.add_argument("--runs", type=int, default=2000, help="inputs per target")
    parser.add_argument("--seed", type=int, default=1, help="where the random changes start")
    parser.add_argument("--folder", type=Path, default=_ROOT / "build" / "fuzz")
    options = parser.parse_args()
    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(f"there is no target {min(unknown)}, expected some of {', '.join(TARGETS)}")
    rows = []
    print(f"{'target':16} {'inputs':>9} {'failures':>9} {'seconds':>8}")
    for name in options.targets or TARGETS:
        started = time.monotonic()
        inputs, failures = fuzz(name, options.runs, options.seed, options.folder)
        print(f"{name:16} {inputs:9,} {len(failures):9} {time.monotonic() - started:8.0f}", flush=True)
        rows.append((name, inputs, failures))
    failed = [(name, path) for name, _, failures in rows for path in failures]
    print(f"{'all':16} {sum(inputs for _, inputs, _ in rows):9,} {len(failed):9}")
    for name, path in failed:
        print(f"{name}: {path.read_text().splitlines()[0]} ({path.with_suffix('')})")
    return bool(failed)


def fuzz(name: str, runs: int, seed: int, folder: Path) -> tuple[int, list[Path]]:
    """Run one target; a process that is ended by a signal is followed by another one. Give inputs and failures."""
    own = folder / name
    (own / "corpus").mkdir(parents=True, exist_ok=True)
    for failed in (own / "failures").glob("*"):  # are tried again
        if failed.suffix != ".txt":
            shutil.copy(failed, own / "corpus" / failed.name)
    shutil.rmtree(own / "failures", ignore_errors=True)
    (own / "board").write_bytes(bytes(BOARD_BYTES))
    # Kernels that check their indices turn a read beyond an array into an error; they are not those of the other tests.
    settings = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(folder / "numba"), "OPENCV_LOG_LEVEL": "SILENT"}
    for crashes in range(_MOST_CRASHES):
        done = last_input(own)[0]
        if done >= runs:
            break
        # in memory where that can be: most of the time of a cheap reader would be that of the disk
        in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with (own / "log.txt").open("w") as log, tempfile.TemporaryDirectory(dir=in_memory) as work:
            arguments = [name, str(runs - done), str(own), work, str(seed + crashes)]
            command = [sys.executable, "-m", "tests.fuzz.one_target", *arguments]
            environment = os.environ | settings | {"TMPDIR": work}
            status = _ended(subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=log, stderr=log), own)
        if status == 0:
            break
        _note_crash(own, status)
    return last_input(own)[0], sorted((own / "failures").glob("*.txt"))


def _ended(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait for a process; one that stays at the same input for long is killed. Give its status."""
    done, since = 0, time.monotonic()
    try:
        while True:
            try:
                return process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                now = last_input(folder)[0]
                if now != done:
                    done, since = now, time.monotonic()
                elif time.monotonic() - since > _SECONDS:
                    return _NO_END
    finally:
        process.kill()
        process.wait(60)


def _note_crash(folder: Path, status: int) -> None:
    """Keep the input at which a process ended, by the signal and the line of this library that it came from."""
    text = (folder / "signal.txt").read_text() if (folder / "signal.txt").exists() else ""
    lines = re.findall(r'File ".*/autojacobin/([^"]*)", line (\d+) in (\w+)', text)
    place = f"signal {-status}" if status < 0 else f"exit status {status}"
    place = "no end" if status == _NO_END else place
    where = f" at {lines[0][0]}:{lines[0][1]} {lines[0][2]}" if lines else ""
    note_failure(folder, place + where, last_input(folder)[1], text + (folder / "log.txt").read_text()[-5000:])


if __name__ == "__main__":
    sys.exit(main())
