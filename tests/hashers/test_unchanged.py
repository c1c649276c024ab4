"""Results of every method on digits, as they were when a change was last meant: costs, and a checksum of bits."""

import numpy as np
import pytest

from tests.hashers.methods import METHODS, digits

# first, middle and last cost or quantisation error in float64; ones among the bits; their sum weighted by position
BEFORE = {
    "LSH": (None, 9400, 44920348),
    "SpectralHashing": (None, 7656, 36722308),
    "ITQ": ([51.42264967, 50.65986527, 50.63687145], 9715, 46665171),
    "OKMeans": ([500.2178703, 428.3794639, 428.3794639], 9903, 47455911),
    "NOKMeans": ([475.2467232, 428.3903288, 428.3903288], 9574, 45948036),
    "AutoJacoBin": ([8007.700173, 7391.380519, 7161.942202], 9964, 47744496),
    "AutoBin1": ([978.6300691, 978.1179376, 977.6967731], 9733, 46688626),
    "AutoBin2": ([978.6300691, 976.3209067, 975.4963266], 9627, 46097655),
    "DAutoBin": ([986.5655376, 986.0485529, 986.1320278], 9783, 46883298),
    "CAutoBin": ([184.7032051, 182.4064785, 180.3398859], 9688, 46654743),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", BEFORE)
def test_the_results_are_those_that_were_recorded(name, dtype):
    hasher = METHODS[name]().fit(digits()[:600].astype(dtype))
    errors, ones, checksum = BEFORE[name]
    if errors is not None:
        seen = hasher.history_["cost"] if hasattr(hasher, "history_") else hasher.quantization_error_
        rel = 1e-8 if dtype == np.float64 else 1e-5
        assert seen[[0, len(seen) // 2, -1]] == pytest.approx(errors, rel=rel)
    bits = hasher.transform(digits()[600:]).astype(np.int64)
    if dtype == np.float64:
        assert bits.sum() == ones
        assert (bits * (np.arange(bits.size).reshape(bits.shape) % 9973)).sum() == checksum
    else:  # rounding may move a projection over zero
        assert abs(bits.sum() - ones) <= 0.001 * bits.size
