"""What the JVM prints to standard error, without the tracebacks of Spark's daemons that outlive it by a moment.

Spark starts a daemon of its own for the Python workers that plan reads. When the JVM ends first, which is normal, each
of them prints a traceback that ends in a BrokenPipeError. Spark has no setting to replace that daemon.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_header = b"Traceback (most recent call last):"
_ends = (b"BrokenPipeError", b"ConnectionResetError")


@contextmanager
def filtered_stderr() -> Iterator[int]:
    """A file descriptor for the standard error of a process that the block starts. It is copied to ours, filtered."""
    target = os.dup(2)
    read, write = os.pipe()
    threading.Thread(target=_copy, args=(read, target), name="runstate-java-stderr", daemon=True).start()
    try:
        yield write
    finally:
        os.close(write)


def _copy(read: int, target: int) -> None:
    noise = DaemonNoise()
    with os.fdopen(read, "rb") as lines, suppress(OSError):
        for line in lines:
            os.write(target, noise.drop_from(line))
    with suppress(OSError):
        os.close(target)


class DaemonNoise:
    """Drops the lines of daemons' tracebacks. Several daemons may print theirs at once, a line each in turn."""

    def __init__(self) -> None:
        self._headers = 0
        """Headers that are held back until a later line tells whose traceback it is."""
        self._open = 0
        """Tracebacks of daemons that have begun and not ended."""

    def drop_from(self, line: bytes) -> bytes:
        """What to print of a line: nothing, the line, or the line with headers before it."""
        text = line.rstrip()
        if text == _header:
            self._headers += 1
            return b""
        if text.startswith(b'  File "') and b"pyspark/daemon.py" in text:
            if self._headers:  # Otherwise it is the next frame of one that is open.
                self._headers, self._open = self._headers - 1, self._open + 1
            return b""
        if self._open and text.startswith((b"    ", *_ends)):
            self._open -= text.startswith(_ends)
            return b""
        held, self._headers = self._headers, 0
        return (_header + b"\n") * held + line
