"""What a repair does with the rows of a damaged stream in a database: which stay, and which are set aside.

A plain repair keeps the events before the damage: a history that any fold can trust. A salvage keeps every event that
its checksum proves, and leaves gaps where others were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from runstate.logs.log import Finding

set_aside_table = "set_aside_events"
"""Holds the rows that a repair has taken out of their streams. It is made by the first repair."""
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

    @property
    def set_aside(self) -> list[int]:
        return sorted(self.changed + self.behind)

    def finding(self, stream: str) -> Finding:
        parts = [f"kept: {ranges(self.kept) or 'nothing'}"]
        if self.changed:
            parts.append(f"set aside in {set_aside_table}: {ranges(self.changed)} (changed)")
        if self.behind:
            parts.append(f"set aside with them: {ranges(self.behind)} (intact; repair --salvage keeps these)")
        if self.missing:
            parts.append(f"missing: {self.missing}")
        details = {"kept": len(self.kept), "setAside": len(self.set_aside), "missing": self.missing}
        message = f"Events by seq; {'; '.join(parts)}"
        return Finding(code="log.cut_back", message=message, stream=stream, details=details)


def plan_repair(rows: Iterable[tuple[int, bool]], last_seq: int, events: int, *, salvage: bool) -> RowRepair | None:
    """What to do about a stream whose rows have these seqs, ascending, each with whether it is intact.

    `last_seq` and `events` are what its head says. None: there is nothing to repair.
    """
    found = list(rows)
    missing = max(0, events - len(found))
    intact = [seq for seq, is_intact in found if is_intact]
    changed = [seq for seq, is_intact in found if not is_intact]
    if not changed and len(found) == events and (found[-1][0] if found else 0) == last_seq:
        return None
    end = changed[0] if changed else last_seq + 1
    if missing:  # Where as many events are there as the head says, gaps were adopted.
        gap = next((seq for number, seq in enumerate(intact, 1) if seq != number), end)
        end = min(end, gap)
    kept = intact if salvage else [seq for seq in intact if seq < end]
    return RowRepair(kept, changed, sorted(set(intact) - set(kept)), missing)


def set_aside_findings(counts: Iterable[tuple[str, int, str]]) -> Iterator[Finding]:
    """A reminder for each stream and repair: how many rows were set aside, and when."""
    for stream, count, moment in counts:
        message = f"{count} rows were set aside at {moment}, in {set_aside_table}; delete them when you are done"
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
