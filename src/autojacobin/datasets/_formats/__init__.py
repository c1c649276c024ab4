"""Files of vectors, one family of formats a file; ``autojacobin.datasets.formats`` is their public face."""
