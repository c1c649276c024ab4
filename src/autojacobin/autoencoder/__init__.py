"""The paper's mathematics: network, tangent spaces, objective, line search, Algorithm 1.

Everything here runs on NumPy and on CuPy arrays; the library follows the input.
"""

from autojacobin.autoencoder.jacobian import LineBuffer
from autojacobin.autoencoder.line_search import LinePoint, LineSearchResult, strong_wolfe
from autojacobin.autoencoder.network import Network, PrincipalCoordinates
from autojacobin.autoencoder.objective import Batch, Objective
from autojacobin.autoencoder.tangent import (
    Tangents,
    TangentsOnDemand,
    TangentSpaces,
    tangent_spaces,
    tangents_for_training,
)
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
    "Batch", "History", "LineBuffer", "LinePoint", "LineSearchResult", "Network", "Objective", "OutOfTimeError",
    "PrincipalCoordinates",
    "Step", "TangentSpaces", "Tangents", "TangentsOnDemand", "TimeLimit", "batches_per_epoch", "history", "steps",
    "strong_wolfe", "tangent_spaces", "tangents_for_training", "train",
]  # fmt: skip
