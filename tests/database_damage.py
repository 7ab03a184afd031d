"""Databases with a log in them, damaged in every way that a statement can: `scene_at("sqlite", directory)`.

Each is filled once, and put back for every damage.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import boto3
import duckdb
import psycopg
import snowflake.connector.errors
from tests.changed_rows import change_rows
from tests.dynamodb_server import region, server_endpoint
from tests.log_urls import url_at

import runstate
from runstate.conformance.notes import stored
from runstate.errors import RunstateError
from runstate.logs.dynamodb.table import Item, decoded, encoded, encoded_key
from runstate.logs.log import Capability, Record, Tombstone
from runstate.logs.registry import open_log
from runstate.models.engine import RunEventWrite
from runstate.models.engine.model import EngineModel
from runstate.models.model import Draft, stable_uuid

streams = ["a", "b", "c"]
tables = ["events", "streams", "snapshots", "blobs", "tombstones"]
Change = Callable[[], object]
Damage = tuple[str, Change]
refusals = (sqlite3.IntegrityError, psycopg.errors.Error, snowflake.connector.errors.Error, duckdb.Error, RunstateError)
"""By these, a database says that such a change is impossible."""


def fill(url: str) -> dict[str, list[Record]]:
    """Three runs of six events with their snapshots, a blob, and a tombstone."""
    with runstate.open(url, "engine") as store:
        for name in (*streams, "gone"):
            run = store.run(name, tenant="t", project="p", environment="e", plan="p", plan_version="1")
            run.started()
            for step in ("x", "y"):
                run.step_started(step)
                run.step_completed(step)
            run.completed()
            if name == "b" and Capability.FEED in store.log.capabilities:
                store.log.feed()  # Some events have their place in the feed, others have not.
        store.log.put_blob(b"an artifact")
        store.log.delete_stream("gone", tombstone=Tombstone("gone", 6, "d" * 64, "archive:old", "2026-11-15T09:30:00Z"))
        return {name: stored(store.log, name) for name in streams}


def edits(value: Any) -> Iterator[Any]:
    """What may become of a value."""
    if isinstance(value, bytes):
        place = len(value) // 2
        yield value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :] if value else b"x"
        yield value[:place]
        yield b""
    elif isinstance(value, int):
        yield from (value + 1, value - 1, -value - 7, value + 1_000_000)
    elif isinstance(value, str):
        yield from (f"{value}x", "", value[:-1] + chr(ord(value[-1:] or "a") ^ 1))
    # Else it is the time at which a blob was put, which only a collection looks at.


class Scene:
    """A log in a database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.scheme = url.partition(":")[0]
        self.right = fill(url)

    def damage(self, change: Change) -> bool:
        """Make the log whole, and then damage it. False: the database refuses such a change."""
        self.restore()
        with suppress(*refusals):
            change()
            return True
        return False

    def restore(self) -> None:
        raise NotImplementedError

    def content(self) -> object:
        raise NotImplementedError

    def damages(self) -> list[Damage]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class SqlScene(Scene):
    """Rows of tables."""

    binary = "x'{}'"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.rows = {table: self.select(table) for table in tables}

    def select(self, table: str) -> list[dict[str, Any]]:
        raise NotImplementedError

    def run(self, statement: str) -> None:
        raise NotImplementedError

    def content(self) -> object:
        return {table: sorted(self.select(table), key=repr) for table in tables}

    def literal(self, value: Any) -> str:
        if isinstance(value, bytes):
            return self.binary.format(value.hex())
        return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"

    def damages(self) -> list[Damage]:
        found: list[Damage] = []
        for table, rows in self.rows.items():
            for number, row in enumerate(rows):
                name, where = f"{table} {number}", self._where(table, row)
                for column, value in row.items():
                    for edit in edits(value):
                        if edit != value:
                            change = f"UPDATE {table} SET {column} = {self.literal(edit)} WHERE {where}"
                            found.append((f"{name}.{column} = {edit!r:.40}", self._do(change)))
                found.append((f"{name} deleted", self._do(f"DELETE FROM {table} WHERE {where}")))
                found.append((f"{name} doubled", self._do(f"INSERT INTO {table} SELECT * FROM {table} WHERE {where}")))
                for other in rows[number + 1 :][:7:3]:
                    found += self._swaps(table, name, row, other)
        for stream in streams:
            of_stream = self._where("events", next(row for row in self.rows["events"] if self._is_of(row, stream)))
            found.append(
                (f"events of {stream} deleted", self._do(f"DELETE FROM events WHERE {of_stream.split(' AND ')[0]}"))
            )
        return found

    def _is_of(self, row: dict[str, Any], stream: str) -> bool:
        if "stream" in row:
            return bool(row["stream"] == stream)
        return bool(row["stream_id"] == next(r["id"] for r in self.rows["streams"] if r["stream"] == stream))

    def _swaps(self, table: str, name: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[Damage]:
        for column, value in one.items():
            if value != other[column]:
                free = "~" if isinstance(value, str) else b"~" if isinstance(value, bytes) else -99
                first, second = self._where(table, one), self._where(table, other)
                steps = [
                    f"UPDATE {table} SET {column} = {self.literal(free)} WHERE {first}",
                    f"UPDATE {table} SET {column} = {self.literal(value)} WHERE {second}",
                    f"UPDATE {table} SET {column} = {self.literal(other[column])} WHERE "
                    + self._where(table, {**one, column: free}),
                ]
                yield f"{name}.{column} swapped with {self._where(table, other)}", self._do(*steps)

    def _where(self, table: str, row: dict[str, Any]) -> str:
        stream = "stream" if "stream" in row else "stream_id"
        keys = {"events": [stream, "seq"], "snapshots": [stream, "model"], "blobs": ["digest"]}.get(table, ["stream"])
        return " AND ".join(f"{key} = {self.literal(row[key])}" for key in keys)

    def _do(self, *statements: str) -> Change:
        def change() -> None:
            for statement in statements:
                self.run(statement)

        return change


class SqliteScene(SqlScene):
    def __init__(self, url: str) -> None:
        self.path = Path(url.removeprefix("sqlite:"))
        super().__init__(url)
        self.whole = self.path.read_bytes()

    def select(self, table: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.text_factory = lambda data: data.decode(errors="surrogateescape")
            cursor = connection.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def content(self) -> object:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.read_bytes()

    def run(self, statement: str) -> None:
        change_rows(None, self.url, statement)

    def restore(self) -> None:
        for end in ("-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)
        self.path.write_bytes(self.whole)

    def file_damages(self, seed: int, count: int) -> list[Damage]:
        """Bytes of the file flipped, zeroed and cut off."""
        chance, size = random.Random(seed), len(self.whole)
        found: list[Damage] = []
        for _ in range(count):
            place, length = chance.randrange(size), chance.choice([1, 16, 512, 4096])
            kept = self.whole[:place], self.whole[place + length :]
            flipped = bytes([self.whole[place] ^ 1 << chance.randrange(8)])
            found.append((f"byte {place} flipped", self._write(self.whole[:place] + flipped + self.whole[place + 1 :])))
            zeroed = kept[0] + bytes(min(length, size - place)) + kept[1]
            found.append((f"{length} bytes zeroed at {place}", self._write(zeroed)))
            found.append((f"cut at {place}", self._write(kept[0])))
        return found

    def _write(self, data: bytes) -> Change:
        return lambda: self.path.write_bytes(data)


class PostgresScene(SqlScene):
    binary = "'\\x{}'"

    def __init__(self, url: str) -> None:
        self.log: Any = open_log(url)
        super().__init__(url)

    def select(self, table: str) -> list[dict[str, Any]]:
        with self.log._connections.one() as connection:
            cursor = connection.execute(f"SELECT * FROM $schema.{table}")
            names = [column.name for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return [{name: bytes(v) if isinstance(v, memoryview) else v for name, v in row.items()} for row in rows]

    def run(self, statement: str) -> None:
        change_rows(self.log, self.url, statement)

    def restore(self) -> None:
        self.run("DROP TABLE IF EXISTS set_aside_events")
        for table, rows in self.rows.items():
            self.run(f"DELETE FROM {table}")
            for row in rows:
                values = ", ".join(map(self.literal, row.values()))
                self.run(f"INSERT INTO {table} ({', '.join(row)}) OVERRIDING SYSTEM VALUE VALUES ({values})")

    def close(self) -> None:
        self.log.close()


class SnowflakeScene(PostgresScene):
    binary = "TO_BINARY('{}', 'HEX')"

    def select(self, table: str) -> list[dict[str, Any]]:
        def rows(session: Any) -> list[dict[str, Any]]:
            with session._connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {table}")
                names = [column.name.lower() for column in cursor.description]
                return [dict(zip(names, row, strict=True)) for row in cursor]

        found = self.log._connections.run(rows)
        return [{name: bytes(v) if isinstance(v, bytearray) else v for name, v in row.items()} for row in found]

    def restore(self) -> None:
        self.run("DROP TABLE IF EXISTS set_aside_events")
        for table, rows in self.rows.items():
            self.run(f"DELETE FROM {table}")
            values = ", ".join(f"({', '.join(map(self.literal, row.values()))})" for row in rows)
            self.run(f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES {values}")


class DynamoScene(Scene):
    """Items of a table."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.table = url.removeprefix("dynamodb://").partition("?")[0]
        self.client = boto3.client("dynamodb", region_name=region, endpoint_url=server_endpoint())
        self.items = self._items()

    def _items(self) -> list[Item]:
        found = [decoded(item) for item in self.client.scan(TableName=self.table, ConsistentRead=True)["Items"]]
        # By stream, since the ids of streams are random and a sample is to be the same each time.
        streams_of = {item["id"]: item["pk"] for item in found if item["sk"] == "head" and "id" in item}
        return sorted(found, key=lambda item: [str(streams_of.get(item[part], item[part])) for part in ("pk", "sk")])

    def content(self) -> object:
        return self._items()

    def restore(self) -> None:
        there = {(item["pk"], item["sk"]): item for item in self._items()}
        for item in self.items:
            if there.pop((item["pk"], item["sk"]), None) != item:
                self._put(item)()
        for item in there.values():
            self._delete(item)()

    def _put(self, item: Item) -> Change:
        return lambda: self.client.put_item(TableName=self.table, Item=encoded(item))

    def _delete(self, item: Item) -> Change:
        return lambda: self.client.delete_item(TableName=self.table, Key=encoded_key((item["pk"], item["sk"])))

    def damages(self) -> list[Damage]:
        found: list[Damage] = []
        items = [item for item in self.items if item["sk"] != "format"]
        for number, item in enumerate(items):
            name = f"{item['pk'][:40]} {item['sk'][:30]}"
            found.append((f"{name} deleted", self._delete(item)))
            for attribute, value in item.items():
                if attribute not in ("pk", "sk"):
                    for edit in edits(value):
                        found.append((f"{name}.{attribute} = {edit!r:.40}", self._put(item | {attribute: edit})))
                    without = {key: kept for key, kept in item.items() if key != attribute}
                    found.append((f"{name}.{attribute} gone", self._replace(item, without)))
            for other in items[number + 1 :][:4:3]:
                if item.keys() == other.keys():
                    found.append(
                        (f"{name} swapped with {other['pk'][:40]} {other['sk'][:30]}", self._swap(item, other))
                    )
        return found

    def _replace(self, item: Item, new: Item) -> Change:
        return lambda: (self._delete(item)(), self._put(new)())

    def _swap(self, one: Item, other: Item) -> Change:
        keys = [{name: item[name] for name in ("pk", "sk")} for item in (one, other)]
        return lambda: (self._put(one | keys[1])(), self._put(other | keys[0])())

    def close(self) -> None:
        self.client.close()


scenes = {
    "sqlite": SqliteScene,
    "postgresql": PostgresScene,
    "snowflake": SnowflakeScene,
    "dynamodb": DynamoScene,
}


def scene_at(scheme: str, place: Path) -> Scene:
    return scenes[scheme](url_at(scheme, place))


def new_draft(stream: str) -> Draft:
    """An event that none of the streams holds."""
    event = RunEventWrite(
        event_type="SignalAccepted",
        event_id=stable_uuid(stream),
        emitted_at="2026-11-15T09:30:00.000Z",
        run_id=stream,
        tenant_id="t",
        project_id="p",
        environment_id="e",
        plan_id="p",
        plan_version="1",
        engine_attempt_id=1,
        logical_attempt_id=1,
        idempotency_key="new",
    )
    return EngineModel().draft(event)[1]
