"""Jobs over more data than fits on one machine: build, search and ground truth, on a cluster.

The results are equal to the last bit to those of one machine, whatever runs the tasks and on however many workers.
"""

from autojacobin.jobs.build import build_index, encode_files
from autojacobin.jobs.neighbours import search_index, true_neighbours
from autojacobin.jobs.workers import connect

__all__ = ["build_index", "connect", "encode_files", "search_index", "true_neighbours"]
