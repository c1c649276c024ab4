"""Files of vectors, with one module per family of formats; ``autojacobin.datasets.vector_files`` is the public API."""
