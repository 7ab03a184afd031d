"""Quarantine: one intact event is taken out of its stream because an operator asks for it, and is set aside whole.

A log that numbers its lines cannot hold a gap. There the events behind it are set aside too, in the same file.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from runstate.errors import EventNotFound, LogDamaged
from runstate.logs.log import Finding, Record
from runstate.logs.record_json import encode_record

QUARANTINED = "log.quarantined"
repair_first = "repair it before you quarantine an event, with 'runstate repair'"


def way_out(stream: str, seq: int) -> str:
    """The commands for an event that its model cannot use."""
    name = shlex.quote(stream)
    return (
        f"'runstate fetch URL {name} --after {seq - 1} --limit 1' shows it, "
        f"'runstate repair URL {name} --quarantine {seq}' takes it out of the stream and sets it aside"
    )


def absent_event(stream: str, seq: int) -> EventNotFound:
    return EventNotFound(f"The stream {stream!r} holds no event {seq}", stream=stream, seq=seq)


def check_intact(stream: str, findings: Iterable[Finding]) -> None:
    """
    Raises:
        LogDamaged: there is damage other than in snapshots and blobs. Nothing can be said about single events then.
    """
    for finding in findings:
        if finding.severity == "damage" and not finding.code.startswith(("snapshot.", "blob.")):
            raise LogDamaged(
                f"The stream {stream!r} is damaged ({finding.message}): {repair_first}", stream=stream, seq=finding.seq
            )


def aside_lines(records: Iterable[Record]) -> bytes:
    """What is set aside in a file: records, one per line, as `runstate append` takes them."""
    return b"".join(encode_record(record) + b"\n" for record in records)


def cut_finding(stream: str, seq: int, last_seq: int, aside: list[str]) -> Finding:
    """What a quarantine does in a log that cannot hold a gap: the same before it is done and after it."""
    behind = last_seq - seq
    parts = [f"Kept: {seq - 1} events", f"Quarantined: event {seq}"]
    if behind:
        parts.append(f"Set aside with it: {behind} intact events behind it, which 'runstate append' can append again")
    parts.append(f"Set aside: {', '.join(aside)}")
    details = {"kept": seq - 1, "setAside": aside, "behind": behind}
    return Finding(code=QUARANTINED, message=". ".join(parts), stream=stream, seq=seq, details=details)
