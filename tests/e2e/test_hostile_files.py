"""Anything in place of a file, an event or a commit: every reader ends in time with a documented exit code."""

from __future__ import annotations

import gzip
import random
import shutil
import sqlite3
import unittest.mock
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import zstandard
from tests.hostile import (
    Scene,
    bodies,
    file_logs,
    fill,
    instead,
    log_readers,
    make_log,
    own_readers,
    remove,
    write_archive,
)
from tests.tables import change_note, new_table

from runstate.errors import RunstateError
from runstate.logs.registry import open_log
from runstate.models.canonical import digest
from runstate.store import open as open_store

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", instead)
@pytest.mark.parametrize("scheme", [*file_logs, "sqlite", "archive"])
def test_every_reader_copes_with_anything_in_place_of_a_file(scene: Scene, scheme: str, kind: str) -> None:
    """Every file and every directory of a log in turn is replaced by something that no log wrote."""
    pristine = scene.here / "pristine"
    stream = make_log(scheme, pristine)
    for place in sorted(path.relative_to(pristine.parent) for path in [pristine, *pristine.rglob("*")]):
        shutil.copytree(pristine, scene.here / "log") if pristine.is_dir() else shutil.copy(
            pristine, scene.here / "log"
        )
        replaced = scene.here / "log" / place.relative_to("pristine")
        shutil.rmtree(replaced) if replaced.is_dir() else replaced.unlink()
        instead[kind](replaced)
        for reader in [*log_readers, *own_readers.get(scheme, ())]:
            scene.run(*reader(f"{scheme}:log", stream))
        for path in [scene.here / "log", *scene.here.glob("copied*"), *scene.here.glob("kept")]:
            remove(path)


