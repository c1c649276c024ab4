"""A Dask cluster that runs the tasks of a job: new workers on this machine, or those of a running scheduler."""

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
from autojacobin.core.parallel import Progress
from autojacobin.errors import AutoJacobinError, DataError, MissingExtraError, StorageError
from autojacobin.jobs.build import build_index, encode_files
from autojacobin.jobs.executor import Task
from autojacobin.jobs.search import search_index, true_neighbours

__all__ = ["DaskCluster", "build_index", "connect", "encode_files", "search_index", "true_neighbours"]

_LOCAL = re.compile(r"local:([1-9][0-9]{0,3})")
# A host and a port only: Dask writes addresses to its logs, so an address with a password is refused.
_HOST_AND_PORT = r"(?:\[[0-9A-Za-z:.%]+\]|[^\s:/@?#\[\]]+):[0-9]{1,5}"
_SCHEDULER = re.compile(rf"(tcp|tls|ucx)://{_HOST_AND_PORT}|(ws|wss)://{_HOST_AND_PORT}(/[^\s@?#]*)?")
_ENCRYPTED = ("tls://", "wss://")
_RETRIES = 2  # of a task that raises, for example because of the network
_DEATHS = 10  # of workers that run one task, before the task is blamed; workers may be preempted
_MERGED_AT_ONCE = 8
_SETTINGS = {
    "distributed.scheduler.allowed-failures": _DEATHS,
    "distributed.admin.large-graph-warning-threshold": "1GB",  # the graph holds the queries, once
}
_SECONDS_TO_CONNECT = 30


@contextmanager
def connect(address: str) -> Iterator[DaskCluster]:
    """Connect to a cluster, or start one, for the length of a ``with`` block.

    Parameters
    ----------
    address : str
        ``local:N`` for N new processes of one thread each on this machine, which end with the block; or the address
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
        _check_certificates(distributed, str(address))
    with dask.config.set(_SETTINGS), _event_loop() as loop:
        if local is not None:
            with (
                distributed.LocalCluster(
                    loop=loop,
                    n_workers=int(local[1]),
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    scheduler_kwargs={
                        "dashboard_address": "127.0.0.1:0"
                    },  # a free port; with the default one, a second job would warn
                    memory_limit=None,  # mapped arrays would count as used memory
                    silence_logs=logging.CRITICAL,
                    preload=["autojacobin.jobs.executor"],
                ) as started,
                distributed.Client(started, loop=loop) as client,
            ):
                yield DaskCluster(client)
            return
        with _connect(distributed, str(address), loop) as client:
            yield DaskCluster(client)


class DaskCluster:
    """Runs tasks through a ``distributed.Client``; see :class:`~autojacobin.jobs.executor.Executor`.

    If a worker dies, another one repeats its task. A task that raises is repeated twice before it ends the job. Tasks
    write files completely or not at all, so repetition does not change the result.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._stages = 0

    def share(self, value: Any) -> Any:
        """Send a value to the cluster once; if its worker dies, the scheduler restores it."""
        return self._submit("share", _identity, (value,))

    def each(self, stage: str, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task, as they finish."""
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
        """Merge the results of all tasks on the workers, as a tree, and return the one result."""
        leaves = self._leaves(stage, tasks)
        level = list(leaves)
        while len(level) > 1:
            groups = [level[start : start + _MERGED_AT_ONCE] for start in range(0, len(level), _MERGED_AT_ONCE)]
            level = [self._submit("merge", merge, (group, k)) for group in groups]
        for _ in self._finished(stage, leaves, tasks, progress):
            pass
        (whole,) = self._finished(stage, level, (Task(merge, (), "the results of all chunks"),), None)
        return whole.result()

    def _leaves(self, stage: str, tasks: Sequence[Task]) -> list[Any]:
        self._stages += 1  # part of the key: after a file has changed, the same job must not get its old results
        return [self._submit(stage, task.function, task.arguments) for task in tasks]

    def _submit(self, stage: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        # The key depends on the task alone, so a repeated job joins the one that the scheduler still runs.
        digest = importlib.import_module("dask.base").tokenize(function, *map(_by_key, arguments))
        key = f"{stage.replace(' ', '-')}-{self._stages}-{digest}"
        return self._client.submit(_run, function, *arguments, key=key, retries=_RETRIES)

    def _finished(
        self, stage: str, futures: list[Any], tasks: Sequence[Task], progress: Progress | None
    ) -> Iterator[Any]:
        """Yield futures as they finish and release each; raise the error of the first that failed."""
        about = {future.key: task.about for future, task in zip(futures, tasks, strict=True)}
        completed = importlib.import_module("distributed").as_completed(futures)
        total = len(futures)
        futures.clear()
        try:
            for number, future in enumerate(completed, 1):
                if future.status != "finished":
                    raise _error_of(future, about[future.key])
                yield future
                if progress is not None:
                    progress(stage, number, total)
        finally:
            completed.clear()  # cancels what nobody waits for


@contextmanager
def _event_loop() -> Iterator[Any]:
    """Run an event loop in a thread within the block.

    Dask would start one itself, but gives up after ten seconds, which a busy machine may exceed.
    """
    tornado = importlib.import_module("tornado.ioloop")
    started: Future[tuple[Any, asyncio.Event]] = Future()

    async def run() -> None:
        end = asyncio.Event()
        started.set_result((tornado.IOLoop.current(), end))
        await end.wait()

    def target() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)  # the caller waits for the loop

    thread = threading.Thread(target=target, name="loop of a Dask client", daemon=True)
    thread.start()
    loop, end = started.result()
    try:
        yield loop
    finally:
        loop.add_callback(end.set)
        thread.join()


def _check_certificates(distributed: Any, address: str) -> None:
    if not address.startswith(_ENCRYPTED):
        return
    try:
        certificates = distributed.Security().get_connection_args("client").get("ssl_context")
        reason = "TLS needs certificates, got none"
    except (OSError, ValueError, TypeError) as error:  # files that are missing or hold no certificates
        certificates, reason = None, f"the certificates for TLS cannot be read: {' '.join(str(error).split())}"
    if certificates is None:
        raise DataError(
            f"{address} cannot be used as the address of a scheduler: {reason}; name them in Dask's configuration, as "
            "distributed.comm.tls"
        )


def _connect(distributed: Any, address: str, loop: Any) -> Any:
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


def _by_key(argument: Any) -> Any:
    """Replace futures by their keys, which are the same in every run."""
    if isinstance(argument, list):
        return [_by_key(part) for part in argument]
    return getattr(argument, "key", argument)


def _identity(value: Any) -> Any:
    return value


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except MissingExtraError as error:
        raise AutoJacobinError(str(error)) from None  # an error with three arguments cannot be unpickled


def _error_of(future: Any, about: str) -> AutoJacobinError:
    """The error of a failed task, as one of this library."""
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
