"""The Jacobian term, Σᵢ ‖Jᵢ − TᵢTᵢ'‖², as matrix products over groups of points, without a D×D matrix for any.

    ‖J − TT'‖² = ‖J‖² − 2 tr(J TT') + r

The two parts have a file each, ``_squared_norm.py`` and ``_trace.py``. The derivation stands in ``docs/method.md``, how
it is cut into pieces that fit the cache in ``docs/training.md``.
"""

from __future__ import annotations

from autojacobin._parallel import map_points
from autojacobin.autoencoder._jacobian_part import JacobianPart, points_per_task
from autojacobin.autoencoder._squared_norm import squared_norm
from autojacobin.autoencoder._trace import trace
from autojacobin.autoencoder._trace_line import TraceLine
from autojacobin.autoencoder.network import Activations, Network, Partials
from autojacobin.autoencoder.tangent import TangentSpaces

__all__ = ["jacobian"]


def jacobian(
    network: Network,
    state: Activations,
    tangents: TangentSpaces,
    weight: float,
    partials: Partials,
    line: TraceLine | None = None,
    t: float = 0.0,
) -> float:
    """Σᵢ ‖Jᵢ − TᵢTᵢ'‖² = Σᵢ ‖Jᵢ‖² − 2 tr(Jᵢ TᵢTᵢ') + rᵢ: the network should do to first order what f does.

    Where ``network`` is the point ``t`` of a ``line``, that supplies the traces, for less.
    """

    def work(points: slice) -> tuple[JacobianPart, JacobianPart]:
        g, a = state.g[points], state.a[points]
        norm = squared_norm(network, g, a)
        tr = trace(network, g, a, tangents[points]) if line is None else line(t, network, g, a, points)
        # g = 1 − Y² and a = 1 − Z², so a derivative with respect to g costs a factor −2Y, to a one of −2Z.
        partials.Y[points] -= (2 * weight) * state.Y[points] * (norm.g - 2 * tr.g)
        partials.Z[points] -= (2 * weight) * state.Z[points] * (norm.a - 2 * tr.a)
        return norm, tr

    value = float(tangents.ranks.sum())
    for norm, tr in map_points(work, state.Y, points_per_task(state.Y)):
        value += norm.value - 2 * tr.value
        for part, factor in ((norm, weight), (tr, -2 * weight)):
            partials.slope += factor * part.slope
            if part.W1 is not None:
                partials.W1 += factor * part.W1
                partials.W2 += factor * part.W2
    return weight * value
