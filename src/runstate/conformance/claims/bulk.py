"""Claims about appends to many streams at once, which a log may put into one commit."""

from __future__ import annotations

from functools import partial

from runstate.conformance.fixtures import LogKit
from runstate.conformance.notes import keys, note, notes, stored
from runstate.conformance.threads import race_all
from runstate.errors import TenantMismatch
from runstate.logs.bulk import Answer, append_many
from runstate.logs.log import AppendResult, EventLog


class BulkClaims(LogKit):
    """Each batch is answered as an append of its own."""

    def test_many_batches_are_answered_in_their_order(self, log: EventLog) -> None:
        log.append("s1", notes("first"))
        batches = [(f"s{number}", notes(f"a{number}", f"b{number}")) for number in (3, 1, 2)]
        assert [seqs_of(answer) for answer in append_many(log, batches)] == [[1, 2], [2, 3], [1, 2]]
        assert keys(stored(log, "s1")) == ["first", "a1", "b1"]
        assert append_many(log, []) == []

    def test_a_retry_of_many_batches_changes_nothing(self, log: EventLog) -> None:
        batches = [(f"s{number}", notes("a", "b")) for number in range(5)]
        first = append_many(log, batches)
        again = append_many(log, [*batches, ("new", notes("c"))])
        assert [[(r.event_id, r.seq) for r in results_of(answer)] for answer in again[:-1]] == [
            [(r.event_id, r.seq) for r in results_of(answer)] for answer in first
        ]
        assert all(result.idempotent for answer in again[:-1] for result in results_of(answer))
        assert [len(stored(log, stream)) for stream in ("s0", "s4", "new")] == [2, 2, 1]

    def test_a_batch_that_is_refused_keeps_no_other_from_being_written(self, log: EventLog) -> None:
        log.append("theirs", [note("a", tenant="t-1")])
        batches = [("s", notes("a")), ("theirs", [note("b", tenant="t-2")]), ("t", notes("a"))]
        before, refused, after = append_many(log, batches)
        assert isinstance(refused, TenantMismatch)
        assert (seqs_of(before), seqs_of(after)) == ([1], [1])
        assert keys(stored(log, "theirs")) == ["a"]

    def test_batches_of_one_stream_follow_each_other(self, log: EventLog) -> None:
        answers = append_many(log, [("s", notes("a")), ("s", notes("b", "a"))])
        assert [seqs_of(answer) for answer in answers] == [[1], [2, 1]]

    def test_racing_callers_lose_and_double_nothing(self, log: EventLog) -> None:
        streams = [f"s{number}" for number in range(8)]
        sent = [[(stream, notes(f"{caller}")) for stream in streams] for caller in range(4)]
        race_all([partial(append_many, log, batches) for batches in sent])
        for stream in streams:
            assert sorted(keys(stored(log, stream))) == ["0", "1", "2", "3"]


def results_of(answer: Answer) -> list[AppendResult]:
    assert isinstance(answer, list), answer
    return answer


def seqs_of(answer: Answer) -> list[int]:
    return [result.seq for result in results_of(answer)]
