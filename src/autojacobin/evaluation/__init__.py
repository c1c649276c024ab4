"""Evaluation: ground truth, the measures of the paper and others, and their statistics."""

from autojacobin.evaluation.measures import evaluate, leave_one_out_m_recall, m_recall, measure, recall_curve
from autojacobin.evaluation.statistics import Measured, OverSeeds, PairedTest, mean_and_error, over_seeds, paired_test
from autojacobin.search.truth import ground_truth

__all__ = [
    "Measured", "OverSeeds", "PairedTest", "evaluate", "ground_truth", "leave_one_out_m_recall", "m_recall",
    "mean_and_error", "measure", "over_seeds", "paired_test", "recall_curve",
]  # fmt: skip
