"""The entries of the catalogue, which are kept in ``catalogue.json``: each data set, its files, sizes and checksums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RemoteFile:
    """A file to download."""

    url: str
    name: str  # in the folder of its set
    checksum: str | None = None  # "md5:…" or "sha256:…", where one is published


@dataclass(frozen=True)
class Split:
    """Numbers of vectors for training, in the base, and of queries; with ``train=None`` all are used for training."""

    train: int | None
    base: int
    queries: int


@dataclass(frozen=True)
class Entry:
    """A named set: what is known about it before it is downloaded.

    ``layout`` is a key of ``sources.LAYOUTS``. Files with another number of ``rows`` in all, or of another
    ``dimension``, are refused. The ``split`` is that of Table I of the paper, if the set is in it. ``licence`` has the
    terms of use as its owners publish them, and ``download`` the size of the download in words. ``files`` are empty if
    the set ships with something installed, or must be fetched by hand. ``by_hand`` says what to put into the folder of
    the set, and where to get it. ``elsewhere`` are folders in which a package of the operating system may have put it.
    """

    name: str
    description: str
    layout: str
    dimension: int
    rows: int
    split: Split
    source: str
    licence: str
    citation: str
    download: str = "none"
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""
    elsewhere: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """How to get it: ``built in``, ``download`` or ``by hand``."""
        if self.files:
            return "download"
        return "by hand" if self.by_hand else "built in"


def _entry(split: dict[str, int], files: Sequence[Any] = (), elsewhere: Sequence[str] = (), **fields: Any) -> Entry:
    remote = tuple(RemoteFile(**file) for file in files)
    return Entry(split=Split(**split), files=remote, elsewhere=tuple(elsewhere), **fields)


_TABLE = json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))
CATALOGUE: dict[str, Entry] = {fields["name"]: _entry(**fields) for fields in _TABLE}
