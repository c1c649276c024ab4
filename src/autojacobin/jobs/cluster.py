"""A Dask cluster that runs the tasks of a job: workers on this machine, or those of a scheduler that is running."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.errors import AutoJacobinError, DataError, MissingExtraError, StorageError
from autojacobin.jobs.build import build_index, encode_files
from autojacobin.jobs.executor import Progress, Task
from autojacobin.jobs.search import search_index, true_neighbours

__all__ = ["DaskCluster", "build_index", "connect", "encode_files", "search_index", "true_neighbours"]

_LOCAL = re.compile(r"local:([1-9][0-9]{0,3})")
# A host and a port and nothing else: Dask writes addresses into its logs, so none with a password may get there.
_HOST_AND_PORT = r"(?:\[[0-9A-Za-z:.%]+\]|[^\s:/@?#\[\]]+):[0-9]{1,5}"
_SCHEDULER = re.compile(rf"(tcp|tls|ucx)://{_HOST_AND_PORT}|(ws|wss)://{_HOST_AND_PORT}(/[^\s@?#]*)?")
_ENCRYPTED = ("tls://", "wss://")
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
            "a cluster is local:N with N processes, or the address of a scheduler with its port and without a "
            f"password, got {redacted_address(address)!r}; give for example local:4 or tcp://scheduler:8786"
        )
    try:
        distributed = importlib.import_module("distributed")
        dask = importlib.import_module("dask")
    except ImportError:
        raise MissingExtraError("distributed", "cluster", "work on a cluster") from None
    if local is None:
        _refuse_without_certificates(distributed, str(address))
    with dask.config.set(_settings()), _event_loop() as loop:
        if local is not None:
            with (
                distributed.LocalCluster(
                    loop=loop,
                    n_workers=int(local[1]),
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # or a second job would warn of a taken port
                    memory_limit=None,  # arrays are mapped, and mapped pages look like memory in use
                    silence_logs=logging.CRITICAL,
                    preload=["autojacobin.jobs.executor"],
                ) as started,
                distributed.Client(started, loop=loop) as client,
            ):
                yield DaskCluster(client)
            return
        with _client(distributed, str(address), loop) as client:
            yield DaskCluster(client)


@contextmanager
def _event_loop() -> Iterator[Any]:
    """Run an event loop in a thread for as long as the block lasts.

    Dask would start one by itself, and give up if that takes more than ten seconds, as on a busy machine it may.
    """
    tornado = importlib.import_module("tornado.ioloop")
    started: Future[tuple[Any, asyncio.Event]] = Future()

    async def run() -> None:
        end = asyncio.Event()
        started.set_result((tornado.IOLoop.current(), end))
        await end.wait()

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)  # there is no loop to be had, and somebody waits for one

    thread = threading.Thread(target=work, name="loop of a Dask client", daemon=True)
    thread.start()
    loop, end = started.result()
    try:
        yield loop
    finally:
        loop.add_callback(end.set)
        thread.join()


def _refuse_without_certificates(distributed: Any, address: str) -> None:
    if not address.startswith(_ENCRYPTED):
        return
    try:
        certificates = distributed.Security().get_connection_args("client").get("ssl_context")
        reason = "TLS needs certificates, got none"
    except (OSError, ValueError, TypeError) as error:  # files that are not there, or are something else
        certificates, reason = None, f"the certificates for TLS cannot be read: {' '.join(str(error).split())}"
    if certificates is None:
        raise DataError(
            f"{address} cannot be used as the address of a scheduler: {reason}; name them in Dask's configuration, as "
            "distributed.comm.tls"
        )


def _client(distributed: Any, address: str, loop: Any) -> Any:
    try:
        return distributed.Client(address, timeout=_SECONDS_TO_CONNECT, loop=loop)
    except OSError as error:
        raise StorageError(
            f"no scheduler answers at {address} within {_SECONDS_TO_CONNECT} s; start one with `dask scheduler`, and "
            "workers with `dask worker`"
        ) from error
    except (TypeError, ValueError, RuntimeError, ImportError) as error:  # a transport that is not installed
        raise DataError(
            f"{address} cannot be used as the address of a scheduler: {' '.join(str(error).split())}; give for example "
            "tcp://scheduler:8786"
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
    reason = redacted_message(" ".join(str(error).split())) or type(error).__name__
    return AutoJacobinError(f"the work on {about} failed: {type(error).__name__}: {reason}")
