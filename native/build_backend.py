"""The build backend: scikit-build-core, with libraries beside the sources for editable installs.

``pip install .`` calls the functions below (PEP 517). ``make native`` runs this file: it compiles the libraries for
this Python into ``src/``, where a checkout imports them from.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build

ROOT = Path(__file__).resolve().parents[1]

build_sdist, get_requires_for_build_sdist = build.build_sdist, build.get_requires_for_build_sdist
build_wheel, get_requires_for_build_wheel = build.build_wheel, build.get_requires_for_build_wheel
prepare_metadata_for_build_wheel = build.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build.prepare_metadata_for_build_editable
get_requires_for_build_editable = build.get_requires_for_build_wheel


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Compile the libraries into ``src/``, and make a wheel that points there."""
    compile_here()
    name: str = build.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def compile_here() -> None:
    """Compile the libraries for this Python into ``src/``; what has not changed is not compiled again."""
    folder = ROOT / "build" / "native" / sys.implementation.cache_tag
    cmake = shutil.which("cmake") or "cmake"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [cmake, "-S", ROOT / "native", "-B", folder, *generator, f"-DPython_EXECUTABLE={sys.executable}"]
    install = [cmake, "--install", folder, "--prefix", ROOT / "src"]
    for command in (configure, [cmake, "--build", folder, "--parallel"], install):
        subprocess.run(command, check=True)


if __name__ == "__main__":
    compile_here()
