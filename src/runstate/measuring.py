"""Measures beside a loop that may be stuck."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

measure_s = 1.0
"""How often the lag is measured beside the loop that projects."""


@contextmanager
def measuring(measure: Callable[[], object]) -> Iterator[None]:
    """Call `measure` every second, from a thread of its own, while the block runs.

    The loop that projects may be stuck, in the log or in the sink: then this is what notices, and raises the alert.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(measure_s):
            measure()

    thread = threading.Thread(target=watch, name="runstate-lag", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
