"""A daemon: state in memory that survives anything, work queues, and a socket through which processes share it."""

from runstate.runtimes.daemon.aio import AsyncDaemon
from runstate.runtimes.daemon.client import Client, RemoteWorker
from runstate.runtimes.daemon.daemon import Daemon
from runstate.runtimes.daemon.server import Server
from runstate.runtimes.daemon.wire import DaemonAway, RequestRefused, socket_name
from runstate.runtimes.daemon.work import QueueStats, Worker

__all__ = [
    "AsyncDaemon",
    "Client",
    "Daemon",
    "DaemonAway",
    "QueueStats",
    "RemoteWorker",
    "RequestRefused",
    "Server",
    "Worker",
    "socket_name",
]
