"""What scikit-learn expects of an estimator, compared with its own base classes."""

import pandas as pd
import pytest
import sklearn
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from autojacobin import ITQ, LSH, DataError, NotFittedError, PartitionedHasher
from autojacobin.hashers.learning import Estimator
from tests.hashers.methods import digits


class Ours(Estimator):
    def __init__(self, first=1, other=None, *, last="x"):
        self.first, self.other, self.last = first, other, last


class Theirs(BaseEstimator):
    def __init__(self, first=1, other=None, *, last="x"):
        self.first, self.other, self.last = first, other, last


def frame(n=60):
    return pd.DataFrame(digits()[:n, 20:30], columns=[f"c{i}" for i in range(10)], index=range(100, 100 + n))


@pytest.mark.parametrize("given", [{}, {"first": 2.5}, {"last": "x", "first": 1}, {"other": [1, 2], "last": None}])
def test_parameters_are_those_of_scikit_learns_base_class(given):
    ours, theirs = Ours(**given), Theirs(**given)
    assert list(ours.get_params().items()) == list(theirs.get_params().items())
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert clone(ours).get_params() == ours.get_params() == ours.unfitted().get_params()
    for deep in (True, False):
        nested = [kind(kind(**given), last=kind()).get_params(deep) for kind in (Ours, Theirs)]
        assert list(nested[0]) == list(nested[1])


def test_parameters_of_parameters_are_set_after_their_owners():
    estimator = Ours(other=Ours()).set_params(other__first=7, last=3)
    assert (estimator.other.first, estimator.last) == (7, 3)
    estimator.set_params(other__first=8, other=Ours(last="new"))
    assert (estimator.other.first, estimator.other.last) == (8, "new")
    with pytest.raises(DataError, match="Ours has no parameter 'frist', expected one of first, last, other"):
        estimator.set_params(first=0, frist=2)
    assert estimator.first == 1


def test_an_unfitted_copy_shares_nothing_and_has_learned_nothing():
    hasher = PartitionedHasher(LSH(8, random_state=0), n_lists=2).fit(digits()[:50])
    copied, cloned = hasher.unfitted(), clone(hasher)
    for new in (copied, cloned):
        assert new.hasher is not hasher.hasher
        assert repr(new) == repr(hasher)
        with pytest.raises(NotFittedError, match="This PartitionedHasher instance is not fitted yet"):
            check_is_fitted(new)
    check_is_fitted(hasher)


@pytest.mark.parametrize("how", ["estimator", "clone", "global", "pipeline"])
def test_a_data_frame_is_returned_where_it_is_asked_for(how):
    X, hasher = frame(), ITQ(4, random_state=0)
    bits = ITQ(4, random_state=0).fit(X).transform(X)
    if how == "global":
        with sklearn.config_context(transform_output="pandas"):
            found = hasher.fit_transform(X)
    elif how == "pipeline":
        columns = ColumnTransformer([("codes", hasher, list(X))], verbose_feature_names_out=False)
        found = make_pipeline(columns).set_output(transform="pandas").fit_transform(X)
    else:
        configured = hasher.set_output(transform="pandas").set_output()
        found = (clone(configured) if how == "clone" else configured).fit(X).transform(X)
    assert isinstance(found, pd.DataFrame)
    assert list(found.columns) == [f"itq{bit}" for bit in range(4)]
    assert list(found.index) == list(X.index)
    assert (found.to_numpy() == bits).all()
    assert isinstance(ITQ(4).set_output(transform="default").fit(X).transform(X), type(bits))


def test_names_of_features_are_remembered_and_compared():
    X = frame()
    hasher = ITQ(4, random_state=0).fit(X)
    assert list(hasher.feature_names_in_) == list(X.columns)
    with pytest.raises(ValueError, match="feature names"):
        hasher.encode(X.rename(columns={"c0": "other"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        hasher.encode(X.to_numpy())
    hasher.fit(X.to_numpy())
    assert not hasattr(hasher, "feature_names_in_")
    assert hasher.n_features_in_ == 10


def test_a_notebook_draws_a_pipeline_with_it():
    assert "ITQ" in estimator_html_repr(make_pipeline(ITQ(4)))
