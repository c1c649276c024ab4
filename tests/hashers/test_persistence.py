"""Saved hashers: bit-identical codes, golden files, and files that are not what they should be."""

import json
import math
import os
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import autojacobin
from autojacobin import ITQ, LSH, AutoJacoBin, Codes, FormatError, PartitionedAutoencoder, PartitionedHasher
from autojacobin.errors import StorageError
from autojacobin.hashers import methods
from autojacobin.hashers.persistence import FORMAT_VERSION
from tests.fuzz.model_files import model_file, sealed_model, taken_apart
from tests.fuzz.mutations import DEEP
from tests.hashers.methods import METHODS, digits, fitted

GOLDEN = Path(__file__).parent.parent / "golden" / f"hashers-{FORMAT_VERSION}"


def saved(name, folder):
    path = folder / "model.safetensors"
    fitted(name).save(path, overwrite=True)
    return path


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_model_is_the_saved_one(name, tmp_path):
    path = saved(name, tmp_path)
    model = autojacobin.load(path)
    original = fitted(name)
    assert type(model) is type(original)
    assert model.get_params() == original.get_params()
    assert model.n_features_in_ == 64
    assert model.encode(digits()) == original.encode(digits())
    assert np.array_equal(model.project(digits()), original.project(digits()))
    learned = [attribute for attribute in original._tensors if hasattr(original, attribute)]
    assert all(hasattr(model, attribute) == (attribute in learned) for attribute in original._tensors)
    for attribute in learned:
        value, again = getattr(original, attribute), getattr(model, attribute)
        if isinstance(value, dict):
            assert set(value) == set(again)
            assert all(np.array_equal(value[key], again[key]) for key in value)
        else:
            assert np.array_equal(value, again)
            assert type(value) is type(again)
    second = tmp_path / "again.safetensors"
    model.save(second)
    assert second.read_bytes() == path.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["again.safetensors", "model.safetensors"]


@pytest.mark.parametrize("name", METHODS)
def test_a_model_fitted_in_double_precision_is_loaded(name, tmp_path):
    model = METHODS[name]().fit(digits()[:300].astype(np.float64))
    model.save(tmp_path / "model")
    assert autojacobin.load(tmp_path / "model").encode(digits()) == model.encode(digits())


def test_a_model_without_an_epoch_is_loaded(tmp_path):
    METHODS["AutoBin1"]().set_params(n_epochs=0).fit(digits()[:300]).save(tmp_path / "model")
    assert autojacobin.load(tmp_path / "model").history_ == {}


def test_a_loaded_model_can_be_fitted_again(tmp_path):
    model = autojacobin.load(saved("AutoJacoBin", tmp_path))
    assert model.fit(digits()[:300]).encode(digits()) == fitted("AutoJacoBin").encode(digits())


def test_what_belongs_to_the_running_program_is_not_saved(tmp_path):
    path = tmp_path / "model"
    hasher = AutoJacoBin.as_published(
        np.int64(4), n_neighbors=30, random_state=np.random.RandomState(0), progress=print_nothing, n_epochs=1
    )
    hasher.fit(digits()[:100]).save(path)
    model = autojacobin.load(path)
    assert (model.n_bits, model.random_state, model.progress, model.device) == (4, None, None, "cpu")


def print_nothing(*_):
    pass


def test_what_a_file_loads_as_does_not_depend_on_other_subclasses(tmp_path):
    path = saved("ITQ", tmp_path)

    class ITQ(autojacobin.ITQ):
        def hyperplanes(self):
            A, c = super().hyperplanes()
            return -A, -c

    assert type(autojacobin.load(path)) is autojacobin.ITQ
    with pytest.raises(autojacobin.DataError, match="class ITQ is not registered.* rename the class"):
        ITQ(8, random_state=0).fit(digits()[:100]).save(tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_a_folder_that_is_not_there_is_named_as_the_user_wrote_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="the folder .*missing does not exist; make it first"):
        fitted("ITQ").save(tmp_path / "missing" / "model")
    fitted("ITQ").save(tmp_path / ("m" * 250))  # as long as a file name may be


