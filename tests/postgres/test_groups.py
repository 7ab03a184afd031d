"""Appends of many threads share a transaction, and nothing else: no one fails, or waits, for its neighbour."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import psycopg
import pytest
from tests.postgres.sessions import Session, late_commits_held, lose_before_commit, somebody_waits_for, until

from runstate.conformance.notes import keys, notes, seqs, stored
from runstate.conformance.threads import race_all
from runstate.errors import AppendOutcomeUnknown, InvalidEvent, SequenceConflict
from runstate.logs.log import AppendResult
from runstate.logs.postgres import PostgresLog
from runstate.logs.postgres.log import busy_timeout_default_s

Answers = list[Future[list[AppendResult]]]


@contextmanager
def grouped(log: PostgresLog, session: Session, tasks: Sequence[Callable[[], list[AppendResult]]]) -> Iterator[Answers]:
    """The answers of appends that had to wait for one before them, and so were written as one group."""
    with ThreadPoolExecutor(len(tasks) + 1) as pool:
        with late_commits_held(session):
            pool.submit(log.append, "first", notes("late"))
            until(partial(somebody_waits_for, session))
            answers = []
            for number, task in enumerate(tasks):
                answers.append(pool.submit(task))
                until(lambda number=number: len(log._writer._groups._line) == number + 1)  # type: ignore[misc]
        yield answers


def _transactions(session: Session) -> int:
    row = session.execute("SELECT count(DISTINCT transaction) FROM events WHERE key NOT LIKE 'late%'").fetchone()
    return int(row[0]) if row else 0


def test_appends_that_wait_share_one_transaction(log: PostgresLog, session: Session) -> None:
    log.append("s0", notes("known"))
    tasks = [partial(log.append, f"s{number}", notes("a", "b")) for number in range(8)]
    with grouped(log, session, tasks) as answers:
        assert [seqs_of(answer.result()) for answer in answers] == [[2, 3]] + [[1, 2]] * 7
    assert _transactions(session) == 2
    assert list(log.verify()) == []


def test_appends_to_one_stream_share_one_too_and_each_sees_those_before_it(log: PostgresLog, session: Session) -> None:
    tasks = [partial(log.append, "s", notes(key)) for key in ("a", "b", "a", "c")]
    with grouped(log, session, tasks) as answers:
        results = [answer.result()[0] for answer in answers]
    assert [(r.seq, r.idempotent) for r in results] == [(1, False), (2, False), (1, True), (3, False)]
    assert _transactions(session) == 1
    assert keys(stored(log, "s")) == ["a", "b", "c"]


def test_one_that_conflicts_fails_alone(log: PostgresLog, session: Session) -> None:
    tasks = [
        partial(log.append, "s", notes("a"), expected_seq=0),
        partial(log.append, "s", notes("b"), expected_seq=0),
        partial(log.append, "t", notes("c")),
    ]
    with grouped(log, session, tasks) as answers:
        assert [answer.result()[0].seq for answer in (answers[0], answers[2])] == [1, 1]
        with pytest.raises(SequenceConflict):
            answers[1].result()
    assert _transactions(session) == 1
    assert keys(stored(log, "s")) == ["a"]


def test_one_that_the_server_refuses_fails_alone(log: PostgresLog, session: Session) -> None:
    tasks = [partial(log.append, "s", notes(key)) for key in ("a", "nul\0", "b")]
    with grouped(log, session, [*tasks, partial(log.append, "t", notes("c"))]) as answers:
        assert {answer.result()[0].persisted for number, answer in enumerate(answers) if number != 1} == {True}
        with pytest.raises(InvalidEvent):
            answers[1].result()
    assert sorted(keys(stored(log, "s"))) == ["a", "b"]
    assert list(log.verify()) == []


def test_a_head_that_somebody_holds_keeps_nobody_else_waiting(log: PostgresLog, session: Session) -> None:
    log.append("held", notes("a"))
    with ThreadPoolExecutor(4) as pool:
        with session.transaction():
            session.execute("SELECT 1 FROM streams WHERE stream = 'held' FOR UPDATE")
            held = [pool.submit(log.append, "held", notes(key)) for key in ("b", "c")]
            began = time.monotonic()
            assert [log.append("free", notes(f"{turn}"))[0].seq for turn in range(20)] == list(range(1, 21))
            assert not any(answer.done() for answer in held)
            assert time.monotonic() - began < busy_timeout_default_s / 2
        assert sorted(answer.result()[0].seq for answer in held) == [2, 3]
    assert list(log.verify()) == []


def test_a_connection_lost_during_a_groups_commit_leaves_the_outcome_of_each_open(
    log: PostgresLog, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [partial(log.append, f"s{number}", notes("a")) for number in range(4)]
    with psycopg.connect(session.info.dsn, autocommit=True) as session_too:
        # An append that is tried again by itself would succeed.
        lose_before_commit(monkeypatch, session_too, trips=1, heads_min=2)
        with grouped(log, session, tasks) as answers:
            for answer in answers:
                with pytest.raises(AppendOutcomeUnknown):
                    answer.result()
        monkeypatch.undo()
    assert [task()[0].seq for task in tasks] == [1] * 4


def test_groups_of_several_processes_on_the_same_streams_never_lock_each_other_out(
    log: PostgresLog, opened: Callable[[], PostgresLog]
) -> None:
    def write(writer: PostgresLog, name: str) -> list[AppendResult]:
        return [writer.append(f"s{turn % 5}", notes(f"{name}/{turn}"))[0] for turn in range(60)]

    logs = [log, opened(), opened()]
    race_all([partial(write, one, f"{number}/{thread}") for number, one in enumerate(logs) for thread in range(6)])
    assert sum(len(stored(log, f"s{number}")) for number in range(5)) == 60 * 18
    assert list(log.verify()) == []
    for number in range(5):
        assert all(a + 1 == b for a, b in pairwise(seqs(stored(log, f"s{number}"))))


def seqs_of(results: list[AppendResult]) -> list[int]:
    return [result.seq for result in results]
