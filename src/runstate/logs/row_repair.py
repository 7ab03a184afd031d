"""What a repair does with the rows of a damaged stream in a database: which stay, and which are set aside.

A plain repair keeps the events before the damage: a history that any fold can trust. A salvage keeps every event that
its checksum proves, and leaves gaps where others were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from runstate.errors import LogDamaged
from runstate.logs.log import Finding
from runstate.logs.quarantine import QUARANTINED, absent_event, repair_first
from runstate.logs.stored_rows import Place

set_aside_table = "set_aside_events"
"""Holds the rows that a repair has taken out of their streams. It is made by the first repair."""
quarantine_table = "quarantined_events"
"""Holds the rows that a quarantine has taken out: intact ones, which a salvage must not take for lost. It is made by
the first quarantine."""
aside_tables = (set_aside_table, quarantine_table)
count_set_aside = "SELECT stream, count(*), set_aside_at FROM {table} GROUP BY 1, 3 ORDER BY 3, 1"


class RowRepair(msgspec.Struct, frozen=True):
    """What stays of a stream, and what does not."""

    kept: list[int]
    changed: list[int]
    """Set aside, since they are not what was appended."""
    behind: list[int]
    """Set aside, since they are behind the damage, though each of them is intact."""
    missing: int
    """How many events are gone without a trace."""
    doubled: list[int] = []
    """Of these, which stay, there are further rows: set aside. Only in a database that enforces no unique keys."""
    moved: list[int] = []
    """These stay, and get new places in the feed, since they stood before their predecessors."""
    quarantined: list[int] = []
    """Set aside because the operator asked for it, though intact."""

    @property
    def set_aside(self) -> list[int]:
        return sorted(self.changed + self.behind + self.quarantined)

    @property
    def table(self) -> str:
        """Where the rows go."""
        return quarantine_table if self.quarantined else set_aside_table

    def finding(self, stream: str, place: str = "") -> Finding:
        place = place or self.table
        parts = [f"kept: {ranges(self.kept) or 'nothing'}"]
        if self.quarantined:
            parts.append(f"quarantined, in {place}: {ranges(self.quarantined)}")
        if self.changed:
            parts.append(f"set aside in {place}: {ranges(self.changed)} (changed)")
        if self.behind:
            instead = "intact; 'repair --salvage' in place of a plain repair keeps these"
            parts.append(f"set aside with them: {ranges(self.behind)} ({instead})")
        if self.doubled:
            parts.append(f"set aside in {place}: further rows of {ranges(self.doubled)}")
        if self.moved:
            parts.append(f"new places in the feed: {ranges(self.moved)}")
        if self.missing:
            parts.append(f"missing: {self.missing}")
        details = {"kept": len(self.kept), "setAside": len(self.set_aside), "missing": self.missing}
        message = f"Events by seq; {'; '.join(parts)}"
        code, seq = (QUARANTINED, self.quarantined[0]) if self.quarantined else ("log.cut_back", None)
        return Finding(code=code, message=message, stream=stream, seq=seq, details=details)


def plan_repair(
    rows: Iterable[tuple[int, bool]],
    last_seq: int,
    events: int,
    *,
    salvage: bool,
    is_head_sound: bool = True,
    is_rest_sound: bool = True,
    places: Mapping[int, Place] | None = None,
) -> RowRepair | None:
    """What to do about a stream whose rows have these seqs, ascending, each with whether it is intact.

    `last_seq` and `events` are what its head says; they count for nothing if it is not sound. The rest is what else
    there is to repair. `places` are those of the events in the feed. None: there is nothing to repair.
    """
    found: dict[int, list[bool]] = {}
    for seq, is_intact in rows:
        found.setdefault(seq, []).append(is_intact)
    intact = [seq for seq, copies in found.items() if any(copies)]
    changed = [seq for seq, copies in found.items() if not any(copies)]
    doubled = [seq for seq, copies in found.items() if any(copies) and len(copies) > 1]
    last_found = max(found, default=0)
    fits = is_head_sound and len(found) == events
    is_whole = fits and is_rest_sound and last_found == last_seq
    if is_whole and not changed and not doubled and not _misplaced(intact, places):
        return None
    missing = max(0, events - len(found)) if is_head_sound else 0
    ends = changed[:1]
    if not fits and is_head_sound:
        ends.append(last_seq + 1)  # Rows behind the head may be those of another stream.
    if missing or not is_head_sound:  # Where as many events are there as the head says, gaps were adopted.
        ends += [number for number, seq in enumerate(intact, 1) if seq != number][:1]
    kept = intact if salvage else [seq for seq in intact if seq < min(ends, default=seq + 1)]
    behind = sorted(set(intact) - set(kept))
    doubled = [seq for seq in doubled if seq in set(kept)]
    return RowRepair(kept, changed, behind, missing, doubled, _misplaced(kept, places))


def plan_quarantine(stream: str, seqs: Iterable[int], damage: RowRepair | None, seq: int) -> RowRepair:
    """Take one event out of an intact stream that has these seqs; `damage` is what there is to repair in it.

    The events behind it keep their seqs: a database holds streams with gaps.

    Raises:
        LogDamaged: there is damage.
        EventNotFound: there is no such event.
    """
    if damage is not None:
        raise LogDamaged(f"The stream {stream!r} is damaged: {repair_first}", stream=stream)
    kept = list(seqs)
    if seq not in kept:
        raise absent_event(stream, seq)
    kept.remove(seq)
    return RowRepair(kept, [], [], 0, quarantined=[seq])


def _misplaced(seqs: Sequence[int], places: Mapping[int, Place] | None) -> list[int]:
    """From the first event on that does not stand behind its predecessor in the feed."""
    for number, (one, other) in enumerate(pairwise(seqs) if places else (), 1):
        if places is not None and places[other] <= places[one]:
            return list(seqs[number:])
    return []


def set_aside_findings(counts: Iterable[tuple[str, int, str]], place: str = set_aside_table) -> Iterator[Finding]:
    """A reminder for each stream and repair: how many rows were set aside, and when."""
    for stream, count, moment in counts:
        message = f"{count} rows were set aside at {moment}, in {place}; delete them when you are done"
        yield Finding(code="log.set_aside", message=message, severity="warning", stream=stream)


def ranges(seqs: Sequence[int]) -> str:
    """Numbers in words: `1 to 4, 7`."""
    parts: list[list[int]] = []
    for seq in seqs:
        if parts and seq == parts[-1][1] + 1:
            parts[-1][1] = seq
        else:
            parts.append([seq, seq])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in parts)
