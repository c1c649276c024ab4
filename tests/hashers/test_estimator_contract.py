"""scikit-learn's own checks of the estimator contract, for every method."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from autojacobin.hashers import Sign, methods

USUAL = ["ITQ", "BinaryAutoencoder"]

# The checks use data of one to ten features, fewer than a useful code has bits, and fewer points than
# Auto-JacoBin would like as neighbours, which it says in a warning.
BITS = {"LSH": 8, "SpectralHashing": 8, "ITQ": 2, "OKMeans": 2, "PCARotation": 2, "Sign": None}
HASHERS = {method.name: method.make(BITS.get(method.name, 3)) for method in methods()}
OTHERS = [hasher for name, hasher in HASHERS.items() if name not in USUAL]


@pytest.mark.filterwarnings("ignore:tangent spaces were to be estimated:UserWarning")
@pytest.mark.filterwarnings("ignore:.* are the same for all:UserWarning")
@parametrize_with_checks([HASHERS[name] for name in USUAL])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.rare
@pytest.mark.filterwarnings("ignore:tangent spaces were to be estimated:UserWarning")
@pytest.mark.filterwarnings("ignore:.* are the same for all:UserWarning")
@parametrize_with_checks([*OTHERS, Sign(8, centred=True, rotate=True)])
def test_scikit_learn_contract_of_the_others(estimator, check):
    check(estimator)
