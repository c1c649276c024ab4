"""What all other packages use: arrays and devices, vectors, linear algebra, compilation, threads, files, addresses."""
