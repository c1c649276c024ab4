"""The registry of methods, with a hasher that is defined in this file and that everything else finds by its name."""

import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

import autojacobin
from autojacobin import DataError, FormatError
from autojacobin.cli import app
from autojacobin.hashers import (
    LinearHasher,
    Method,
    OwnCodes,
    PartitionedHasher,
    Tensor,
    find_method,
    methods,
    persistence,
    registry,
)
from autojacobin.hashers.parameters import Number, parameter
from autojacobin.paper.figures import METHOD_STYLES, MethodStyle, draw_recall
from autojacobin.paper.reproduction import Settings, reproduce
from autojacobin.paper.reproduction.trials import EVERY, every_method, make_hasher
from tests.hashers.methods import digits
from tests.paper.reproduction.small import small_set

OTHERS = (
    "Sign",
    "PCARotation",
    "SphericalHashing",
    "SGH",
    "NeighbourHashing",
)  # compared by their bits, but not in the paper


@dataclass(eq=False, repr=False, kw_only=True)
class Quantiles(LinearHasher):
    """Bit j says whether feature j, modulo the number of features, is above one of its quantiles."""

    share: float = parameter(0.5, Number(0, 1), "Share of the points below it.")
    _tensors: ClassVar = {"normals_": Tensor("f", ("n_bits", "n_features")), "quantiles_": Tensor("f", ("n_bits",))}

    def _fit(self, X, rng):
        features = np.arange(self.n_bits) % X.shape[1]
        self.normals_ = np.eye(X.shape[1], dtype=X.dtype)[features]
        self.quantiles_ = np.quantile(X, self.share, axis=0).astype(X.dtype)[features]

    def hyperplanes(self):
        return self.normals_, -self.quantiles_


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Undo what a test registers."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.setattr(persistence, "_CLASSES", dict(persistence._CLASSES))


@pytest.mark.parametrize(
    "hasher", [*dict.fromkeys(each.hasher for each in methods()), OwnCodes, PartitionedHasher, Quantiles]
)
def test_a_docstring_lists_all_parameters_and_what_is_learned(hasher):
    listed = re.findall(r"^ *(\w+) : .*\n {4,}\S", hasher.__doc__, flags=re.MULTILINE)
    described = () if hasher is Quantiles else hasher._tensors
    assert {*hasher._parameters(), *described} <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.fixture
def registered():
    autojacobin.register(Quantiles, label="quantiles")
    autojacobin.register(Quantiles, "Quartiles", parameters={"share": 0.25})


def test_the_library_registers_its_own_methods():
    names = [method.name for method in methods()]
    beyond = ["BinaryAutoencoder", "PartitionedAutoencoder", *OTHERS]
    assert sorted(names) == sorted([*EVERY, *beyond])
    assert {method.hasher.__name__ for method in methods()} | {"Hasher", "Index"} <= set(autojacobin.__all__)
    published = find_method("AutoJacoBin").make(16, seed=3).get_params()
    assert published == autojacobin.AutoJacoBin.as_published(16, random_state=3).get_params()
    assert find_method("SpectralHashing").make(16, seed=3).get_params() == {"n_bits": 16}
    assert find_method("ITQ").make(16, {"n_iter": 7}, seed=3).get_params() == {
        "n_bits": 16,
        "n_iter": 7,
        "random_state": 3,
    }


@pytest.mark.usefixtures("registered")
def test_a_registered_hasher_is_saved_and_loaded(tmp_path):
    hasher = find_method("Quartiles").make(16).fit(digits()[:300])
    assert hasher.share == 0.25
    hasher.save(tmp_path / "model.safetensors")
    model = autojacobin.load(tmp_path / "model.safetensors")
    assert type(model) is Quantiles
    assert model.get_params() == {"n_bits": 16, "share": 0.25}
    assert model.encode(digits()) == hasher.encode(digits())


def test_a_file_of_an_unregistered_hasher_names_the_class(tmp_path, monkeypatch):
    with monkeypatch.context() as registered:
        registered.setattr(registry, "_METHODS", dict(registry._METHODS))
        registered.setattr(persistence, "_CLASSES", dict(persistence._CLASSES))
        autojacobin.register(Quantiles)
        Quantiles(8).fit(digits()[:100]).save(tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match="class Quantiles,.* or import the module that registers Quantiles"):
        autojacobin.load(tmp_path / "model.safetensors")


