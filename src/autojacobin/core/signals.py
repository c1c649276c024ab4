"""The signals that ask a process to stop."""

import signal


def stopping_signals() -> list[int]:
    """Ctrl-C, ``kill``, and the end of the terminal, unless ``nohup`` or the like lets the process ignore that."""
    found: list[int] = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not on Windows
        found.append(signal.SIGHUP)
    return found
