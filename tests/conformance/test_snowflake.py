"""The kit over Snowflake's protocol, and what is its own: keys that nothing enforces, one gate, lost sessions."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import snowflake.connector
from hypothesis import settings
from tests import snowflake_server
from tests.snowflake_server import server, url_at

from runstate.conformance import DurableLogConformance, LogConformance, MultiProcessLogConformance, Opener
from runstate.conformance.claims.feeds import check_complete, follow
from runstate.conformance.claims.snapshotting import Making
from runstate.conformance.history import how_default
from runstate.conformance.notes import as_held, keys, note, notes, numbered, snapshot, stored
from runstate.conformance.threads import meanwhile, race_all
from runstate.errors import (
    AppendOutcomeUnknown,
    EventTooLarge,
    InvalidEvent,
    InvalidUrl,
    LogBusy,
    LogDamaged,
    LogFailed,
    LogNotFound,
    LogTooNew,
    NotALog,
    RunstateError,
)
from runstate.logs.blob_collection import BlobCollectingLog
from runstate.logs.log import AppendResult, EventLog
from runstate.logs.registry import open_log
from runstate.logs.snapshotting import append_batch, append_batches
from runstate.logs.snowflake.connections import Session

Statement = Any
"""A function that runs SQL beside the log, as a worksheet would."""


class TestSnowflakeLog(LogConformance, DurableLogConformance, MultiProcessLogConformance):
    # Every append is six statements over HTTP, and every killed writer imports the driver first.
    kill_rounds: ClassVar[int] = int(os.environ.get("RUNSTATE_KILL_ROUNDS", "3"))
    share = 1.0 if "RUNSTATE_KILL_ROUNDS" in os.environ else 0.1
    histories = settings(how_default, max_examples=6, stateful_step_count=20)

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(url_at(tmp_path))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_at(tmp_path)


@pytest.fixture
def log(url: str) -> Iterator[EventLog]:
    with open_log(url) as opened:
        yield opened


@pytest.fixture
def sql(url: str) -> Iterator[Statement]:
    opened: list[snowflake.connector.SnowflakeConnection] = []

    def run(statement: str) -> Any:
        if not opened:  # Not before its first use: a session finds the schemas that are there when it begins.
            opened.append(worksheet(url))
        return opened[0].cursor().execute(statement)

    yield run
    for connection in opened:
        connection.close()


def worksheet(url: str) -> snowflake.connector.SnowflakeConnection:
    return snowflake.connector.connect(
        user=snowflake_server.user,
        password=snowflake_server.password,
        account="LOCAL",
        host="127.0.0.1",
        port=server().port,
        protocol="http",
        database=snowflake_server.database,
        schema=schema_of(url),
        login_timeout=10,
        network_timeout=10,
    )


def schema_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def found_in(log: EventLog, stream: str | None = None) -> list[tuple[str, str | None, int | None]]:
    return [(finding.code, finding.stream, finding.seq) for finding in log.verify(stream)]


# --- uniqueness, which no constraint enforces -----------------------------------------------------------------------

_again = "INSERT INTO events SELECT position, stream, {seq}, event_id, type, {key}, tenant, emitted_at, persisted_at, "


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("INSERT INTO events SELECT * FROM events WHERE seq = 2", ("snowflake.duplicate_seq", "s", 2)),
        (
            _again.format(seq="seq", key="'other'") + "crc, body FROM events WHERE seq = 3",
            ("snowflake.duplicate_seq", "s", 3),
        ),
        (
            _again.format(seq="seq + 2", key="key") + "crc, body FROM events WHERE seq = 2",
            ("snowflake.duplicate_key", "s", 4),
        ),
        ("UPDATE events SET key = 'k1' WHERE seq = 3", ("snowflake.duplicate_key", "s", 3)),
        ("INSERT INTO streams SELECT * FROM streams WHERE stream = 's'", ("snowflake.duplicate_head", "s", 3)),
        ("UPDATE events SET position = 1 WHERE seq = 2", ("snowflake.duplicate_position", "s", 2)),
        ("INSERT INTO runstate_log SELECT * FROM runstate_log", ("snowflake.gate", None, None)),
    ],
)
def test_duplicates_made_by_hand_are_found(
    log: EventLog, sql: Statement, statement: str, finding: tuple[str, str | None, int | None]
) -> None:
    log.append("s", numbered(3))
    log.append("t", numbered(3))
    sql(statement if "WHERE" not in statement or "'s'" in statement else f"{statement} AND stream = 's'")
    assert finding in found_in(log)
    assert {stream for _, stream, _ in found_in(log, "t")} == set()


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("INSERT INTO events SELECT * FROM events WHERE seq = 2 AND stream = 's'", [1, 2, 3]),
        (_again.format(seq="seq", key="'x'") + "crc, body FROM events WHERE seq = 2 AND stream = 's'", [1, 2, 3]),
        (_again.format(seq="seq + 2", key="key") + "crc, body FROM events WHERE seq = 2 AND stream = 's'", [1, 2, 3]),
        ("UPDATE events SET key = 'k1' WHERE seq = 3 AND stream = 's'", [1, 2]),
        ("UPDATE events SET position = 99 WHERE seq = 3 AND stream = 's'", [1, 2]),
        ("INSERT INTO streams SELECT * FROM streams WHERE stream = 's'", [1, 2, 3]),
        ("DELETE FROM streams WHERE stream = 's'", [1, 2, 3]),
    ],
)
def test_duplicates_and_lost_heads_are_repaired_as_announced(
    log: EventLog, sql: Statement, statement: str, left: list[int]
) -> None:
    log.append("s", numbered(3))
    log.append("t", numbered(3))
    right = stored(log, "s")
    sql(statement)
    would = log.repair("s", dry_run=True)
    assert log.repair("s") == would != []
    assert stored(log, "s") == [record for record in right if record.seq in left]
    assert {finding.severity for finding in log.verify()} <= {"warning"}
    assert log.append("s", notes("new"))[0].seq == left[-1] + 1
    assert log.append("s", numbered(1))[0].idempotent


def test_a_repair_changes_the_version_of_a_stream(log: EventLog, sql: Statement) -> None:
    log.append("s", numbered(3))
    (before,) = log.heads()
    sql("UPDATE events SET type = 'x' WHERE seq = 3")
    log.repair("s")
    log.append("s", notes("other"))
    (after,) = log.heads()
    assert (after.last_seq, after.version != before.version) == (before.last_seq, True)


@pytest.mark.parametrize(
    ("statement", "code", "seq"),
    [
        ("UPDATE events SET body = TO_BINARY('00', 'HEX') WHERE seq = 2", "log.event_changed", 2),
        ("UPDATE events SET tenant = 'x' WHERE seq = 3", "log.event_changed", 3),
        ("UPDATE events SET position = 100 WHERE seq = 3", "snowflake.position_ahead", 3),
        ("DELETE FROM events WHERE seq = 2", "log.events_missing", 2),
        ("DELETE FROM events WHERE seq = 3", "log.events_missing", 3),
        ("DELETE FROM events", "log.events_missing", 1),
        ("UPDATE streams SET last_seq = 5", "log.events_missing", 4),
        ("UPDATE events SET position = 4 - position", "log.out_of_order", 2),
        ("DELETE FROM streams", "snowflake.orphan_events", 1),
        ("UPDATE snapshots SET body = TO_BINARY('00', 'HEX')", "snapshot.digest_mismatch", 3),
        ("UPDATE blobs SET data = TO_BINARY('00', 'HEX')", "blob.digest_mismatch", None),
    ],
)
def test_what_was_changed_by_hand_is_found(
    log: EventLog, sql: Statement, statement: str, code: str, seq: int | None
) -> None:
    log.append("s", numbered(3))
    log.save_snapshot("s", snapshot(3))
    log.put_blob(b"data")
    assert found_in(log) == []
    sql(statement)
    assert (code, seq) in [(found, at) for found, _, at in found_in(log)]


def test_the_same_key_from_32_connections_at_once_gives_one_row_and_equal_answers(url: str, sql: Statement) -> None:
    handles = [open_log(url) for _ in range(32)]
    try:
        answers = race_all([partial(handle.append, "s", notes("same")) for handle in handles])
    finally:
        for handle in handles:
            handle.close()
    told = [(result.seq, result.event_id, result.persisted_at) for (result,) in answers]
    assert told == [told[0]] * 32
    assert sum(result.persisted for (result,) in answers) == 1
    assert sql("SELECT stream, key FROM events").fetchall() == [("s", "same")]


def test_a_row_that_somebody_put_past_the_gate_is_not_doubled(log: EventLog, sql: Statement) -> None:
    log.append("s", numbered(2))
    sql(_again.format(seq="3", key="'theirs'") + "crc, body FROM events WHERE seq = 2")
    with pytest.raises(LogDamaged, match="verify"):
        log.append("s", notes("ours"))
    assert keys(log.read("s", limit=2)) == ["k1", "k2"]
    with pytest.raises(LogDamaged, match="Event 3"):
        log.read("s", after_seq=2)


# --- the gate -------------------------------------------------------------------------------------------------------


def test_appends_of_many_threads_share_transactions(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[Session] = []
    commit = Session.commit

    def counted(session: Session) -> None:
        commits.append(session)
        commit(session)

    monkeypatch.setattr(Session, "commit", counted)
    race_all([partial(log.append, f"s{n % 3}", notes(f"k{n}")) for n in range(24)])
    assert len(commits) <= 12


def test_a_reader_of_the_feed_beside_writers_of_several_handles_misses_nothing(url: str, log: EventLog) -> None:
    def write(number: int) -> list[AppendResult]:
        with open_log(url) as handle:
            return [handle.append(f"s{turn % 2}", notes(f"{number}-{turn}"))[0] for turn in range(8)]

    with meanwhile(partial(follow, log)) as follower:
        race_all([partial(write, number) for number in range(4)])
    assert len(follower.result()) == 32
    check_complete(log, follower.result())


def test_a_transaction_that_holds_the_gate_lets_nobody_commit_before_it(url: str, sql: Statement) -> None:
    with open_log(f"{url}&busy_timeout_s=0.3") as log:
        log.append("s", notes("before"))
        sql("BEGIN")
        sql("UPDATE runstate_log SET last_position = last_position + 1")
        with pytest.raises(LogBusy):
            log.append("s", notes("after"))
        assert keys(log.read("s")) == keys(log.feed().records) == ["before"]
        sql("ROLLBACK")
        assert log.append("s", notes("after"))[0].seq == 2


def test_a_writer_waits_for_the_gate(log: EventLog, sql: Statement) -> None:
    sql("BEGIN")
    sql("UPDATE runstate_log SET last_position = last_position + 1")
    with meanwhile(lambda _: log.append("s", notes("a"))) as waiting:
        time.sleep(0.3)
        sql("COMMIT")
    assert waiting.result()[0].persisted


# --- sessions that go away ------------------------------------------------------------------------------------------


def test_an_expired_session_is_replaced(log: EventLog) -> None:
    log.append("s", notes("a"))
    server().end_sessions()
    assert keys(log.read("s")) == ["a"]
    server().end_sessions()
    assert log.append("s", notes("b"))[0].seq == 2


@pytest.mark.parametrize("is_done_before", [True, False])
def test_a_session_lost_during_commit_leaves_the_outcome_open(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, is_done_before: bool
) -> None:
    change = Session.change

    def lost_at_commit(session: Session, statement: str, *values: object) -> int:
        if statement == "COMMIT":
            if is_done_before:
                change(session, statement)
            server().end_sessions()
        return change(session, statement, *values)

    log.append("s", notes("a"))
    with monkeypatch.context() as patched:
        patched.setattr(Session, "change", lost_at_commit)
        with pytest.raises(AppendOutcomeUnknown):
            log.append("s", notes("b", "c"))
    assert [result.idempotent for result in log.append("s", notes("b", "c"))] == [is_done_before] * 2
    assert found_in(log) == []


def test_a_session_lost_before_the_commit_goes_unnoticed(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = ["INSERT INTO events", "INSERT INTO streams", "UPDATE streams", "UPDATE runstate_log"]
    change = Session.change

    def lost_once(session: Session, statement: str, *values: object) -> int:
        if losses and statement.strip().startswith(losses[0]):
            losses.pop(0)
            server().end_sessions()
        return change(session, statement, *values)

    monkeypatch.setattr(Session, "change", lost_once)
    for key in ("a", "b", "c"):
        assert log.append("s", notes(key))[0].persisted
    assert (losses, keys(stored(log, "s")), found_in(log)) == ([], ["a", "b", "c"], [])


def test_a_driver_that_logs_in_again_by_itself_commits_nothing(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(1000))
    monkeypatch.setattr(snowflake.connector.SnowflakeConnection, "session_id", property(lambda _: next(numbers)))
    with pytest.raises(AppendOutcomeUnknown):
        log.append("s", notes("a"))
    monkeypatch.undo()
    assert log.read("s") == []


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_log_that_is_not_there_is_not_made_unless_asked_for(url: str) -> None:
    with pytest.raises(LogNotFound):
        open_log(url, create=False)
    open_log(url).close()
    open_log(url, create=False).close()


def test_many_may_make_the_same_log_at_once(url: str) -> None:
    for handle in race_all([partial(open_log, url)] * 6):
        handle.append("s", notes("a"))
        handle.close()
    with open_log(url) as log:
        assert (keys(log.read("s")), found_in(log)) == (["a"], [])


def test_a_log_half_made_is_finished(url: str, log: EventLog, sql: Statement) -> None:
    sql("DROP TABLE blobs")
    sql("UPDATE runstate_log SET format_version = 0")
    with pytest.raises(LogNotFound):
        open_log(url, create=False)
    with open_log(url) as again:
        assert again.put_blob(b"data")


def test_a_schema_of_somebody_else_is_left_alone(url: str, sql: Statement) -> None:
    sql(f"CREATE SCHEMA {schema_of(url)}")
    sql("CREATE TABLE events (theirs INT)")
    with pytest.raises(NotALog):
        open_log(url)


def test_a_newer_format_is_refused(url: str, log: EventLog, sql: Statement) -> None:
    sql("UPDATE runstate_log SET format_version = 99")
    with pytest.raises(LogTooNew):
        open_log(url)


def test_a_log_of_version_1_is_migrated_and_its_streams_record_no_model(
    url: str, log: EventLog, sql: Statement
) -> None:
    log.append("s", notes("a"))
    log.close()
    sql("ALTER TABLE streams DROP COLUMN model")
    sql("DROP TABLE tombstones")
    sql("ALTER TABLE blobs DROP COLUMN put_ms")
    sql("UPDATE runstate_log SET format_version = 1")
    with open_log(f"{url}&role=reader") as reader:
        assert [info.model for info in reader.streams()] == [head.model for head in reader.heads()] == [""]
        assert keys(reader.read("s")) == ["a"]
        assert reader.tombstone("s") is None
        for write in (lambda: reader.append("s", notes("b")), lambda: reader.delete_stream("s")):
            with pytest.raises(LogFailed, match="migrated to 3"):
                write()
    for _ in range(2):
        with open_log(url, create=False) as again:
            assert [info.model for info in again.streams()] == [head.model for head in again.heads()] == [""]
            assert again.append("s", notes("a"))[0].idempotent
    with open_log(url) as again:
        again.append("s", notes("b"))
        again.append("s", [note("c", model="other")])
        assert [info.model for info in again.streams()] == [""]
        assert list(again.verify()) == []


def test_a_missing_table_is_named(log: EventLog, sql: Statement) -> None:
    sql("DROP TABLE snapshots")
    with pytest.raises(RunstateError, match=r"(?i)snapshots"):
        log.load_snapshot("s", "notes")


def test_a_role_that_may_only_read_reads_and_is_told_what_it_lacks(url: str, log: EventLog) -> None:
    log.append("s", notes("a"))
    with open_log(f"{url}&role=reader") as reader:
        assert (keys(reader.read("s")), found_in(reader)) == (["a"], [])
        with pytest.raises(LogFailed, match="privilege"):
            reader.append("s", notes("b"))
    assert log.append("s", notes("b"))[0].seq == 2


def test_a_wrong_password_is_told_at_once_and_not_repeated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNOWFLAKE_PASSWORD", "wrong-secret")
    began = time.monotonic()
    with pytest.raises(LogFailed, match="password") as caught:
        open_log(url)
    assert time.monotonic() - began < 10
    assert "wrong-secret" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_server_that_cannot_be_reached_is_told_soon(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.logs.snowflake.connections.login_timeout_s", 2)
    began = time.monotonic()
    with pytest.raises(LogFailed, match="reached"):
        open_log(re.sub("port=[0-9]+", "port=1", url))
    assert time.monotonic() - began < 20


def test_an_unreadable_key_file_is_refused(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SNOWFLAKE_PRIVATE_KEY_FILE", str(tmp_path / "nothing.p8"))
    with pytest.raises(LogFailed):
        open_log(url)


def test_no_password_and_no_key_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SNOWFLAKE_PASSWORD")
    with pytest.raises(InvalidUrl, match="SNOWFLAKE_PASSWORD"):
        open_log(url)


def test_who_asks_may_stand_in_connections_toml(url: str, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append("s", notes("a"))
    entry = {"user": snowflake_server.user, "password": snowflake_server.password, "account": "LOCAL"}
    lines = "".join(f'{name} = "{value}"\n' for name, value in entry.items())
    monkeypatch.setenv("SNOWFLAKE_CONNECTIONS", f"[named]\n{lines}")
    monkeypatch.delenv("SNOWFLAKE_PASSWORD")
    named = url.replace(f"{snowflake_server.user}@LOCAL", "")
    with open_log(f"{named}&connection=named", create=False) as again:
        assert keys(again.read("s")) == ["a"]
    with pytest.raises(LogFailed, match="other"):
        open_log(f"{named}&connection=other")


def test_what_snowflake_cannot_keep_is_refused_before_it_is_sent(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.logs.snowflake.appends.body_bytes_max", 1000)
    with pytest.raises(EventTooLarge, match="blob"):
        log.append("s", [note("a"), note("b", "x" * 1000)])
    with pytest.raises(EventTooLarge):
        log.adopt("s", as_held("s", [note("b", "x" * 1000)]))
    with pytest.raises(InvalidEvent, match="NUL"):
        log.append("s", [note("a\0b")])
    with pytest.raises(RunstateError, match="surrogate"):
        log.append("s", [note("a"), msgspec.structs.replace(note("b"), key="\ud800")])
    assert log.streams() == []


def test_rows_that_need_several_statements_are_written_all_or_none(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.logs.snowflake.row_parts.request_bytes_max", 2000)
    log.append("s", numbered(30))
    log.append("s", numbered(60))
    assert (keys(log.read("s")), found_in(log)) == ([draft.key for draft in numbered(60)], [])


def test_an_append_and_its_snapshot_are_one_transaction(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[Session] = []
    commit = Session.commit

    def counted(session: Session) -> None:
        commits.append(session)
        commit(session)

    monkeypatch.setattr(Session, "commit", counted)
    for key in ("a", "b"):
        append_batch(log, "s", notes(key), Making(), None)
    kept = log.load_snapshot("s", "notes")
    assert kept is not None
    assert (kept.seq, len(commits)) == (2, 2)


def test_a_snapshot_that_snowflake_cannot_keep_is_named_and_keeps_no_event_from_being_stored(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append_batch(log, "s", notes("a"), Making(), None)
    monkeypatch.setattr("runstate.logs.snowflake.snapshots.body_bytes_max", 5)
    append_batch(log, "s", notes("b"), Making(), None)
    kept = log.load_snapshot("s", "notes")
    assert kept is not None
    assert (keys(log.read("s")), kept.seq) == (["a", "b"], 1)
    assert "'s' was not saved" in caplog.text


def test_snapshots_that_need_several_statements_are_all_saved(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.logs.snowflake.row_parts.request_bytes_max", 300)
    for key in ("a", "b"):
        append_batches(log, [(f"s{number}", notes(key)) for number in range(20)], Making())
    kept = [log.load_snapshot(f"s{number}", "notes") for number in range(20)]
    assert [found and found.seq for found in kept] == [2] * 20
    assert found_in(log) == []


def test_a_blob_of_several_parts_is_whole(log: EventLog, sql: Statement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.logs.snowflake.blobs.blob_part_bytes", 10)
    ref = log.put_blob(data := bytes(range(95)))
    sql("INSERT INTO blobs SELECT * FROM blobs")  # As two that put it at the same moment would.
    assert log.get_blob(ref) == data
    assert found_in(log) == []
    sql("DELETE FROM blobs WHERE part = 3")
    with pytest.raises(LogDamaged):
        log.get_blob(ref)
    assert found_in(log) == [("blob.digest_mismatch", None, None)]
    log.put_blob(data)  # Putting it again replaces it.
    assert log.get_blob(ref) == data
    assert found_in(log) == []


@pytest.mark.parametrize(
    "bad",
    [
        "snowflake:",
        "snowflake:me@a/d/s",
        "snowflake://a/d/s",
        "snowflake://me@/d/s",
        "snowflake://me@a",
        "snowflake://me@a/d",
        "snowflake://me@a/d/s/t",
        "snowflake://me:secret@a/d/s",
        "snowflake://me@a:443/d/s",
        "snowflake://me@a/d/s#f",
        'snowflake://me@a/d/s"%3B--',
        "snowflake://me@a/d/%73%22",
        "snowflake://me@a/d/1s",
        "snowflake://me@a b/d/s",
        "snowflake://me@a/d/s?warehouse=",
        "snowflake://me@a/d/s?warehouse=w%22",
        "snowflake://me@a/d/s?role=r%3B",
        "snowflake://me@a/d/s?role=r&role=q",
        "snowflake://me@a/d/s?unknown=secret",
        "snowflake://me@a/d/s?password=secret",
        "snowflake://me@a/d/s?pool_max=0",
        "snowflake://me@a/d/s?pool_max=x",
        "snowflake://me@a/d/s?busy_timeout_s=-1",
        "snowflake://me@a/d/s?host=h%2Fx",
        "snowflake://me@a/d/s?port=0",
        "snowflake://me@a/d/s?protocol=http",
        "snowflake://me@a/d/s?protocol=http&host=example.com",
        "snowflake://me@a/d/s?protocol=ftp&host=localhost",
        "snowflake://me@a/d/s?connection=c",
        "snowflake:///d/s?connection=c%20",
        "snowflake://[me@a/d/s",
    ],
)
def test_a_url_that_makes_no_sense_is_refused(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNOWFLAKE_PASSWORD", "x")
    with pytest.raises(InvalidUrl) as caught:
        open_log(bad)
    assert "secret" not in str(caught.value)


def test_a_blob_that_is_put_again_counts_as_new(log: EventLog, sql: Statement) -> None:
    assert isinstance(log, BlobCollectingLog)
    ref = log.put_blob(b"data")
    sql("UPDATE blobs SET put_ms = 0")
    log.put_blob(b"data")
    assert log.collect_blobs().recent == 1
    sql("UPDATE blobs SET put_ms = NULL")  # As an earlier version left it.
    assert log.collect_blobs(grace_s=0).recent == 1
    sql("UPDATE blobs SET put_ms = 0")
    collected = log.collect_blobs()
    assert (collected.removed, collected.removed_bytes) == ([ref], 4)