def test_an_unregistered_hasher_is_not_saved(tmp_path):
    with pytest.raises(DataError, match=r"Quantiles is not registered.*autojacobin\.register\(Quantiles\)"):
        Quantiles(8).fit(digits()[:100]).save(tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("registered")
def test_the_command_line_trains_a_registered_method(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", digits()[:200])
    command = ["train", "X.npy", "m.safetensors", "-m", "quartiles", "-b", "8", "--set", "share=0.75", "-q"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    model = autojacobin.load("m.safetensors")
    assert (type(model), model.n_bits, model.share) == (Quantiles, 8, 0.75)
    wrong = CliRunner().invoke(app, ["train", "X.npy", "n.safetensors", "-m", "median"])
    assert wrong.exit_code == 2
    assert "quartiles" in wrong.output


@pytest.mark.usefixtures("registered")
def test_the_reproduction_compares_a_registered_method(tmp_path):
    assert every_method() == (*EVERY, *OTHERS, "Quantiles", "Quartiles")
    assert make_hasher("Quartiles", 8, 0, {}).get_params() == {"n_bits": 8, "share": 0.25}
    settings = Settings(bits=(8,), ks=(1, 5), depth=50, seeds=1, training_points=200, full_grids=False)
    made = reproduce(small_set(), tmp_path, settings, only=["quality"])
    header, *rows = made.tables["quality"].to_csv().splitlines()
    assert header.endswith("CAutoBin,Sign,PCA-RR,SpH,SGH,Neighbour hashing,quantiles,Quartiles")
    assert len(rows) == 2
    assert all(0 < float(row.split(",")[-1]) <= 1 for row in rows)


@pytest.mark.usefixtures("registered")
def test_figures_draw_a_registered_method(monkeypatch):
    curves = {method: np.linspace(0.1, 1, 50) for method in ("ITQ", "Quantiles", "Quartiles")}
    legend = draw_recall(curves).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["ITQ", "quantiles", "Quartiles"]
    assert len({line.get_marker() for line in legend.get_lines()}) == 3
    monkeypatch.setitem(METHOD_STYLES, "Quantiles", MethodStyle("mine", "#123456", "1"))
    legend = draw_recall(curves).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["ITQ", "mine", "Quartiles"]


def test_register_is_a_decorator_too():
    @autojacobin.register
    class Median(Quantiles):
        pass

    assert find_method("Median") == Method("Median", Median, "Median", "median", {})


@pytest.mark.usefixtures("registered")
def test_a_class_that_is_defined_again_replaces_the_old_one():
    again = type("Quantiles", (Quantiles,), {"__module__": __name__})
    autojacobin.register(again, label="quantiles")
    assert find_method("Quantiles").hasher is again


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hasher": dict}, "takes a subclass of autojacobin.Hasher, got <class 'dict'>"),
        ({"hasher": Quantiles()}, "takes a subclass of autojacobin.Hasher, got Quantiles"),
        ({"hasher": Quantiles, "name": "Third", "parameters": {"shares": 0.3}}, "Quantiles has no parameter 'shares'"),
        ({"hasher": Quantiles, "name": "ITQ"}, "the name 'ITQ' is taken by the method ITQ of autojacobin"),
        ({"hasher": Quantiles, "name": "Third", "label": "SH"}, "the label 'SH' is taken by the method Spectral"),
        ({"hasher": Quantiles, "name": "Third", "command": "quartiles"}, "the command 'quartiles' is taken"),
        (
            {"hasher": type("ITQ", (Quantiles,), {}), "name": "Third"},
            "the class 'ITQ' is taken by the method ITQ",
        ),
    ],
)
def test_what_cannot_be_registered(arguments, message):
    before = methods()
    with pytest.raises(DataError, match=message):
        autojacobin.register(**arguments)
    assert methods() == before


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(DataError, match="there is no method 'Median', expected one of: LSH, .*autojacobin.register"):
        find_method("Median")


def test_the_example_of_the_documentation(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "api" / "hashers.md").read_text(encoding="utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    names = {"__name__": "example"}
    exec(example, names)
    hasher = names["Medians"](70).fit(digits())
    assert np.array_equal(hasher.transform(digits())[:, 3], digits()[:, 3] >= np.median(digits()[:, 3]))
    hasher.save(tmp_path / "model.safetensors")
    assert autojacobin.load(tmp_path / "model.safetensors").encode(digits()) == hasher.encode(digits())


def test_an_installed_package_registers_its_methods_by_an_entry_point(tmp_path):
    """A package with the metadata that pip writes, and the command line in a process of its own."""
    (tmp_path / "constant.py").write_text(
        textwrap.dedent("""
            import numpy as np
            import autojacobin
            from autojacobin.hashers import LinearHasher, Tensor

            @autojacobin.register
            class Constant(LinearHasher):
                _tensors = {"weights_": Tensor("f", ("n_bits", "n_features"))}

                def __init__(self, n_bits=64):
                    self.n_bits = n_bits

                def _fit(self, X, rng):
                    self.weights_ = np.ones((self.n_bits, X.shape[1]), X.dtype)

                def hyperplanes(self):
                    return self.weights_, np.zeros(self.n_bits, self.weights_.dtype)
        """)
    )
    metadata = tmp_path / "constant-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: constant\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[autojacobin.methods]\nconstant = constant\nbroken = nothing_there\n")
    np.save(tmp_path / "X.npy", digits()[:50])
    program = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from autojacobin.cli import app
        app(["train", "X.npy", "m.safetensors", "-m", "constant", "-b", "4", "-q"], standalone_mode=False)
        import autojacobin
        print(type(autojacobin.load("m.safetensors")))
    """)
    command = [sys.executable, "-W", "always", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=1200)
    assert "<class 'constant.Constant'>" in done.stdout, done.stderr
    assert "the entry point broken = nothing_there are left out" in done.stderr
