"""Search: codes and queries in, neighbours out."""

from autojacobin.search.hamming import hamming_topk

__all__ = ["hamming_topk"]
