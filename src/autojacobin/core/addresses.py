"""Addresses and messages without the passwords, tokens and signatures in them.

An address is a URL, a chain of URLs or a libpq connection string. People write passwords into addresses unescaped, with
characters that have another meaning there, and parsers disagree on such addresses. So nothing is parsed here: whatever
may be a secret under any interpretation is hidden, even if that hides more than the secret.
"""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

__all__ = ["redacted_address", "redacted_message", "safe_cause"]

_HIDDEN = "***"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BEFORE_SCHEME = re.compile(r"(?:\w+::|jdbc:)*")
_LOCAL_SCHEMES = ("file://", "local://")  # files on this machine, which need no password
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")  # of Windows
_HOST = r"(?:\[[^\[\]@/]*\]|[^:/]*)(?::[0-9]*)?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_SECRET_NAME = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|signature|credential|authorization|(?<![A-Za-z])(?:pass|sig)"
    r"|(?:api|access|account|private|shared)[_-]?key)[\w.-]*"
)
_SETTING = re.compile(rf"{_SECRET_NAME}[ \t]*=[ \t]*", re.IGNORECASE)
_SETTING_AND_VALUE = re.compile(
    rf"""({_SECRET_NAME}(?:[ \t]*=[ \t]*|["'][ \t]*:[ \t]*))("(?:\\.|[^"\\])*(?:"|$)|'(?:\\.|[^'\\])*(?:'|$)|\S+)""",
    re.IGNORECASE | re.DOTALL,
)
_HEADER = re.compile(r"(authorization[\"']?[ \t]*:[ \t]*)[^\r\n]+", re.IGNORECASE)
_WORD = re.compile(r"""(["'`(<\[{]*)(\S*?)(["'`)>\]},.;:!]*)(?=\s|$)""")
_SHORTEST = 4  # a shorter secret is hidden only where it is a word, as it is part of many words


def redacted_address(address: object) -> str:
    """Give an address that may be shown: without what is before an ``@``, and without its query.

    Parameters
    ----------
    address : str, bytes or path
        The whole text is one address, whatever characters it has. A plain path is returned unchanged.

    Examples
    --------
    >>> redacted_address("https://me:open/sesame@host:8080/base.npy?sig=abc")
    'https://***@host:8080/base.npy?***'
    >>> redacted_address("host=db user=me password=open sesame")
    'host=db user=me password=***'
    >>> redacted_address("vectors/base.npy")
    'vectors/base.npy'
    """
    text = os.fsdecode(address) if isinstance(address, str | bytes | os.PathLike) else str(address)
    scheme, setting = _SCHEME.search(text), _SETTING.search(text)
    if setting is not None and (scheme is None or setting.start() < scheme.start()):
        before = _without_user(text[: setting.start()])
        return before if before.endswith(_HIDDEN) else before + setting[0] + _HIDDEN
    if scheme is None:
        return _without_user(text)
    before, rest = text[: scheme.start()], text[scheme.end() :]
    if ":" in before and "@" in rest and not _BEFORE_SCHEME.fullmatch(before):
        return _without_user(text)  # the scheme may be part of a password
    return _without_user(before) + scheme[0] + _redacted_rest(scheme[0], rest)


def redacted_message(text: str, *addresses: object, secrets: tuple[object, ...] = ()) -> str:
    """Give a message without the secrets of the addresses in it.

    Parameters
    ----------
    text : str
        What another library says, or a whole traceback.
    addresses : str or path
        Addresses that the message may quote, whole or in part. Secrets with spaces in them, or without their address,
        are found only with these.
    secrets : tuple of str or None
        Passwords and tokens that belong to no address.

    Examples
    --------
    >>> redacted_message("cannot read 'ftp://me:sesame@host/part.npy'.")
    "cannot read 'ftp://***@host/part.npy'."
    >>> redacted_message("no port called 'open'", "tcp://me:open sesame@host")
    "no port called '***'"
    """
    known = [os.fsdecode(address) for address in addresses if isinstance(address, str | bytes | os.PathLike)]
    for address in sorted(known, key=len, reverse=True):
        shown = redacted_address(address)
        if shown != address:
            for form in _forms(address):
                text = text.replace(form, shown)
    hidden = {secret for address in known for secret in _secrets_of(address)}
    hidden |= {part for secret in secrets if secret for part in _parts(str(secret))}
    for form in sorted({form for secret in hidden for form in _forms(secret)}, key=len, reverse=True):
        if len(form) >= _SHORTEST:
            text = text.replace(form, _HIDDEN)
        elif form.strip():
            text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", _HIDDEN, text)
    text = _HEADER.sub(rf"\1{_HIDDEN}", _SETTING_AND_VALUE.sub(rf"\1{_HIDDEN}", text))
    return _WORD.sub(lambda word: word[1] + redacted_address(word[2]) + word[3], text)


