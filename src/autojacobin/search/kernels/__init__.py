"""The compiled code of the searches.

==============  ========================================================================================
``popcount``    distances of codes by counting bits, for a few queries
``bitslice``    distances of 512 codes at a time by adding bit slices, for many queries
``selection``   the k smallest of many distances
``scan``        top-k over tiles: queries and tiles shared out over the cores
``candidates``  the same k codes in any order, for re-ranking, with a radius estimated from a sample
``euclidean``   squared Euclidean distances to vectors of uint8, float16, float32 and float64
``simd``        512-bit vectors for the functions that generate LLVM code
==============  ========================================================================================
"""
