"""Data made by a stranger: reading it runs no code, changes nothing else, and ends with a documented exit code.

Beside the data lies a module whose import leaves a canary file behind. Every file that could name code names it.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import Any

import msgspec
import pytest
from tests.fleets import histories
from tests.hostile import (
    Scene,
    bodies,
    fill,
    instead,
    log_readers,
    make_archive,
    make_table,
    own_readers,
    places,
    write_archive,
)

from runstate.logs.archive.packs import ArchiveInfo, sealed
from runstate.logs.registry import open_log
from runstate.logs.stored_rows import checksum
from runstate.models.model import stable_uuid

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("place", places)
def test_an_archive_that_names_code_runs_none(scene: Scene, place: str) -> None:
    stream = make_archive(scene.here / "log")
    (scene.here / "log" / "archive.json").write_bytes(sealed(ArchiveInfo(place.format(here=scene.here))))
    for reader in [*log_readers, *own_readers["archive"]]:
        scene.run(*reader("archive:log", stream))


# --- tables and pipelines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", places)
def test_a_table_that_names_code_runs_none(scene: Scene, place: str) -> None:
    make_table(scene.here / "table", place.format(here=scene.here))
    for command in ("ingest", "replay", "audit", "report", "run", "stream"):
        assert scene.run("pipeline", command, "table:table", "--to", "out").code == 2


@pytest.mark.parametrize("place", places)
def test_a_pipeline_directory_that_names_code_runs_none(scene: Scene, place: str) -> None:
    fill("sqlite:log.db", "engine")
    named = place.format(here=scene.here)
    inputs = {"model": named, "urls": ["sqlite:log.db"], "directory": str(scene.here / "out"), "versions": {}}
    (scene.here / "out" / "inputs").mkdir(parents=True)
    (scene.here / "out" / "inputs" / f"{named.replace('/', '_')}.json").write_bytes(msgspec.json.encode(inputs))
    assert scene.run("pipeline", "resume", "out").code == 2


# --- runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", places)
@pytest.mark.parametrize("command", ["resume", "status"])
def test_a_run_whose_first_event_names_code_runs_none(scene: Scene, command: str, place: str) -> None:
    created = {
        "event_id": stable_uuid("r", "1"),
        "run_id": "r",
        "type": "RUN_CREATED",
        "trace_id": "0" * 31 + "1",
        "span_id": "0" * 15 + "1",
        "payload": {"config": {"graph": "stranger", "place": place.format(here=scene.here), "nodes": []}},
    }
    assert scene.run("append", "ndjson:runs", stdin=msgspec.json.encode(created) + b"\n").code == 0
    assert scene.run(command, "r").code == (2 if command == "resume" else 0)


# --- files that a caller names --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", instead)
def test_any_given_file_is_read_or_refused(scene: Scene, kind: str) -> None:
    """Only what can be a file: reading from a pipe or a device that the caller names is what the caller asked for."""
    fill("sqlite:log.db", "engine")
    instead[kind](scene.here / "given")
    if (scene.here / "given").is_file():
        for command in ("validate given", "append sqlite:log.db given", "session import segments:mine given"):
            scene.run(*command.split(), *(["--keyring", "keys.json"] if "session" in command else []))
    assert scene.run("project", "sqlite:log.db", "--state", "given").code in (0, 2)
    (scene.here / "state").mkdir()
    shutil.move(scene.here / "given", scene.here / "state" / "logbook.sqlite")
    for command in ("project", "lag"):
        assert scene.run(command, "sqlite:log.db", "--state", "state").code in (0, 2, 3)


@pytest.mark.parametrize("kind", bodies)
@pytest.mark.parametrize("model", ["engine", "rundir", "session", "daemon"])
def test_any_given_line_is_taken_or_refused(scene: Scene, model: str, kind: str) -> None:
    (line, *_), *_ = histories(model, 0, 1).values()
    for command in ("validate", "append"):
        target = ("-",) if command == "validate" else ("memory:",)
        scene.run(command, *target, "--model", model, stdin=bodies[kind](line) + b"\n")


@pytest.mark.parametrize("change", ["manifest", "workflows", "snapshots", "artifacts", "events", "sessionId", "format"])
def test_a_bundle_with_a_changed_part_is_refused(scene: Scene, change: str) -> None:
    bundle: dict[str, Any] = {
        "format": "runstate.session",
        "version": 1,
        "sessionId": "s",
        "manifest": [],
        "digest": "",
    }
    bundle |= {"manifest": [], "events": [{}], "workflows": {}, "snapshots": {}, "artifacts": {}}
    values: list[Any] = [None, [], {}, "../../x", 7, [[]], {"sha256:" + "0" * 64: {"place": "evil.py:Model"}}]
    for value in values:
        given = msgspec.json.encode(bundle | {change: value})
        assert scene.run("session", "import", "segments:mine", "--keyring", "keys.json", stdin=given).code == 2
        assert not list((scene.here / "mine").rglob("*.jsonl"))


# --- names ------------------------------------------------------------------------------------------


names = {
    "above": "../escaped",
    "far above": "../../escaped",
    "absolute": "{root}/escaped",
    "inside": "escaped/../../escaped",
    "dots": "..",
    "a dot": ".",
    "empty": "",
    "NUL": "a\0b",
    "long": "x" * 100_000,
    "newline": "a\nb",
    "escapes": "\x1b]0;owned\x07\u202e",
    "hidden": ".locks",
    "option": "--help",
}


@pytest.mark.parametrize("kind", names)
@pytest.mark.parametrize("scheme", ["sqlite", "archive"])
def test_a_stream_of_any_name_is_written_to_the_target_alone(scene: Scene, scheme: str, kind: str) -> None:
    name = names[kind].format(root=scene.here.parent)
    honest = fill("sqlite:honest.db", "engine")
    if scheme == "archive":
        with open_log("sqlite:honest.db") as log:
            records = [msgspec.structs.replace(record, stream=name) for record in log.read(honest)]
        write_archive(scene.here / "log", "engine", name, records)
    else:
        shutil.copy("honest.db", "log")
        with closing(sqlite3.connect("log")) as database:
            database.execute("UPDATE streams SET stream = ?", (name,))
            database.execute("DROP TRIGGER events_are_never_updated")
            database.create_function("checksum", 9, checksum)
            columns = "seq, event_id, type, key, tenant, emitted_at, persisted_at, body"
            database.execute(f"UPDATE events SET crc = checksum(?, {columns})", (name,))
            database.commit()
    for target in ("ndjson:to-1", "segments:to-2", "wal:to-3", "sqlite:to-4"):
        scene.run("copy", f"{scheme}:log", target)
        if scheme == "archive":
            scene.run("restore", "log", f"{target}-restored")
    for reader in log_readers:
        scene.run(*reader(f"{scheme}:log", honest))
    ours = ("evil.py", "__pycache__", "honest.db", "log", "to-", "copied", "kept")
    assert [path.name for path in scene.here.iterdir() if not path.name.startswith(ours)] == []
    assert {path.name for path in scene.here.parent.iterdir()} <= {"work", "outside", "state"}