@pytest.mark.parametrize("kind", bodies)
@pytest.mark.parametrize("scheme", [*file_logs, "sqlite", "archive"])
def test_every_reader_copes_with_anything_in_place_of_an_event(
    scene: Scene, scheme: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is intact in every other way: it was written without the checks that refuse such events."""
    model = file_logs.get(scheme, "engine")
    stream = fill("sqlite:honest.db", model)
    with open_log("sqlite:honest.db") as log:
        first, *others = log.read(stream)
    hostile = [first, *(msgspec.structs.replace(record, body=bodies[kind](record.body)) for record in others[:1])]
    with monkeypatch.context() as patch:
        for checked in ("ndjson.lines.check_writable", "segments.lines.check_writable", "wal.buffer.check_body"):
            patch.setattr(f"runstate.logs.{checked}", lambda body: None)
        patch.setattr("runstate.logs.archive.packs.decode_line", lambda line: unittest.mock.ANY)
        if scheme == "archive":
            write_archive(scene.here / "log", model, stream, hostile)
        else:
            with open_log(f"{scheme}:log") as log:
                log.adopt(stream, hostile)
    for reader in [*log_readers, *own_readers.get(scheme, ())]:
        scene.run(*reader(f"{scheme}:log", stream))


# --- tables ------------------------------------------------------------------------------------------


def make_rows(directory: Path) -> dict[str, Any]:
    """An event table with one file of each kind, as plain data: its only commit."""
    from runstate.pipeline.source.rows import event_schema
    from runstate.pipeline.tables.event_table import quarantine_schema
    from runstate.pipeline.tables.sorted_files import SortedWriter
    from runstate.pipeline.tables.table import Commit

    table, files = new_table(directory), []
    for kind, schema in (("events", event_schema), ("quarantine", quarantine_schema)):
        row: dict[str, list[Any]] = {field.name: [1 if str(field.type) == "int64" else "a"] for field in schema}
        if kind == "quarantine":
            row["content"] = [b"a"]
        with SortedWriter(table.place(kind), kind, schema) as writer:
            writer.write(pa.RecordBatch.from_pydict(row, schema))
        files += writer.entries
    table.commit(Commit(number=1, files=files, consumed={"urls": ["sqlite:x"]}))
    found: dict[str, Any] = msgspec.to_builtins(table.commits()[0])
    return found


def entry_with(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(commit: dict[str, Any]) -> None:
        for entry in commit["files"]:
            entry |= changes

    return change


def commit_with(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda commit: commit.update(changes)


def chunk_with(place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(commit: dict[str, Any]) -> None:
        for entry in commit["files"]:
            entry["chunks"][0][place] = value

    return change


commits: dict[str, Callable[[dict[str, Any]], None]] = {
    "a name above": entry_with(name="../../../outside/precious.parquet"),
    "an absolute name": entry_with(name="/etc/passwd"),
    "a device": entry_with(name="../../../../../../../../../dev/zero"),
    "an unknown suffix": entry_with(name="events.exe"),
    "a name with NUL": entry_with(name="a\0b.parquet"),
    "a long name": entry_with(name="x" * 5000 + ".parquet"),
    "no chunks": entry_with(chunks=[]),
    "a size": entry_with(bytes=2**62),
    "a footer": entry_with(footer=[-(2**62), 2**62, 0]),
    "rows": chunk_with(2, 2**62),
    "a section": chunk_with(3, [0, -1, 0]),
    "a chunk out of order": chunk_with(0, "zzz"),
    "consumed files": commit_with(consumed={"files": {"a": 1}}),
    "consumed is nested": commit_with(consumed={"files": {"a": {"size": {}, "line": [[]]}}, "urls": 7}),
    "an unfinished line": commit_with(
        consumed={"files": {"\x1b[31m": {"size": 1, "line": 1, "sha256": "", "unfinished": "x"}}}
    ),
    "replaces": commit_with(replaces=True, number=-5),
}


@pytest.mark.parametrize("kind", commits)
def test_readers_of_a_table_cope_with_any_commit(scene: Scene, kind: str) -> None:
    commit = make_rows(scene.here / "table")
    assert scene.run("pipeline", "quarantine", "table", "--json").rows[0]["code"] == "a"
    commits[kind](commit)
    body = msgspec.json.encode(commit)
    sealed_commit = msgspec.json.encode({"sha256": digest(body), "commit": msgspec.Raw(body)})
    change_note(scene.here / "table", 1, sealed_commit.decode())
    read_table(scene)


@pytest.mark.parametrize("kind", instead)
def test_readers_of_a_table_cope_with_anything_in_place_of_a_file(scene: Scene, kind: str) -> None:
    make_rows(scene.here / "pristine")
    for place in sorted(path.relative_to(scene.here / "pristine") for path in (scene.here / "pristine").rglob("*")):
        shutil.copytree(scene.here / "pristine", scene.here / "table")
        remove(scene.here / "table" / place)
        instead[kind](scene.here / "table" / place)
        read_table(scene)
        shutil.rmtree(scene.here / "table")


def read_table(scene: Scene) -> None:
    """Read it by a command that needs no Spark, and as a task of Spark does."""
    from runstate.pipeline.source.origins import Origins
    from runstate.pipeline.source.shards import Shard

    scene.run("pipeline", "quarantine", "table")
    with suppress(RunstateError), Origins(["table:table"]) as origins:
        for reader in origins.streams(Shard()):
            list(reader.records())


# --- compressed files --------------------------------------------------------------------------------


bombs: dict[str, Callable[[], tuple[str, bytes]]] = {
    "gzip bomb": lambda: ("gz", gzip.compress(bytes(40_000_000), 1)),
    "many gzip bombs": lambda: ("gz", gzip.compress(bytes(4_000_000), 1) * 10),
    "zstd bomb": lambda: ("zst", zstandard.compress(bytes(40_000_000))),
    "zstd that claims 2^60 bytes": lambda: ("zst", bytes.fromhex("28b52ffde0") + (2**60).to_bytes(8, "little") + b"x"),
    "zstd of unknown size": lambda: ("zst", unsized_zstd(bytes(40_000_000))),
    "no gzip": lambda: ("gz", b"nothing"),
    "half of a gzip": lambda: ("gz", gzip.compress(bytes(1000))[:-5]),
    "a changed gzip": lambda: ("gz", gzip.compress(random.Random(0).randbytes(1000))[:500] + bytes(520)),
    "no zstd": lambda: ("zst", b"nothing"),
}


def unsized_zstd(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    return bytes(compressor.compress(data) + compressor.flush())


@pytest.mark.parametrize("kind", bombs)
def test_every_reader_copes_with_any_compressed_file(scene: Scene, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.logs.wal.compression.unpacked_bytes_max", 20_000_000)
    stream = fill("wal:log?history=archive", "daemon")
    with open_store("wal:log?history=archive", "daemon") as store:
        store.log.checkpoint(stream, store.fresh_snapshot(stream))  # type: ignore[attr-defined]
    (segment,) = (scene.here / "log" / stream / "archive").iterdir()
    suffix, data = bombs[kind]()
    first, last, _ = segment.name.split("-")
    segment.unlink()
    (segment.parent / f"{first}-{last}-{digest(data)}.jsonl.{suffix}").write_bytes(data)
    for reader in [*log_readers, *own_readers["wal"]]:
        scene.run(*reader("wal:log", stream))
    assert scene.run("verify", "wal:log").code == 1


# --- databases --------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["STREAMS", "events", "snapshots", "schema_version"])
def test_a_view_in_place_of_a_table_is_not_read(scene: Scene, table: str) -> None:
    """A view is a query that its author chose. This one has no end."""
    stream = fill("sqlite:log.db", "engine")
    with closing(sqlite3.connect("log.db")) as database:
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        database.execute(f"ALTER TABLE {table} RENAME TO old")
        columns = ", ".join(f"x AS {name}" for name in names)
        endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
        database.execute(f"CREATE VIEW {table} AS {endless} SELECT {columns} FROM c")
        database.commit()
    for reader in log_readers:
        assert scene.run(*reader("sqlite:log.db", stream)).code in (2, 3)
