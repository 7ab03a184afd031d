"""Every command with a password in its URL, for the tests of secrets and of file modes.

As a program it runs commands that it reads as JSON from standard input, one after the other in one process: that is
what makes hundreds of them affordable. What each prints goes to a file of its own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import typer

password = "Xq7geheim/47 @11"
"""With characters that a URL holds only in their encoded form."""
needle = b"Xq7geheim"
"""What may not be found anywhere. Part of the password in its plain and in its encoded form."""

not_run = {
    "demo": "takes no URL; tests/e2e/test_cli.py checks the modes of its files",
    "pipeline shell": "does what pipeline sql does, with statements from standard input",
    "pipeline warm": "takes no URL, and writes classes of Spark, not data",
    "daemon serve": "runs until it is terminated: a test of its own",
}


class Call(NamedTuple):
    """One call of a command."""

    command: str
    arguments: list[str]
    codes: tuple[int, ...] = (0,)
    """The exit codes that show that the command did its work, or refused it."""
    environment: Mapping[str, str] = MappingProxyType({})

    @property
    def words(self) -> list[str]:
        return [*self.command.split(), *self.arguments]


def command_names() -> list[str]:
    """All commands of the application."""
    from runstate.cli.main import app

    return sorted(" ".join(path) for path in _walk(typer.main.get_command(app), ()))


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not hasattr(command, "commands"):
        yield path
        return
    for name, below in command.commands.items():
        yield from _walk(below, (*path, name))


class Server(NamedTuple):
    """A Postgres server that asks for the password."""

    port: int

    def url(self, schema: str, *, secret: str = password) -> str:
        return f"postgresql://postgres:{quote(secret, safe='')}@127.0.0.1:{self.port}/postgres?schema={schema}"

    def without_password(self, schema: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?schema={schema}"


def bad_urls(server: Server) -> list[str]:
    """URLs with a secret for every command: an unknown scheme, a closed port, a wrong password."""
    secret = needle.decode()
    return [
        f"postgres://u:{secret}@127.0.0.1/db",
        f"postgresql://u:{secret}@127.0.0.1:1/db",
        server.url("wrong", secret=f"wrong{secret}"),
    ]


def odd_urls() -> list[str]:
    """URLs with a secret that are wrong in themselves. One place reads them, whatever the command."""
    secret = needle.decode()
    return [
        f"psql://u:{secret}{'long' * 40}@127.0.0.1/db",
        f"host=127.0.0.1 user=u password='{secret} x'",
        f"postgresql://u:x@{secret}@127.0.0.1:1/db",
        f"postgresql://u:{secret}/x@127.0.0.1:1/db",
        f"postgresql://u:{secret}#x@127.0.0.1:1/db",
        f"postgresql://u:a {secret}@127.0.0.1:1/db",
        f"postgresql://127.0.0.1:1/db?user=u&password={secret}&nonsense=1",
        f"postgresql://127.0.0.1:1/db?schema=BAD&password={secret}",
        f"dynamodb://AKIA:{secret}@table",
        f"dynamodb://table?region=eu-central-1&aws_secret_access_key={secret}",
        f"dynamodb://table?region=eu-central-1&endpoint=http://u:{secret}@127.0.0.1:1",
        f"snowflake://u:{secret}@account/db/schema",
        f"snowflake://u@account/db/schema?password={secret}",
    ]


def plain_calls(server: Server, given: Path, endpoint: str, streams: dict[str, str], node: str) -> list[Call]:
    """All commands that need no Spark: first with URLs that work, then with those that do not."""
    engine, session, daemon = server.url("engine"), server.url("session"), server.url("daemon")
    run, in_session = streams["engine"], streams["session"]
    at = {model: str(given / f"{model}.ndjson") for model in ("engine", "rundir", "session", "daemon")}
    calls = [
        Call("append", [engine, at["engine"]]),
        Call("append", ["sqlite:runs.db", at["engine"]]),
        Call("append", ["ndjson:rundirs", at["rundir"]]),
        Call("append", ["segments:sessions", at["session"]]),
        Call("append", ["wal:daemons", at["daemon"]]),
        Call("fetch", [engine, run]),
        Call("tail", [engine, "--limit", "5"]),
        Call("validate", [at["engine"]]),
        Call("streams", [engine]),
        Call("snapshot", [engine, run]),
        Call("diff", [engine, run, "--from", "1", "--to", "2"]),
        Call("replay", [engine]),
        Call("replay", ["ndjson:rundirs"]),
        Call("replay", ["segments:sessions"]),
        Call("verify", [engine]),
        Call("repair", [engine]),
        Call("seal", ["--new-key", "seal.key"]),
        Call("seal", [engine, "--key-file", "seal.key", "--to", "seals.ndjson"]),
        Call("project", [engine]),
        Call("project", [engine, "--to", "parquet:projected/table", "--state", "states/one"]),
        Call("lag", [engine]),
        Call("lag", [engine, "--json"]),
        Call("archive", [engine, "--to", "archive", "--older-than", "0s", "--keep"], (0, 1)),
        Call("restore", ["archive", server.url("restored")]),
        Call("restore", ["archive", "sqlite:restored.db"]),
        Call("copy", [engine, "sqlite:copied.db"]),
        Call("copy", ["sqlite:runs.db", server.url("copied")]),
        # Events alone were appended: the blobs that they refer to are missing, and are named.
        Call("copy", ["segments:sessions", "wal:copied"], (1,)),
        Call("gc", [engine]),
        Call("run", [str(given / "app.py:graph"), "--id", "b1", "--telemetry", endpoint]),
        Call("run", [str(given / "app.py:failing"), "--id", "b2"], (1,), {"APP_URL": engine}),
        Call("status", ["b1"]),
        Call("resume", ["b1", "--app", str(given / "app.py:graph"), "--force", "make", "--telemetry", endpoint]),
        Call("session list", [session]),
        Call("session show", [session, in_session]),
        Call("session tree", [session, in_session]),
        Call("session fork", [session, in_session, node]),
        Call("session rewind", [session, in_session, node]),
        Call("session export", [session, in_session, "bundle.json"]),
        Call("session import", [server.url("imported"), "bundle.json"]),
        Call("session import", ["segments:desk", "bundle.json"]),
        Call("session gc", ["segments:desk"]),
        Call("session gc", [session]),
        Call("session verify", [session]),
        Call("session repair", [session]),
        Call("session rotate", []),
        *(call for place in (daemon, "builds") for call in _queue_calls(place)),
        Call("pipeline quarantine", ["nowhere"], (3,)),
        Call("pipeline resume", ["nowhere"], (3,)),
    ]
    return [*calls, *_failing_calls(server, given)]


def _queue_calls(place: str) -> list[Call]:
    return [
        Call("queue push", [place, "b", "1", "--id", "i1"]),
        Call("queue push", [place, "b", "2", "--id", "i2"]),
        Call("queue take", [place, "b", "--worker", "w", "--start", "--concurrency", "2"]),
        Call("queue take", [place, "b", "--worker", "w"]),
        Call("queue list", [place, "b"]),
        Call("queue fail", [place, "b", "i1", "--error", "no"]),
        Call("queue retry", [place, "b", "i1"]),
        Call("queue complete", [place, "b", "i2"]),
        Call("queue stats", [place]),
        Call("queue stop", [place, "w"]),
        Call("daemon state", [place]),
        Call("daemon tail", [place]),
        Call("daemon checkpoint", [place], (0, 2)),
        Call("daemon compact", [place], (0, 2)),
        Call("daemon verify", [place]),
        Call("daemon repair", [place], (0, 2)),
    ]


def _failing_calls(server: Server, given: Path) -> list[Call]:
    codes = (1, 2, 3, 4)
    events = str(given / "engine.ndjson")
    found = []
    for number, url in enumerate(bad_urls(server)):
        arguments: dict[str, list[str]] = {
            "append": [url, events],
            "fetch": [url, "r"],
            "tail": [url],
            "streams": [url],
            "snapshot": [url, "r"],
            "diff": [url, "r", "--from", "1", "--to", "2"],
            "replay": [url],
            "verify": [url],
            "repair": [url],
            "seal": [url, "--key-file", "seal.key"],
            "project": [url],
            "lag": [url],
            "archive": [url, "--to", f"unused-{number}"],
            "restore": ["archive", url],
            "copy": [url, "sqlite:unused.db"],
            "gc": [url],
            "session list": [url],
            "session show": [url, "s"],
            "session tree": [url, "s"],
            "session fork": [url, "s", "n"],
            "session rewind": [url, "s", "n"],
            "session export": [url, "s", "unused.json"],
            "session import": [url, "bundle.json"],
            "session gc": [url],
            "session verify": [url],
            "session repair": [url],
            "queue push": [url, "b", "1"],
            "queue take": [url, "b", "--worker", "w"],
            "queue list": [url, "b"],
            "queue fail": [url, "b", "i"],
            "queue retry": [url, "b", "i"],
            "queue complete": [url, "b", "i"],
            "queue stats": [url],
            "queue stop": [url, "w"],
            "daemon state": [url],
            "daemon tail": [url],
            "daemon checkpoint": [url],
            "daemon compact": [url],
            "daemon verify": [url],
            "daemon repair": [url],
            "pipeline run": [url, "--to", f"unused-run-{number}"],
        }
        found += [Call(command, given_to, codes) for command, given_to in arguments.items()]
        found.append(Call("copy", ["sqlite:runs.db", url], codes))
    for url in odd_urls():
        found += [Call("streams", [url, *more], codes) for more in ([], ["--json"])]
        found += [Call(command, [url, "r"], codes) for command in ("fetch", "session show")]
        found += [] if url.startswith("host=") else [Call("queue push", [url, "b", "1"], codes)]
    secret, app = needle.decode(), str(given / "app.py:graph")
    for telemetry in (f"http://u:{secret}@127.0.0.1:1/", f"ftp://u:{secret}@h/", f"http://h o/?token={secret}"):
        found.append(Call("run", [app, "--id", "unused", "--telemetry", telemetry], codes))
        found.append(Call("resume", ["b1", "--app", app, "--telemetry", telemetry], codes))
    return found


def spark_calls(server: Server) -> list[Call]:
    """The commands of the pipeline that share one Spark session."""
    engine = server.url("engine")
    calls = [
        Call("pipeline ingest", [engine, "--to", "tables/events"]),
        Call("pipeline ingest", [server.url("second"), "--to", "tables/events", "--compact"]),
        Call("pipeline quarantine", ["tables/events", "--json"]),
        Call("pipeline versions", ["tables/events", "--json"]),
        Call("pipeline compact", ["tables/events", "--json"]),
        Call("pipeline vacuum", ["tables/events", "--older-than", "0h", "--dry-run"]),
        Call("pipeline restore", ["tables/events", "--version", "1"]),
        Call("pipeline convert", ["tables/events"], (2,)),
        Call("pipeline sql", ["SELECT * FROM heads", "tables/events", "--json"]),
        Call("pipeline sql", ["SELECT * FROM events", engine, "--json"]),
        Call("pipeline replay", [engine, "--to", "tables/snapshots"], (0, 1)),
        Call("pipeline audit", [engine, server.url("second"), "--to", "tables/findings"], (0, 1)),
        Call("pipeline report", [engine, "--to", "tables/report", "--json"]),
        Call("pipeline archive", [engine, "--to", "fleet", "--older-than", "0s", "--keep"], (0, 1)),
        Call("pipeline stream", [engine, "--to", "parquet:live/table", "--state", "states/live", "--available-now"]),
    ]
    for url in bad_urls(server):
        arguments = {
            "pipeline ingest": [url, "--to", "unused"],
            "pipeline replay": [url, "--to", "unused"],
            "pipeline sql": ["SELECT * FROM events", url],
            "pipeline archive": [url, "--to", "unused"],
            "pipeline stream": [url, "--available-now"],
        }
        calls += [Call(command, given_to, (2,)) for command, given_to in arguments.items()]
    closed = bad_urls(server)[1]  # Once: a task meets it, and Spark takes its time to say so.
    calls += [Call("pipeline audit", [closed], (1,)), Call("pipeline report", [closed, "--to", "unused"], (2,))]
    return calls


def main() -> None:
    """Run the calls of standard input. Each answers with its exit code, and leaves what it printed in a file."""
    from runstate.cli import main as runstate

    outputs, spark_conf = Path(sys.argv[1]), json.loads(sys.argv[2])
    calls = [Call(*each) for each in json.loads(sys.stdin.buffer.read())]
    if spark_conf is not None:
        from runstate.pipeline.spark.session import session

        session(master="local[2]", conf=spark_conf)
    codes = []
    for number, call in enumerate(calls):
        # Files and not pipes: the child processes of a command write to them too.
        output = os.open(outputs / f"{number:04d}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        sys.argv = ["runstate", *call.words]
        os.environ.update(call.environment)
        try:
            runstate()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:  # noqa: BLE001 - what nobody caught is printed, as the interpreter would
            traceback.print_exc()
            code = "traceback"
        for name in call.environment:
            del os.environ[name]
        sys.stdout.flush()
        sys.stderr.flush()
        codes.append(code)
    (outputs / "codes").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
