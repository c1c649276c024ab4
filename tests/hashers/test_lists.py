"""A hasher in inverted lists: what it codes, what it keeps of the hasher in it, and how it is saved."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from typer.testing import CliRunner

import autojacobin
from autojacobin import ITQ, LSH, Codes, DataError, FormatError, Index, PartitionedHasher, Sign
from autojacobin import SphericalHashing as Spherical
from autojacobin.cli.program import app
from autojacobin.hashers import OwnCodes
from tests.fuzz.model_files import model_file, taken_apart
from tests.hashers.methods import METHODS, digits, fitted
from tests.search.list_steps import codes_of

WITHOUT_LISTS = ["SphericalHashing", "BinaryAutoencoder", "PartitionedAutoencoder"]


def partitioned(hasher, n_lists=8, **options):
    return PartitionedHasher(hasher, n_lists=n_lists, random_state=0, **options).fit(digits()[:300])


def nearest_centres(hasher, X):
    return ((X[:, None].astype(np.float64) - hasher.centres_) ** 2).sum(axis=2).argmin(axis=1)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in WITHOUT_LISTS])
def test_codes_are_those_of_the_hasher_and_the_nearest_list(name, tmp_path):
    plain = fitted(name)
    hasher = partitioned(plain)
    codes, labels = hasher.split(hasher.encode(digits()))
    assert codes == plain.encode(digits())
    assert np.array_equal(labels, nearest_centres(hasher, digits()))
    assert hasher.n_bits == plain.n_bits + 3
    assert hasher.distances == plain.distances
    assert hasher.score(digits()[300:500]) == plain.score(digits()[300:500])
    hasher.save(tmp_path / "model")
    loaded = autojacobin.load(tmp_path / "model")
    assert type(loaded.hasher_) is type(plain)
    assert loaded.hasher_.get_params() == plain.get_params()
    assert loaded.encode(digits()) == hasher.encode(digits())
    assert np.array_equal(loaded.project(digits()), hasher.project(digits()))
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 2**32))
def test_a_code_can_be_split_whatever_the_lengths(n_bits, n_lists, seed):
    X = np.random.default_rng(seed).normal(size=(80, 5)).astype(np.float32)
    plain = LSH(n_bits, random_state=seed % 2**32).fit(X)
    hasher = PartitionedHasher(plain, n_lists=n_lists, random_state=0).fit(X)
    codes, labels = hasher.split(hasher.encode(X))
    assert codes == plain.encode(X)
    assert labels.max() < n_lists
    lists = hasher.lists(hasher.encode(X))
    assert codes_of(lists) == codes
    assert np.array_equal(np.diff(lists.bounds), np.bincount(labels, minlength=n_lists))


def test_a_hasher_that_is_not_fitted_is_fitted_too_and_a_fitted_one_is_not():
    plain = ITQ(16, random_state=0)
    both = PartitionedHasher(plain, n_lists=8, random_state=0).fit(digits()[:300])
    assert not hasattr(plain, "rotation_")
    assert both.split(both.encode(digits()))[0] == ITQ(16, random_state=0).fit(digits()[:300]).encode(digits())
    before = fitted("ITQ").encode(digits())
    only_lists = PartitionedHasher(fitted("ITQ"), n_lists=8, random_state=0).fit(digits()[900:])
    assert only_lists.split(only_lists.encode(digits()))[0] == before
    again = clone(only_lists).fit(digits()[900:])
    assert again.split(again.encode(digits()))[0] == ITQ(16, random_state=0).fit(digits()[900:]).encode(digits())
    index = Index.from_vectors(digits(), PartitionedHasher(Sign(centred=True), n_lists=8))
    assert (index.info()["hasher"], index.info()["bits"], index.info()["lists"]) == ("Sign", 64, 8)


def test_a_later_change_of_the_hasher_has_no_effect():
    plain = LSH(16, random_state=0).fit(digits()[:300])
    hasher = partitioned(plain)
    before = hasher.encode(digits())
    plain.set_params(random_state=1).fit(digits()[:300])
    assert hasher.encode(digits()) == before


def test_a_stream_gives_the_codes_of_the_whole_matrix():
    hasher = partitioned(fitted("LSH"))
    blocks = np.array_split(digits(), 5)
    assert hasher.encode(iter(blocks)) == Codes.concatenate(hasher.encode(block) for block in blocks)
    with pytest.raises(DataError, match="iterator without a block"):
        hasher.encode(iter(()))


def test_the_number_of_the_list_has_no_weight_in_an_asymmetric_search():
    hasher = partitioned(fitted("ITQ"))
    projections = hasher.project(digits())
    assert np.array_equal(projections[:, :16], fitted("ITQ").project(digits()))
    assert not projections[:, 16:].any()


def test_vectors_are_decoded_as_by_the_hasher():
    hasher = partitioned(fitted("AutoJacoBin"))
    expected = fitted("AutoJacoBin").decode(fitted("AutoJacoBin").encode(digits()))
    assert np.array_equal(hasher.decode(hasher.encode(digits())), expected)


def test_names_of_features_are_those_of_the_hasher(tmp_path):
    frame = pd.DataFrame(digits()[:300], columns=[f"pixel {j}" for j in range(64)])
    for plain in (LSH(8, random_state=0), LSH(8, random_state=0).fit(frame)):
        hasher = PartitionedHasher(plain, n_lists=4, random_state=0).fit(frame)
        hasher.save(tmp_path / "model", overwrite=True)
        for model in (hasher, autojacobin.load(tmp_path / "model")):
            assert list(model.feature_names_in_) == list(model.hasher_.feature_names_in_) == list(frame.columns)
            assert len(model.encode(frame)) == 300


@pytest.mark.parametrize(
    ("hasher", "message"),
    [
        (lambda: Spherical(8, random_state=0), "asymmetric or the Hamming distance, got codes of SphericalHashing"),
        (lambda: OwnCodes(8), "lists are learned from vectors.* got codes of OwnCodes"),
        (lambda: partitioned(LSH(8)), "a PartitionedHasher has inverted lists already; pass the hasher that is in it"),
        (lambda: METHODS["BinaryAutoencoder"](), "got codes of BinaryAutoencoder"),
        (lambda: METHODS["PartitionedAutoencoder"](), "a PartitionedAutoencoder has inverted lists already"),
        (lambda: None, "hasher of PartitionedHasher must be a hasher, got None"),
        (lambda: LSH(0), "n_bits of LSH must be an integer from 1 to 65,536"),
        (lambda: LSH(8).fit(digits()[:50, :7]), "the LSH was fitted on 7 features, got 64 for its lists"),
    ],
)
def test_a_hasher_that_cannot_have_lists_is_refused(hasher, message):
    with pytest.raises((DataError, TypeError), match=message):
        partitioned(hasher())


def test_lists_that_cannot_be_learned_are_refused():
    with pytest.raises(DataError, match="at least as many training vectors as lists, got 300 for n_lists=301"):
        partitioned(LSH(8), n_lists=301)
    with pytest.raises(DataError, match="n_lists of PartitionedHasher must be None or an integer from 1 to"):
        partitioned(LSH(8), n_lists=0)
    with pytest.raises(autojacobin.NotFittedError):
        PartitionedHasher(fitted("LSH")).encode(digits())


def test_a_parameter_of_the_hasher_that_was_set_after_the_fit_is_noticed():
    hasher = partitioned(LSH(8, random_state=0))
    hasher.hasher_.set_params(n_bits=9)
    with pytest.raises(DataError, match="n_bits of LSH was set to 9 after it was fitted with 8"):
        hasher.encode(digits())


def test_codes_of_a_list_that_is_not_there_are_damaged():
    hasher = partitioned(LSH(8, random_state=0), n_lists=5)
    bits = hasher.encode(digits()[:50]).to_bits()
    bits[3, 8:] = 1
    with pytest.raises(FormatError, match="there are codes in list 7 of 5, so they are damaged"):
        hasher.lists(Codes.from_bits(bits))


@pytest.fixture
def taken(tmp_path):
    """A saved model taken apart, and the function that reads what is put together again."""
    path = tmp_path / "model"
    partitioned(LSH(8, random_state=0)).save(path)

    def read(entries, header, data):
        path.write_bytes(model_file(entries, header, data))
        return autojacobin.load(path)

    return *taken_apart(path.read_bytes()), read


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header.pop("hasher"), "hasher of type NoneType in the header, expected dict"),
        (lambda header: header.update(hasher=[]), "hasher of type list in the header"),
        (lambda header: header["hasher"].update({"class": "PartitionedHasher"}), "class 'PartitionedHasher'"),
        (
            lambda header: header["hasher"].update({"class": "New"}),
            "format 3 and class New, .* registers New",
        ),
        (lambda header: header["hasher"].update({"class": "ITQ"}), "'center' of type bool, which ITQ does not have"),
        (
            lambda header: header["hasher"]["parameters"].update(n_bits=9),
            "array weights_ is F32 of shape .8, 64.",
        ),
        (lambda header: header["hasher"].update(n_features_in=63), "array weights_ is F32 of shape .8, 64."),
        (lambda header: header["parameters"].update(hasher="LSH"), "a parameter 'hasher' of type str, which"),
    ],
)
def test_a_file_whose_hasher_is_not_what_it_should_be_is_refused(taken, change, message):
    entries, header, data, read = taken
    assert type(read(entries, header, data).hasher_) is LSH
    change(header)
    with pytest.raises(FormatError, match=message):
        read(entries, header, data)


def test_a_file_whose_hasher_cannot_have_lists_is_refused(tmp_path):
    hasher = partitioned(LSH(8, random_state=0))
    hasher.hasher_ = OwnCodes(512)  # of 64 bytes, as many as there are features
    hasher.save(tmp_path / "model")
    with pytest.raises(FormatError, match="model is damaged.* got codes of OwnCodes"):
        autojacobin.load(tmp_path / "model")


def test_the_arrays_of_the_hasher_belong_to_a_class_that_wraps_one(taken):
    entries, header, data, read = taken
    with pytest.raises(FormatError, match="no array weights_"):
        read(entries, header["hasher"] | {name: header[name] for name in ("checksum", "format_version")}, data)


def test_the_command_line_describes_it_and_names_what_it_wraps(tmp_path):
    partitioned(fitted("LSH"), progress=lambda *_: None).save(tmp_path / "model")
    result = CliRunner().invoke(app, ["info", str(tmp_path / "model"), "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert (shown["method"], shown["trained_as"], shown["bits"]) == ("PartitionedHasher", "LSH in 8 lists", 19)
    assert shown["parameters"]["n_lists"] == 8
