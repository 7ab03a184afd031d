"""Spark's daemon of Python workers, as it is, but silent about a JVM that has gone.

When Spark stops, the JVM is often faster to end than its workers are to hand over what they still had. Nobody waits for
that any more, and yet Spark's own daemon prints a traceback of it.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_worker = daemon.worker


def _quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = _quiet_worker
    daemon.manager()
