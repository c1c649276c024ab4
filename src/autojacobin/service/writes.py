"""Writes: requests that add or remove vectors, one after another for each index.

A write is answered when it is done, however long that takes, because a client who repeats it would write twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from autojacobin.errors import DataError, IndexLockedError, MissingExtraError
from autojacobin.index.index import Index
from autojacobin.service.operations import shown_id, unknown_id
from autojacobin.service.responses import Problem, invalid
from autojacobin.service.served import ServedIndex

__all__ = ["Writer"]

_DONE = {"add": "added", "upsert": "upserted", "remove": "removed"}


class Writer:
    """Changes indexes in threads of their own, so that searches go on.

    ``count`` is called with the name of the index, what was done, and the number of vectors of each write.
    """

    def __init__(self, count: Callable[[str, str, int], None]) -> None:
        self._count = count
        self._locks: dict[str, asyncio.Lock] = {}

    async def add(
        self,
        served: ServedIndex,
        vectors: npt.NDArray[Any],
        ids: Sequence[Any] | None,
        payload: dict[str, list[Any]] | None,
    ) -> dict[str, Any]:
        """Add vectors with new ids, and describe the outcome.

        If they came without ids, the outcome has the ids that they got.
        """
        given: dict[str, Any] = {}

        def change(index: Index) -> None:
            with index.exclusive():  # so that no other thread adds before the ids are read
                try:
                    index.add(vectors, ids, payload)
                except DataError as error:
                    raise _known_id(index, ids or (), served.name) or error from error
                if ids is None:
                    given["ids"] = list(range(index.next_id - len(vectors), index.next_id))

        return {**await self._write(served, "add", len(vectors), change), **given}

    async def upsert(
        self,
        served: ServedIndex,
        vectors: npt.NDArray[Any],
        ids: Sequence[Any],
        payload: dict[str, list[Any]] | None,
    ) -> dict[str, Any]:
        """Add vectors, or replace those with the same ids, and describe the outcome."""
        return await self._write(served, "upsert", len(vectors), lambda index: index.upsert(vectors, ids, payload))

    async def remove(self, served: ServedIndex, ids: Sequence[Any]) -> dict[str, Any]:
        """Remove vectors, all of which must be there, and describe the outcome."""

        def change(index: Index) -> None:
            try:
                index.remove(ids)
            except DataError as error:
                raise unknown_id(index, ids, served.name, "leave it out; nothing was removed") or error from error

        return await self._write(served, "remove", len(set(ids)), change)

    async def _write(
        self, served: ServedIndex, change: str, n_vectors: int, run: Callable[[Index], None]
    ) -> dict[str, Any]:
        async with self._locks.setdefault(served.name, asyncio.Lock()):
            try:
                index = await asyncio.to_thread(served.write, run)
            except IndexLockedError as error:
                detail = f"another process is writing to {served.name}; try again when it has finished"
                raise Problem(423, "locked", detail) from error
            except (DataError, MissingExtraError, OverflowError) as error:  # the last for integers beyond 64 bits
                raise invalid(str(error)) from error
        self._count(served.name, change, n_vectors)
        figures = index.info()
        outcome = {"index": served.name, "generation": figures["generation"], "vectors": figures["vectors"]}
        return {**outcome, _DONE[change]: n_vectors}


def _known_id(index: Index, ids: Sequence[Any], name: str) -> Problem | None:
    """Give the problem of the first id that is in an index already; None if none is, or if they are not unique."""
    for id in ids if len(set(ids)) == len(ids) else ():
        if id in index:
            detail = f"there is a vector with the id {shown_id(id)} in {name} already; nothing was added; send PUT to "
            return Problem(409, "id-exists", detail + "replace it, or leave it out")
    return None
