"""What a worker on this machine does when it starts."""

from __future__ import annotations

import signal
from typing import Any

__all__ = ["dask_setup"]


def dask_setup(_: Any) -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that waits for the answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
