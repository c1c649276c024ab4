"""Jobs over more data than fits on one machine: build, search and ground truth, on a cluster."""

from autojacobin.jobs.build import build_index, encode_files
from autojacobin.jobs.search import search_index, true_neighbours

__all__ = ["build_index", "encode_files", "search_index", "true_neighbours"]