def test_names_of_features_are_kept(tmp_path):
    frame = pd.DataFrame(digits()[:100], columns=[f"ä{j}" for j in range(64)])
    ITQ(8, random_state=0).fit(frame).save(tmp_path / "model")
    model = autojacobin.load(tmp_path / "model")
    assert list(model.feature_names_in_) == list(frame.columns)
    assert len(model.encode(frame)) == 100


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.safetensors")), ids=lambda path: path.stem)
def test_golden_files_stay_readable(path):
    model = autojacobin.load(path)
    assert type(model).__name__ == path.stem
    vectors = np.load(path.parent / "vectors.npy", allow_pickle=False)
    assert model.encode(vectors) == Codes.load(path.with_suffix(".npz"))


def test_there_is_a_golden_file_for_every_class():
    classes = {type(make()).__name__ for make in METHODS.values()} | {"PartitionedHasher"}
    assert {path.stem for path in GOLDEN.glob("*.safetensors")} == classes


def test_the_golden_file_tells_what_was_chosen():
    model = autojacobin.load(GOLDEN / "AutoJacoBin.safetensors")
    results = model.search_results_
    assert set(results["init"]) == {"random", "itq", "okmeans", "nokmeans"}
    assert results["m_recall"][results["chosen"] == 1] == results["m_recall"].max()
    assert model.chosen_["init"] in results["init"]


def written_by_another_program(header, arrays):
    """A model file made from the description in docs/formats.md, with none of this library's code."""
    entries, data = {}, b""
    kinds = {"float32": "F32", "float64": "F64", "int64": "I64", "float16": "F16", "uint8": "U8"}
    for key, array in arrays.items():
        raw = array.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        entries[key] = {"dtype": kinds[str(array.dtype)], "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    return model_file(entries, {"checksum": "0" * 64, **header}, data)


DISPENSABLE = [
    f"history_.{name}" for name in ("binary", "contraction", "cost_before", "epoch", "evaluations", "jacobian")
]
DISPENSABLE += ["history_.reconstruction", "history_.step"]  # which terms there are depends on the method
HEADER = {
    "format_version": FORMAT_VERSION,
    "library_version": "0.1.0",
    "class": "LSH",
    "parameters": {"n_bits": 2, "center": True, "random_state": None},
    "n_features_in": 3,
    "feature_names_in": [],
}
ARRAYS = {
    "weights_": np.array([[1, 0, 0], [0, 1, -1]], dtype=np.float32),
    "mean_": np.array([1, 1, 0], dtype=np.float32),
}


def test_a_file_written_by_another_program_is_read(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(written_by_another_program(HEADER, ARRAYS))
    model = autojacobin.load(path)
    assert isinstance(model, LSH)
    assert model.transform([[2.0, 0.0, 0.0], [0.0, 5.0, 1.0]]).tolist() == [[1, 0], [0, 1]]


def test_another_program_reads_what_was_saved(tmp_path):
    path = saved("ITQ", tmp_path)
    arrays = safetensors.numpy.load_file(path)
    assert np.array_equal(arrays["weights_"], fitted("ITQ").weights_)
    with safetensors.safe_open(path, "numpy") as stream:
        header = json.loads(stream.metadata()["autojacobin"])
    assert header["class"] == "ITQ"
    assert header["parameters"] == {"n_bits": 16, "n_iter": 50, "random_state": 0}


@given(st.data())
@settings(max_examples=4 * settings.default.max_examples)
def test_any_flipped_bit_is_damage(tmp_path, data):
    path = saved("CAutoBin", tmp_path)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 2000))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(FormatError, match="is damaged or is not a model saved by autojacobin"):
        autojacobin.load(path)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.rare)])
def test_any_truncation_or_addition_is_damage(tmp_path, step):
    path = saved("SpectralHashing", tmp_path)
    content = path.read_bytes()
    lengths = [*range(0, min(len(content), 1500), step), *range(1500, len(content), 97)]
    for part in [*(content[:length] for length in lengths), content + b"\0", b"\0" + content]:
        path.write_bytes(part)
        with pytest.raises(FormatError, match="is damaged"):
            autojacobin.load(path)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "file"
    contents = [
        b"",
        b"\x93NUMPY\x01\x00",
        b"cos\nsystem\n(S'exit 1'\ntR.",
        safetensors.numpy.save({"weights_": np.zeros((2, 3), np.float32)}),
        rb"\"checksum\": \"" + b"0" * 64 + rb"\"",
    ]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(FormatError, match="is not a model saved by autojacobin"):
            autojacobin.load(path)
    path.write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(FormatError, match="begins with .*NUMPY'; look at the order of the arguments"):
        autojacobin.load(path)
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(StorageError, match="cannot read the model .*; give the path of a "):
            autojacobin.load(missing)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"format_version": 1}, "has format 1 and class LSH, which is not read by .*; fit and save the model again"),
        ({"format_version": 4}, "has format 4 and class LSH, which is not read by .*; install a newer version"),
        ({"format_version": 99, "parameters": "of another kind"}, "has format 99"),
        ({"class": "HasherOfTheFuture"}, "has format 3 and class HasherOfTheFuture, .* or import the module"),
    ],
)
def test_files_of_other_formats_say_what_to_do(tmp_path, changes, what):
    path = tmp_path / "other"
    path.write_bytes(written_by_another_program({**HEADER, **changes}, ARRAYS))
    with pytest.raises(FormatError, match=what):
        autojacobin.load(path)


