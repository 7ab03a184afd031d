"""Ctrl-C and SIGTERM, for commands that end in good order instead of being torn out of their work.

An interrupted command exits with 130. For one that runs until it is interrupted (`--follow`, `--watch`, `serve`,
`pipeline stream`), that is the normal end, and it exits with 0.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set the event during the block, and do nothing else."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
