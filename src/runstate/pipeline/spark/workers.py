"""Spark's daemon of Python workers, as it is, but silent about a JVM that has gone.

The JVM hangs up on workers that have had nothing to do for a minute, and on all of them when it ends. That is no
trouble, and yet each of them has Spark's own daemon print a traceback of it. (Spark lets nobody replace the daemons of
the few workers that plan reads: those still print theirs.)
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
