"""``autojacobin info``: what a file is, or what this installation and this machine have."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from autojacobin.cli._inputs import load_model, opened, split_part
from autojacobin.cli._methods import settable
from autojacobin.cli._options import AsJson, Debug
from autojacobin.cli._report import print_facts
from autojacobin.errors import StorageError

__all__ = ["info"]

_ROWS_LOOKED_AT = 1_000
_CORE = ("numpy", "scipy", "scikit-learn", "numba", "safetensors", "typer", "rich")
_FOR_DEVELOPERS = ("dev", "docs", "test")
# where the module is not called as the package is
_MODULES = {
    "faiss-cpu": "faiss",
    "opencv-python-headless": "cv2",
    "scikit-image": "skimage",
    "cupy-cuda12x": "cupy",
}


def info(
    path: Annotated[
        str | None,
        typer.Argument(metavar="PATH", help="Model, codes, index or vectors (PATH::PART for one of several)."),
    ] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Say what a file or folder holds; without one, which versions, extras, cores and devices there are.

    Example: autojacobin info model.safetensors

    Example: autojacobin info
    """
    print_facts(_installation() if path is None else _described(path), as_json=as_json)


def _described(name: str) -> dict[str, Any]:
    path = Path(split_part(name)[0])
    if not path.exists():
        raise StorageError(f"cannot read {path}: there is no such file or folder; look at the spelling")
    if path.is_dir():
        return _index(path)
    if _is_model(path):
        return _model(path)
    if _is_codes(path):
        return _codes(path)
    return _vectors(name)


def _index(path: Path) -> dict[str, Any]:
    from autojacobin.index.index import Index

    with Index.open(path) as index:
        return {"kind": "index", **index.info()}


def _is_model(path: Path) -> bool:
    with open(path, "rb") as file:
        return path.suffix.lower() == ".safetensors" or file.read(10)[8:] == b'{"'  # after the header's length


def _model(path: Path) -> dict[str, Any]:
    hasher = load_model(path)
    return {
        "kind": "model",
        "method": type(hasher).__name__,
        "bits": int(hasher.n_bits),
        "features": int(hasher.n_features_in_),
        "seed": getattr(hasher, "random_state", None),
        "parameters": settable(hasher),
        "bytes": path.stat().st_size,
    }


def _is_codes(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return {"packed.npy", "n_bits.npy", "format_version.npy"} <= set(archive.namelist())


def _codes(path: Path) -> dict[str, Any]:
    from autojacobin.codes import Codes

    codes = Codes.load(path)
    ones = float(codes[:_ROWS_LOOKED_AT].to_bits().mean()) if len(codes) else None
    return {
        "kind": "codes",
        "codes": len(codes),
        "bits": codes.n_bits,
        "share_of_ones": None if ones is None else round(ones, 4),
        "bytes": path.stat().st_size,
    }


def _vectors(name: str) -> dict[str, Any]:
    with opened(name) as vectors:
        first = np.asarray(vectors[:_ROWS_LOOKED_AT])
        facts: dict[str, Any] = {
            "kind": "vectors",
            "format": vectors.format,
            "vectors": len(vectors),
            "features": vectors.shape[1],
            "type": str(vectors.dtype),
            "bytes": vectors.path.stat().st_size,
        }
    finite = first[np.isfinite(first)]
    if finite.size:
        facts[f"first_{len(first):,}"] = f"from {finite.min():.6g} to {finite.max():.6g}"
    if finite.size < first.size:
        facts["not_finite"] = f"{first.size - finite.size:,} of the first {first.size:,} numbers"
    return facts


def _installation() -> dict[str, Any]:
    from autojacobin import __version__
    from autojacobin.core.parallel import usable_cores

    facts: dict[str, Any] = {"autojacobin": __version__, "python": platform.python_version()}
    facts |= {package: importlib.metadata.version(package) for package in _CORE}
    facts |= {"machine": f"{platform.system()} {platform.machine()}", "cores": usable_cores(), "gpu": _gpu()}
    for extra, packages in _extras().items():
        missing = [package for package in packages if _is_missing(package)]
        line = f"pip install 'autojacobin[{extra}]'"
        facts[f"extra {extra}"] = f"without {', '.join(missing)}: {line}" if missing else "installed"
    return facts


def _is_missing(package: str) -> bool:
    return find_spec(_MODULES.get(package, package.replace("-", "_"))) is None


def _extras() -> dict[str, list[str]]:
    """Packages of each extra, as the installed package declares them."""
    found: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("autojacobin") or []:
        package, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if package and extra and extra[1] not in _FOR_DEVELOPERS:
            found.setdefault(extra[1], []).append(package[0])
    return dict(sorted(found.items()))


def _gpu() -> str:
    if find_spec("cupy") is None:
        return "not looked for, because cupy is not installed"
    import cupy

    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
        names = [cupy.cuda.runtime.getDeviceProperties(number)["name"].decode() for number in range(count)]
    except cupy.cuda.runtime.CUDARuntimeError:
        return "none found"
    return ", ".join(names) or "none found"
