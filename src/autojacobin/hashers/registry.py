"""The methods by name, also those from outside the library, and how a saved one is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from autojacobin.core.files import as_path, check_not_special, clear_os_errors
from autojacobin.errors import DataError
from autojacobin.hashers.autoencoders.autobin import AutoBin, CAutoBin, DAutoBin
from autojacobin.hashers.autoencoders.autojacobin import PUBLISHED_PARAMETERS, AutoJacoBin
from autojacobin.hashers.autoencoders.binary_autoencoder import BinaryAutoencoder
from autojacobin.hashers.autoencoders.partitioned_autoencoder import PartitionedAutoencoder
from autojacobin.hashers.base import Hasher
from autojacobin.hashers.data_independent import LSH, OwnCodes, Sign
from autojacobin.hashers.graph_hashing import SGH, SpectralHashing
from autojacobin.hashers.itq import ITQ, PCARotation
from autojacobin.hashers.kmeans_hashing import NOKMeans, OKMeans
from autojacobin.hashers.list_hasher import PartitionedHasher
from autojacobin.hashers.neighbour import NeighbourHashing
from autojacobin.hashers.persistence import add_class, load_plugins, read_model
from autojacobin.hashers.spherical_hashing import SphericalHashing

H = TypeVar("H", bound=Hasher)


@dataclass(frozen=True)
class Method:
    """A method that can be chosen by name; the attributes are the arguments of :func:`register`."""

    name: str
    hasher: type[Hasher]
    label: str
    command: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def make(self, n_bits: int | None = None, parameters: Mapping[str, Any] | None = None, seed: Any = None) -> Hasher:
        """Make an unfitted hasher, with the length of codes that is the default of its class unless one is given.

        ``parameters`` take precedence over those of the method. ``seed`` becomes the ``random_state``, if the class
        has one.
        """
        given: dict[str, Any] = {**self.parameters, **(parameters or {})}
        if "random_state" in self.hasher._parameters():
            given.setdefault("random_state", seed)
        if n_bits is not None:
            given["n_bits"] = n_bits
        return self.hasher(**given)


_METHODS: dict[str, Method] = {}


def register(
    hasher: type[H],
    name: str | None = None,
    *,
    label: str | None = None,
    command: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> type[H]:
    """Make a method known to ``load``, the command line, the reproduction and the figures.

    A class can be registered under several names with different parameters. ``@autojacobin.register`` also works as a
    decorator of the class.

    Parameters
    ----------
    hasher : type
        Subclass of :class:`Hasher`.
    name : str, optional
        Name of the method; by default the name of the class.
    label : str, optional
        Name in legends and tables; by default ``name``.
    command : str, optional
        Name on the command line; by default ``name`` in lower case.
    parameters : dict, optional
        Parameters that the method fixes; they replace the defaults of the class.
    """
    if not (isinstance(hasher, type) and issubclass(hasher, Hasher)):
        raise DataError(f"register takes a subclass of autojacobin.Hasher, got {hasher!r}; derive the class from it")
    unknown = sorted(set(parameters or {}) - set(hasher._parameters()))
    if unknown:
        raise DataError(f"{hasher.__name__} has no parameter {unknown[0]!r}; register it with those of its constructor")
    name = name or hasher.__name__
    method = Method(name, hasher, label or name, command or name.lower(), dict(parameters or {}))
    _check_unique(method)
    _METHODS[name] = method
    add_class(hasher)
    return hasher


def methods() -> tuple[Method, ...]:
    """All registered methods: those of this library in the order of the paper, then others.

    Examples
    --------
    >>> from autojacobin.hashers import methods
    >>> [method.command for method in methods()][:4]
    ['lsh', 'spectral', 'itq', 'okmeans']
    """
    load_plugins()
    return tuple(_METHODS.values())


def find_method(name: str) -> Method:
    """Return the method with this name, or raise a DataError."""
    if name not in _METHODS:
        load_plugins()
    if name not in _METHODS:
        raise DataError(
            f"there is no method {name!r}, expected one of: {', '.join(_METHODS)}; "
            "add a method of your own with autojacobin.register"
        )
    return _METHODS[name]


def find_command(name: str, by: Sequence[str] = ("command", "name", "label")) -> Method:
    """Return the method that the command line calls by this name, or raise a DataError.

    Capitals, hyphens, underscores and spaces do not matter. A name or label of a method that is no command of another
    is accepted too. ``by`` says which of them count, in this order.

    Examples
    --------
    >>> from autojacobin.hashers import find_command
    >>> find_command("Binary_Autoencoder").command, find_command("SpectralHashing").command
    ('binaryautoencoder', 'spectral')
    """
    for kind in by:
        for method in methods():
            if _letters(getattr(method, kind)) == _letters(name):
                return method
    known = ", ".join(getattr(method, by[0]) for method in methods())
    raise DataError(f"there is no method {name!r}, expected one of: {known}")


def _letters(name: str) -> str:
    """A name without what its spellings differ in."""
    return re.sub(r"[-_\s]", "", name).lower()


def _check_unique(method: Method) -> None:
    """Raise a DataError if another method has one of the names, or another class the same class name."""
    for other in _METHODS.values():
        mine, theirs = (
            {"class": one.hasher.__name__, "name": one.name, "label": one.label, "command": _letters(one.command)}
            for one in (method, other)
        )
        if (other.hasher.__module__, other.hasher.__qualname__) == (
            method.hasher.__module__,
            method.hasher.__qualname__,
        ):
            theirs.pop("class")  # defined again, for example in a notebook: it replaces the old one
            if other.name == method.name:
                continue
        for kind in (kind for kind, text in theirs.items() if text == mine[kind]):
            raise DataError(
                f"the {kind} {mine[kind]!r} is taken by the method {other.name} of {other.hasher.__module__}; register "
                f"yours with another {kind}"
            )


# The methods of the paper, in the order of its tables and legends.
register(LSH)
register(SpectralHashing, label="SH", command="spectral")
register(ITQ)
register(OKMeans)
register(NOKMeans)
register(AutoBin, "AutoBin1", command="autobin")
register(AutoBin, "AutoBin2", parameters={"batch_size": None, "n_epochs": 50})
register(DAutoBin)
register(CAutoBin)
register(AutoJacoBin, label="Auto-JacoBin", command="autojacobin-published", parameters=PUBLISHED_PARAMETERS)
register(AutoJacoBin, "AutoJacoBin (chosen)", label="Auto-JacoBin (chosen)", command="autojacobin")
# Beyond the paper.
register(Sign)
register(PCARotation, label="PCA-RR", command="pcarotation")
register(SphericalHashing, label="SpH", command="spherical")
register(SGH)
register(NeighbourHashing, label="Neighbour hashing", command="neighbour")
register(BinaryAutoencoder, label="Binary auto-encoder")
register(PartitionedAutoencoder, label="Partitioned auto-encoder")
# No methods, but files hold them.
add_class(OwnCodes)
add_class(PartitionedHasher)


def load(path: str | os.PathLike[str]) -> Hasher:
    """Read a hasher that ``save`` wrote.

    The codes it gives are the same bit for bit. Nothing in the file is executed: it holds a JSON header and
    plain arrays. The hasher computes on the CPU until ``set_params(device="cuda")`` says otherwise. A file that is
    damaged or foreign, or has another format, is a FormatError, and one that cannot be read is a StorageError.
    """
    path = as_path(path)
    with clear_os_errors(f"read the model {path}", "give the path of a model that was saved"):
        check_not_special(path, "read the model")
        return read_model(path)
