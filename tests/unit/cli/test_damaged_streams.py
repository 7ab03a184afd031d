"""One damaged stream of three, through the commands: each names it, no other is touched, repair keeps its word."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.commands import Cli

import runstate
from runstate.logs.frames import framed
from runstate.logs.log import Record

deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
engine = ("--model", "engine")


def fill(url: str) -> None:
    with runstate.open(url, "engine") as store:
        for name in ("a", "b", "c"):
            run = store.run(name, tenant="t", plan="p")
            run.started()
            run.completed()


def add(line: bytes) -> Callable[[], None]:
    def edit() -> None:
        with Path("log/b/events.ndjson").open("ab") as file:
            file.write(line + b"\n")

    return edit


def remove_manifest() -> None:
    Path("log/sessions/b/manifest.jsonl").unlink()


def flip_manifest() -> None:
    path = Path("log/sessions/b/manifest.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"sha256":"', b'"sha257":"', 1))


def cut_file() -> None:
    path = Path("log/b/events.ndjson")
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")


bare = (
    b'{"event_id":"x","run_id":"b","ts":"2026-11-15T12:00:00.000Z","type":"x","payload":%b,"trace_id":"","span_id":""}'
)
damages: dict[str, tuple[str, Callable[[], None]]] = {
    "deep": ("ndjson", add(deep)),
    "deep payload": ("ndjson", add(bare % deep)),
    "foreign": ("ndjson", add(b"a line of another program")),
    "lost tail": ("ndjson", cut_file),
    "lost file": ("ndjson", lambda: Path("log/b/events.ndjson").unlink()),
    "manifest gone": ("segments", remove_manifest),
    "manifest flipped": ("segments", flip_manifest),
}


@pytest.mark.parametrize("kind", damages)
def test_a_damaged_stream_is_named_by_every_command_and_repaired_as_announced(cli: Cli, kind: str) -> None:
    scheme, damage = damages[kind]
    url = f"{scheme}:log"
    fill(url)
    damage()
    verified = cli("verify", url, "--json", *engine)
    assert (verified.code, {row["stream"] for row in verified.rows}) == (1, {"b"})
    listed = cli("streams", url, "--json", *engine)
    assert (listed.code, [row["stream"] for row in listed.rows]) == (0, ["a", "b", "c"])
    assert [cli("fetch", url, name).code for name in "ac"] == [0, 0]
    assert cli("fetch", url, "b").code == (0 if kind == "lost tail" else 1)
    checked = cli("replay", url, "--check", *engine)
    assert checked.code in (0, 1)
    assert "a:" not in checked.out
    assert "c:" not in checked.out
    assert cli("tail", url).code == 2  # These logs have no feed.
    would = cli("repair", url, "--dry-run", "--salvage", "--json", *engine)
    done = cli("repair", url, "--salvage", "--json", *engine)
    assert done.code == would.code == 0
    assert done.rows == would.rows
    kept = done.rows[0]["details"]["kept"]
    assert len(cli("fetch", url, "b").rows) == kept if kept else True
    again = cli("verify", url, "--json", *engine)
    assert again.code == 0
    assert {row["code"] for row in again.rows} <= {"log.set_aside"}
    assert cli("repair", url, *engine).code == 0


def test_an_event_that_no_model_can_read_costs_its_stream_alone(cli: Cli) -> None:
    """Its checksum is right, so it is the log's, and the model refuses it."""
    fill("ndjson:log")
    add(framed(Record("b", 3, "e", "x", "k", "t", "", "2026-11-15T12:00:00.000Z", deep), ""))()
    verified = cli("verify", "ndjson:log", "--json", *engine)
    assert (verified.code, {row["stream"] for row in verified.rows}) == (1, {"b"})
    assert cli("streams", "ndjson:log", *engine).code == 0
    assert [cli("fetch", "ndjson:log", name).code for name in "abc"] == [0, 0, 0]
    assert "1 behind the log" in cli("replay", "ndjson:log", "--check", *engine).err  # The stored snapshots are right.


@pytest.mark.parametrize("scheme", ["ndjson", "segments", "sqlite", "wal"])
def test_a_damaged_last_event_is_never_answered_with_the_state_before_it(cli: Cli, scheme: str) -> None:
    url = f"{scheme}:log"
    fill(url)
    if scheme == "sqlite":
        with sqlite3.connect("log") as connection:
            connection.execute("DROP TRIGGER events_are_never_updated")
            connection.execute("UPDATE events SET body = replace(body, 'RunCompleted', 'RunCompletee') WHERE seq = 2")
            connection.execute("DELETE FROM snapshots")
        connection.close()
    else:
        for path in [path for path in Path("log").rglob("*") if path.is_file()]:
            if "snapshot" in path.name:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes().replace(b'"RunCompleted"', b'"RunCompletee"'))
    for command in (("snapshot", "b"), ("snapshot", "b", "--project"), ("replay",), ("replay", "--check"), ("verify",)):
        outcome = cli(command[0], url, *command[1:], *engine)
        assert (outcome.code, "RUNNING" in outcome.out) == (1, False), command
    assert "RUNNING" not in cli("streams", url, *engine).out