@pytest.mark.parametrize(
    ("header", "arrays"),
    [
        ({}, {"mean_": ARRAYS["mean_"]}),  # an array is missing
        ({}, {**ARRAYS, "extra_": ARRAYS["mean_"]}),
        ({}, {**ARRAYS, "mean_": np.zeros(4, np.float32)}),
        ({}, {**ARRAYS, "mean_": np.zeros(3, np.int64)}),
        ({}, {**ARRAYS, "mean_": np.zeros(3, np.float16)}),
        ({}, {**ARRAYS, "mean_": np.zeros(3, np.float64)}),  # beside weights_ of float32
        ({}, {**ARRAYS, "mean_": np.zeros((3, 1), np.float32)}),
        ({}, {**ARRAYS, "mean_": np.zeros((3, 0), np.float32)}),
        ({}, {**ARRAYS, "mean_": np.array([0, np.nan, 0], np.float32)}),
        ({}, {**ARRAYS, "mean_": np.array([0, -np.inf, 0], np.float32)}),
        ({}, {"weights_": np.full((2, 3), 3e38, np.float32), "mean_": np.full(3, 3e38, np.float32)}),
        ({}, {**ARRAYS, "weights_": np.zeros((3, 3), np.float32)}),
        ({}, {}),
        ({"n_features_in": 0}, {"weights_": np.zeros((2, 0), np.float32), "mean_": np.zeros(0, np.float32)}),
        ({"parameters": {"n_bits": 0}}, {**ARRAYS, "weights_": np.zeros((0, 3), np.float32)}),
        *(({"parameters": {"n_bits": 2, **wrong}}, ARRAYS) for wrong in (
            {"unknown": 1}, {"device": "cpu"}, {"progress": None}, {"center": 1}, {"center": [True]}, {"center": DEEP},
            {"random_state": -1}, {"random_state": 1.5}, {"random_state": 10**400}, {"random_state": {}},
        )),
        *(({"parameters": {"n_bits": wrong}}, ARRAYS) for wrong in (
            "2", 2.0, True, None, -2, 3, 2**62, 10**400, [2], float("nan"), "\ud800",
        )),
        *(({"parameters": wrong}, ARRAYS) for wrong in ([], None, "n_bits", 2, {})),
        *(({"n_features_in": wrong}, ARRAYS) for wrong in (
            4, None, "3", 3.0, -3, 2**64, 10**400, float("inf"), float("nan"), [3],
        )),
        *(({"feature_names_in": wrong}, ARRAYS) for wrong in (
            ["a"], ["a", "b", 3], ["a", "b", "c", "d"], "abc", None, {"a": 1}, [[], [], []], DEEP,
        )),
        *(({"format_version": wrong}, ARRAYS) for wrong in ("one", "2", 2.0, True, None, 0, -1, 10**4000)),
        *(({"class": wrong}, ARRAYS) for wrong in (None, 3, ["LSH"], "", "L S H", "\ud800", "\n", "L" * 101)),
        ({"format_version": 3, "class": "\ud800"}, ARRAYS),
        ({"format_version": 3, "class": "\n"}, ARRAYS),
    ],
)  # fmt: skip
def test_files_whose_parts_do_not_fit_are_refused(tmp_path, header, arrays):
    is_refused(tmp_path / "wrong", written_by_another_program({**HEADER, **header}, arrays))


