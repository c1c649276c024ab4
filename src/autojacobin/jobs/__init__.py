"""Jobs over more data than fits on one machine: build, search and ground truth, on a cluster."""

from autojacobin.jobs.build import build_index, encode_files
from autojacobin.jobs.neighbours import search_index, true_neighbours
from autojacobin.jobs.workers import connect

__all__ = ["build_index", "connect", "encode_files", "search_index", "true_neighbours"]
