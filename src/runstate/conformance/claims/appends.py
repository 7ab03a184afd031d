"""Claims about `append`: all or nothing, in an order that the log assigns, and nothing changes afterwards."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from runstate.conformance.fixtures import LogKit
from runstate.conformance.notes import keys, note, notes, numbered, seqs, stored
from runstate.errors import SequenceConflict
from runstate.logs.log import EventLog

_rfc_3339_utc_ms = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

hostile_texts = [
    "line\u2028and\u2029paragraph separators",
    'quotes " and \\ backslashes \\" and \\\\u0000',
    "newline \n return \r tab \t nul \0 escape \x1b delete \x7f",
    "emoji 🜁👩\u200d👩\u200d👧\u200d👧 and right-to-left \u202e text",
    "percent %d %b %% {braces} '; DROP TABLE events; --",
    "\ufeffbyte order mark, \ufffe and \uffff",
    "large " + "ü€🜁 " * 20_000,
]


class AppendClaims(LogKit):
    """Promises 1, 2 and 6."""

    def test_seq_starts_at_1_and_grows_by_1(self, log: EventLog) -> None:
        results = log.append("s", notes("a", "b")) + log.append("s", notes("c"))
        assert [result.seq for result in results] == [1, 2, 3]
        assert seqs(stored(log, "s")) == [1, 2, 3]

    def test_every_stream_counts_for_itself(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        assert log.append("t", notes("c"))[0].seq == 1
        assert log.append("s", notes("d"))[0].seq == 3

    def test_drafts_are_stored_in_the_order_of_the_call(self, log: EventLog) -> None:
        log.append("s", notes("z", "m", "a"))
        assert keys(stored(log, "s")) == ["z", "m", "a"]

    def test_producers_clocks_order_nothing(self, log: EventLog) -> None:
        late, early = "2026-12-31T23:59:59.999Z", "2001-01-01T00:00:00.000Z"
        log.append("s", [note("a", emitted_at=late)])
        log.append("s", [note("b", emitted_at=early)])
        assert [(r.key, r.emitted_at) for r in stored(log, "s")] == [("a", late), ("b", early)]

    def test_a_new_event_is_told_as_persisted(self, log: EventLog) -> None:
        (result,) = log.append("s", [draft := note("a")])
        assert (result.event_id, result.persisted, result.idempotent, result.mismatch) == (
            draft.event_id,
            True,
            False,
            False,
        )

    def test_a_record_carries_the_drafts_envelope(self, log: EventLog) -> None:
        (result,) = log.append("s", [draft := note("a", "text", tenant="t-1", emitted_at="2026-01-02T03:04:05.678Z")])
        (record,) = log.read("s")
        assert (record.stream, record.seq, record.persisted_at) == ("s", result.seq, result.persisted_at)
        assert (record.event_id, record.type, record.key) == (draft.event_id, draft.type, draft.key)
        assert (record.tenant, record.emitted_at) == (draft.tenant, draft.emitted_at)

    def test_a_body_is_the_line_that_the_draft_renders(self, log: EventLog) -> None:
        drafts = notes("a", "b", "c")
        results = log.append("s", drafts)
        rendered = [draft.render(r.seq, r.persisted_at) for draft, r in zip(drafts, results, strict=True)]
        assert [record.body for record in log.read("s")] == rendered

    def test_nothing_that_comes_later_changes_a_record(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        before = log.read("s")
        log.append("s", [note("a", "other"), note("c")])
        log.append("t", notes("a"))
        assert log.read("s", limit=2) == before

    def test_persisted_at_is_rfc_3339_in_utc_with_milliseconds(self, log: EventLog) -> None:
        (result,) = log.append("s", notes("a"))
        assert _rfc_3339_utc_ms.fullmatch(result.persisted_at), result.persisted_at
        assert datetime.fromisoformat(result.persisted_at).tzinfo == UTC

    def test_an_empty_append_returns_nothing_and_makes_no_stream(self, log: EventLog) -> None:
        assert log.append("s", []) == []
        assert log.append("s", [], expected_seq=7) == []
        assert log.stream("s") is None

    def test_one_call_may_bring_thousands(self, log: EventLog) -> None:
        results = log.append("s", numbered(3000))
        assert [result.seq for result in results] == list(range(1, 3001))
        assert keys(stored(log, "s")) == keys_of(3000)

    def test_thousands_that_are_known_are_all_recognised(self, log: EventLog) -> None:
        first = log.append("s", numbered(1500))
        again = log.append("s", numbered(3000))
        assert [r.seq for r in again[:1500]] == [r.seq for r in first]
        assert [r.idempotent for r in again] == [True] * 1500 + [False] * 1500
        assert keys(stored(log, "s")) == keys_of(3000)

    def test_any_text_comes_back_byte_for_byte(self, log: EventLog) -> None:
        for number, text in enumerate(hostile_texts):
            (result,) = log.append("s", [draft := note(f"k{number}", text)])
            assert log.read("s", after_seq=number)[0].body == draft.render(result.seq, result.persisted_at)
            assert log.append("s", [draft])[0].mismatch is False

    def test_any_key_is_found_again(self, log: EventLog) -> None:
        for key in ("a b", "a/b/../c", "ключ", "🜁", "k" * 256, "'; --", "%", "A\u0301", "\u00c1", "\u2028"):
            (result,) = log.append("s", [note(key)])
            assert result.persisted
            assert log.append("s", [note(key)])[0].idempotent
            assert log.find("s", key) == log.read("s", after_seq=result.seq - 1)[0]

    # --- expected_seq ----------------------------------------------------------------------------------

    def test_expected_seq_that_is_right_lets_the_append_through(self, log: EventLog) -> None:
        log.append("s", notes("a"), expected_seq=0)
        log.append("s", notes("b", "c"), expected_seq=1)
        assert log.append("s", notes("d"), expected_seq=3)[0].seq == 4

    def test_expected_seq_that_is_wrong_writes_nothing(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        for wrong in (-1, 0, 1, 3, 2**53):
            with pytest.raises(SequenceConflict):
                log.append("s", notes("c", "d"), expected_seq=wrong)
        assert keys(stored(log, "s")) == ["a", "b"]

    def test_a_conflict_says_where_the_stream_is(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        with pytest.raises(SequenceConflict) as caught:
            log.append("s", notes("c"), expected_seq=1)
        assert caught.value.details == {"stream": "s", "actual_seq": 2, "expected_seq": 1}

    def test_a_conflict_on_a_stream_that_is_not_there_does_not_make_it(self, log: EventLog) -> None:
        with pytest.raises(SequenceConflict) as caught:
            log.append("s", notes("a"), expected_seq=1)
        assert caught.value.details["actual_seq"] == 0
        assert log.stream("s") is None
        assert log.streams() == []

    def test_a_conflict_does_not_stop_the_next_append(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        with pytest.raises(SequenceConflict):
            log.append("s", notes("b"), expected_seq=0)
        assert log.append("s", notes("b"), expected_seq=1)[0].persisted

    def test_a_retry_of_a_checked_append_that_went_through_returns_the_first_results(self, log: EventLog) -> None:
        first = log.append("s", notes("a", "b"), expected_seq=0)
        log.append("s", notes("c"))
        again = log.append("s", notes("a", "b"), expected_seq=0)
        assert [(r.seq, r.persisted_at, r.idempotent) for r in again] == [(r.seq, r.persisted_at, True) for r in first]

    def test_one_new_draft_among_known_ones_is_enough_for_a_conflict(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        with pytest.raises(SequenceConflict):
            log.append("s", notes("a", "new"), expected_seq=0)
        assert keys(stored(log, "s")) == ["a", "b"]


def keys_of(count: int) -> list[str]:
    return [draft.key for draft in numbered(count)]
