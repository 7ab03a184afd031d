"""What is said of rows: which are missing, and which were never there."""

from __future__ import annotations

from runstate.logs.stored_rows import row_findings


def told(seqs: list[int], last_seq: int, events: int) -> list[int | None]:
    rows = [(seq, True, place) for place, seq in enumerate(seqs, 1)]
    return [finding.seq for finding in row_findings("s", rows, 0, last_seq, events)]


def test_a_gap_that_was_adopted_is_no_finding() -> None:
    assert told([1, 2, 5, 9], last_seq=9, events=4) == []


def test_a_row_that_is_gone_is_a_finding_with_its_place() -> None:
    assert told([1, 3], last_seq=3, events=3) == [2, 4]
    assert told([1, 2], last_seq=3, events=3) == [3]


def test_among_adopted_gaps_every_one_may_be_where_a_row_is_gone() -> None:
    assert told([1, 5, 9], last_seq=9, events=4) == [2, 6, 10]
