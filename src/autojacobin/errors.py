"""Errors; each message says what is wrong, what was given, what is expected and how to fix it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sklearn.exceptions import NotFittedError

__all__ = [
    "AutoJacobinError", "DataError", "DataTypeError", "FormatError", "IdExistsError", "IndexLockedError",
    "MissingExtraError", "NotFittedError", "StorageError", "UnknownIdError",
]  # fmt: skip


class AutoJacobinError(Exception):
    """Base of every error that this library raises on purpose, except scikit-learn's ``NotFittedError``."""


class DataError(AutoJacobinError, ValueError):
    """Data or a parameter that cannot be used."""


class DataTypeError(DataError, TypeError):
    """Data of a type that cannot be used: text, objects, sparse matrices, complex numbers."""


class UnknownIdError(DataError):
    """An id that is not in the index."""


class IdExistsError(DataError):
    """An id that is added but is in the index already."""


class FormatError(AutoJacobinError):
    """A file that is damaged, in another format, or written by a newer version of the library."""


class StorageError(AutoJacobinError, OSError):
    """A folder or file that cannot be read or written: not there, no permission, no space."""


class IndexLockedError(AutoJacobinError):
    """An index that another process is writing to."""


class MissingExtraError(AutoJacobinError, ImportError):
    """A package of an optional extra is not installed. Made of its name, the extra, and what needs the package."""

    def __str__(self) -> str:
        package, extra, purpose = self.args
        missing = f"{purpose} needs the package {package!r}, which is not installed"
        return f"{missing}; install it with: pip install 'autojacobin[{extra}]'"


def import_extra(module: str, extra: str, purpose: str, package: str = "") -> Any:
    """Import a module of an optional extra, or raise MissingExtraError; ``package`` is its name if that is another."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(package or module.partition(".")[0], extra, purpose) from None


def shortened(text: str, most: int = 200) -> str:
    """Give a text for a message on one line, cut to at most ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def reason_of(error: BaseException, most: int = 1000) -> str:
    """Give what an error of another library says, as :func:`shortened` does, or else its name."""
    return shortened(str(error), most) or type(error).__name__


def __getattr__(name: str) -> Any:
    if name == "NotFittedError":  # scikit-learn takes a second to load
        from sklearn.exceptions import NotFittedError

        return NotFittedError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
