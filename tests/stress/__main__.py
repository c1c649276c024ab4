"""Random operations and faults, for as long as you like, against a model in memory.

    python -m tests.stress [--seconds 300] [--seed 1] [--rounds N] [--short] [--only KIND ...] [--folder DIR]

Each round of each kind of fault has a seed of its own, which is printed with what it lost, so that it can be repeated.
Prints how many operations and faults there were, and ends with an error if anything was lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

from tests.stress.damage import damage
from tests.stress.growth import growth
from tests.stress.interrupts import interrupts
from tests.stress.kills import kills
from tests.stress.model import Report, make_lists_early, warm_up
from tests.stress.places import full_disks, lost_places
from tests.stress.power_cuts import power_cuts
from tests.stress.threads import threads

KINDS = {  # with the size of a round, and that of a short one
    "interrupts": (interrupts, 60, 20),
    "kills": (kills, 12, 3),
    "power-cuts": (power_cuts, 5, 1),
    "full-disks": (full_disks, 25, 12),
    "lost-places": (lost_places, 4, 2),
    "threads": (threads, 12, 3),
    "damage": (damage, 15, 8),
    "growth": (growth, 3, 1),
}


def main(arguments: list[str] | None = None) -> int:
    """Run rounds of all kinds in turn until the time is up."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300, help="how long to go on")
    parser.add_argument("--rounds", type=int, help="rounds of each kind, however long they take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first round, to repeat one")
    parser.add_argument("--short", action="store_true", help="small rounds")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--folder", help="where to work; by default a temporary folder")
    options = parser.parse_args(arguments)
    make_lists_early()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="stress-") as folder:
        warm_up(Path(folder))
    report, start, number = Report(), time.monotonic(), options.first
    while number - options.first < options.rounds if options.rounds else time.monotonic() - start < options.seconds:
        for name in options.only:
            with tempfile.TemporaryDirectory(dir=options.folder, prefix="stress-") as folder:
                rng = np.random.default_rng([options.seed, number, list(KINDS).index(name)])
                work, usual, short = KINDS[name]
                try:
                    work(rng, Path(folder), report, short if options.short else usual)
                except Exception as error:
                    traceback.print_exc()
                    again = f"--only {name} --seed {options.seed} --first {number} --rounds 1"
                    report.losses.append(f"{name}: {error!r}; repeat with {again}")
        number += 1
    print(report.table())
    rounds = f"{number - options.first} rounds of {len(options.only)} kinds"
    print(f"{time.monotonic() - start:.0f} s, {rounds}, seed {options.seed}")
    return 1 if report.losses else 0


if __name__ == "__main__":
    sys.exit(main())
