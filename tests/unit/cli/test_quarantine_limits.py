"""`repair --quarantine` where something is in its way: interruptions, checkpoints, archives, blobs that are gone."""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from tests.commands import Cli
from tests.fleets import histories, put_blobs
from tests.log_urls import url_at
from tests.unit.cli.test_impossible_events import append, completed, malformed, started, stopped, store
from tests.unit.cli.test_quarantine import bodies, folded, second, stored_state

import runstate
from runstate.conformance.notes import notes, snapshot
from runstate.errors import RunstateError, Truncated, Unsupported
from runstate.logs.registry import open_log
from runstate.logs.wal import WalLog
from runstate.models.registry import find_model
from runstate.projector import Projector
from runstate.sinks import TellingSink

docs = Path(__file__).parents[3] / "docs/formats"
last_steps = {
    "sqlite": ("runstate.logs.sqlite.repair", "_put_head", "SELECT nothing FROM nowhere"),
    "postgresql": ("runstate.logs.postgres.repair", "_put_head", "SELECT nothing FROM nowhere"),
    "snowflake": ("runstate.logs.snowflake.repair", "insert_heads", None),
    "dynamodb": ("runstate.logs.dynamodb.repair", "_replace", None),
}
"""What a quarantine does last in a database."""


def interrupted(*_: object) -> NoReturn:
    raise RuntimeError("interrupted")


