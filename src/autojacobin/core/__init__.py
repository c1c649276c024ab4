"""What every other package stands on: arrays and devices, vectors, linear algebra, compilation, threads, files."""
