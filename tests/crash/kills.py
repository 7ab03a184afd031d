"""What tests that kill processes share: a fork to do something in, and a way to die right after an event."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from runstate.models.rundir import RunEvent


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit("still alive")


class KillAfter:
    """A telemetry that kills the process right after the n-th event was appended; never, for 0."""

    def __init__(self, left: int) -> None:
        self._left = left

    def emit(self, event: RunEvent) -> None:
        self._left -= 1
        if self._left == 0:
            die()

    def close(self) -> None: ...


def in_a_fork(work: Callable[[], None]) -> int:
    """Run something in a process of its own; its exit code, negative if it was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - whatever it is, this fork must not go on as its parent
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
