"""Evaluation: ground truth, the measures of the paper and others, and their statistics."""

from autojacobin.evaluation.measures import (
    evaluate,
    expected_evaluate,
    expected_m_recall,
    expected_precision_curve,
    expected_recall_curve,
    leave_one_out_m_recall,
    m_recall,
    mean_average_precision,
    measure,
    precision_curve,
    recall_curve,
)
from autojacobin.evaluation.statistics import Measured, OverSeeds, PairedTest, mean_and_error, over_seeds, paired_test
from autojacobin.search.truth import ground_truth

__all__ = [
    "Measured", "OverSeeds", "PairedTest", "evaluate", "expected_evaluate", "expected_m_recall",
    "expected_precision_curve", "expected_recall_curve", "ground_truth", "leave_one_out_m_recall", "m_recall",
    "mean_and_error", "mean_average_precision", "measure", "over_seeds", "paired_test", "precision_curve",
    "recall_curve",
]  # fmt: skip