@pytest.mark.parametrize("header", ["", "null", "[]", "{", "{'a': 1}", '{"checksum": 1}', "[" * 100_000, "\ud800"])
def test_headers_that_are_not_what_they_should_be_are_refused(tmp_path, header):
    digest = r'{"checksum": "' + "0" * 64 + '"}'  # found by the reader wherever it stands in the file
    entries = {"weights_": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "x": digest}
    is_refused(tmp_path / "wrong", model_file({"__metadata__": {"autojacobin": header, "x": digest}}, header, b""))
    is_refused(tmp_path / "wrong", model_file(entries, header, b""))
    is_refused(tmp_path / "wrong", model_file([digest], header, b""))
    is_refused(tmp_path / "wrong", sealed_model(model_file({}, {"checksum": "0" * 64}, b"")[:-3] + b"\xff\xfe}"))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.safetensors")), ids=lambda path: path.stem)
def test_arrays_that_are_not_as_declared_are_refused(tmp_path, path):
    entries, header, data = taken_apart(path.read_bytes())

    def forged(name, *replaced):
        """The same model with another type, shape and content in place of one array, or without it."""
        new, parts, start = {}, [], 0
        for key, entry in entries.items():
            first, last = entry["data_offsets"]
            kind, shape, raw = (
                replaced or (None,) * 3 if key == name else (entry["dtype"], entry["shape"], data[first:last])
            )
            if kind is not None:
                new[key] = {"dtype": kind, "shape": shape, "data_offsets": [start, start + len(raw)]}
                parts.append(raw)
                start += len(raw)
        return model_file(new, header, b"".join(parts))

    (tmp_path / "right").write_bytes(model_file(entries, header, data))
    assert autojacobin.load(tmp_path / "right").n_bits == (14 if path.stem == "PartitionedHasher" else 12)
    for name, entry in entries.items():
        (first, last), kind, shape = entry["data_offsets"], entry["dtype"], entry["shape"]
        raw = data[first:last]
        for wrong in (
            forged(name, "I8", [len(raw)], raw),
            forged(name, "F16", shape, bytes(2 * math.prod(shape))),
            forged(name, "BF16", shape, bytes(2 * math.prod(shape))),
            forged(name, kind, [*shape, 1], raw),
            forged(name, kind, [1, *shape], raw),
            forged(name, kind, [0], b""),
            forged(name, kind, [0, 2**64 - 1], b""),
            forged(name, kind, [0] * 40, b""),
            *([] if name in DISPENSABLE else [forged(name)]),
        ):
            is_refused(tmp_path / "wrong", wrong)
        if kind in ("F32", "F64") and "." not in name.removeprefix("hasher_."):
            for wrong in (np.nan, np.inf, 3e38, -1e37):
                number = np.array(wrong, "<f4" if kind == "F32" else "<f8").tobytes()
                is_refused(
                    tmp_path / "wrong", forged(name, kind, shape, raw[: -len(number)] + number), name.split(".")[-1]
                )


@pytest.mark.parametrize(
    ("name", "array", "value", "message"),
    [
        ("SpectralHashing", "axis_", np.int64(12), "axis_"),
        ("SpectralHashing", "axis_", np.int64(-1), "axis_"),
        ("SpectralHashing", "axis_", np.int64(-(2**63)), "axis_"),
        ("SpectralHashing", "range_", np.float32(0), "frequencies"),
        ("SpectralHashing", "range_", np.float32(1e-45), "frequencies"),
        ("AutoBin", "scale_", np.float64(1e300), "array scale_"),
        ("AutoJacoBin", "search_results_.init", np.uint8(255), "utf-8"),
    ],
)
def test_numbers_that_nothing_can_be_encoded_with_are_refused(tmp_path, name, array, value, message):
    entries, header, data = taken_apart((GOLDEN / f"{name}.safetensors").read_bytes())
    start = entries[array]["data_offsets"][0]
    raw = value.tobytes()
    is_refused(tmp_path / "wrong", model_file(entries, header, data[:start] + raw + data[start + len(raw) :]), message)


@pytest.mark.parametrize(
    "hasher",
    [PartitionedHasher(LSH(8, random_state=0), n_lists=4), PartitionedAutoencoder(12, n_lists=4, n_iterations=3)],
)
def test_an_absurd_centre_is_refused(tmp_path, hasher):
    hasher.fit(digits()[:200])
    hasher.centres_ = hasher.centres_.copy()
    hasher.centres_[3, 2] = 1e25
    hasher.save(tmp_path / "model")  # with the right checksum
    with pytest.raises(FormatError, match="NaN, infinity or absurdly large numbers in array centres_"):
        autojacobin.load(tmp_path / "model")


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.name)
def test_all_numbers_in_a_header_have_upper_limits(method):
    for name, limit in method.hasher._limits.items():
        assert not any(limit.allows(number) for number in (2**62, 10**400, 1e300, math.inf, math.nan)), name


