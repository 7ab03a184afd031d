"""Claims about keys: a key stands for one event of its stream, the first that came, for ever."""

from __future__ import annotations

from runstate.conformance.fixtures import LogKit
from runstate.conformance.notes import keys, note, notes, stored
from runstate.logs.log import AppendResult, EventLog


class KeyClaims(LogKit):
    """Promise 3."""

    def test_a_known_key_returns_the_first_result(self, log: EventLog) -> None:
        (first,) = log.append("s", notes("a"))
        log.append("s", notes("b"))
        (again,) = log.append("s", notes("a"))
        assert again == AppendResult(first.event_id, first.seq, first.persisted_at, True, False, False)

    def test_a_known_key_writes_nothing(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        before = (stored(log, "s"), log.stream("s"))
        log.append("s", notes("b"))
        log.append("s", notes("a", "b"))
        assert (stored(log, "s"), log.stream("s")) == before

    def test_the_first_event_id_is_returned_whatever_is_sent_later(self, log: EventLog) -> None:
        (first,) = log.append("s", [note("a", "one")])
        (again,) = log.append("s", [note("a", "two")])
        assert note("a", "two").event_id != first.event_id
        assert again.event_id == first.event_id

    def test_other_content_under_a_known_key_is_told(self, log: EventLog) -> None:
        log.append("s", [note("a", "one")])
        (again,) = log.append("s", [note("a", "two")])
        assert (again.idempotent, again.persisted, again.mismatch) == (True, False, True)

    def test_other_content_never_replaces_the_first(self, log: EventLog) -> None:
        log.append("s", [note("a", "one")])
        before = stored(log, "s")
        log.append("s", [note("a", "two")])
        assert stored(log, "s") == before
        assert log.find("s", "a") == before[0]

    def test_what_a_retry_may_change_is_no_mismatch(self, log: EventLog) -> None:
        log.append("s", [note("a", emitted_at="2026-01-01T00:00:00.000Z")])
        (again,) = log.append("s", [note("a", emitted_at="2026-02-02T00:00:00.000Z")])
        assert (again.idempotent, again.mismatch) == (True, False)

    def test_a_key_twice_in_one_call_is_one_event(self, log: EventLog) -> None:
        first, other, again = log.append("s", notes("a", "b", "a"))
        assert again == AppendResult(first.event_id, first.seq, first.persisted_at, True, False, False)
        assert other.seq == 2
        assert keys(stored(log, "s")) == ["a", "b"]

    def test_a_key_twice_in_one_call_with_other_content_is_told(self, log: EventLog) -> None:
        first, again = log.append("s", [note("a", "one"), note("a", "two")])
        assert (first.mismatch, again.mismatch, again.event_id) == (False, True, first.event_id)
        assert [record.event_id for record in stored(log, "s")] == [first.event_id]

    def test_a_key_twice_in_one_checked_call_is_no_conflict(self, log: EventLog) -> None:
        assert [r.seq for r in log.append("s", notes("a", "a", "b"), expected_seq=0)] == [1, 1, 2]

    def test_known_and_new_keys_may_come_mixed(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        results = log.append("s", notes("c", "a", "d", "b"))
        assert [(r.seq, r.persisted) for r in results] == [(3, True), (1, False), (4, True), (2, False)]
        assert keys(stored(log, "s")) == ["a", "b", "c", "d"]

    def test_the_same_key_in_another_stream_is_another_event(self, log: EventLog) -> None:
        log.append("s", [note("a", "one")])
        (result,) = log.append("t", [note("a", "two")])
        assert (result.seq, result.persisted, result.mismatch) == (1, True, False)
        assert keys(stored(log, "t")) == ["a"]

    def test_keys_that_look_alike_are_different_keys(self, log: EventLog) -> None:
        alike = ["a", "A", " a", "a ", "\u00e1", "a\u0301", "1", "01", "1.0"]
        assert all(result.persisted for result in log.append("s", notes(*alike)))
        assert keys(stored(log, "s")) == alike

    def test_find_gives_the_record_of_a_key(self, log: EventLog) -> None:
        log.append("s", notes("a", "b", "c"))
        assert log.find("s", "b") == log.read("s")[1]

    def test_find_gives_none_for_a_key_that_is_not_there(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        log.append("t", notes("b"))
        assert log.find("s", "b") is None
        assert log.find("nowhere", "a") is None
