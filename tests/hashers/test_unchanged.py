"""Results of every method on digits, as they were when a change was last meant: costs, and a checksum of bits."""

from functools import cache

import numpy as np
import pytest

from tests.hashers.methods import METHODS, digits

# first, middle and last cost or quantisation error in float64; ones among the bits; their sum weighted by position
BEFORE = {
    "LSH": (None, 9353, 44738990),
    "SpectralHashing": (None, 7811, 37428623),
    "ITQ": ([51.51010877, 50.76484231, 50.74875588], 9729, 46798504),
    "OKMeans": ([504.9387417, 433.8969913, 427.5548872], 9591, 46020018),
    "NOKMeans": ([477.8845066, 424.9524838, 424.9524838], 9478, 45426074),
    "AutoJacoBin": ([8048.896304, 7427.875655, 7195.515953], 9922, 47552484),
    "AutoBin1": ([977.5879264, 977.1385769, 976.8047262], 9707, 46612182),
    "AutoBin2": ([977.5879264, 974.666554, 974.0504508], 9700, 46485583),
    "DAutoBin": ([986.9744115, 984.9818148, 985.0977853], 9726, 46682625),
    "CAutoBin": ([184.0804016, 181.7663684, 179.6816159], 9668, 46468581),
}


@cache
def data():
    """Digits that no longer have points at equal distances, among which rounding, and so the CPU, would choose."""
    return digits() + np.random.RandomState(0).random_sample(digits().shape)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", BEFORE)
def test_the_results_are_those_that_were_recorded(name, dtype):
    hasher = METHODS[name]().fit(data()[:600].astype(dtype))
    errors, ones, checksum = BEFORE[name]
    # In single precision, rounding decides whether the cubic of the first line search of Auto-JacoBin has a minimum.
    # If it has none, the step is half as long.
    by_cpu = name == "AutoJacoBin" and dtype == np.float32
    if errors is not None:
        seen = hasher.history_["cost"] if hasattr(hasher, "history_") else hasher.quantization_error_
        rel = 0.1 if by_cpu else 1e-4 if dtype == np.float32 else 1e-8
        assert seen[[0, len(seen) // 2, -1]] == pytest.approx(errors, rel=rel)
    bits = hasher.transform(data()[600:]).astype(np.int64)
    if dtype == np.float64:
        assert bits.sum() == ones
        assert (bits * (np.arange(bits.size).reshape(bits.shape) % 9973)).sum() == checksum
    else:  # rounding may move a projection over zero
        assert abs(bits.sum() - ones) <= (0.01 if by_cpu else 0.001) * bits.size
