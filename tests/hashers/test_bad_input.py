"""For every method: what users pass by mistake either works or is told in one sentence."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from autojacobin import LSH, DataError, Index, load
from autojacobin.errors import DataTypeError
from tests.hashers.methods import LEARNED, METHODS, ONE_POINT, digits, fitted, some

methods = pytest.mark.parametrize("name", METHODS)
few_points = pytest.mark.filterwarnings("ignore:(tangent spaces were to be estimated|.* learns):UserWarning")


def with_entry(value, row=7, column=3):
    X = digits()[:50].copy()
    X[row, column] = value
    return X


WRONG = {
    "NaN": (lambda: with_entry(np.nan), "contains NaN in row 7, column 3"),
    "Inf": (lambda: with_entry(-np.inf, 49, 63), "contains inf in row 49, column 63"),
    "one dimension": (lambda: digits()[0], "got 1D array instead.*Reshape your data"),
    "three dimensions": (lambda: np.zeros((2, 8, 8)), r"got 3D array instead.*X.reshape\(len\(X\), -1\)"),
    "no number at all": (lambda: np.float32(3), "got 0D array"),
    "no rows": (lambda: np.empty((0, 64)), r"0 sample\(s\)"),
    "no columns": (lambda: np.empty((50, 0)), r"0 feature\(s\)"),
    "a string": (lambda: "vectors.npy", "holds text where numbers are expected, got 'vectors.npy'"),
    "strings": (lambda: np.array([["a", "b"]] * 9), "holds text where numbers are expected"),
    "objects": (lambda: np.array([[{}, 1]] * 9, dtype=object), "holds values that are not numbers"),
    "None": (lambda: None, "where numbers are expected, got None"),
    "rows of unequal length": (lambda: [[1.0, 2.0], [3.0]], "got 2 numbers in row 0 and 1 number in row 1"),
    "complex numbers": (lambda: digits()[:50] * 1j, "Complex data not supported"),
    "dates": (lambda: np.zeros((9, 64), dtype="datetime64[s]"), "datetime64"),
    "sparse matrix": (lambda: scipy.sparse.csr_matrix(digits()[:50]), r"dense vectors, got a sparse.*X.toarray\(\)"),
    "sparse array": (lambda: scipy.sparse.coo_array(digits()[:50]), "dense vectors, got a sparse"),
}


@methods
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_input_is_told_in_one_sentence_and_changes_nothing(name, kind):
    make, message = WRONG[kind]
    unfitted = METHODS[name]()
    with pytest.raises(DataError, match=message) as caught:
        unfitted.fit(make())
    assert "\n" not in str(caught.value)
    assert not [attribute for attribute in vars(unfitted) if attribute.endswith("_")]
    hasher = fitted(name)
    for call in (hasher.encode, hasher.project, hasher.transform):
        with pytest.raises(DataError):
            call(make())


@methods
def test_the_wrong_number_of_features(name):
    with pytest.raises(DataError, match="X has 63 features, but .* is expecting 64 features"):
        fitted(name).encode(digits()[:5, :63])


@methods
def test_types_that_are_wrong_are_type_errors_too(name):
    for make in (WRONG["a string"][0], WRONG["sparse matrix"][0]):
        with pytest.raises(DataTypeError):
            METHODS[name]().fit(make())
        with pytest.raises(TypeError):
            METHODS[name]().fit(make())


@methods
def test_one_point(name):
    if name in ONE_POINT:
        assert METHODS[name]().fit(digits()[:1]).encode(digits()[:9]).n_bits == 16
        return
    with pytest.raises(DataError, match=r"1 sample\(s\).*a minimum of 2"):
        METHODS[name]().fit(digits()[:1])


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("value", [0.0, 3.5])
def test_points_that_are_all_equal(name, value):
    with pytest.raises(DataError, match="all 30 training points of .* are equal"):
        METHODS[name]().fit(np.full((30, 64), value))


@methods
@few_points
def test_two_points(name):
    codes = METHODS[name]().fit(digits()[:2]).encode(digits()[:2])
    assert len(codes) == 2
    assert codes[0] != codes[1]


@methods
def test_constant_columns_duplicates_and_a_row_of_zeros(name):
    X = digits()[:200].copy()
    X[:, 10:30] = 5.0
    X[50:100] = X[:50]
    X[0] = 0.0
    hasher = METHODS[name]().fit(X)
    assert np.isfinite(hasher.project(X)).all()
    bits = hasher.transform(X)
    assert np.array_equal(bits[50], hasher.transform(X[50:51])[0])
    # Sign takes the first 16 columns alone, of which six are constant here
    assert len(np.unique(bits, axis=0)) > (20 if name == "Sign" else 50)


@methods
@few_points
def test_prepareder_points_than_bits(name):
    codes = METHODS[name](30).fit(digits()[:9]).encode(digits()[:9])
    assert codes.n_bits == 30


@methods
def test_one_feature(name):
    X = digits()[:100, 20:21]
    if name in ("ITQ", "PCARotation", "OKMeans", "Sign"):
        assert METHODS[name](1).fit(X).encode(X).n_bits == 1
    else:
        assert METHODS[name](3).fit(X).encode(X).n_bits == 3


@pytest.mark.parametrize("name", some(METHODS))
def test_layout_and_permissions_do_not_matter(name):
    X = digits()[:200]
    expected = METHODS[name]().fit(X).encode(X)
    wide = np.zeros((400, 128), dtype=np.float32)
    wide[::2, ::2] = X
    read_only = X.copy()
    read_only.flags.writeable = False
    for same in (np.asfortranarray(X), wide[::2, ::2], read_only, X[::-1][::-1]):
        before = np.array(same)
        assert METHODS[name]().fit(same).encode(same) == expected
        assert np.array_equal(before, np.array(same))
    doubles = X.astype(np.float64)
    assert METHODS[name]().fit(X.tolist()).encode(X.tolist()) == METHODS[name]().fit(doubles).encode(doubles)


@methods
def test_data_frames_are_taken_and_their_columns_remembered(name):
    frame = pd.DataFrame(digits()[:100], columns=[f"pixel{j}" for j in range(64)])
    hasher = METHODS[name]().fit(frame)
    assert list(hasher.feature_names_in_) == list(frame.columns)
    assert hasher.encode(frame) == METHODS[name]().fit(digits()[:100]).encode(digits()[:100])
    with pytest.raises(ValueError, match="feature names"):
        hasher.encode(frame[frame.columns[::-1]])


@pytest.mark.parametrize("name", some(METHODS))
@pytest.mark.parametrize("unit", [1e-13, 1e13])
def test_the_unit_of_the_data_does_not_matter(name, unit, tmp_path):
    X = digits()[:200]
    scaled = (X.astype(np.float64) * unit).astype(np.float32)
    expected = METHODS[name]().fit(X).transform(X)
    hasher = METHODS[name]().fit(scaled)
    hasher.save(tmp_path / "model")
    agreement = np.mean(load(tmp_path / "model").transform(scaled) == expected)
    # neighbours at exactly equal distances fall either way with the rounding, and move a tangent space with them;
    # a search for a code takes another path from a tie on
    assert agreement > (0.85 if name in ("AutoJacoBin", "BinaryAutoencoder", "NeighbourHashing") else 0.98)


@methods
def test_numbers_too_large_to_square_are_refused(name):
    with pytest.raises(
        DataError, match=r"Input X has .*e\+2\d in row \d+, column \d+, expected numbers of up to 1e\+15"
    ):
        METHODS[name]().fit(digits()[:50] * np.float32(1e20))
    with pytest.raises(DataError, match="contains inf"):
        METHODS[name]().fit(digits()[:50].astype(np.longdouble) * np.longdouble("1e3000"))
    huge = np.sign(fitted(name).hyperplanes()[0][:1]) * 3e38 if hasattr(fitted(name), "hyperplanes") else None
    if name in ("LSH", "ITQ", "OKMeans", "NOKMeans"):  # the others have small weights, and do not overflow here
        with pytest.raises(DataError, match="too large to project in float32"):
            fitted(name).encode(huge.astype(np.float32))


@pytest.mark.parametrize("name", LEARNED)
def test_points_too_close_together_to_tell_apart_are_refused(name):
    with pytest.raises(DataError, match="too close together, got .* multiply X by"):
        METHODS[name]().fit(digits()[:50] * np.float32(1e-20))


@methods
def test_scoring_needs_two_points(name):
    with pytest.raises(DataError, match="at least 2 points"):
        fitted(name).score(digits()[:1])


SINGLE = {"arrays": lambda: (row for row in np.eye(4)), "lists": lambda: map(list, np.eye(4))}


@pytest.mark.parametrize("name", SINGLE)
def test_a_generator_of_single_vectors_is_named_as_such(name):
    index, vectors = Index(LSH(4, random_state=0).fit(np.eye(4))), SINGLE[name]
    uses = [lambda: LSH(4).fit(vectors()), lambda: index.add(vectors())]
    for use in uses:
        with pytest.raises(DataError, match="an iterator must give matrices with one vector per row, got 1D array"):
            use()
    index.add(np.eye(4))
    with pytest.raises(DataTypeError, match=r"queries is an iterator; .* pass np.stack.list.queries"):
        index.search(vectors(), 1)
    with pytest.raises(DataTypeError, match="several times, got an iterator"):
        Index.from_vectors(vectors())


@pytest.mark.parametrize("rows", [[[1.0, 2.0], [3.0]], [np.ones(2), np.ones(1)], [[1.0, 2.0], 3.0], [[], [1.0]]])
def test_uneven_rows_are_named(rows):
    index = Index(LSH(4, random_state=0).fit(np.eye(2)))
    index.add(np.eye(2))
    for use in (index.add, index.search, LSH(4).fit, Index.from_vectors):
        with pytest.raises(DataTypeError, match="rows of different lengths, got .* in row 0 and .* in row 1") as error:
            use(rows)
        assert "inhomogeneous" not in str(error.value)
