"""Claims about reading one stream, and about listing them."""

from __future__ import annotations

from itertools import product

import pytest

from runstate.conformance.fixtures import LogKit
from runstate.conformance.notes import keys, note, notes, numbered, seqs, stored
from runstate.logs.log import EventLog, StreamInfo

unusual_streams = [
    "a b",
    "...",
    "..a",
    "-rf",
    "~",
    "run:2026-11-15T09:30:00Z",
    "%2e%2e%2f",
    "'; DROP TABLE events; --",
    "*?[x]",
    "CON",
    "ünïcode",
    "日本語の実行",
    "🜁👩\u200d👧",
    "\u2028",
    "x" * 200,
    "ü" * 100,
]


ranges: list[tuple[str, str | None]] = [("", None), ("b", None), ("", "b"), ("a", "c"), ("bb", "c"), ("z", None)]


class ReadClaims(LogKit):
    """Promise 4, and the list of streams."""

    def test_read_returns_what_is_after_a_seq_ascending_at_most_limit(self, log: EventLog) -> None:
        log.append("s", numbered(10))
        for after_seq, limit in product((-1, 0, 1, 4, 9, 10, 11, 2**53), (1, 3, 1000)):
            expected = [seq for seq in range(1, 11) if seq > after_seq][:limit]
            assert seqs(log.read("s", after_seq=after_seq, limit=limit)) == expected

    def test_pages_of_any_size_cover_a_stream_exactly_once(self, log: EventLog) -> None:
        log.append("s", numbered(25))
        for page in (1, 2, 7, 25, 26):
            assert seqs(stored(log, "s", page=page)) == list(range(1, 26))

    def test_a_stream_that_is_not_there_reads_as_empty(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        assert log.read("t") == []
        assert list(log.lines("t")) == []

    def test_streams_do_not_leak_into_each_other(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        log.append("ss", notes("b"))
        log.append("s%", notes("c"))
        assert [keys(log.read(name)) for name in ("s", "ss", "s%", "_")] == [["a"], ["b"], ["c"], []]

    def test_a_limit_below_1_is_refused(self, log: EventLog) -> None:
        for limit in (0, -1):
            with pytest.raises(ValueError, match="limit"):
                log.read("s", limit=limit)
            with pytest.raises(ValueError, match="limit"):
                log.streams(limit=limit)

    def test_places_beyond_any_seq_are_no_error(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        assert log.read("s", after_seq=2**64) == []
        assert seqs(log.read("s", limit=2**64)) == [1]
        assert list(log.lines("s", after_seq=2**64)) == []
        assert len(list(log.lines("s", until_seq=2**64))) == 1

    # --- lines -----------------------------------------------------------------------------------------

    def test_lines_are_the_bodies_of_read(self, log: EventLog) -> None:
        log.append("s", numbered(10))
        for after_seq in (-1, 0, 3, 10, 11):
            assert list(log.lines("s", after_seq=after_seq)) == [r.body for r in log.read("s", after_seq=after_seq)]

    def test_lines_end_with_until_seq(self, log: EventLog) -> None:
        log.append("s", numbered(10))
        for after_seq, until_seq in product((0, 3, 10), (-1, 0, 3, 4, 9, 10, 2**53)):
            expected = [r.body for r in log.read("s") if after_seq < r.seq <= until_seq]
            assert list(log.lines("s", after_seq=after_seq, until_seq=until_seq)) == expected

    def test_lines_of_a_long_stream_are_whole(self, log: EventLog) -> None:
        log.append("s", numbered(self.some(9000)))
        assert list(log.lines("s")) == [record.body for record in stored(log, "s")]

    def test_lines_may_be_left_half_read(self, log: EventLog) -> None:
        log.append("s", numbered(10))
        lines = log.lines("s")
        assert next(lines) == log.read("s")[0].body
        del lines
        assert log.append("s", notes("next"))[0].seq == 11

    # --- streams ---------------------------------------------------------------------------------------

    def test_an_unusual_stream_id_is_a_stream_like_any_other(self, log: EventLog) -> None:
        for name in unusual_streams:
            log.append(name, notes("a"))
            assert [record.stream for record in log.read(name)] == [name]
            assert log.find(name, "a") == log.read(name)[0]
        assert [info.stream for info in log.streams()] == sorted(unusual_streams)

    def test_stream_ids_that_look_alike_are_different_streams(self, log: EventLog) -> None:
        alike = ["run", "Run", "run ", " run", "r\u00fcn", "ru\u0308n", "run.", "1", "01"]
        for name in alike:
            assert log.append(name, notes("a"))[0].seq == 1
        assert [info.stream for info in log.streams()] == sorted(alike)

    def test_streams_are_listed_by_code_point(self, log: EventLog) -> None:
        # In UTF-16 the last two would change places, and a dictionary would put capitals beside small letters.
        names = ["A", "B", "a", "a!", "aa", "z", "\u00e9", "\uffee", "\U0001f701"]
        for name in reversed(names):
            log.append(name, notes("a"))
        assert [info.stream for info in log.streams()] == names

    def test_pages_of_any_size_cover_all_streams_exactly_once(self, log: EventLog) -> None:
        names = ["a", "b", "ba", "c", "ü"]
        for name in names:
            log.append(name, notes("a"))
        for page in (1, 2, 5, 6):
            found: list[StreamInfo] = []
            while infos := log.streams(after=found[-1].stream if found else "", limit=page):
                assert len(infos) <= page
                found += infos
            assert [info.stream for info in found] == names

    def test_the_list_goes_on_after_a_name_that_is_no_stream(self, log: EventLog) -> None:
        for name in ("a", "c"):
            log.append(name, notes("a"))
        assert [info.stream for info in log.streams(after="b")] == ["c"]

    def test_a_streams_entry_tells_its_extent(self, log: EventLog) -> None:
        (first,) = log.append("s", [note("a", tenant="t-1")])
        (last,) = log.append("s", [note("b", tenant="t-1")])
        assert log.stream("s") == StreamInfo("s", "t-1", 2, 2, first.persisted_at, last.persisted_at, "notes")
        assert log.streams() == [log.stream("s")]

    def test_a_stream_that_is_not_there_has_no_entry(self, log: EventLog) -> None:
        assert log.stream("s") is None
        assert log.streams() == []

    # --- heads -----------------------------------------------------------------------------------------

    def test_heads_are_the_streams_within_a_range_by_code_point(self, log: EventLog) -> None:
        names = ["A", "a", "b", "ba", "c", "\uffee", "\U0001f701"]
        ranges: list[tuple[str, str | None]] = [
            ("", None),
            ("b", None),
            ("", "b"),
            ("a", "c"),
            ("bb", "c"),
            ("z", None),
        ]
        for name in reversed(names):
            log.append(name, notes("a"))
        for after, until in ranges:
            expected = [name for name in names if name > after and (until is None or name <= until)]
            assert [head.stream for head in log.heads(after=after, until=until)] == expected
            assert [head.stream for head in log.heads(after=after, until=until, versions=False)] == expected

    def test_a_heads_version_changes_with_its_stream_alone(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        log.append("t", notes("a"))
        before = {head.stream: head for head in log.heads()}
        log.append("s", notes("a"))
        assert {head.stream: head for head in log.heads()} == before
        log.append("s", notes("b"))
        after = {head.stream: head for head in log.heads()}
        assert after["t"] == before["t"]
        assert after["s"].version != before["s"].version
        assert after["s"].weight >= before["s"].weight > 0
        assert after["s"].last_seq in (None, 2)

    def test_a_healthy_log_has_no_findings(self, log: EventLog) -> None:
        log.append("s", [note("a", "one"), note("b", "ü€🜁" * 5000)])
        log.append("s", [note("a", "two"), note("c")])
        log.append("t", numbered(500))
        assert list(log.verify()) == []
        assert list(log.verify("s")) == []

    def test_an_empty_log_has_no_findings(self, log: EventLog) -> None:
        assert list(log.verify()) == []
