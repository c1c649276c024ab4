"""Save hashers to safetensors files, and load them: the classes that files may name, and what files hold."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from autojacobin.core.vectors import LARGEST
from autojacobin.core.version import VERSION
from autojacobin.errors import DataError, FormatError, shortened
from autojacobin.search.distances import METRICS

FORMAT_VERSION = 3
_NO_DIGEST = "0" * 64
# The JSON header is itself a string within safetensors' JSON, so its quotation marks are escaped.
_DIGEST = re.compile(rb'\\"checksum\\": ?\\"([0-9a-f]{64})\\"')
# The device and the progress callback belong to the running program, not to the model.
_NOT_SAVED = ("device", "progress")
# Kinds of number by their name in a file; words are bytes there.
_KINDS = {"F32": ("f", "<f4"), "F64": ("f", "<f8"), "I32": ("i", "<i4"), "I64": ("i", "<i8"), "U8": ("U", "u1")}
_IF_DAMAGED = "restore it from a copy, or fit and save the model again"
_IF_FOREIGN = "look at the order of the arguments, or restore it from a copy if it was a model"
_LONGEST_NAME = 100
_LARGEST_LEARNED = 1e18  # no vector is longer: LARGEST times the root of the most features; float32 holds its square
_OF_WRAPPED = "hasher_."  # begins the names of the arrays of a hasher that another one wraps
_deserialize: Any = safetensors.deserialize  # has no types
_CLASSES: dict[str, Any] = {}
_plugins_loaded = False


def add_class(hasher: Any) -> None:
    """Let files name a class."""
    _CLASSES[hasher.__name__] = hasher


def classes() -> dict[str, Any]:
    """The classes that files may name."""
    load_plugins()
    return _CLASSES


def load_plugins() -> None:
    """Import what other packages declare in the entry points ``autojacobin.methods``, once."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    for entry in importlib.metadata.entry_points(group="autojacobin.methods"):
        try:
            entry.load()
        except Exception as error:  # a broken package of somebody else must not break this library
            warnings.warn(
                f"the methods of the entry point {entry.name} = {entry.value} are left out, because it could not be "
                f"loaded: {type(error).__name__}: {error}",
                stacklevel=3,
            )


def _check_registered(hasher: Any) -> None:
    """Raise a DataError if ``load`` would not find the class of a saved hasher."""
    name = hasher.__name__
    known = classes().get(name)
    if known is hasher:
        return
    fix = f"register it with autojacobin.register({name})"
    if known is not None:
        fix = f"rename the class, because {known.__module__} has registered another {name}, and register it"
    raise DataError(f"the class {name} is not registered, so no program could load it from a file; {fix}")


@dataclass(frozen=True)
class Tensor:
    """Kind of number (``"f"`` or ``"i"``), shape and meaning of a learned array.

    A name in the shape stands for ``n_bits``, ``n_features``, or any length that is the same wherever it occurs.
    With ``columns``, the attribute is a table, a dict of arrays of this shape, each of either kind or of words
    (``"U"``), which are written as rows of UTF-8 padded with zeros. They are the kinds of columns that it has unless it
    is empty. Some fits leave out what is ``optional``. ``power`` is 2 for squares of lengths, which may be larger than
    other numbers.
    """

    kind: str
    shape: tuple[str, ...] = ()
    meaning: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False
    power: int = 1

    def __str__(self) -> str:
        """Give its type, as docstrings do."""
        number = "int" if self.kind == "i" else "float"
        shape = f"array of {number}, shape ({', '.join(self.shape)})" if self.shape else number
        return "dict of arrays" if self.columns else shape


def model_bytes(model: Any) -> bytes:
    """Give the content of a model file: the class of ``model``, its parameters, the attributes that it declares."""
    _check_registered(type(model))
    described, arrays = _described(model)
    header = {
        "checksum": _NO_DIGEST,  # stays the first key, so that nothing else in the file can be mistaken for it
        "format_version": FORMAT_VERSION,
        "library_version": VERSION,
        **described,
    }
    content = safetensors.numpy.save(arrays, metadata={"autojacobin": json.dumps(header)})
    digest = hashlib.sha256(content).hexdigest()
    return content.replace(_NO_DIGEST.encode(), digest.encode(), 1)


