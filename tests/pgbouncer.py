"""A real PgBouncer on loopback, before the server of the tests. It gives each transaction any session that is free."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from tests.postgres_server import free_port, server_url

# Debian puts it where only root's PATH looks.
program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_start_max_s = 30
_settings = """
[databases]
{database} = host={host} port={port} dbname={database} user={user}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 500
"""


@contextmanager
def transaction_pooler(directory: Path, sessions: int) -> Iterator[str]:
    """The URL of a pooler that has so many sessions of the server, for as long as the block takes."""
    assert program is not None
    server = urlsplit(server_url())
    user, port = server.username or getpass.getuser(), free_port()
    settings = directory / "pgbouncer.ini"
    settings.write_text(
        _settings.format(
            database=server.path.strip("/"),
            host=server.hostname,
            port=server.port or 5432,
            user=user,
            password=f" password='{server.password}'" if server.password else "",
            listen_port=port,
            sessions=sessions,
        )
    )
    # It refuses to run as root, and reads its settings before it becomes another user.
    as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
    with (directory / "pgbouncer.log").open("wb") as output:
        process = subprocess.Popen(
            [program, *as_user, str(settings)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    url = f"postgresql://{user}@127.0.0.1:{port}{server.path}"
    try:
        deadline = time.monotonic() + _start_max_s
        while True:
            try:
                psycopg.connect(url, connect_timeout=5).close()
                break
            except psycopg.OperationalError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (directory / "pgbouncer.log").read_text()
                    raise RuntimeError(f"PgBouncer did not start: {said[-2000:]}") from error
            time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait(_start_max_s)
