"""fakesnow's server on loopback: Snowflake's own protocol, spoken by the official driver, over DuckDB.

The server is started by whoever asks first, once per process, and ends with it. Every log gets a schema of its own.
Where the stand-in differs from Snowflake in a way that a log can feel, this module makes up for it, in its process:

- DuckDB refuses a second transaction that updates the same row, and fakesnow answers as if it had crashed (HTTP 500,
  which the driver repeats for minutes). Snowflake lets it wait, and answers with error 625 when too many wait already;
  here it is always that error.
- Snowflake ends the transactions of clients that are gone after some minutes. Here it happens when their connection
  closes, and before anybody else may log in.
- fakesnow lets everybody in, makes what it is asked for, and knows no privileges. Here there is one password, databases
  and schemas must be there, and the role READER may only read.
- fakesnow translates each statement anew, at 20 ms or more, and keeps all results for ever. Here it remembers what it
  has translated, and keeps no results.
"""

from __future__ import annotations

import asyncio
import atexit
import gzip
import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import fakesnow.cursor
import fakesnow.dialect
import fakesnow.server as fake
import snowflake.connector.errors as driver
import uvicorn
from fakesnow.cursor import FakeSnowflakeCursor
from sqlglot import exp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

password = "not-a-secret"
user = "TESTER"
database = "RUNSTATE_TEST"
_start_max_s = 60


