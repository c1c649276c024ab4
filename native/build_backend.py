"""The build backend: scikit-build-core, with a compiler where there is none, and libraries beside the sources.

``pip install .`` calls the functions below (PEP 517). Without a compiler it takes the package ``ziglang``, which has
one. ``make native`` runs this file: it compiles the libraries for this Python into ``src/``, where a checkout imports
them from; an editable install does the same.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scikit_build_core import build

ROOT = Path(__file__).resolve().parents[1]
_COMPILERS = ("c++", "g++", "clang++")
_OLDEST_LIBC = "2.17"  # that a library compiled by Zig asks for; NumPy's wheels ask for a newer one
_FAILED = (
    "autojacobin: the kernels could not be compiled, for the reason above; install GCC 11, Clang 14 or newer, "
    "or name such a compiler by CXX"
)

build_sdist, get_requires_for_build_sdist = build.build_sdist, build.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build.prepare_metadata_for_build_editable


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What a build needs beyond pyproject.toml: CMake where there is none, and a compiler where there is none."""
    needed: list[str] = build.get_requires_for_build_wheel(config_settings)
    if _needs_zig():
        print(
            "autojacobin: there is no C++ compiler, so the build takes the package ziglang, which has one; "
            "compiling takes some minutes the first time",
            file=sys.stderr,
        )
        needed.append("ziglang>=0.13")
    return needed


get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Compile the libraries into a wheel."""
    with _compiler():
        name: str = build.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Compile the libraries into ``src/``, and make a wheel that points there."""
    compile_here()
    name: str = build.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def compile_here() -> None:
    """Compile the libraries for this Python into ``src/``; what has not changed is not compiled again."""
    folder = ROOT / "build" / "native" / str(sys.implementation.cache_tag)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    with _compiler():
        for step in (
            ["-S", ROOT / "native", "-B", folder, *generator, f"-DPython_EXECUTABLE={sys.executable}"],
            ["--build", folder, "--parallel"],
            ["--install", folder, "--prefix", ROOT / "src"],
        ):
            subprocess.run(["cmake", *step], check=True)


@contextmanager
def _compiler() -> Iterator[None]:
    """Let CMake find a compiler, and say what is needed where a build fails."""
    with tempfile.TemporaryDirectory() as folder:
        if _needs_zig():
            os.environ["CXX"] = str(_zig_in(Path(folder)))
        try:
            yield
        except (subprocess.SubprocessError, OSError, SystemExit) as error:
            raise SystemExit(_FAILED) from error


def _needs_zig() -> bool:
    has_compiler = os.environ.get("CXX") or any(shutil.which(name) for name in _COMPILERS)
    return not has_compiler and platform.libc_ver()[0] == "glibc"


def _zig_in(folder: Path) -> Path:
    """Write the commands that CMake calls; those of a compiler are expected beside it."""
    target = f"-target {platform.machine()}-linux-gnu.{_OLDEST_LIBC}"
    for name, command in {"zig-c++": f"c++ {target}", "ar": "ar", "ranlib": "ranlib"}.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {command} "$@"\n')
        path.chmod(0o755)
    return folder / "zig-c++"


if __name__ == "__main__":
    compile_here()
