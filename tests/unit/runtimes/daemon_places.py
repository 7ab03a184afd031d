"""Places for daemons in tests: one over each kind of log, a clock that is set by hand, and a way to wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runstate.logs.registry import open_log
from runstate.runtimes.daemon import Daemon

schemes = ["memory", "sqlite", "wal"]


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


class Place:
    """A log that outlives its daemons, as a disk would."""

    def __init__(self, scheme: str, directory: Path) -> None:
        self.url = "memory:" if scheme == "memory" else f"{scheme}:{directory / 'log'}"
        self.clock = Clock()
        self._memory = open_log("memory:") if scheme == "memory" else None
        self._opened: list[Daemon] = []

    def open(self, **options: Any) -> Daemon:
        options = {"checkpoint_every_s": None, "clock": self.clock} | options
        if self._memory is None:
            daemon = Daemon.open(self.url, **options)
        else:
            self._memory.close = lambda: None  # type: ignore[method-assign] # What is in memory ends with it.
            daemon = Daemon(self._memory, **options)
        self._opened.append(daemon)
        return daemon

    def close(self) -> None:
        for daemon in self._opened:
            daemon.close()


def until(holds: Callable[[], object]) -> None:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
