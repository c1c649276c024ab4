"""The build backend without a compiler, and where a build fails."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("scikit_build_core")
PATH = Path(__file__).parents[2] / "native" / "build_backend.py"


@pytest.fixture
def backend():
    spec = importlib.util.spec_from_file_location("build_backend", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def no_compiler(backend, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(backend.shutil, "which", lambda name: None)
    monkeypatch.setattr(backend.platform, "libc_ver", lambda: ("glibc", "2.36"))


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_a_build_asks_for_one_and_says_so(backend, capsys):
    assert any(name.startswith("ziglang") for name in backend.get_requires_for_build_wheel())
    assert any(name.startswith("ziglang") for name in backend.get_requires_for_build_editable())
    assert "there is no C++ compiler, so the build takes the package ziglang" in capsys.readouterr().err


@pytest.mark.usefixtures("no_compiler")
def test_the_compiler_that_was_asked_for_is_called(backend, monkeypatch):
    monkeypatch.setenv("CXX", "")
    with backend._compiler():
        command = Path(backend.os.environ["CXX"])
        assert f'"{sys.executable}" -m ziglang c++ -target ' in command.read_text()
        assert {path.name for path in command.parent.iterdir()} == {"zig-c++", "ar", "ranlib"}


def test_with_a_compiler_nothing_more_is_asked_for(backend, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "c++")
    assert not any(name.startswith("ziglang") for name in backend.get_requires_for_build_wheel())
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", ["compile_here", "build_wheel"])
def test_a_failing_build_ends_in_one_sentence(name, backend, monkeypatch, tmp_path):
    def fail(*_arguments, **_options):
        raise subprocess.CalledProcessError(1, ["cmake"])

    monkeypatch.setenv("CXX", "c++")
    monkeypatch.setattr(backend.subprocess, "run", fail)
    monkeypatch.setattr(backend.build, "build_wheel", fail)
    with pytest.raises(SystemExit, match="the kernels could not be compiled, for the reason above") as error:
        getattr(backend, name)(*([str(tmp_path)] if name == "build_wheel" else []))
    assert "\n" not in str(error.value)
