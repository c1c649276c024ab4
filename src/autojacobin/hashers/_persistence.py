"""Fitted hashers as files: one safetensors file with a JSON header and a checksum over every byte.

The layout is described in ``docs/formats.md``. Reading executes nothing, and a file that does not carry
exactly what its class learns is refused as a whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from autojacobin._files import write_atomically
from autojacobin.errors import FormatError

__all__ = ["FORMAT_VERSION", "Tensor", "read_model", "write_model"]

FORMAT_VERSION = 2  # 1 had no columns of words
_NO_DIGEST = "0" * 64
# The JSON header is itself a string within safetensors' JSON, so its quotation marks are escaped.
_DIGEST = re.compile(rb'\\"checksum\\": ?\\"([0-9a-f]{64})\\"')
# Where a hasher computes and whom it tells about it belong to the running program, not to the model.
_NOT_SAVED = ("device", "progress")


@dataclass(frozen=True)
class Tensor:
    """Kind of number (``"f"`` or ``"i"``) and shape of a learned array.

    A name in the shape stands for ``n_bits``, ``n_features``, or any length that is the same wherever it occurs.
    ``columns=True``: the attribute is a table, a dict of arrays of this shape, each of either kind or of words,
    which are written as rows of UTF-8 padded with zeros.
    ``optional=True``: some fits leave it out.
    """

    kind: str
    shape: tuple[str, ...] = ()
    columns: bool = False
    optional: bool = False


def write_model(path: str | os.PathLike[str], model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Write ``model``: its class, parameters and the attributes named in ``tensors``."""
    header = {
        "checksum": _NO_DIGEST,  # stays the first key, so that nothing else in the file can be mistaken for it
        "format_version": FORMAT_VERSION,
        "library_version": version("autojacobin"),
        "class": type(model).__name__,
        "parameters": {
            name: _plain(value) for name, value in model.get_params(deep=False).items() if name not in _NOT_SAVED
        },
        "n_features_in": int(model.n_features_in_),
        "feature_names_in": [str(name) for name in getattr(model, "feature_names_in_", ())],
    }
    arrays: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if tensor.optional and not hasattr(model, name):
            continue
        value = getattr(model, name)
        columns = {f"{name}.{key}": column for key, column in value.items()} if tensor.columns else {name: value}
        arrays.update({key: _as_bytes(np.asarray(column, order="C")) for key, column in columns.items()})
    content = safetensors.numpy.save(arrays, metadata={"autojacobin": json.dumps(header)})
    digest = hashlib.sha256(content).hexdigest()
    write_atomically(path, content.replace(_NO_DIGEST.encode(), digest.encode(), 1))


def read_model(path: str | os.PathLike[str], classes: Mapping[str, Any]) -> Any:
    """Read a model of one of ``classes``, by the name of the class."""
    content = Path(path).read_bytes()
    found = _DIGEST.search(content)
    if found is None:
        raise _damaged(path, "no checksum of this library in it")
    start, end = found.span(1)
    blank = content[:start] + _NO_DIGEST.encode() + content[end:]
    if hashlib.sha256(blank).hexdigest() != found.group(1).decode():
        raise _damaged(path, "a checksum that does not fit its content")
    try:
        header = json.loads(_metadata(content)["autojacobin"])
        format_version, name = int(header["format_version"]), str(header["class"])
        if format_version > FORMAT_VERSION or name not in classes:
            raise _too_new(path, f"format {format_version}, class {name}")
        model = classes[name](**header["parameters"])
        model.n_features_in_ = int(header["n_features_in"])
        if header["feature_names_in"]:
            model.feature_names_in_ = np.array(header["feature_names_in"], dtype=object)
        _attach(model, safetensors.numpy.load(content))
    except (ValueError, TypeError, KeyError, AttributeError, safetensors.SafetensorError) as error:
        raise _damaged(path, str(error)) from error
    return model


def _attach(model: Any, arrays: dict[str, Any]) -> None:
    """Set the learned attributes, after a check that each is what the class expects."""
    sizes = {"n_bits": model.n_bits, "n_features": model.n_features_in_}
    for name, tensor in model._tensors.items():
        if tensor.columns:
            table = {key: arrays.pop(key) for key in sorted(arrays) if key.startswith(f"{name}.")}
            for key, column in table.items():
                table[key] = _as_words(column) if column.dtype == np.uint8 else column
                _check_tensor(key, table[key], ("f", "i", "U"), tensor.shape, sizes)
            if table or not tensor.optional:
                setattr(model, name, {key[len(name) + 1 :]: column for key, column in table.items()})
        elif name in arrays:
            array = arrays.pop(name)
            _check_tensor(name, array, (tensor.kind,), tensor.shape, sizes)
            setattr(model, name, array if tensor.shape else array.item())
        elif not tensor.optional:
            raise ValueError(f"no array {name}")
    if arrays:
        raise ValueError(f"an unexpected array {min(arrays)}")


def _check_tensor(name: str, array: Any, kinds: tuple[str, ...], shape: tuple[str, ...], sizes: dict[str, int]) -> None:
    fits = array.dtype.kind in kinds and array.ndim == len(shape)
    if not fits or any(
        sizes.setdefault(size, length) != length for size, length in zip(shape, array.shape, strict=True)
    ):
        raise ValueError(f"array {name} is {array.dtype} of shape {array.shape}, expected ({', '.join(shape)})")


def _as_bytes(array: Any) -> Any:
    if array.dtype.kind != "U":
        return array
    encoded = np.char.encode(array, "utf-8")
    return encoded.view(np.uint8).reshape(len(array), encoded.dtype.itemsize)


def _as_words(column: Any) -> Any:
    if column.ndim != 2 or not column.shape[1]:
        raise ValueError(f"a column of words has shape {column.shape}, expected two dimensions")
    return np.char.decode(np.ascontiguousarray(column).view(f"S{column.shape[1]}")[:, 0], "utf-8")


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata: dict[str, str] = header["__metadata__"]
    return metadata


def _plain(value: Any) -> Any:
    """Give a parameter as JSON has it; a random generator has a state that no file should pretend to restore."""
    if isinstance(value, np.random.RandomState):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _damaged(path: str | os.PathLike[str], what: str) -> FormatError:
    return FormatError(
        f"{Path(path)} is damaged or is not a model saved by autojacobin, got: {what}; "
        "restore it from a copy, or fit and save the model again"
    )


def _too_new(path: str | os.PathLike[str], what: str) -> FormatError:
    return FormatError(
        f"{Path(path)} needs a newer library, got {what}, while autojacobin {version('autojacobin')} reads formats "
        f"up to {FORMAT_VERSION}; upgrade with: pip install --upgrade autojacobin"
    )