@pytest.mark.parametrize("scheme", last_steps)
def test_an_interrupted_quarantine_of_a_database_leaves_the_stream_as_it_was(
    scheme: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_at(scheme, tmp_path / "log")
    store(url, started, malformed, stopped)
    before = bodies(url)
    module, name, value = last_steps[scheme]
    with monkeypatch.context() as patch:
        patch.setattr(import_module(module), name, value or interrupted)
        with open_log(url) as log, pytest.raises((RunstateError, RuntimeError)):
            log.repair("daemon", quarantine=2)
    assert bodies(url) == before
    assert [row["code"] for row in cli("verify", url, "--json").rows if row["severity"] == "damage"] == [
        "event.invalid"
    ]
    assert cli("repair", url, "daemon", "--quarantine", "2").code == 0
    assert bodies(url) == [before[0], before[2]]
    assert cli("verify", url).code == 0


# --- the WAL ---------------------------------------------------------------------------------------------------------


def compacted(cli: Cli, url: str) -> None:
    """A checkpoint and what it removes, twice: the one before stays as long as it is needed."""
    for number in range(3):
        with open_log(url) as log:
            append(log, f"filler{number}", started.replace(b'"w"', b'"w%d"' % number))
        for command in ("checkpoint", "compact"):
            assert cli("daemon", command, url).code == 0


def test_an_event_that_a_checkpoint_has_removed_is_refused(cli: Cli) -> None:
    store("wal:log", started, completed)
    compacted(cli, "wal:log")
    refused = cli("repair", "wal:log", "daemon", "--quarantine", "2")
    assert refused.code == 2
    assert "a checkpoint has dropped what was before" in refused.err


@pytest.fixture
def between(tmp_path: Path) -> Iterator[WalLog]:
    """A WAL with two checkpoints: the events before the first of them are gone."""
    with WalLog(tmp_path / "log") as log:
        log.append("s", notes("a", "b"))
        log.checkpoint("s", snapshot(2))
        log.append("s", notes("c"))
        log.checkpoint("s", snapshot(3))
        with pytest.raises(Truncated):
            log.read("s")
        yield log


def test_an_event_behind_the_checkpoint_before_the_newest_can_be_quarantined(between: WalLog) -> None:
    between.repair("s", quarantine=3)
    left = between.load_snapshot("s", "notes")
    assert (between.read("s", after_seq=2), left and left.seq) == ([], 2)


def test_an_event_whose_effect_only_a_checkpoint_holds_is_refused(between: WalLog, tmp_path: Path) -> None:
    (previous,) = tmp_path.rglob("*.previous")
    previous.unlink()
    for dry_run in (True, False):
        with pytest.raises(Unsupported, match="a checkpoint holds its effect"):
            between.repair("s", quarantine=3, dry_run=dry_run)
    assert [record.key for record in between.read("s", after_seq=2)] == ["c"]


def test_an_impossible_event_that_a_checkpoint_has_taken_in_is_not_judged(cli: Cli) -> None:
    store("wal:log", started)
    compacted(cli, "wal:log")
    with open_log("wal:log") as log:
        append(log, "bad", completed)
    assert cli("daemon", "checkpoint", "wal:log").code == 0
    refused = cli("repair", "wal:log", "daemon", "--quarantine", "5")
    assert refused.code == 2
    assert "is part of the checkpoint at seq 5" in refused.err


def test_an_event_behind_a_checkpoint_can_be_quarantined(cli: Cli) -> None:
    store("wal:log", started)
    compacted(cli, "wal:log")
    with open_log("wal:log") as log:
        append(log, "bad", malformed)
        append(log, "late", stopped)
    (found,) = cli("verify", "wal:log", "--json").rows
    assert cli("repair", "wal:log", "daemon", "--quarantine", str(found["seq"])).code == 0
    assert cli("verify", "wal:log").code == 0
    fillers = [started.replace(b'"w"', b'"w%d"' % number) for number in range(3)]
    assert stored_state("wal:log") == folded(started, *fillers, stopped)


def test_an_event_in_the_archive_of_a_wal_is_refused_with_what_to_do(cli: Cli) -> None:
    url = "wal:log?history=archive"
    store(url, started, completed)
    compacted(cli, url)
    refused = cli("repair", url, "daemon", "--quarantine", "2")
    assert refused.code == 2
    assert "archive, which is never rewritten" in refused.err
    assert len(bodies(url)) == 5


def test_the_seq_of_a_quarantined_entry_is_not_given_again(cli: Cli) -> None:
    store("wal:log", started, malformed)
    assert cli("repair", "wal:log", "daemon", "--quarantine", "2").code == 0
    with open_log("wal:log") as log:
        append(log, "late", stopped)
    assert [row["seq"] for row in cli("fetch", "wal:log", "daemon").rows] == [1, 3]
    assert cli("daemon", "state", "log").code == 0


def test_a_salvage_does_not_take_a_quarantined_entry_out_of_a_backup(cli: Cli) -> None:
    store("wal:log", started, malformed)
    wal = Path("log/daemon/wal.jsonl")
    wal.with_name("wal.jsonl.bak").write_bytes(wal.read_bytes())
    assert cli("repair", "wal:log", "daemon", "--quarantine", "2").code == 0
    assert cli("repair", "wal:log", "--salvage").code == 0
    assert len(bodies("wal:log")) == 1
    assert not wal.with_name("wal.jsonl.salvaged").exists()


# --- other logs ------------------------------------------------------------------------------------------------------


def test_an_archive_refuses_with_what_to_do(cli: Cli) -> None:
    with runstate.open("sqlite:log", "engine") as engine:
        run = engine.run("r", tenant="t", plan="p")
        run.started()
        run.completed()
    assert cli("archive", "sqlite:log", "--to", "old", "--older-than", "0s").code == 0
    refused = cli("repair", "archive:old", "r", "--quarantine", "1")
    assert refused.code == 2
    assert "runstate restore" in refused.err


def test_a_sqlite_file_whose_structure_is_damaged_is_left_alone(cli: Cli) -> None:
    store("sqlite:log", started, malformed)
    with closing(sqlite3.connect("log")) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'digest TEXT NOT NULL', 'digest TEXT') ")
        connection.execute("CREATE TABLE odd (a CHECK (a > 0))")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("INSERT INTO odd VALUES (-1)")
    refused = cli("repair", "sqlite:log", "daemon", "--quarantine", "2")
    assert (refused.code, len(bodies("sqlite:log"))) == (1, 2)


def test_the_query_of_the_format_page_gives_records_that_can_be_appended(cli: Cli, tmp_path: Path) -> None:
    url = url_at("postgresql", tmp_path / "log")
    store(url, started, completed, stopped)
    assert cli("repair", url, "daemon", "--quarantine", "2").code == 0
    (query,) = re.findall(r"```sql\n([^`]*FROM quarantined_events[^`]*)```", (docs / "postgres.md").read_text())
    log: Any = open_log(url)
    with closing(log), log._connections.one() as connection:
        rows = connection.execute(query.replace("FROM q", "FROM $schema.q")).fetchall()
    lines = b"\n".join(msgspec.json.encode(found) for (found,) in rows)
    assert [row["seq"] for row in cli("append", url, "--model", "daemon", stdin=lines).rows] == [4]


