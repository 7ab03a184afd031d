"""Repairs in databases: what stays, what is set aside, and that verify, repair and reads agree before and after."""

from __future__ import annotations

import pytest
from tests.changed_rows import Change, place

from runstate.conformance.notes import numbered
from runstate.logs.log import EventLog
from runstate.logs.row_repair import plan_repair, ranges


def kept(
    rows: list[tuple[int, bool]], last_seq: int, events: int, *, salvage: bool = False
) -> tuple[list[int], list[int], int] | None:
    plan = plan_repair(rows, last_seq, events, salvage=salvage)
    return None if plan is None else (plan.kept, plan.set_aside, plan.missing)


def intact(*seqs: int) -> list[tuple[int, bool]]:
    return [(seq, True) for seq in seqs]


def test_an_intact_stream_needs_no_repair() -> None:
    assert kept(intact(1, 2, 3), 3, 3) is None
    assert kept(intact(1, 4, 9), 9, 3) is None  # Gaps that were adopted.


def test_a_plain_repair_keeps_what_is_before_the_damage() -> None:
    rows = [(1, True), (2, True), (3, False), (4, True)]
    assert kept(rows, 4, 4) == ([1, 2], [3, 4], 0)
    assert kept(intact(1, 2, 4), 4, 4) == ([1, 2], [4], 1)
    assert kept(intact(1, 2), 4, 4) == ([1, 2], [], 2)
    assert kept([(1, False)], 1, 1) == ([], [1], 0)


def test_a_salvage_keeps_every_event_that_is_intact() -> None:
    rows = [(1, True), (2, False), (3, True), (5, True)]
    assert kept(rows, 5, 5, salvage=True) == ([1, 3, 5], [2], 1)


def test_seqs_in_words() -> None:
    assert ranges([1, 2, 3, 5, 8, 9]) == "1 to 3, 5, 8 to 9"
    assert ranges([]) == ""


@pytest.mark.parametrize("changed", ["sqlite", "postgresql", "snowflake"], indirect=True)
@pytest.mark.parametrize("salvage", [False, True])
def test_a_repaired_stream_is_read_verified_and_appended_to(changed: tuple[EventLog, Change], salvage: bool) -> None:
    log, change = changed
    feed = log.feed().records
    change(f"UPDATE events SET type = 'x' WHERE {place(log)}")
    (would,) = log.repair("s", dry_run=True, salvage=salvage)
    assert [finding.code for finding in log.verify("s")] == ["log.event_changed"]
    (done,) = log.repair("s", salvage=salvage)
    assert done == would
    left = [1, 2, 4, 5] if salvage else [1, 2]
    assert [record.seq for record in log.read("s")] == left
    assert list(log.verify("s")) == []
    assert [(finding.code, finding.severity) for finding in log.verify()] == [("log.set_aside", "warning")]
    assert log.repair("s", salvage=salvage) == []
    info = log.stream("s")
    assert info is not None
    assert (info.last_seq, info.events, info.first_persisted_at) == (left[-1], len(left), feed[0].persisted_at)
    assert [(r.stream, r.seq) for r in log.feed().records if r.stream == "s"] == [("s", seq) for seq in left]
    assert log.append("s", numbered(6))[-1].seq == 7 - (salvage is False)


@pytest.mark.parametrize("changed", ["sqlite", "postgresql", "snowflake"], indirect=True)
def test_rows_that_are_gone_are_acknowledged_by_a_repair(changed: tuple[EventLog, Change]) -> None:
    log, change = changed
    change(f"DELETE FROM events WHERE {place(log)}")
    assert {finding.code for finding in log.verify("s")} == {"log.events_missing"}
    (done,) = log.repair("s", salvage=True)
    assert done.message == "Events by seq; kept: 1 to 2, 4 to 5; missing: 1"
    assert list(log.verify("s")) == []