def test_a_search_for_codes_that_would_never_end_is_refused(tmp_path):
    entries, header, data = taken_apart((GOLDEN / "BinaryAutoencoder.safetensors").read_bytes())
    header["parameters"]["effort"] = 2**32
    is_refused(tmp_path / "wrong", model_file(entries, header, data), "effort = 4294967296, expected an integer from 0")


def test_floats_of_both_types_are_loaded_where_they_do_not_meet(tmp_path):
    path = GOLDEN / "OKMeans.safetensors"
    arrays = safetensors.numpy.load_file(path)
    arrays["scales_"] = arrays["scales_"].astype(np.float64)
    (tmp_path / "model").write_bytes(written_by_another_program(taken_apart(path.read_bytes())[1], arrays))
    vectors = np.load(path.parent / "vectors.npy", allow_pickle=False)
    assert autojacobin.load(tmp_path / "model").encode(vectors) == Codes.load(path.with_suffix(".npz"))


def is_refused(path, content, message=""):
    path.write_bytes(content)
    with pytest.raises(
        FormatError, match=f"is damaged or is not a model saved by autojacobin, got: .*{message}"
    ) as error:
        autojacobin.load(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 450 + len(str(path))
    str(error.value).encode()


def test_a_failed_save_leaves_the_old_model(tmp_path, monkeypatch):
    path = saved("ITQ", tmp_path)
    before = path.read_bytes()

    def torn(source, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.replace", torn)
    with pytest.raises(OSError, match="Input/output"):
        fitted("LSH").save(path, overwrite=True)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_page_on_formats_names_the_current_one():
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    assert f"## A hasher, format {FORMAT_VERSION}\n" in page
    assert f"| `format_version` | {FORMAT_VERSION} |" in page


def test_a_model_that_exists_is_replaced_only_if_asked(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 8))
    LSH(4, random_state=0).fit(X).save(tmp_path / "model.safetensors")
    other = LSH(5, random_state=0).fit(X)
    with pytest.raises(StorageError, match="model.safetensors exists already; pass overwrite=True to replace it"):
        other.save(tmp_path / "model.safetensors")
    assert autojacobin.load(tmp_path / "model.safetensors").n_bits == 4
    other.save(tmp_path / "model.safetensors", overwrite=True)
    assert autojacobin.load(tmp_path / "model.safetensors").n_bits == 5


@pytest.mark.skipif(os.name != "posix", reason="looks at modes and the umask")
def test_a_saved_model_follows_the_umask_which_no_other_thread_sees_changed(tmp_path, monkeypatch):
    model = ITQ(4, random_state=0).fit(np.random.default_rng(0).normal(size=(50, 8)))
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask belongs to all threads of the process"))
        model.save(tmp_path / "model.safetensors")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"]


@pytest.mark.parametrize("hasher", [PartitionedHasher(LSH(8), n_lists=4), PartitionedAutoencoder(10, n_lists=4)])
def test_no_point_of_a_model_is_longer_than_any_vector(hasher, tmp_path):
    """Its squared distances would be infinite, and an index could learn nothing from them."""
    X = np.random.default_rng(0).normal(size=(64, 500)).astype(np.float32)
    entries, header, data = taken_apart(hasher.unfitted().set_params(random_state=0).fit(X).to_bytes())
    wide = [name for name, entry in entries.items() if entry["shape"][-1:] == [500]]
    assert {"centres_", "origin_"} <= set(wide)
    for name in wide:
        start, stop = entries[name]["data_offsets"]
        for size, fine in ((9e17, False), (4e16, True)):  # each number alone would be allowed
            forged = np.full((stop - start) // 4, size, dtype="<f4").tobytes()
            (tmp_path / "model").write_bytes(model_file(entries, header, data[:start] + forged + data[stop:]))
            if fine:
                autojacobin.load(tmp_path / "model").encode(X[:2])
                continue
            with pytest.raises(FormatError, match="absurdly large numbers in array"):
                autojacobin.load(tmp_path / "model")
