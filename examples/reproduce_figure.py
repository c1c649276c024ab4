"""Reproduce one figure of the paper, on any set.

python examples/reproduce_figure.py fig6                   # the cost over the optimisation, on photographs
python examples/reproduce_figure.py fig9 --set digits      # recall curves, on another set

The names are those of `autojacobin reproduce --only`.
"""

import argparse

from autojacobin.datasets import load_set
from autojacobin.paper.reproduction import ARTEFACTS, Settings, reproduce

parser = argparse.ArgumentParser(description="Reproduce one figure of the paper.")
parser.add_argument("figure", nargs="?", default="fig6", choices=sorted(ARTEFACTS))
parser.add_argument("--set", default="photos", help="A set of the catalogue, or the path of one's own.")
parser.add_argument("--bits", type=int, default=32)
parser.add_argument("--train", type=int, default=2_000, help="Most training points; the paper takes 10,000.")
arguments = parser.parse_args()

data = load_set(arguments.set)
settings = Settings.for_set(data, quick=True, bits=(arguments.bits,), training_points=arguments.train)
made = reproduce(data, f"figure-{data.name}", settings, only=[arguments.figure])
print("The paper:", ARTEFACTS[arguments.figure].claim)
print("Here:", made.left_out.get(arguments.figure, "judge with your own eyes"))
print("See", made.report)
