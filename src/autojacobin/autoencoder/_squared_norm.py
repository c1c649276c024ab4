"""The first part of the Jacobian term, Σᵢ ‖Jᵢ‖², as products with a table of pairs of hidden units."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._arrays import namespace
from autojacobin.autoencoder._jacobian_part import JacobianPart, total
from autojacobin.autoencoder._passes import add_pairs, make_pairs
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
        shape = (min(height, d - first), d - first)
        counted = xp.ones(shape, dtype=R.dtype)
        counted[:, shape[0] :] = 2  # these pairs stand for (m, n) as well
        weights = counted * G[first : first + shape[0], first:]
        size = shape[0] * shape[1]
        table = xp.empty((columns, size), dtype=R.dtype)
        make_pairs(C, first, xp.ones(shape, dtype=R.dtype), table.reshape(columns, *shape))
        inner = xp.matmul(A, table)
        per_weight = xp.zeros(shape, dtype=R.dtype)
        add_pairs(inner.reshape(rows, *shape), R, first, weights, per_R, per_weight)
        per_G[first : first + shape[0], first:] += counted * per_weight
        make_pairs(R, first, weights, inner.reshape(rows, *shape))
        per_A += inner @ table.T
        add_pairs((A.T @ inner).reshape(columns, *shape), C, first, xp.ones(shape, dtype=R.dtype), per_C)
    return per_A, per_R, per_C, per_G
