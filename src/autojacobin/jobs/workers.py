"""Workers of a Dask cluster that run the calls of a job: new ones on this machine, or those of a running scheduler."""

from __future__ import annotations

import importlib
import logging
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.core.parallel import Progress
from autojacobin.errors import AutoJacobinError, DataError, StorageError, import_extra, reason_of

_LOCAL = re.compile(r"local:([1-9][0-9]{0,3})")
# A host and a port only: Dask writes addresses to its logs, so an address with a password is refused.
_HOST_AND_PORT = r"(?:\[[0-9A-Za-z:.%]+\]|[^\s:/@?#\[\]]+):[0-9]{1,5}"
_SCHEDULER = re.compile(rf"(tcp|tls|ucx)://{_HOST_AND_PORT}|(ws|wss)://{_HOST_AND_PORT}(/[^\s@?#]*)?")
_RETRIES = 2  # of a call that raises, for example because of the network
_DEATHS = 10  # of workers that run one call, before the call is blamed; workers may be preempted
_MERGED_AT_ONCE = 8
_SETTINGS = {
    "distributed.scheduler.allowed-failures": _DEATHS,
    "distributed.admin.large-graph-warning-threshold": "1GB",  # the graph holds the queries, once
}
_SECONDS_TO_CONNECT = 30

Function = Callable[..., Any]
Calls = Sequence[tuple[Any, ...]]


@contextmanager
def connect(address: str) -> Iterator[Workers]:
    """Connect to a cluster, or start one, for the length of a ``with`` block.

    Parameters
    ----------
    address : str
        ``local:N`` for N new processes of one thread each on this machine, which end with the block; or the address
        of a Dask scheduler, such as ``tcp://scheduler:8786``, whose workers have this library installed.
    """
    local = _LOCAL.fullmatch(str(address))
    if local is None and not _SCHEDULER.fullmatch(str(address)):
        raise DataError(
            "a cluster is local:N with N processes, or the address of a scheduler with its port and without a "
            f"password, got {redacted_address(address)!r}; give for example local:4 or tcp://scheduler:8786"
        )
    distributed = import_extra("distributed", "cluster", "work on a cluster")
    dask = import_extra("dask", "cluster", "work on a cluster")
    stack = ExitStack()
    try:
        stack.enter_context(dask.config.set(_SETTINGS))
        if local is None:
            client = _client(distributed, str(address))
        else:
            with _signals_later():  # or workers that are just being started would be left alone
                client = distributed.Client(stack.enter_context(_new_workers(distributed, int(local[1]))))
        yield Workers(stack.enter_context(client))
    finally:
        with _signals_later():
            stack.close()


def _new_workers(distributed: Any, n: int) -> Any:
    """Start a cluster of processes on this machine."""
    try:
        return distributed.LocalCluster(
            n_workers=n,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            # a free port; with the default one, a second job would warn
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            memory_limit=None,  # mapped arrays would count as used memory
            silence_logs=logging.CRITICAL,
            preload=["autojacobin.jobs.workers"],
        )
    except Exception as error:  # of Dask, of several kinds
        reason = reason_of(error).rstrip(".")
        raise AutoJacobinError(
            f"the workers of local:{n} could not be started: {reason}; begin again, with fewer of them if memory is "
            "short; a script needs `if __name__ == '__main__':` around the call"
        ) from error


@contextmanager
def _signals_later() -> Iterator[None]:
    """Handle signals when the block has ended. Processes that are started in it ignore Ctrl-C from their beginning.

    A terminal sends Ctrl-C to every process, and only the one that was called should handle it.
    """
    caught: list[int] = []
    kept: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for which in (signal.SIGINT, signal.SIGTERM):
            kept[which] = signal.signal(which, lambda number, _: caught.append(number))
    posix = hasattr(signal, "pthread_sigmask")
    if posix:
        resource_tracker.ensure_running()  # whose start would unblock the signal
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if posix:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for restored, handler in kept.items():
            signal.signal(restored, handler)
        if caught:
            signal.raise_signal(caught[0])


