"""The compiled code of the searches.

====================  ================================================================================================
``popcount``          distances of codes by counting bits, and tiles
``bitslice``          distances of 512 codes at a time by adding bit slices, for many queries
``lookup``            distances of 64 codes at a time by lookup tables, for one query
``exhaustive``        the k nearest of all codes of tiles, for a few queries in the calling thread
``scan``              the k nearest codes of tiles: queries and tiles shared out over the cores
``selection``         the k smallest of many distances
``list_scan``         the k nearest codes of the inverted lists that a query probes
``few``               centres, tables, codes, candidates and vectors of a search, in a handful of calls
``coarse_quantiser``  the nearest centres of queries, and which lists are worth to be scanned
``clustering``        the nearest centres of vectors, and the means of groups of them
``l2``                squared Euclidean distances to vectors of uint8, float16, float32 and float64
``screening``         rows that may be among the nearest, from a matrix product with an error bound
``simd``              512-bit vectors for the functions that generate LLVM code
====================  ================================================================================================
"""
