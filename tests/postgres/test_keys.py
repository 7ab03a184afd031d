"""Keys from everywhere at once."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import msgspec
import pytest
from tests.postgres.sessions import Session

from runstate.conformance.notes import notes, numbered, stored
from runstate.conformance.threads import race_all
from runstate.errors import InvalidEvent, SequenceConflict
from runstate.logs.postgres import PostgresLog, open_url


@pytest.mark.parametrize("is_new", [True, False], ids=["new stream", "known stream"])
def test_one_key_from_32_connections_gives_one_row_and_32_equal_answers(
    url: str, log: PostgresLog, session: Session, is_new: bool
) -> None:
    if not is_new:
        log.append("s", notes("before"))
    with ExitStack() as stack:
        logs = [stack.enter_context(open_url(f"{url}&pool_max=1")) for _ in range(32)]
        answers = [results[0] for results in race_all([partial(one.append, "s", notes("a")) for one in logs])]
    assert len({(answer.event_id, answer.seq, answer.persisted_at) for answer in answers}) == 1
    assert sorted((answer.persisted, answer.idempotent) for answer in answers) == [(False, True)] * 31 + [(True, False)]
    assert session.execute("SELECT count(*) FROM events WHERE key = 'a'").fetchone() == (1,)
    assert list(log.verify()) == []


def test_a_key_that_postgres_cannot_hold_is_refused(log: PostgresLog) -> None:
    with pytest.raises(InvalidEvent):
        log.append("s", notes("a\0b"))
    assert log.find("s", "a\0b") is None
    assert log.stream("s") is None


def test_a_large_append_is_answered_like_a_small_one(log: PostgresLog) -> None:
    first = log.append("s", numbered(5000))
    again = log.append("s", numbered(5001))
    assert [result.seq for result in again] == list(range(1, 5002))
    assert [result.persisted for result in again] == [False] * 5000 + [True]
    assert [r.event_id for r in stored(log, "s")[:5000]] == [result.event_id for result in first]


def test_an_adopted_key_that_the_stream_holds_elsewhere_is_a_conflict(log: PostgresLog) -> None:
    log.append("s", notes("a"))
    (held,) = log.read("s")
    with pytest.raises(SequenceConflict):
        log.adopt("s", [msgspec.structs.replace(held, seq=2)])
    assert log.read("s") == [held]
