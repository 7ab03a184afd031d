"""Places where a log cannot be kept or read: each is refused with one sentence that says what to do, and left alone."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import permutations
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from tests.commands import Cli, Outcome

import runstate
from runstate.logs.registry import open_log

kinds = ["sqlite", "ndjson", "segments", "wal"]
line = (
    b'{"eventId":"00000000-0000-4000-8000-000000000001","runId":"r","tenantId":"t","projectId":"p","environmentId":"e",'
    b'"planId":"p","planVersion":"1","engineAttemptId":1,"logicalAttemptId":1,"eventType":"RunPaused",'
    b'"emittedAt":"2026-11-15T12:00:00.000Z","idempotencyKey":"k"}\n'
)


def fill(kind: str) -> None:
    with runstate.open(f"{kind}:log", "engine") as store:
        run = store.run("r", tenant="t", plan="p")
        run.started()


def content() -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


def check_refused(cli: Cli, code: str, advice: str, *commands: tuple[str, ...]) -> None:
    for command in commands:
        before = content()
        outcome = cli(*command, "--model", "engine", stdin=line)
        assert outcome.code == 2, (command, outcome)
        assert outcome.out == "", command
        assert re.fullmatch(rf"error\[{re.escape(code)}\] [^\n]*{re.escape(advice)}[^\n]*\n", outcome.err), outcome.err
        assert content() == before, command


@pytest.mark.parametrize(("there", "kind"), list(permutations(kinds, 2)))
def test_a_log_of_another_kind_is_refused(cli: Cli, there: str, kind: str) -> None:
    fill(there)
    url = f"{kind}:log"
    advice = f"Open it as {there}:log" if "sqlite" not in (there, kind) else "Check the path and the kind in the URL"
    check_refused(cli, "log.not_a_log", advice, ("append", url), ("streams", url), ("fetch", url, "r"), ("verify", url))


@pytest.mark.parametrize("kind", kinds[1:])
def test_a_log_with_streams_of_its_own_kind_is_opened_beside_foreign_ones(cli: Cli, kind: str) -> None:
    fill(kind)
    foreign = Path("log/a")
    foreign.mkdir(exist_ok=True)
    (foreign / {"wal": "events.ndjson"}.get(kind, "wal.jsonl")).write_text("{}\n")
    with open_log(f"{kind}:log") as log:
        assert log.stream("r") is not None


# --- a newer format --------------------------------------------------------------------------------------------


def newer_sealed(path: Path) -> None:
    content = msgspec.json.decode(path.read_bytes())["content"]
    body = msgspec.json.encode(content | {"format": 2, "unheard": {"of": True}})
    path.write_bytes(b'{"crc":"%08x","content":%b}\n' % (crc32(body), body))


def newer_sqlite() -> None:
    with closing(sqlite3.connect("log")) as connection, connection:
        latest = "SELECT max(version) FROM schema_version"
        connection.execute(f"UPDATE schema_version SET version = 99 WHERE version = ({latest})")


def newer_manifest() -> None:
    path = Path("log/sessions/r/manifest.jsonl")
    data = path.read_bytes()
    last = int(data.rstrip(b"\n")[-10:-2], 16)
    head = b'{"manifestIndex":%d,"kind":"segment_split","at":0' % data.count(b"\n")
    path.write_bytes(data + b'%b,"crc":"%08x"}\n' % (head, crc32(head, last)))


newer: dict[str, Callable[[], None]] = {
    "sqlite": newer_sqlite,
    "ndjson": lambda: newer_sealed(Path("log/r/index.json")),
    "segments": newer_manifest,
    "wal": lambda: newer_sealed(Path("log/r/ledger.json")),
}


@pytest.mark.parametrize("kind", kinds)
def test_a_log_of_a_newer_format_is_refused(cli: Cli, kind: str) -> None:
    fill(kind)
    newer[kind]()
    url = f"{kind}:log"
    check_refused(cli, "log.too_new", "pgrade Runstate", ("append", url), ("verify", url), ("repair", url, "--salvage"))


# --- a file system without locks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", kinds[1:])  # SQLite locks with fcntl, inside its own library.
def test_a_file_system_without_locks_is_refused_by_writers(
    cli: Cli, kind: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(kind)

    def flock(fd: Any, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    url = f"{kind}:log"
    check_refused(cli, "log.failed", "Keep the log on a local disk", ("append", url))
    read: Outcome = cli("fetch", url, "r", "--json")
    assert (read.code, len(read.rows)) == (0, 1)


# --- an object store ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["s3://bucket/x", "gs://bucket/x", "abfss://c@a.dfs.core.windows.net/x", "hdfs://n/x"]
)
@pytest.mark.parametrize(
    "command",
    [
        ("archive", "--older-than", "0s"),
        ("pipeline", "archive", "--older-than", "0s"),
        ("pipeline", "ingest"),
        ("pipeline", "replay"),
        ("pipeline", "audit"),
        ("pipeline", "report"),
        ("pipeline", "run"),
    ],
    ids=" ".join,
)
def test_the_url_of_an_object_store_is_no_directory(cli: Cli, command: tuple[str, ...], place: str) -> None:
    pytest.importorskip("pyspark", reason="pip install 'runstate[spark]'")
    fill("sqlite")
    check_refused(
        cli, "log.unsupported", "nothing was written. Give a directory", (*command, "sqlite:log", "--to", place)
    )
