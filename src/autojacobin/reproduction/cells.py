"""What has to be tried for the tables and figures."""

from __future__ import annotations

from autojacobin.reproduction.settings import COMPARED, VARIANTS, Settings, every_method
from autojacobin.reproduction.trials import Cell

__all__ = [
    "PAPER_ALPHA", "alpha_cell", "alpha_cells", "compared_cells", "every_cell", "first_seed", "longest_bits",
    "variant_cells",
]  # fmt: skip

PAPER_ALPHA = 0.1


def compared_cells(settings: Settings) -> list[Cell]:
    """Trials of the compared methods: all lengths and seeds; the longest of seed 0 also for the picture."""
    return [
        Cell(method, bits, seed, pictured=seed == 0 and bits == longest_bits(settings))
        for seed in range(settings.seeds)
        for bits in settings.bits
        for method in COMPARED
    ]


def every_cell(settings: Settings) -> list[Cell]:
    """Trials of all methods with their defaults: those that are compared, the variants, and the one that chooses."""
    others = [method for method in every_method() if method not in COMPARED]
    return compared_cells(settings) + [
        Cell(method, bits, seed) for seed in range(settings.seeds) for bits in settings.bits for method in others
    ]


def variant_cells(settings: Settings, chosen: dict[str, dict[str, float]]) -> list[Cell]:
    """Trials of the variants with the parameters chosen for them."""
    bits = longest_bits(settings)
    return [Cell(method, bits, 0, tuple(sorted(chosen[method].items()))) for method in VARIANTS]


def alpha_cells(settings: Settings) -> list[Cell]:
    """Trials for figure 7, with seed 0."""
    return [alpha_cell(bits, alpha, settings) for alpha in settings.alphas for bits in settings.bits]


def alpha_cell(bits: int, alpha: float, settings: Settings) -> Cell:
    """Trial of Auto-JacoBin with a weight α; that with the paper's own is among the compared."""
    if alpha == PAPER_ALPHA:
        return next(c for c in compared_cells(settings) if (c.method, c.bits, c.seed) == ("AutoJacoBin", bits, 0))
    return Cell("AutoJacoBin", bits, 0, (("alpha", alpha),))


def longest_bits(settings: Settings) -> int:
    """Length for the picture and for the variants: the paper's 128, or the longest that there is."""
    return 128 if 128 in settings.bits else settings.bits[-1]


def first_seed(settings: Settings) -> list[Cell]:
    """Trials of the compared methods with seed 0."""
    return [cell for cell in compared_cells(settings) if cell.seed == 0]
