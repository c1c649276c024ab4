"""The compiled code of the searches.

====================  ================================================================================================
``popcount``          distances of codes by counting bits, for a few queries
``bitslice``          distances of 512 codes at a time by adding bit slices, for many queries
``lookup``            distances of 64 codes at a time by lookup tables, for one query
``shared_bits``       levels of the spherical Hamming distance
``selection``         the k smallest of many distances
``scan``              top-k over tiles: queries and tiles shared out over the cores
``candidates``        the same k codes in any order, for re-ranking, with a radius estimated from a sample
``list_scan``         the k nearest codes of the inverted lists that a query probes
``exhaustive``        candidates among all codes of tiles, for a few queries in the calling thread
``few``               centres, tables, codes, candidates and vectors of a search, in a handful of calls
``coarse_quantiser``  the nearest of some centres, and the means of groups of vectors
``l2``                squared Euclidean distances to vectors of uint8, float16, float32 and float64
``screening``         rows that may be among the nearest, from a matrix product with an error bound
``simd``              512-bit vectors for the functions that generate LLVM code
====================  ================================================================================================
"""
