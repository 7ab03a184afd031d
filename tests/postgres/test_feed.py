"""The feed among other transactions: nothing appears behind a reader, and a reader who waits is woken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from tests.commands import Cli
from tests.postgres.sessions import Session, late_commits_held, somebody_waits_for, until
from tests.postgres_server import plain_and_schema

import runstate
from runstate.cli import events as commands
from runstate.conformance.claims.feeds import check_complete
from runstate.conformance.notes import followed, keys, notes
from runstate.conformance.threads import meanwhile, race_all
from runstate.logs.log import Position, Record
from runstate.logs.postgres import PostgresLog
from runstate.logs.waiting import wait_for_more
from runstate.models.model import Alert
from runstate.projector import Projector

Opened = Callable[[], PostgresLog]

for_ever_s = 60.0
"""A test that takes this long has not been woken."""


def test_a_reader_misses_nothing_when_others_commit_past_an_open_append(
    log: PostgresLog, opened: Opened, session: Session
) -> None:
    other = opened()
    log.append("s", notes("before"))
    with ThreadPoolExecutor(1) as pool:
        with late_commits_held(session):
            late = pool.submit(log.append, "late", notes("late"))
            until(partial(somebody_waits_for, session))
            for number in range(5):
                other.append(f"s{number}", notes("past"))
            seen = followed(other)
            assert keys(seen.records) == ["before"]
            assert keys(other.read("s4")) == ["past"]
            assert other.read("late") == []
        assert late.result()[0].persisted
    rest = followed(other, seen.next, page=1)
    assert sorted(keys(rest.records)) == ["late", *["past"] * 5]
    check_complete(log, seen.records + rest.records)


_slow = """
CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_sleep(random() * random() * 0.02); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION slow_commit();
"""


@pytest.mark.slow
def test_readers_miss_nothing_of_writers_that_commit_in_any_order(
    log: PostgresLog, opened: Opened, session: Session
) -> None:
    session.execute(_slow)
    logs = [log, *(opened() for _ in range(5))]

    def write(number: int) -> None:
        for turn in range(80):
            logs[number % 6].append(
                f"s{(number + turn) % 7}", notes(*(f"{number}/{turn}/{n}" for n in range(turn % 3 + 1)))
            )

    def follow(reader: PostgresLog, page: int, is_over: Callable[[], bool]) -> list[Record]:
        seen: list[Record] = []
        after: Position | None = None
        over = False
        while True:
            found = reader.feed(after=after, limit=page)
            seen, after = seen + found.records, found.next
            if over and not found.records:
                return seen
            over = is_over()

    with ExitStack() as stack:
        readers = [stack.enter_context(meanwhile(partial(follow, opened(), page))) for page in (1, 7, 1000)]
        race_all([partial(write, number) for number in range(12)])
    for reader in readers:
        check_complete(log, reader.result())
    assert list(log.verify()) == []


def test_a_reader_between_two_events_of_one_transaction_gets_the_second(log: PostgresLog) -> None:
    log.append("s", notes("a", "b"))
    first = log.feed(limit=1)
    assert keys(log.feed(after=first.next, limit=1).records) == ["b"]


# --- waking ---------------------------------------------------------------------------------------------------------


def test_one_who_waits_is_woken_by_another_process(log: PostgresLog, opened: Opened) -> None:
    writer = opened()
    end = followed(log).next
    with ThreadPoolExecutor(1) as pool:
        for turn in range(5):
            began = time.monotonic()
            woken = pool.submit(log.wait, end, for_ever_s)
            writer.append("s", notes(f"{turn}"))
            woken.result()
            assert time.monotonic() - began < for_ever_s / 2
            page = log.feed(after=end)
            assert keys(page.records) == [f"{turn}"]
            end = page.next


def test_what_was_committed_before_the_wait_is_not_waited_for(log: PostgresLog, session: Session) -> None:
    end = followed(log).next
    log.append("s", notes("a"))
    log._bell.close()  # Nobody rings any more.
    began = time.monotonic()
    log.wait(end, for_ever_s)
    assert time.monotonic() - began < for_ever_s / 2


def test_no_wake_up_is_lost_between_the_look_and_the_wait(log: PostgresLog, opened: Opened, session: Session) -> None:
    writer = opened()
    session.execute("SELECT set_config('search_path', current_schema(), false)")
    session.execute(b"LISTEN " + _channel(session))

    def look() -> None:
        """Nothing is found; then something is appended, and told, before the one who looks begins to listen."""
        writer.append("s", notes("a"))
        assert list(session.notifies(timeout=for_ever_s, stop_after=1))

    began = time.monotonic()
    log._bell.wait(look, for_ever_s)
    assert time.monotonic() - began < for_ever_s / 2


def _channel(session: Session) -> bytes:
    row = session.execute("SELECT current_schema()").fetchone()
    return str(row[0] if row else "").encode()


def test_the_last_append_before_a_close_is_told_of(
    log: PostgresLog, opened: Opened, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.logs.postgres.bell._pause_s", for_ever_s)
    session.execute(b"LISTEN " + _channel(session))
    writer = opened()
    writer.append("s", notes("first"))
    assert list(session.notifies(timeout=for_ever_s, stop_after=1))
    writer.append("s", notes("last"))
    writer.close()
    assert list(session.notifies(timeout=1, stop_after=1))


def test_a_wait_ends_in_time_and_survives_a_lost_connection(log: PostgresLog, session: Session) -> None:
    log.wait(None, 0.01)
    (listener,) = log._bell._listening
    session.execute("SELECT pg_terminate_backend(%s, 5000)", (listener.info.backend_pid,))
    log.wait(None, 0.01)
    log.wait(None, 0.01)
    assert [one.closed for one in log._bell._listening] == [False]


def test_tail_prints_at_once_what_is_appended(
    url: str, log: PostgresLog, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    waits: list[Position | None] = []

    def noted(waiting: PostgresLog, after: Position | None, timeout_s: float) -> None:
        waits.append(after)
        wait_for_more(waiting, after, timeout_s)

    monkeypatch.setattr(commands, "_wait_max_s", for_ever_s)
    monkeypatch.setattr(commands, "wait_for_more", noted)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        tail = pool.submit(commands.tail, url, follow=True, limit=2)
        until(lambda: bool(waits))
        log.append("s", notes("a"))
        until(lambda: len(waits) > 1)
        log.append("t", notes("b"))
        tail.result()
    assert time.monotonic() - began < for_ever_s / 2
    out: Sequence[bytes] = capsysbinary.readouterr().out.split(b"\n")
    assert [b'"key":"a"' in out[0], b'"key":"b"' in out[1]] == [True, True]


# --- a transaction that holds the feed back ------------------------------------------------------------------------


@pytest.fixture
def blocker(url: str, log: PostgresLog) -> Iterator[Session]:
    """A session in another database of the server, with a write transaction that it does not end."""
    plain, _ = plain_and_schema(url)
    with Session.connect(plain, dbname="template1", application_name="nightly-etl") as connection:
        connection.prepare_log("", 0)
        connection.execute("SELECT pg_current_xact_id()")
        yield connection


def test_the_lag_of_a_feed_that_is_held_back_shows_and_the_alert_names_the_session(url: str, blocker: Session) -> None:
    alerts: list[Alert] = []
    with runstate.open(url, snapshot_every=0, on_alert=alerts.append) as store:
        store.run("r-1", tenant="t", plan="p").started()
        projector = Projector(store, clock=lambda: datetime.now(UTC) + timedelta(seconds=8))
        assert projector.poll() == 0
        assert projector.lag_s >= 8
        blocked, high = sorted(alerts, key=lambda alert: alert.code)
        assert (blocked.code, high.code) == ("PROJECTOR_FEED_BLOCKED", "PROJECTOR_LAG_HIGH")
        assert blocked.details["pid"] == blocker.info.backend_pid
        assert (blocked.details["application"], blocked.details["database"]) == ("nightly-etl", "template1")
        assert blocked.details["ageS"] >= 0
        blocker.rollback()
        assert projector.poll() == 1
        assert (projector.lag_s, store.alerts.active()) == (0.0, [])


def test_the_lag_command_names_the_session_that_holds_the_feed_back(url: str, blocker: Session, cli: Cli) -> None:
    assert cli("project", url, "--state", "state").code == 0
    with runstate.open(url) as store:
        store.run("r-1", tenant="t", plan="p").started()
    outcome = cli("lag", url, "--state", "state", "--json")
    assert outcome.rows[0]["lagS"] > 0
    assert f"pid {blocker.info.backend_pid}" in outcome.err
    assert "nightly-etl" in outcome.err


def test_a_feed_that_nothing_holds_back_has_no_blocker(log: PostgresLog) -> None:
    assert log.oldest_pending(None) is None
    log.append("s", notes("a"))
    pending = log.oldest_pending(None)
    assert pending is not None
    assert pending.blocked_by is None
    assert log.oldest_pending(log.feed().next) is None
