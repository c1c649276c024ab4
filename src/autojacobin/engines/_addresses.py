"""Addresses as messages show them: without the passwords and signatures that may stand in them."""

from __future__ import annotations

import re

__all__ = ["without_secrets"]

# The name and password before the host; of a password with a slash in it, which is no part of a host, all up to the @.
_USER = re.compile(r"(?<=://)(?:[^/\s]*|[^/\s:]+:(?!\d+/)\S*)@")
_SIGNATURE = re.compile(r"(https?://[^\s?]*)\?\S+")


def without_secrets(text: str) -> str:
    """Give an address, or a message with addresses in it, without user names, passwords and signed queries.

    Examples
    --------
    >>> without_secrets("cannot read ftp://me:sesame@host/part.npy")
    'cannot read ftp://host/part.npy'
    """
    return _SIGNATURE.sub(r"\1?…", _USER.sub("", text))