def safe_cause(error: BaseException, *addresses: object, secrets: tuple[object, ...] = ()) -> BaseException | None:
    """Give the error for ``raise … from``, or None if it or one of its causes would print a secret."""
    for text in _texts(error):
        if redacted_message(text, *addresses, secrets=secrets) != text:
            return None
    return error


def _redacted_rest(scheme: str, rest: str) -> str:
    """Redact what follows ``scheme://``."""
    if scheme.lower() in _LOCAL_SCHEMES and "://" not in rest:
        return rest
    user, mark, host = rest.rpartition("@")
    if mark and _begins_secret(user) is not None:
        return _HIDDEN  # a password with a ? in it, or a query with an @ in it
    shown = _hide_from(host)
    parts = [shown] if mark else re.split(r"::(?:[A-Za-z][A-Za-z0-9+.-]*://)?", shown)  # as fsspec chains them
    if not all(_HOSTS.fullmatch(re.split(r"[/?#]", part, maxsplit=1)[0]) for part in parts):
        return _HIDDEN  # a user and a password, and the @ was forgotten
    return f"{_HIDDEN}@{shown}" if mark else shown


def _without_user(text: str) -> str:
    """Hide ``user:password@`` before a host that has no scheme."""
    user, mark, host = text.rpartition("@")
    colon, slash = user.find(":"), user.find("/")
    if not mark or colon < 0 or _DRIVE.match(text) or (0 <= slash < colon and not text.startswith("//")):
        query = re.search(r"\?[^?]*=", text, re.DOTALL)
        return text if query is None else f"{text[: query.start()]}?{_HIDDEN}"
    return _HIDDEN if _begins_secret(user) is not None else f"{_HIDDEN}@{_hide_from(host)}"


def _hide_from(text: str) -> str:
    """Hide a query, a fragment, or a setting like ``password=``, and all that follows."""
    start = _begins_secret(text)
    return text if start is None else f"{text[:start]}{_HIDDEN}"


def _begins_secret(text: str) -> int | None:
    setting = _SETTING.search(text)
    starts = [text.find("?") + 1, text.find("#") + 1, 0 if setting is None else setting.end()]
    return min((start for start in starts if start), default=None)


def _secrets_of(address: str) -> Iterator[str]:
    shown = redacted_address(address)
    if shown == address:
        return
    scheme = _SCHEME.search(address)
    rest = address if scheme is None else address[scheme.end() :]
    user, mark, _ = rest.rpartition("@")
    if mark and (scheme is not None or ":" in user):
        yield user
        yield from _parts(user.partition(":")[2] or user)
    elif shown.endswith(f"://{_HIDDEN}"):
        yield from _parts(rest)
    for sign in "?#":
        query = rest.partition(sign)[2]
        if "=" in query:
            yield query
            values = (part.partition("=")[2] for part in re.split("[&;]", query))
            yield from (value for value in values if len(value) >= _SHORTEST)
    for setting in _SETTING_AND_VALUE.finditer(address):
        yield setting[2]
        yield from _parts(setting[2].strip("'\""))
        yield address[setting.start(2) :]


def _parts(secret: str) -> Iterator[str]:
    """A secret, and what a parser may take for a part of it: ``sesame`` of ``open/sesame``."""
    yield secret
    yield from (part for part in re.split(r"[/@:?#&\s]+", secret) if len(part) >= _SHORTEST)


def _forms(text: str) -> set[str]:
    """Ways in which a text may be written in a message."""
    written = {text, " ".join(text.split()), repr(text)[1:-1], ascii(text)[1:-1], json.dumps(text)[1:-1]}
    if text.isprintable():
        written |= {quote(text), quote(text, safe=""), quote_plus(text), unquote(text), unquote_plus(text)}
    return {form for form in written if form and form != _HIDDEN}


def _texts(error: BaseException | None) -> Iterator[str]:
    """Everything that a traceback would print about an error and its causes."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or one in seen:
            continue
        seen.append(one)
        yield "".join(traceback.format_exception_only(type(one), one))
        waiting += [one.__cause__, None if one.__suppress_context__ else one.__context__]
        waiting += getattr(one, "exceptions", ())
