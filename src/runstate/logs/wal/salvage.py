"""Salvage: every entry that its checksums and its seq prove is kept, also behind damage.

In the stream, where it can hold them: a gap stands where entries are lost. Else in `wal.jsonl.salvaged`, line by line
as they were written: a stream that went on after a loss was decided without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from runstate.logs.log import Finding
from runstate.logs.record_json import record_seq
from runstate.logs.wal.entries import Entry, proven_entry, whole_entry, write_entry
from runstate.logs.wal.files import StreamFiles, backups, read_or_none
from runstate.logs.wal.findings import report_finding, wal_finding
from runstate.logs.wal.held import Held
from runstate.logs.wal.ledger import Ledger, replace_wal
from runstate.storage.disk import Disk, replace_durably

SALVAGED = "log.salvaged"
SET_ASIDE = "log.set_aside"


class Gathered(NamedTuple):
    """The entries of a WAL, and what cannot stand beside them."""

    entries: dict[int, Entry]
    """By seq."""
    conflicts: list[bytes]
    """Lines of proven entries whose seq has another entry, or was never given out."""

    def add(self, lines: Iterable[bytes], ledger: Ledger) -> None:
        begin = 1 if ledger.removed is None else ledger.removed.before_seq
        for line in lines:
            entry = proven_entry(line)
            if entry is None or (entry.seq < begin and entry.seq not in self.entries):
                continue  # Not proven, or in a snapshot already.
            if (ledger.reserved and entry.seq > ledger.reserved) or self.entries.setdefault(entry.seq, entry) != entry:
                self.conflicts.append(line)

    def written(self, ledger: Ledger) -> bytes:
        """A WAL of the entries. Where one is missing, the next says so; an append that lacks some ends before them."""
        previous = 0 if ledger.removed is None else ledger.removed.before_seq - 1
        lines, ordered = [], [self.entries[seq] for seq in sorted(self.entries)]
        for entry, following in zip_longest(ordered, ordered[1:]):
            envelope = entry.envelope
            is_cut = following is None or (following.seq, following.envelope.more) != (entry.seq + 1, envelope.more - 1)
            if envelope.more and is_cut:
                envelope = msgspec.structs.replace(envelope, more=0)
            if entry.seq > previous and entry.previous_seq != previous:
                envelope = msgspec.structs.replace(envelope, after=None if previous == entry.seq - 1 else previous)
            lines.append(write_entry(entry.seq, entry.body, envelope))
            previous = entry.seq
        return b"".join(lines)


def gather(stream: str, intact: bytes, behind: bytes, ledger: Ledger) -> Gathered:
    """The entries of lines that are intact in their places, and all that are proven among the lines behind them."""
    entries = [entry for line in intact.split(b"\n") if (entry := whole_entry(stream, line)) is not None]
    begin = 1 if ledger.removed is None else ledger.removed.before_seq
    gathered = Gathered({entry.seq: entry for entry in entries if entry.seq >= begin}, [])
    gathered.add(behind.split(b"\n"), ledger)
    return gathered


def salvage_evidence(disk: Disk, files: StreamFiles, held: Held, report: list[Finding]) -> bool:
    """Bring back what earlier recoveries have left in `.bak` files alone. True: the WAL was written anew."""
    ledger, lost = held.ledger, Gathered({}, [])
    for suffix in backups:
        data = read_or_none(disk, files.wal.with_name(files.wal.name + suffix))
        lost.add([] if data is None else data.split(b"\n"), ledger)
    stored, known = {*held.keys.values(), *_quarantined_seqs(disk, files)}, {*held.keys, *held.old_keys}
    missing = {
        seq: entry for seq, entry in lost.entries.items() if seq not in stored and entry.envelope.known_key not in known
    }
    if not missing:
        return False
    span = f"{len(missing)} events with seq {min(missing)} to {max(missing)}"
    if min(missing) <= held.tail_seq:
        lines = [write_entry(entry.seq, entry.body, entry.envelope).rstrip(b"\n") for entry in missing.values()]
        message = f"{span} were lost to damage, and the stream went on without them"
        set_lines_aside(disk, files, lines, message, report)
        return False
    whole = gather(files.stream, read_or_none(disk, files.wal) or b"", b"", ledger)
    whole.entries.update(missing)
    last_seq, floor_seq = max(whole.entries), max(held.last_seq, *whole.entries)
    replace_wal(
        disk, files, msgspec.structs.replace(ledger, last_seq=last_seq, floor_seq=floor_seq), whole.written(ledger)
    )
    message = f"{span} are proven by their checksums, and are back in the stream"
    report_finding(report, wal_finding(files, SALVAGED, message, min(missing), salvaged=len(missing)))
    return True


def _quarantined_seqs(disk: Disk, files: StreamFiles) -> set[int]:
    """The seqs of entries that were taken out on purpose. They are not lost, also where a `.bak` holds them."""
    lines = (read_or_none(disk, files.quarantined) or b"").split(b"\n")
    return {seq for line in lines if (seq := record_seq(line)) is not None}


def set_lines_aside(disk: Disk, files: StreamFiles, lines: list[bytes], why: str, report: list[Finding]) -> None:
    """Add lines to the file for what the stream cannot hold. What it holds already is not reported again."""
    kept = [line for line in (read_or_none(disk, files.salvaged) or b"").split(b"\n") if line]
    new = [line for line in lines if line not in kept]
    if new:
        replace_durably(disk, files.salvaged, b"".join(line + b"\n" for line in (*kept, *new)))
        message = f"{why}; they are in {files.salvaged.name}, one per line"
        report_finding(
            report, wal_finding(files, SET_ASIDE, message, None, evidence=str(files.salvaged), lines=len(new))
        )
