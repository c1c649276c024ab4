"""A small real set with pictures, and settings that run it in seconds."""

import numpy as np
from sklearn.datasets import load_digits

from autojacobin.datasets import VectorSet
from autojacobin.paper.reproduction import Settings

SETTINGS = Settings(
    bits=(8, 16),
    ks=(1, 10),
    depth=120,
    seeds=2,
    training_points=300,
    queries=40,
    alphas=(0.1, 1.0),
    full_grids=False,
)


def small_set(pictures=True):
    digits = load_digits()
    vectors, images = digits.data.astype(np.uint8), (digits.images * 15).astype(np.uint8)
    return VectorSet(
        name="small",
        description="handwritten digits",
        train=vectors[:700],
        base=vectors[700:1700],
        queries=vectors[1700:],
        base_patches=images[700:1700] if pictures else None,
        query_patches=images[1700:] if pictures else None,
    )
