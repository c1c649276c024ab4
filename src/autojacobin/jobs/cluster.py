"""A Dask cluster that runs the tasks of a job: workers on this machine, or those of a scheduler that is running."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from autojacobin.engines._addresses import without_secrets
from autojacobin.errors import AutoJacobinError, DataError, MissingExtraError, StorageError
from autojacobin.jobs.build import build_index, encode_files
from autojacobin.jobs.executor import Progress, Task
from autojacobin.jobs.search import search_index, true_neighbours

__all__ = ["DaskCluster", "build_index", "connect", "encode_files", "search_index", "true_neighbours"]

_LOCAL = re.compile(r"local:([1-9][0-9]{0,3})")
_SCHEDULER = re.compile(r"(tcp|tls|ws|wss|ucx)://\S+")
_RETRIES = 2  # of a task that failed, as the network to a store may
_DEATHS = 10  # of workers under one task, before the task is thought to kill them; a cluster may be preempted
_MERGED_AT_ONCE = 8
_SECONDS_TO_CONNECT = 30


@contextmanager
def connect(address: str) -> Iterator[DaskCluster]:
    """Lend a cluster.

    Parameters
    ----------
    address : str
        ``local:N`` for N new processes on this machine, of one thread each, which end with the block; or the address
        of a Dask scheduler, such as ``tcp://scheduler:8786``, whose workers have this library installed.

    Examples
    --------
    >>> from autojacobin.jobs.cluster import build_index, connect
    >>> with connect("local:4") as cluster:  # doctest: +SKIP
    ...     build_index("base/*.fbin", hasher, "my-index", cluster)
    """
    local = _LOCAL.fullmatch(str(address))
    if local is None and not _SCHEDULER.fullmatch(str(address)):
        raise DataError(
            "a cluster is local:N with N processes, or the address of a scheduler, got "
            f"{without_secrets(str(address))!r}; give for example local:4 or tcp://scheduler:8786"
        )
    try:
        distributed = importlib.import_module("distributed")
        dask = importlib.import_module("dask")
    except ImportError:
        raise MissingExtraError("distributed", "cluster", "work on a cluster") from None
    with dask.config.set(_settings()):
        if local is not None:
            with (
                distributed.LocalCluster(
                    n_workers=int(local[1]),
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # or a second job would warn of a taken port
                    memory_limit=None,  # arrays are mapped, and mapped pages look like memory in use
                    silence_logs=logging.CRITICAL,
                    preload=["autojacobin.jobs.worker"],
                ) as started,
                distributed.Client(started) as client,
            ):
                yield DaskCluster(client)
            return
        with _client(distributed, str(address)) as client:
            yield DaskCluster(client)


def _client(distributed: Any, address: str) -> Any:
    shown = without_secrets(address)
    try:
        return distributed.Client(address, timeout=_SECONDS_TO_CONNECT)
    except OSError as error:
        raise StorageError(
            f"no scheduler answers at {shown} within {_SECONDS_TO_CONNECT} s; start one with `dask scheduler`, and "
            "workers with `dask worker`"
        ) from error
    except (TypeError, ValueError, RuntimeError, ImportError) as error:  # no port, no certificates, no such transport
        place, shown_place = (text.partition("://")[2] for text in (address, shown))
        reason = " ".join(str(error).split()).replace(place, shown_place)
        raise DataError(
            f"{shown} cannot be used as the address of a scheduler: {reason}; give for example tcp://scheduler:8786, "
            "and for tls:// the certificates in Dask's configuration"
        ) from None


def _settings() -> dict[str, Any]:
    return {
        "distributed.scheduler.allowed-failures": _DEATHS,
        "distributed.admin.large-graph-warning-threshold": "1GB",  # queries are in it, once
    }


class DaskCluster:
    """Runs tasks through a ``distributed.Client``; see :class:`~autojacobin.jobs.executor.Executor`.

    A task of a worker that died is run again by another; a task that raises is tried twice more, and then ends the
    job. What is written by tasks is written whole or not at all, so neither changes what comes out.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._stages = 0

    def share(self, value: Any) -> Any:
        """Give the scheduler a value, once, for the workers that ask; it outlives every one of them."""
        return self._submit("share", _same, (value,))

    def each(self, stage: str, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[tuple[int, Any]]:
        """Give the number and the answer of each task, as they finish."""
        futures = self._leaves(stage, tasks)
        numbers = {future.key: number for number, future in enumerate(futures)}
        for future in self._finished(stage, futures, tasks, progress):
            yield numbers[future.key], future.result()

    def merged(
        self,
        stage: str,
        tasks: Sequence[Task],
        merge: Callable[[Sequence[Any], int], Any],
        k: int,
        progress: Progress | None = None,
    ) -> Any:
        """Give the answers of all tasks put together on the workers, as a tree; one answer travels here."""
        leaves = self._leaves(stage, tasks)
        level = list(leaves)
        while len(level) > 1:
            groups = [level[start : start + _MERGED_AT_ONCE] for start in range(0, len(level), _MERGED_AT_ONCE)]
            level = [self._submit("merge", merge, (group, k)) for group in groups]
        for _ in self._finished(stage, leaves, tasks, progress):
            pass
        (whole,) = self._finished(stage, level, (Task(merge, (), "the answers of all chunks"),), None)
        return whole.result()

    def _leaves(self, stage: str, tasks: Sequence[Task]) -> list[Any]:
        self._stages += 1  # or a job that is repeated because a file has changed would be given its old answers
        return [self._submit(stage, task.function, task.arguments) for task in tasks]

    def _submit(self, stage: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        # The key says what is done, and is the same in every run: a job that is begun again while the scheduler still
        # works on it joins in.
        digest = importlib.import_module("dask.base").tokenize(function, *map(_named, arguments))
        key = f"{stage.replace(' ', '-')}-{self._stages}-{digest}"
        return self._client.submit(_run, function, *arguments, key=key, retries=_RETRIES)

    def _finished(
        self, stage: str, futures: list[Any], tasks: Sequence[Task], progress: Progress | None
    ) -> Iterator[Any]:
        """Give futures as they finish, and let go of each, so that the workers can; the first that failed raises."""
        about = {future.key: task.about for future, task in zip(futures, tasks, strict=True)}
        completed = importlib.import_module("distributed").as_completed(futures)
        total = len(futures)
        futures.clear()
        try:
            for number, future in enumerate(completed, 1):
                if future.status != "finished":
                    raise _told(future, about[future.key])
                yield future
                if progress is not None:
                    progress(stage, number, total)
        finally:
            completed.clear()  # what nobody waits for any more is given up


def _named(argument: Any) -> Any:
    """Futures by their keys, which say all; as objects they differ from run to run."""
    if isinstance(argument, list):
        return [_named(part) for part in argument]
    return getattr(argument, "key", argument)


def _same(value: Any) -> Any:
    return value


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except MissingExtraError as error:
        raise AutoJacobinError(str(error)) from None  # an error with three arguments does not travel


def _told(future: Any, about: str) -> AutoJacobinError:
    """Error of a task that failed for good, as one of this library."""
    if future.status == "cancelled":
        return AutoJacobinError(f"the work on {about} was cancelled by the scheduler; look at its log, and begin again")
    error = future.exception()
    if isinstance(error, AutoJacobinError):
        return error
    if type(error).__name__ == "KilledWorker":
        return AutoJacobinError(
            f"worker after worker died while it worked on {about}; give them more memory, or make chunks smaller"
        )
    reason = " ".join(str(error).split()) or type(error).__name__
    return AutoJacobinError(f"the work on {about} failed: {type(error).__name__}: {reason}")