def test_the_note_of_dynamodb_holds_the_record(cli: Cli, tmp_path: Path) -> None:
    url = url_at("dynamodb", tmp_path / "log")
    store(url, started, completed, stopped)
    assert cli("repair", url, "daemon", "--quarantine", "2").code == 0
    log: Any = open_log(url)
    with closing(log):
        ((note,),) = list(log._table.query("set_aside", "0", "~"))
    assert (note["quarantined"], note["events"]) == (2, 1)
    assert [row["seq"] for row in cli("append", url, "--model", "daemon", stdin=note["record"].encode()).rows] == [4]


# --- blobs that are gone ---------------------------------------------------------------------------------------------


def fill_and_copy(cli: Cli, url: str) -> None:
    """Fill a log with sessions and their blobs, and copy it to a backup."""
    model = find_model("session")
    with runstate.open(url, "session", on_alert=lambda alert: None) as sessions:
        for lines in histories("session", 0, 2).values():
            put_blobs(sessions.log, lines)
            sessions.append_events([model.parse(line) for line in lines])
    assert cli("copy", url, "sqlite:backup").code == 0


def lose_a_blob(cli: Cli, url: str) -> dict[str, Any]:
    """Delete the blobs of a log, of which there is a backup. Returns the first finding."""
    fill_and_copy(cli, url)
    if url.startswith("sqlite"):
        with closing(sqlite3.connect("log")) as connection, connection:
            connection.execute("DELETE FROM blobs")
    else:
        for blob in Path("log/snapshots/sha256").iterdir():
            blob.unlink()
    verified = cli("verify", url, "--json")
    assert verified.code == 1
    return next(row for row in verified.rows if row["code"] == "blob.missing")


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_the_advice_for_a_blob_that_is_gone_puts_it_back(cli: Cli, scheme: str) -> None:
    url = f"{scheme}:log"
    found = lose_a_blob(cli, url)
    (command,) = [part for part in found["message"].split("'") if part.startswith("runstate copy")]
    assert cli(*shlex.split(command.replace("BACKUP", "sqlite:backup").replace("URL", url))[1:]).code == 0
    assert "blob.missing" not in cli("verify", url, found["stream"]).out


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_the_advice_for_a_blob_that_is_gone_takes_the_event_out(cli: Cli, scheme: str) -> None:
    url = f"{scheme}:log"
    found = lose_a_blob(cli, url)
    (command,) = [part for part in found["message"].split("'") if part.startswith("runstate repair")]
    done = cli(*shlex.split(command.replace("URL", url))[1:])
    assert done.code == 0
    assert f"refers to the blob {found['details']['ref']}, which is gone" in done.out
    left = {(row["code"], row.get("seq")) for row in cli("verify", url, found["stream"], "--json").rows}
    assert ("blob.missing", found["seq"]) not in left


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_the_advice_for_a_blob_that_was_changed_takes_the_event_out(cli: Cli, scheme: str) -> None:
    url = f"{scheme}:log"
    fill_and_copy(cli, url)
    if scheme == "sqlite":
        with closing(sqlite3.connect("log")) as connection, connection:
            connection.execute("UPDATE blobs SET data = CAST('changed' AS BLOB)")
    else:
        for blob in Path("log/snapshots/sha256").iterdir():
            blob.chmod(0o600)
            blob.write_bytes(b"changed")
    found = next(row for row in cli("verify", url, "--json").rows if row["stream"] is not None)
    assert found["code"] == "blob.digest_mismatch"
    assert "runstate copy" not in found["message"]
    (command,) = [part for part in found["message"].split("'") if part.startswith("runstate repair")]
    assert cli(*shlex.split(command.replace("URL", url))[1:]).code == 0
    left = {(row["code"], row.get("seq")) for row in cli("verify", url, found["stream"], "--json").rows}
    assert (found["code"], found["seq"]) not in left


# --- a projector that was stopped ------------------------------------------------------------------------------------


def test_a_projector_that_starts_from_its_rows_sees_an_event_with_the_seq_of_a_quarantined_one(cli: Cli) -> None:
    store("sqlite:log", started, second, completed)
    sink = TellingSink(lambda row: None)
    with runstate.open("sqlite:log", "daemon", snapshot_every=0, on_alert=lambda alert: None) as projected:
        before = Projector(projected, sink=sink)
        before.poll()
        assert cli("repair", "sqlite:log", "daemon", "--quarantine", "3").code == 0
        with open_log("sqlite:log") as log:
            append(log, "late", stopped)
        after = Projector(projected, sink=sink, after=before.position)
        while after.poll():
            pass
    row = sink.load("daemon")
    assert row is not None
    assert row.body == folded(*bodies("sqlite:log"))
