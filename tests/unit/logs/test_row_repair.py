"""Repairs in databases: what stays, what is set aside, and that verify, repair and reads agree before and after."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.changed_rows import Change, place

from runstate.conformance.notes import numbered
from runstate.errors import LogDamaged
from runstate.logs.log import EventLog
from runstate.logs.registry import open_log
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


def test_a_plain_repair_sets_rows_behind_the_head_aside_unless_the_head_counts_them() -> None:
    assert kept(intact(1, 2, 3), 2, 2) == ([1, 2], [3], 0)  # It may be of another stream.
    assert kept(intact(1, 2, 3), 2, 3) == ([1, 2, 3], [], 0)
    assert kept(intact(1, 2, 3), 2, 2, salvage=True) == ([1, 2, 3], [], 0)


def test_without_a_sound_head_a_plain_repair_keeps_what_is_before_the_first_gap() -> None:
    for salvage, left in ((False, [1, 2]), (True, [1, 2, 4])):
        plan = plan_repair(intact(1, 2, 4), 0, 0, salvage=salvage, is_head_sound=False)
        assert plan is not None
        assert (plan.kept, plan.missing) == (left, 0)


def test_of_several_rows_at_one_seq_an_intact_one_stays() -> None:
    plan = plan_repair([(1, True), (2, False), (2, True), (2, True), (3, True)], 3, 3, salvage=False)
    assert plan is not None
    assert (plan.kept, plan.changed, plan.doubled) == ([1, 2, 3], [], [2])


def test_events_from_the_first_misplaced_one_on_are_placed_anew() -> None:
    plan = plan_repair(intact(1, 2, 3), 3, 3, salvage=False, places={1: 1, 2: 9, 3: 4})
    assert plan is not None
    assert (plan.kept, plan.moved) == ([1, 2, 3], [3])
    assert plan_repair(intact(1, 2, 3), 3, 3, salvage=False, places={1: 1, 2: 4, 3: 9}) is None


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


@pytest.mark.parametrize("changed", ["sqlite", "postgresql", "snowflake"], indirect=True)
@pytest.mark.parametrize("column", ["tenant", "first_persisted_at", "last_persisted_at"])
def test_a_head_that_does_not_fit_its_events_is_found_and_corrected(
    changed: tuple[EventLog, Change], column: str
) -> None:
    log, change = changed
    info = log.stream("s")
    change(f"UPDATE streams SET {column} = 'x' WHERE stream = 's'")
    assert [(finding.code, finding.stream) for finding in log.verify()] == [("log.head_changed", "s")]
    assert log.repair("s") != []
    assert (log.stream("s"), [finding for finding in log.verify() if finding.severity == "damage"]) == (info, [])


@pytest.mark.parametrize("changed", ["sqlite", "postgresql"], indirect=True)
def test_events_out_of_order_in_the_feed_get_new_places_at_its_end(changed: tuple[EventLog, Change]) -> None:
    log, change = changed
    right = log.read("s")
    last = log.feed().next
    later = "position + 100" if type(log).__name__ == "SqliteLog" else "DEFAULT"
    change(f"UPDATE events SET position = {later} WHERE {place(log)}")
    assert {finding.code for finding in log.verify("s")} == {"log.out_of_order"}
    would = log.repair("s", dry_run=True)
    assert log.repair("s") == would
    assert "new places in the feed: 4 to 5" in would[0].message
    assert (log.read("s"), list(log.verify("s"))) == (right, [])
    assert [record.seq for record in log.feed().records if record.stream == "s"] == [1, 2, 3, 4, 5]
    assert [record.seq for record in log.feed(after=last).records][-2:] == [4, 5]


@pytest.mark.parametrize("changed", ["postgresql"], indirect=True)
def test_a_repair_changes_the_version_of_a_stream(changed: tuple[EventLog, Change]) -> None:
    log, change = changed
    before = {head.stream: head for head in log.heads()}
    change(f"UPDATE events SET type = 'x' WHERE {place(log)}")
    log.repair("s")
    log.append("s", numbered(8)[5:])
    after = {head.stream: head for head in log.heads()}
    assert after["s"].last_seq == before["s"].last_seq
    assert (after["s"].version != before["s"].version, after["t"]) == (True, before["t"])


def test_nothing_is_repaired_in_a_file_whose_structure_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with open_log(f"sqlite:{path}") as log:
        log.append("s", numbered(5))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TRIGGER events_are_never_updated")
        connection.execute("UPDATE events SET type = 'x' WHERE seq = 3")
        find_page = "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_events_2'"
        ((page,),), ((size,),) = connection.execute(find_page), connection.execute("PRAGMA page_size")
    data = path.read_bytes()
    path.write_bytes(data[: (page - 1) * size] + bytes(size) + data[page * size :])
    with open_log(f"sqlite:{path}") as log:
        assert "sqlite.structure" in {finding.code for finding in log.verify()}
        assert log.repair("s", dry_run=True) == log.repair("s") == []


def test_a_file_that_forgot_its_version_is_damaged(tmp_path: Path) -> None:
    open_log(f"sqlite:{tmp_path / 'log'}").close()
    with closing(sqlite3.connect(tmp_path / "log")) as connection, connection:
        connection.execute("DELETE FROM schema_version")
    with pytest.raises(LogDamaged, match="schema_version"):
        open_log(f"sqlite:{tmp_path / 'log'}")
