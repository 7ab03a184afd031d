"""Claims about appends that no thread waits for, which a log may put into one flush."""

from __future__ import annotations

from functools import partial

import pytest

from runstate.conformance.claims.refusals import unwritable
from runstate.conformance.fixtures import LogKit
from runstate.conformance.notes import keys, note, notes, stored
from runstate.conformance.threads import race_all
from runstate.errors import LogClosed, LogFailed, SequenceConflict, TenantMismatch
from runstate.logs.log import EventLog
from runstate.logs.submitting import submit

patience_s = 60
"""A future that takes longer has been forgotten."""


class SubmissionClaims(LogKit):
    """Each submitted append is answered as an append of its own, by its future."""

    def test_a_submitted_append_is_stored_when_its_future_is_done(self, log: EventLog) -> None:
        for number in range(self.some(20)):
            (result,) = submit(log, "s", notes(f"k{number}")).result(patience_s)
            assert (result.seq, result.persisted) == (number + 1, True)
            assert keys(log.read("s", after_seq=number)) == [f"k{number}"]
        assert submit(log, "s", []).result(patience_s) == []

    def test_many_appends_submitted_by_one_thread_are_all_stored_once(self, log: EventLog) -> None:
        count = self.some(60)
        futures = [submit(log, f"s{number % 3}", notes(f"k{number}", f"l{number}")) for number in range(count)]
        for future in futures:
            first, second = (result.seq for result in future.result(patience_s))
            assert second == first + 1
        found = [key for number in range(3) for key in keys(stored(log, f"s{number}"))]
        assert sorted(found) == sorted(f"{letter}{number}" for letter in "kl" for number in range(count))

    def test_a_submitted_append_that_is_refused_fails_its_own_future_alone(self, log: EventLog) -> None:
        log.append("theirs", [note("a", tenant="t-1")])
        good = [submit(log, "s", notes("a"))]
        refused = {
            TenantMismatch: submit(log, "theirs", [note("b", tenant="t-2")]),
            SequenceConflict: submit(log, "theirs", [note("c", tenant="t-1")], expected_seq=7),
            LogFailed: submit(log, "s", [unwritable]),
        }
        good += [submit(log, "s", notes("e")), submit(log, "t", notes("f"))]
        for error, future in refused.items():
            with pytest.raises(error):
                future.result(patience_s)
        assert all(future.result(patience_s)[0].persisted for future in good)
        assert [sorted(keys(stored(log, stream))) for stream in ("s", "t", "theirs")] == [["a", "e"], ["f"], ["a"]]

    def test_retries_among_submitted_appends_are_answered_with_the_first(self, log: EventLog) -> None:
        futures = [submit(log, "s", [note("a", text)]) for text in ("one", "one", "two")]
        results = [future.result(patience_s)[0] for future in futures]
        assert {(result.seq, result.event_id) for result in results} == {(1, stored(log, "s")[0].event_id)}
        assert sorted(result.idempotent for result in results) == [False, True, True]
        assert any(result.mismatch for result in results)
        assert len(stored(log, "s")) == 1

    def test_submitted_appends_expect_a_seq_as_others_do(self, log: EventLog) -> None:
        for number in range(3):
            submit(log, "s", notes(f"k{number}"), expected_seq=number).result(patience_s)
        racing = [submit(log, "s", notes(f"r{number}"), expected_seq=3) for number in range(4)]
        errors = [future.exception(patience_s) for future in racing]
        assert sorted(type(error).__name__ for error in errors) == ["NoneType", *["SequenceConflict"] * 3]

    def test_submitted_appends_and_those_of_waiting_threads_lose_and_double_nothing(self, log: EventLog) -> None:
        count = self.some(20)

        def wait(caller: int) -> None:
            for number in range(count):
                log.append("s", notes(f"w-{caller}-{number}"))

        def post(caller: int) -> None:
            futures = [submit(log, "s", notes(f"p-{caller}-{number}")) for number in range(count)]
            for future in futures:
                future.result(patience_s)

        race_all([partial(task, caller) for caller in range(3) for task in (wait, post)])
        sent = {f"{kind}-{caller}-{number}" for kind in "wp" for caller in range(3) for number in range(count)}
        found = keys(stored(log, "s"))
        assert (len(found), set(found)) == (len(sent), sent)

    def test_closing_finishes_what_was_submitted_and_refuses_more(self, log: EventLog) -> None:
        futures = [submit(log, f"s{number % 3}", notes(f"k{number}")) for number in range(self.some(30))]
        log.close()
        assert all(future.done() for future in futures)
        assert all(future.result()[0].persisted for future in futures)
        with pytest.raises(LogClosed):
            submit(log, "s", notes("late")).result(patience_s)