def _described(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give what the header says about a model, and its arrays; with those of the hasher that it wraps, if any."""
    given = model.get_params(deep=False)
    header: dict[str, Any] = {
        "class": type(model).__name__,
        "parameters": {name: _plain(given[name]) for name in _saved_parameters(type(model))},
        "n_features_in": int(model.n_features_in_),
        "feature_names_in": [str(name) for name in getattr(model, "feature_names_in_", ())],
    }
    if model.metric_ not in (None, METRICS[0]):  # a file without a metric is a Euclidean one
        header |= {"metric": model.metric_, "radius": float(model.radius_)}
    arrays: dict[str, Any] = {}
    for name, tensor in model._tensors.items():
        if tensor.optional and not hasattr(model, name):
            continue
        value = getattr(model, name)
        columns = {f"{name}.{key}": column for key, column in value.items()} if tensor.columns else {name: value}
        arrays.update({key: _as_bytes(np.asarray(column, order="C")) for key, column in columns.items()})
    if model._wraps_hasher:
        header["hasher"], inner = _described(model.hasher_)
        arrays.update({_OF_WRAPPED + name: array for name, array in inner.items()})
    return header, arrays


def _saved_parameters(hasher: Any) -> list[str]:
    """Names of the parameters in a header."""
    left_out = {*_NOT_SAVED, *(("hasher",) if hasher._wraps_hasher else ())}
    return [name for name in hasher._parameters() if name not in left_out]


def read_model(path: str | os.PathLike[str]) -> Any:
    """Read a model of one of the classes that files may name."""
    content = Path(path).read_bytes()
    if content[8:10] != b'{"':  # a file of safetensors has a JSON header after its length
        raise _damaged(path, f"a file that begins with {content[:6]!r}", _IF_FOREIGN)
    found = _DIGEST.search(content)
    if found is None:
        raise _damaged(path, "no checksum of this library in it")
    start, end = found.span(1)
    blank = content[:start] + _NO_DIGEST.encode() + content[end:]
    if hashlib.sha256(blank).hexdigest() != found.group(1).decode():
        raise _damaged(path, "a checksum that does not fit its content")
    try:
        entries = dict(_deserialize(content))
        header = _header(content)
        format_version = _field(header, "format_version", int)
        known = classes()
        for described in (header, header.get("hasher")):
            name = described.get("class") if isinstance(described, dict) else None
            is_name = isinstance(name, str) and name.isidentifier() and len(name) <= _LONGEST_NAME
            if is_name and 1 <= format_version < 2**31 and (format_version != FORMAT_VERSION or name not in known):
                raise _not_read(path, format_version, str(name))
        if format_version != FORMAT_VERSION:
            raise ValueError(f"format {format_version}")
        return _read(known, header, entries)
    except (ValueError, safetensors.SafetensorError) as error:
        raise _damaged(path, str(error)) from error


def _read(classes: Mapping[str, Any], header: dict[str, Any], entries: dict[str, Any]) -> Any:
    """Make a model of what its header says, and of its arrays."""
    name = _field(header, "class", str)
    if name not in classes:
        raise ValueError(f"class {name!r}")
    wrapped: dict[str, Any] = {}
    if classes[name]._wraps_hasher:
        inner = {key[len(_OF_WRAPPED) :]: entries.pop(key) for key in sorted(entries) if key.startswith(_OF_WRAPPED)}
        others = {name: one for name, one in classes.items() if not one._wraps_hasher}
        wrapped["hasher"] = _read(others, _field(header, "hasher", dict), inner)
    model = _unfitted(classes[name], header, wrapped)
    if wrapped:
        model.hasher_ = wrapped["hasher"]
    _attach(model, entries)
    model._check_learned()
    return model


def _header(content: bytes) -> dict[str, Any]:
    """Header of this library, a text within that of safetensors."""
    length = int.from_bytes(content[:8], "little")
    metadata = _field(_parsed(content[8 : 8 + length]), "__metadata__", dict)
    return _parsed(_field(metadata, "autojacobin", str))


def _parsed(text: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("a header that is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"a header that is a {type(found).__name__}, expected a JSON object")
    return found


def _field(header: dict[str, Any], name: str, kind: type) -> Any:
    value = header.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} of type {type(value).__name__} in the header, expected {kind.__name__}")
    return value


def _unfitted(hasher: Any, header: dict[str, Any], wrapped: dict[str, Any]) -> Any:
    """Give a hasher of a class, with the parameters of a header and with the features that it expects."""
    parameters, saved, limits = _field(header, "parameters", dict), _saved_parameters(hasher), hasher._limits
    for key, value in parameters.items():
        if key not in saved or not isinstance(value, str | int | float | None):
            kind = type(value).__name__
            raise ValueError(f"a parameter {key!r} of type {kind}, which {hasher.__name__} does not have")
        if key in limits and not limits[key].allows(value):
            raise ValueError(f"{key} = {value!r}, expected {limits[key]}")
    model = hasher(**parameters, **wrapped)
    model.n_features_in_ = _field(header, "n_features_in", int)
    model.metric_, model.radius_ = header.get("metric", METRICS[0]), header.get("radius", 0.0)
    if model.metric_ not in METRICS or type(model.radius_) is not float or not 0 <= model.radius_ <= LARGEST:
        raise ValueError(f"a metric {model.metric_!r} of radius {model.radius_!r}")
    if (model.metric_ == "inner_product") != (model.radius_ > 0):
        raise ValueError(f"a radius of {model.radius_!r} for the metric {model.metric_}")
    names = _field(header, "feature_names_in", list)
    if names:
        if len(names) != model.n_features_in_ or not all(isinstance(text, str) for text in names):
            raise ValueError(f"{len(names)} names of features, expected {model.n_features_in_} texts")
        model.feature_names_in_ = np.array(names, dtype=object)
    return model


def _attach(model: Any, entries: dict[str, Any]) -> None:
    """Set the learned attributes, after a check that each is what the class declares."""
    sizes: dict[str, int] = {"n_bits": model.n_bits, "n_features": model.n_features_in_}
    for name, tensor in model._tensors.items():
        if tensor.columns:
            there = {key[len(name) + 1 :]: entries.pop(key) for key in sorted(entries) if key.startswith(f"{name}.")}
            missing = sorted(tensor.columns.keys() - there.keys())
            if missing and there:
                raise ValueError(f"no array {name}.{missing[0]}")
            table = {
                key: _array(f"{name}.{key}", entry, tensor.columns.get(key, "fiU"), tensor.shape, sizes)
                for key, entry in there.items()
            }
            if table or not tensor.optional:
                setattr(model, name, table)
        elif name in entries:
            array = _array(name, entries.pop(name), tensor.kind, tensor.shape, sizes)
            if tensor.kind == "f" and not _largest(array, tensor) <= _LARGEST_LEARNED**tensor.power:
                raise ValueError(f"NaN, infinity or absurdly large numbers in array {name}")
            setattr(model, name, array if tensor.shape else array.item())
        elif not tensor.optional:
            raise ValueError(f"no array {name}")
    if entries:
        raise ValueError(f"an unexpected array {min(entries)!r}")


def _largest(array: Any, tensor: Tensor) -> float:
    """The largest number of an array, or the largest length where its rows are vectors, whose squares are summed up."""
    with np.errstate(over="ignore"):
        if tensor.shape[-1:] != ("n_features",):
            return float(np.abs(array).max())
        rows = array.reshape(-1, array.shape[-1])
        return float(np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64).max()))


def _array(name: str, entry: dict[str, Any], kinds: str, shape: tuple[str, ...], sizes: dict[str, int]) -> Any:
    """Make an array of an entry if it is of one of ``kinds`` and has the lengths that the others of its names have."""
    kind, dtype = _KINDS.get(entry["dtype"], ("none", "V"))
    lengths = entry["shape"]
    fits = kind in kinds and len(lengths) == len(shape) + (kind == "U") and 0 not in lengths
    if not fits or any(sizes.setdefault(size, length) != length for size, length in zip(shape, lengths, strict=False)):
        raise ValueError(f"array {name} is {entry['dtype']} of shape {lengths}, expected ({', '.join(shape)})")
    array = np.frombuffer(entry["data"], dtype=dtype).reshape(lengths)
    return np.char.decode(array.view(f"S{lengths[-1]}")[:, 0], "utf-8") if kind == "U" else array


def _as_bytes(array: Any) -> Any:
    if array.dtype.kind != "U":
        return array
    encoded = np.char.encode(array, "utf-8")
    return encoded.view(np.uint8).reshape(len(array), encoded.dtype.itemsize)


def _plain(value: Any) -> Any:
    """Give a parameter as JSON has it; a random generator has a state that no file should pretend to restore."""
    if isinstance(value, np.random.RandomState):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _damaged(path: str | os.PathLike[str], what: str, advice: str = _IF_DAMAGED) -> FormatError:
    got = shortened(what)
    return FormatError(f"{Path(path)} is damaged or is not a model saved by autojacobin, got: {got}; {advice}")


def _not_read(path: str | os.PathLike[str], format_version: int, name: str) -> FormatError:
    advice = "fit and save the model again"
    if format_version == FORMAT_VERSION:
        advice = f"install a newer version, or import the module that registers {name}"
    elif format_version > FORMAT_VERSION:
        advice = "install a newer version"
    return FormatError(
        f"{Path(path)} has format {format_version} and class {name}, which is not read by autojacobin "
        f"{VERSION}, only format {FORMAT_VERSION} and registered classes; {advice}"
    )
