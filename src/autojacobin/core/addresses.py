"""Addresses and messages without passwords, tokens and signatures.

An address that may have a secret in it is shown as its scheme and host only. People write passwords unescaped, so
parsers disagree on where a password ends; whatever may be part of a secret is hidden.
"""

import os
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

_HIDDEN = "***"
_SCHEME = re.compile(r"(?:\w+::|jdbc:)*([A-Za-z][A-Za-z0-9+.-]*://)")
_LOCAL_SCHEMES = ("file://", "local://")  # files on this machine, which need no password
_HOST = r"(?:\[[^\[\]@/]*\]|[^:/;=]*)(?::[0-9]*)?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_SETTING = re.compile(
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|signature|credential|authorization|(?<![A-Za-z])(?:pass|sig)"
    r"|(?:api|access|account|private|shared)[_-]?key)[\w.-]*(?:[ \t]*=[ \t]*|[\"']?[ \t]*:[ \t]+)",
    re.IGNORECASE,
)
_VALUE = r"""(?:"(?:\\.|[^"\\])*(?:"|$)|'(?:\\.|[^'\\])*(?:'|$)|(?:Bearer |Basic )?\S+)"""
_SETTING_AND_VALUE = re.compile(f"({_SETTING.pattern})({_VALUE})", re.IGNORECASE | re.DOTALL)
_USER = re.compile(r"(?![A-Za-z]:[\\/])(?://)?[^/]*:.*@", re.DOTALL)  # user:password@ without a scheme, and no C:\
_WORD = re.compile(r"""(["'`(<\[{]*)(\S*?)(["'`)>\]},.;:!]*)(?=\s|$)""")
_SHORTEST = 4  # shorter parts of a secret are parts of many words


def redacted_address(address: object) -> str:
    """Give an address that may be shown.

    An address with a user, a query, a fragment or a setting such as ``password=`` is shown as its scheme and host. Any
    other address, and a plain path, is returned unchanged.
    """
    text = os.fsdecode(address) if isinstance(address, str | bytes | os.PathLike) else str(address)
    scheme, setting = _SCHEME.match(text), _SETTING.search(text)
    before = text[: setting.start()] if setting else ""
    if setting and not _SCHEME.match(before):
        return _HIDDEN if _USER.match(before) or "?" in before else before + _HIDDEN
    if scheme is None:
        return _HIDDEN if _USER.match(text) or re.search(r"\?.*=", text, re.DOTALL) else text
    rest = text[scheme.end() :]
    user, _, host = rest.rpartition("@")
    if scheme[1].lower() in _LOCAL_SCHEMES and "://" not in rest:
        return text
    if not user and not setting and not re.search("[@?#]", rest) and _has_only_hosts(rest):
        return text
    hosts = re.split("[/?#]", host, maxsplit=1)[0]
    odd = re.search("[?#]", user) or _SETTING.search(user) or not _HOSTS.fullmatch(hosts)
    return scheme[1] + (_HIDDEN if odd else hosts)


def redacted_message(text: str, *addresses: object, secrets: tuple[object, ...] = ()) -> str:
    """Give a message of another library, or a traceback, without the secrets of the addresses in it.

    The message may quote ``addresses``, whole or in part. Secrets with spaces in them, or without their address, are
    found only with these. ``secrets`` are passwords and tokens that belong to no address.
    """
    known = [os.fsdecode(address) for address in addresses if isinstance(address, str | bytes | os.PathLike)]
    known = sorted((address for address in known if redacted_address(address) != address), key=len, reverse=True)
    for address in known:
        for form in _forms(address):
            text = text.replace(form, redacted_address(address))
    hidden = {part for address in known for secret in _secrets_of(address) for part in _parts(secret)}
    hidden |= {part for secret in secrets if secret for part in _parts(str(secret))}
    for form in sorted({form for secret in hidden for form in _forms(secret)}, key=len, reverse=True):
        if len(form) >= _SHORTEST:
            text = text.replace(form, _HIDDEN)
        elif form.strip():
            text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", _HIDDEN, text)
    text = _SETTING_AND_VALUE.sub(rf"\1{_HIDDEN}", text)
    return _WORD.sub(lambda word: word[1] + _redacted_word(word[2]) + word[3], text)


def _redacted_word(word: str) -> str:
    return word if _HIDDEN in word and not _SCHEME.search(word) else redacted_address(word)


def _has_only_hosts(rest: str) -> bool:
    """Whether each part of a chain of addresses, as fsspec joins them by ``::``, begins with a host and a port."""
    parts = re.split(r"::(?:[A-Za-z][A-Za-z0-9+.-]*://)?", rest)
    return all(_HOSTS.fullmatch(part.partition("/")[0]) for part in parts)


def _secrets_of(address: str) -> Iterator[str]:
    """What stands before the ``@``, after the ``?`` or ``#``, or after ``password=``."""
    scheme = _SCHEME.match(address)
    rest = address[scheme.end() :] if scheme else address
    user, mark, _ = rest.rpartition("@")
    yield user.partition(":")[2] or user
    if not mark and not _has_only_hosts(rest):
        yield rest
    for sign in "?#":
        yield rest.partition(sign)[2]
    for setting in _SETTING_AND_VALUE.finditer(address):
        yield setting[2].strip("'\"")
        yield address[setting.start(2) :]


def _parts(secret: str) -> Iterator[str]:
    """A secret, and what a parser may take for a part of it: ``sesame`` of ``open/sesame``."""
    yield secret
    yield from (part for part in re.split(r"[/@:?#&=;\s]+", secret) if len(part) >= _SHORTEST)


def _forms(text: str) -> set[str]:
    """Ways in which a text may be written in a message."""
    written = {text, " ".join(text.split()), repr(text)[1:-1], ascii(text)[1:-1]}
    if text.isprintable():
        written |= {quote(text), quote(text, safe=""), quote_plus(text), unquote(text), unquote_plus(text)}
    return {form for form in written if form and form != _HIDDEN}
