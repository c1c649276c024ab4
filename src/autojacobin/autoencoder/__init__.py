"""The paper's mathematics: network, tangent spaces, objective, line search, Algorithm 1.

Everything here runs on NumPy and on CuPy arrays; the library follows the input.
"""

from autojacobin.autoencoder.jacobian import LineBuffer
from autojacobin.autoencoder.network import Network, PrincipalCoordinates
from autojacobin.autoencoder.objective import Batch, Objective
from autojacobin.autoencoder.tangent import TangentsOnDemand, TangentSpaces, TangentsView, tangent_spaces
from autojacobin.autoencoder.training import (
    History,
    OutOfTimeError,
    Step,
    TimeLimit,
    batches_per_epoch,
    history,
    steps,
    train,
)

__all__ = [
    "Batch", "History", "LineBuffer", "Network", "Objective", "OutOfTimeError", "PrincipalCoordinates", "Step",
    "TangentSpaces", "TangentsOnDemand", "TangentsView", "TimeLimit", "batches_per_epoch", "history", "steps",
    "tangent_spaces", "train",
]  # fmt: skip