class SnowflakeServer:
    """A server process. What it keeps ends with it."""

    def __init__(self) -> None:
        self.port = _free_port()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.port)],
            # Never written to: its end tells the server that this process is gone, however it went.
            stdin=subprocess.PIPE,
            # A Ctrl-C in the terminal is for the tests; the server ends after them.
            start_new_session=True,
        )
        deadline = time.monotonic() + _start_max_s
        while True:
            try:
                self._post("/alive")
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("fakesnow did not start; its stderr says why") from error
            time.sleep(0.05)

    def url(self, schema: str, **options: object) -> str:
        rest = "".join(f"&{name}={value}" for name, value in options.items())
        where = f"host=127.0.0.1&port={self.port}&protocol=http"
        return f"snowflake://{user}@LOCAL/{database}/{schema}?{where}{rest}"

    def end_sessions(self) -> None:
        """What an expiry, or an outage of the service, does to all sessions at once."""
        self._post("/end-sessions")

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _post(self, path: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", b"")
        with urllib.request.urlopen(request, timeout=10):
            pass


@cache
def server() -> SnowflakeServer:
    """The server that all tests of this process share."""
    # Processes that tests start open logs by their URL too.
    os.environ["SNOWFLAKE_PASSWORD"] = password
    started = SnowflakeServer()
    atexit.register(started.stop)
    return started


def url_at(place: Path) -> str:
    """The URL of a log of its own for each path, as if the path were where it is."""
    return server().url(f"TEST_{hashlib.sha256(str(place).encode()).hexdigest()[:32].upper()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- in the server's process ----------------------------------------------------------------------------------------


class _StandIn:
    """fakesnow's own routes, with a door in front of them."""

    def __init__(self) -> None:
        self._readers: set[str] = set()
        self._clients: dict[str, Any] = {}
        """Of each session, the address that its last request came from."""
        self._at_work: dict[str, asyncio.Lock] = {}
        self._leaving: set[str] = set()
        self._ending: set[asyncio.Future[None]] = set()

    def routes(self) -> list[Any]:
        ours = [
            Route("/session/v1/login-request", self.log_in, methods=["POST"]),
            Route("/queries/v1/query-request", self.query, methods=["POST"]),
            Route("/end-sessions", self.end_sessions, methods=["POST"]),
            Route("/alive", lambda _: Response(), methods=["POST"]),
        ]
        return ours + [route for route in fake.routes if route.path not in {own.path for own in ours}]

    async def log_in(self, request: Request) -> Response:
        await asyncio.sleep(0.002)  # The end of a client that was killed may just be arriving.
        while self._leaving:
            await asyncio.sleep(0.001)
        asked = (await _body(request))["data"]
        if (asked["LOGIN_NAME"], asked["PASSWORD"]) != (user, password):
            return _refusal(390100, "08001", "Incorrect username or password was specified.")
        answer = await fake.login_request(request)
        if request.query_params.get("roleName", "").strip('"') == "READER":
            self._readers.add(json.loads(bytes(answer.body))["data"]["token"])
        return answer

    async def query(self, request: Request) -> Response:
        token = fake.to_token(request)
        self._clients[token] = (request.client.host, request.client.port) if request.client else None
        verb = (await _body(request))["sqlText"].split()[0]
        if token in self._readers and verb not in ("SELECT", "WITH", "BEGIN", "COMMIT", "ROLLBACK"):
            return _refusal(3001, "42501", "SQL access control error: Insufficient privileges to operate on table")
        async with self._at_work.setdefault(token, asyncio.Lock()):
            return await fake.query_request(request)

    async def end_sessions(self, _: Request) -> Response:
        for token in list(fake.sessions):
            await self._end(token)
        return Response()

    def client_is_gone(self, client: Any) -> None:
        for token in [token for token, last in self._clients.items() if last == client]:
            del self._clients[token]
            self._leaving.add(token)
            self._ending.add(task := asyncio.ensure_future(self._end(token)))
            task.add_done_callback(self._ending.discard)

    async def _end(self, token: str) -> None:
        async with self._at_work.setdefault(token, asyncio.Lock()):
            if (session := fake.sessions.pop(token, None)) is not None:
                session._duck_conn.close()  # Which rolls back.
        self._leaving.discard(token)


async def _body(request: Request) -> Any:
    body = await request.body()
    return json.loads(gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body)


def _refusal(number: int, state: str, message: str) -> Response:
    code = f"{number:06d}"
    data = {"errorCode": code, "sqlState": state}
    return JSONResponse({"data": data, "code": code, "message": message, "success": False})


class _NothingKept(dict[str, Any]):
    """Results of earlier statements, which nobody asks for here."""

    def __setitem__(self, name: str, value: Any) -> None:
        pass


def _refuse_as_snowflake() -> None:
    original = FakeSnowflakeCursor.execute

    def execute(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return original(self, *arguments, **named)
        except duckdb.TransactionException as error:
            message = f"The lock has not yet been released: {error}"
            raise driver.ProgrammingError(msg=message, errno=625, sqlstate="57014") from error

    FakeSnowflakeCursor.execute = execute  # type: ignore[method-assign]


def _remember_translations() -> None:
    """Statements are parsed, rewritten and described once."""
    parsed = cache(fakesnow.dialect.parse_one)
    plain = (exp.Query, exp.Create, exp.Insert, exp.Update, exp.Delete, exp.Transaction, exp.Commit, exp.Rollback)
    transform, describe = FakeSnowflakeCursor._transform, FakeSnowflakeCursor._describe_last_sql
    # By the statement alone: there is one database, and the same tables in every schema.
    rewritten: dict[int, Any] = {}
    described: dict[Any, Any] = {}

    def remembered(self: Any, expression: Any, params: Any) -> Any:
        if (key := id(expression)) not in rewritten:
            done = transform(self, expression.copy(), params)
            if not isinstance(expression, plain):
                return done
            written = done.sql(dialect="duckdb")
            vars(done)["sql"] = lambda **_: written
            rewritten[key] = done
        return rewritten[key]

    def remembered_description(self: Any) -> Any:
        if (key := self._last_sql) not in described:
            described[key] = describe(self)
        return described[key]

    vars(fakesnow.cursor)["parse_one"] = vars(fake)["parse_one"] = parsed
    FakeSnowflakeCursor._transform = remembered  # type: ignore[method-assign]
    FakeSnowflakeCursor._describe_last_sql = remembered_description  # type: ignore[method-assign]


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _serve(port: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    stand_in = _StandIn()

    class Protocol(H11Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            stand_in.client_is_gone(self.client)

    _refuse_as_snowflake()
    _remember_translations()
    # It logs every login, and every error that a test is about.
    logging.disable()
    warnings.simplefilter("ignore")
    shared = fake.shared_fs
    shared.duck_conn.execute("SET threads = 1")
    shared.connect(database)
    shared.create_database_on_connect = shared.create_schema_on_connect = False
    shared.results_cache = _NothingKept()
    app = Starlette(routes=stand_in.routes())
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", timeout_keep_alive=600, http=Protocol)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
