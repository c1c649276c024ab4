"""Files of vectors, one family of formats a file; ``autojacobin.datasets.vector_files`` is their public face."""
