"""Evaluation: ground truth, the measures of the paper, and its protocol."""

from autojacobin.evaluation.protocol import Trial, run_trial
from autojacobin.evaluation.recall import leave_one_out_m_recall, m_recall, recall_curve
from autojacobin.evaluation.truth import ground_truth

__all__ = ["Trial", "ground_truth", "leave_one_out_m_recall", "m_recall", "recall_curve", "run_trial"]
