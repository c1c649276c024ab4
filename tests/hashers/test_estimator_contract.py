"""scikit-learn's own checks of the estimator contract, for every method."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from autojacobin import ITQ, LSH, AutoBin, AutoJacoBin, CAutoBin, DAutoBin, NOKMeans, OKMeans, SpectralHashing

# The checks use data of one to ten features, fewer than a useful code has bits, and fewer points than
# Auto-JacoBin would like as neighbours, which it says in a warning.
HASHERS = [
    LSH(n_bits=8),
    SpectralHashing(n_bits=8),
    ITQ(n_bits=2),
    OKMeans(n_bits=2),
    NOKMeans(n_bits=3),
    AutoJacoBin(n_bits=3),
    AutoBin(n_bits=3),
    AutoBin(n_bits=3, batch_size=None),
    DAutoBin(n_bits=3),
    CAutoBin(n_bits=3),
]


@pytest.mark.filterwarnings("ignore:tangent spaces were to be estimated:UserWarning")
@pytest.mark.filterwarnings("ignore:.* are the same for all:UserWarning")
@parametrize_with_checks(HASHERS)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
