"""Used by all other packages: arrays, devices, vectors, counts, linear algebra, compilation, threads, files, URLs."""
