"""Appends in one round trip, by guessed heads: a guess that is wrong writes nothing, and changes no answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from tests.postgres.sessions import Session, somebody_waits_for, until
from tests.postgres.test_groups import grouped

from runstate.conformance.claims.adoptions import linked
from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.notes import keys, note, notes, stored
from runstate.errors import StreamDeleted
from runstate.logs.postgres import PostgresLog, appends, guesses, open_url, writer
from runstate.logs.postgres.appends import Append, Head, Plan, Written
from runstate.models.canonical import digest

Opened = Callable[[], PostgresLog]
Looks = list[list[Append]]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """The appends that were not written in one round trip: they had to lock a head and look."""
    looked: Looks = []

    def noted(connection: Session, asked: list[Append], *, wait: bool) -> Plan:
        looked.append(asked)
        return appends.plan(connection, asked, wait=wait)

    monkeypatch.setattr(writer, "plan", noted)
    return looked


def test_new_and_known_streams_are_appended_to_without_a_look(log: PostgresLog, looks: Looks) -> None:
    for number in range(3):
        log.append("s", notes(f"a{number}"))
        log.append(f"t{number}", notes("a"))
        log.append("s", [linked(f"b{number}")])
        log.append("u", notes(*(f"c{number}-{part}" for part in range(40))))
    assert looks == []
    assert len(stored(log, "s")) == 6
    assert list(log.verify()) == []


def test_after_an_append_by_another_process_one_look_is_enough(log: PostgresLog, opened: Opened, looks: Looks) -> None:
    other = opened()
    log.append("s", notes("a"))
    other.append("s", notes("b"))
    looks.clear()
    assert [log.append("s", notes(key))[0].seq for key in ("c", "d")] == [3, 4]
    assert len(looks) == 1


def test_streams_that_turn_out_to_be_old_are_looked_at_without_a_guess(
    log: PostgresLog, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        log.append(f"s{number}", notes("a"))
    other = opened()
    guessed: list[Head] = []

    def noted(connection: Session, heads: list[Head], *, is_pooled: bool) -> Written:
        guessed.extend(heads)
        return guesses.commit_guessed(connection, heads, is_pooled=is_pooled)

    monkeypatch.setattr(writer, "commit_guessed", noted)
    assert [other.append(f"s{number}", notes("b"))[0].seq for number in range(3)] == [2, 2, 2]
    assert len(guessed) == 1


def test_a_known_key_takes_nothing_from_the_rest_of_its_group(log: PostgresLog, session: Session) -> None:
    (first,) = log.append("s", notes("a"))
    tasks = [partial(log.append, *each) for each in (("s", notes("a")), ("t", notes("a")), ("s", notes("b")))]
    with grouped(log, session, tasks) as answers:
        again, *fresh = [answer.result()[0] for answer in answers]
    assert (again.seq, again.persisted_at, again.persisted) == (1, first.persisted_at, False)
    assert [(result.seq, result.persisted) for result in fresh] == [(1, True), (2, True)]


def test_a_head_with_another_history_behind_the_same_seq_is_not_the_one_that_was_guessed(
    log: PostgresLog, opened: Opened, session: Session
) -> None:
    other = opened()
    log.append("s", [linked(key) for key in ("a", "b")])
    session.execute("ALTER TABLE events DISABLE TRIGGER ALL")
    session.execute("UPDATE events SET type = 'changed' WHERE seq = 2")
    session.execute("ALTER TABLE events ENABLE TRIGGER ALL")
    other.repair("s")
    (instead,) = other.append("s", [linked("instead")])
    assert instead.seq == 2
    log.append("s", [linked("c")])
    before, last = stored(log, "s")[1:]
    assert digest(before.body).encode() in last.body


def test_a_line_that_is_too_long_to_be_remembered_is_looked_up_for_the_next_one(log: PostgresLog, looks: Looks) -> None:
    log.append("s", [note("long", "x" * guesses.line_bytes_max)])
    log.append("s", [linked("next")])
    assert len(looks) == 1
    before, last = stored(log, "s")
    assert digest(before.body).encode() in last.body


def test_a_stream_that_is_not_wholly_restored_is_refused_each_time(log: PostgresLog) -> None:
    log.append("s", notes("a", "b"))
    held = stored(log, "s")
    log.delete_stream("s", tombstone=tombstone_of("s"))
    log.adopt("s", held[:1], model="notes")
    for _ in range(3):
        with pytest.raises(StreamDeleted):
            log.append("s", notes("c"))
    assert keys(stored(log, "s")) == ["a"]


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_clock_that_is_set_here_changes_no_time(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    log.append("s", notes("a"))
    began = datetime.now(UTC) - timedelta(seconds=1.1)
    monkeypatch.setattr("runstate.logs.log.time_ns", lambda: time.time_ns() + step_s * 10**9)
    results = [*log.append("s", notes("b")), *log.append("new", notes("a"))]
    for result in results:
        assert began <= datetime.fromisoformat(result.persisted_at) <= datetime.now(UTC)


_record = """
CREATE TABLE seen (commits text);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO seen VALUES (current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER see AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION see();
"""


def test_a_session_that_does_not_wait_for_the_disk_is_made_to(url: str, session: Session, looks: Looks) -> None:
    session.execute(_record)
    with open_url(f"{url}&options=-csynchronous_commit%3Doff") as log:
        log.append("s", notes("a"))
        log.append("s", notes("b"))
    assert looks == []
    assert session.execute("SELECT commits FROM seen").fetchall() == [("on",), ("on",)]


def test_appends_that_wait_for_one_head_are_written_together(log: PostgresLog, session: Session) -> None:
    log.append("s", notes("a"))
    with ThreadPoolExecutor(5) as pool:
        with session.transaction():
            session.execute("SELECT 1 FROM streams WHERE stream = 's' FOR UPDATE")
            first = pool.submit(log.append, "s", notes("first"))
            until(partial(somebody_waits_for, session))
            others = [pool.submit(log.append, "s", notes(f"{number}")) for number in range(4)]
            until(lambda: log._writer._held["s"][1] == 5)
        assert first.result()[0].seq == 2
        assert sorted(other.result()[0].seq for other in others) == [3, 4, 5, 6]
    assert session.execute("SELECT count(DISTINCT transaction) FROM events").fetchone() == (3,)
    assert log._writer._held == {}