class Workers:
    """Runs calls of functions through a ``distributed.Client``; the first argument says what a call works on.

    Calls may be repeated, if a worker dies or they raise: they write files completely or not at all.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    def share(self, value: Any) -> Any:
        """Send a value to the cluster once, and return what represents it in the arguments of a call."""
        return self.client.submit(_identity, value, pure=False)

    def each(
        self, stage: str, function: Function, calls: Calls, progress: Progress | None = None, n_done: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each call, as they finish; ``n_done`` others were finished before."""
        futures, about = self._submitted(function, calls)
        numbers = {future.key: number for number, future in enumerate(futures)}
        for future in _finished(stage, futures, about, progress, n_done):
            yield numbers[future.key], future.result()

    def merged(
        self, stage: str, function: Function, calls: Calls, merge: Function, k: int, progress: Progress | None = None
    ) -> Any:
        """Merge the results of all calls with ``merge(results, k)`` on the workers, as a tree."""
        leaves, about = self._submitted(function, calls)
        level = list(leaves)
        while len(level) > 1:
            groups = [level[start : start + _MERGED_AT_ONCE] for start in range(0, len(level), _MERGED_AT_ONCE)]
            level = [self._submit(merge, group, k) for group in groups]
        for _ in _finished(stage, leaves, about, progress):
            pass
        (whole,) = _finished(stage, level, {level[0].key: "the results of all chunks"}, None)
        return whole.result()

    def _submitted(self, function: Function, calls: Calls) -> tuple[list[Any], Any]:
        """Futures of calls, and what each works on by its key."""
        futures = [self._submit(function, *arguments) for arguments in calls]
        return futures, {future.key: str(call[0]) for future, call in zip(futures, calls, strict=True)}

    def _submit(self, function: Function, *arguments: Any) -> Any:
        # not pure: after a file has changed, the same call must not get its old result
        return self.client.submit(function, *arguments, pure=False, retries=_RETRIES)


def dask_setup(_: Any) -> None:
    """Ignore Ctrl-C in a worker also on Windows, where signals cannot be blocked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _finished(
    stage: str, futures: list[Any], about: dict[str, str], progress: Progress | None, n_done: int = 0
) -> Iterator[Any]:
    """Yield futures as they finish and release each; raise the error of the first that failed."""
    completed = importlib.import_module("distributed").as_completed(futures)
    total = n_done + len(futures)
    futures.clear()
    try:
        for number, future in enumerate(completed, n_done + 1):
            if future.status != "finished":
                raise _error_of(future, about[future.key])
            yield future
            if progress is not None:
                progress(stage, number, total)
    finally:
        completed.clear()  # cancels what nobody waits for


def _client(distributed: Any, address: str) -> Any:
    try:
        return distributed.Client(address, timeout=_SECONDS_TO_CONNECT)
    except OSError as error:
        _close_client(distributed, error)
        silent = f"no scheduler answers at {address} within {_SECONDS_TO_CONNECT} s"
        raise StorageError(f"{silent}; start one with `dask scheduler`") from error
    except (TypeError, ValueError, RuntimeError, ImportError) as error:  # no certificates, or no such transport
        _close_client(distributed, error)
        raise DataError(
            f"{address} cannot be used as the address of a scheduler: {' '.join(str(error).split())}; give for example "
            "tcp://scheduler:8786, and name certificates for TLS in Dask's configuration, as distributed.comm.tls"
        ) from None


def _identity(value: Any) -> Any:
    return value


def _error_of(future: Any, about: str) -> AutoJacobinError:
    """The error of a failed call, as one of this library."""
    if future.status == "cancelled":
        return AutoJacobinError(f"the work on {about} was cancelled by the scheduler; look at its log, and begin again")
    error = future.exception()
    if isinstance(error, AutoJacobinError):
        return error
    if type(error).__name__ == "KilledWorker":
        return AutoJacobinError(f"workers died while they worked on {about}; give them more memory, or smaller chunks")
    reason = redacted_message(reason_of(error))
    return AutoJacobinError(f"the work on {about} failed: {type(error).__name__}: {reason}")


def _close_client(distributed: Any, error: BaseException) -> None:
    """Close a client that could not connect. Collected while another one starts, it would wait for that for ever."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        client = frame.f_locals.get("self")
        if isinstance(client, distributed.Client):
            client.close()
            return
