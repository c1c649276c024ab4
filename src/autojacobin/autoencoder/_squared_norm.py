"""The first part of the Jacobian term, Σᵢ ‖Jᵢ‖², as products with a table of pairs of hidden units."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._arrays import namespace
from autojacobin.autoencoder._jacobian_part import JacobianPart, sum_of_products, total
from autojacobin.autoencoder.network import Network

__all__ = ["squared_norm"]

# Columns of the table of pairs of hidden units that are worked on at once.
_PAIRS_PER_PANEL = 512
# A GPU wants few large steps instead.
_NUMBERS_PER_GPU_STEP = 2**28


def squared_norm(network: Network, g: Any, a: Any) -> JacobianPart:
    """Σᵢ ‖Jᵢ‖² = Σᵢ gᵢ' [(W1 W1') ∘ (W2' diag(aᵢ²) W2)] gᵢ.

    With the pairs of hidden units (n, m) laid out as columns, W2' diag(aᵢ²) W2 for all points is one
    product of a² with the table of W2ⱼₙ W2ⱼₘ. Written out, Σᵢⱼ aᵢⱼ² Σₙₘ Gₙₘ gᵢₙ gᵢₘ W2ⱼₙ W2ⱼₘ, the points i with g
    and the features j with W2 play the same part, so the side with fewer rows is given the more work.
    """
    gram = network.W1 @ network.W1.T
    squares = a * a
    if len(g) < len(network.W2):
        per_a, per_g, per_W2, per_gram = _pair_sum(squares, g, network.W2, gram)
    else:
        per_a, per_W2, per_g, per_gram = _pair_sum(squares.T, network.W2, g, gram)
        per_a = per_a.T
    return JacobianPart(
        value=total(squares * per_a),
        g=per_g,
        a=2 * a * per_a,
        W1=(per_gram + per_gram.T) @ network.W1,
        W2=per_W2,
    )


def _pair_sum(A: Any, R: Any, C: Any, G: Any) -> tuple[Any, Any, Any, Any]:
    """Derivatives of Σᵢⱼ Aᵢⱼ Σₙₘ Gₙₘ Rᵢₙ Rᵢₘ Cⱼₙ Cⱼₘ with respect to A, R, C and G.

    Pairs are symmetric: a panel of them has a few n, and all m from the first of them on.
    """
    xp = namespace(A)
    (rows, columns), d = A.shape, R.shape[1]
    per_A, per_R, per_C, per_G = xp.zeros_like(A), xp.zeros_like(R), xp.zeros_like(C), xp.zeros_like(G)
    on_gpu = min(64 * d, _NUMBERS_PER_GPU_STEP // max(rows, columns))
    height = max(1, (_PAIRS_PER_PANEL if xp is np else on_gpu) // d)
    for first in range(0, d, height):
        n, m = slice(first, min(first + height, d)), slice(first, d)
        shape = (n.stop - first, d - first)
        counted = xp.ones(shape, dtype=R.dtype)
        counted[:, shape[0] :] = 2  # these pairs stand for (m, n) as well
        weights = counted * G[n, m]
        pairs = R[:, n, None] * R[:, None, m]
        table = (C[:, n, None] * C[:, None, m]).reshape(columns, -1)
        inner = (A @ table).reshape(rows, *shape)
        per_G[n, m] += counted * sum_of_products("inm,inm->nm", pairs, inner)
        inner *= weights
        _add_products(per_R, inner, R, n, m)
        pairs *= weights
        weighted = pairs.reshape(rows, -1)
        per_A += weighted @ table.T
        _add_products(per_C, (A.T @ weighted).reshape(columns, *shape), C, n, m)
    return per_A, per_R, per_C, per_G


def _add_products(sums: Any, panels: Any, rows: Any, n: slice, m: slice) -> None:
    """Add to each row of ``sums`` what its panel gives with the same row of ``rows``, from either side."""
    xp = namespace(panels)
    sums[:, n] += xp.matmul(panels, rows[:, m, None])[:, :, 0]
    sums[:, m] += xp.matmul(rows[:, None, n], panels)[:, 0]
