"""Claims about the feed: all streams, each event exactly once, and nothing ever behind a position handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import followed, keys, note, notes, numbered, stored
from runstate.conformance.threads import meanwhile, race_all
from runstate.errors import InvalidPosition
from runstate.logs.log import AppendResult, Capability, EventLog, Position, Record

no_positions = ["", " ", "nonsense", "-1", "1.5", "0x1", "' OR 1=1 --", "\u0663", "1\n", "9" * 18, "9" * 30, "9" * 5000]
"""Strings that no log has handed out: no numbers, a digit that is not ASCII though int() reads it, places far ahead.

A follower that is ahead of its log (an older copy was put in its place) would otherwise wait, and miss events.
"""


class FeedClaims(LogKit):
    """Promise 5."""

    @needs(Capability.FEED)
    def test_the_feed_covers_all_streams(self, log: EventLog) -> None:
        for name in ("s", "t", "s", "u"):
            log.append(name, [note(f"k{len(stored(log, name))}")])
        page = log.feed()
        assert places(page.records) == {("s", 1), ("s", 2), ("t", 1), ("u", 1)}
        assert {record: record for record in page.records} == {
            record: record for name in ("s", "t", "u") for record in stored(log, name)
        }

    @needs(Capability.FEED)
    def test_an_empty_log_has_an_empty_feed_that_can_be_continued(self, log: EventLog) -> None:
        page = log.feed()
        assert page.records == []
        log.append("s", notes("a"))
        assert keys(log.feed(after=page.next).records) == ["a"]

    @needs(Capability.FEED)
    def test_an_empty_page_keeps_the_place(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        end = log.feed().next
        page = log.feed(after=end)
        assert page.records == []
        log.append("s", notes("b"))
        assert keys(log.feed(after=page.next).records) == ["b"]

    @needs(Capability.FEED)
    def test_pages_of_any_size_cover_the_feed_exactly_once(self, log: EventLog) -> None:
        for batch in range(20):
            log.append(f"s{batch % 3}", numbered(3, prefix=f"{batch}-"))
        for page in (1, 2, 7, 60, 61):
            check_complete(log, followed(log, page=page).records)

    @needs(Capability.FEED)
    def test_a_page_holds_at_most_limit_records(self, log: EventLog) -> None:
        log.append("s", numbered(10))
        assert len(log.feed(limit=4).records) == 4

    @needs(Capability.FEED)
    def test_every_page_can_be_asked_for_again(self, log: EventLog) -> None:
        log.append("s", numbered(10))
        start = log.feed(limit=4).next
        first = log.feed(after=start, limit=3)
        log.append("t", numbered(10))
        assert log.feed(after=start, limit=3) == first

    @needs(Capability.FEED)
    def test_a_known_key_does_not_come_again(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        end = log.feed().next
        log.append("s", [note("a"), note("b", "other")])
        assert log.feed(after=end).records == []

    @needs(Capability.FEED)
    def test_a_feed_limit_below_1_is_refused(self, log: EventLog) -> None:
        for limit in (0, -1):
            with pytest.raises(ValueError, match="limit"):
                log.feed(limit=limit)

    @needs(Capability.FEED)
    def test_a_position_that_was_never_handed_out_is_refused(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        for position in no_positions:
            with pytest.raises(InvalidPosition):
                log.feed(after=Position(position))

    @needs(Capability.FEED)
    def test_a_follower_of_racing_writers_sees_every_event_exactly_once(self, log: EventLog) -> None:
        log.append("s0", notes("first"))
        with meanwhile(partial(follow, log)) as follower:
            race_all([partial(write, log, number, self.some(25)) for number in range(8)])
        check_complete(log, follower.result())

    # --- after deletion --------------------------------------------------------------------------------

    @needs(Capability.FEED, Capability.DELETE)
    def test_a_deleted_stream_is_gone_from_the_feed(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        log.append("t", notes("b"))
        log.delete_stream("s")
        assert keys(log.feed().records) == ["b"]

    @needs(Capability.FEED, Capability.DELETE)
    def test_a_follower_misses_nothing_after_the_newest_stream_was_deleted(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        log.append("newest", numbered(5))
        end = followed(log).next
        log.delete_stream("newest")
        log.append("s", notes("b"))
        log.append("newest", notes("again"))
        assert keys(log.feed(after=end).records) == ["b", "again"]

    @needs(Capability.FEED, Capability.DELETE)
    def test_a_position_inside_a_deleted_stream_stays_good(self, log: EventLog) -> None:
        log.append("s", numbered(4))
        middle = log.feed(limit=2).next
        log.append("t", notes("b"))
        log.delete_stream("s")
        assert keys(followed(log, middle).records) == ["b"]

    @needs(Capability.FEED, Capability.DELETE)
    def test_a_follower_of_a_log_that_was_emptied_sees_what_comes_next(self, log: EventLog) -> None:
        log.append("s", numbered(4))
        end = followed(log).next
        log.delete_stream("s")
        log.append("t", notes("b"))
        assert keys(followed(log, end).records) == ["b"]


def write(log: EventLog, number: int, turns: int) -> list[AppendResult]:
    """One of many writers: single events and batches, on streams that it shares with the others."""
    results: list[AppendResult] = []
    for turn in range(turns):
        drafts = numbered(1 + turn % 3, prefix=f"{number}-{turn}-")
        results += log.append(f"s{(number + turn) % 3}", drafts)
    return results


def follow(log: EventLog, is_over: Callable[[], bool]) -> list[Record]:
    """Follow the feed in small pages until the writers have stopped and the end is reached."""
    seen: list[Record] = []
    after: Position | None = None
    while True:
        last_turn = is_over()  # Asked before the page is read: what was written meanwhile is in it.
        page = followed(log, after, page=7)
        seen += page.records
        after = page.next
        if last_turn:
            return seen


def check_complete(log: EventLog, seen: list[Record]) -> None:
    """Every event of every stream was seen exactly once, and each stream in its own order."""
    by_stream: dict[str, list[Record]] = {info.stream: [] for info in log.streams()}
    for record in seen:
        by_stream[record.stream].append(record)
    assert by_stream == {name: stored(log, name) for name in by_stream}


def places(records: Iterable[Record]) -> set[tuple[str, int]]:
    return {(record.stream, record.seq) for record in records}
