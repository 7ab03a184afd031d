"""What every handle on a log has in common: it is open in one process, until it is closed.

A child that was forked from that process has copies of its connections and file descriptors. To use them, or even to
close them in good order, would speak to the other end in the parent's name; so the child opens the log again.
"""

from __future__ import annotations

import os
from typing import Self

from runstate.errors import LogClosed

_this_process = object()
"""Another one in every process. To compare it takes less time than to ask for a process id, before each append."""


def _forked() -> None:
    global _this_process
    _this_process = object()


os.register_at_fork(after_in_child=_forked)


class Handle:
    def __init__(self) -> None:
        self._process = _this_process
        self._closed = False

    def close(self) -> None:
        if self._closed:
            return
        if self._process is _this_process:
            self._finish()
        self._closed = True
        if self._process is _this_process:
            self._release()

    def _finish(self) -> None:
        """Finish what was submitted, while the log is still open."""

    def _release(self) -> None:
        """Finish what was accepted, then give back files, connections and threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed()
        if self._process is not _this_process:
            raise LogClosed("This process was forked from the one that opened the log; open it again here")
