"""What a database's `verify` asks of the rows of one stream: that none is missing, changed, or out of its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar
from zlib import crc32

from runstate.logs.log import Finding

Place = TypeVar("Place", int, tuple[int, int])
"""Where an event stands in the feed."""


def checksum(
    seq: int, event_id: str, kind: str, key: str, tenant: str, emitted_at: str, persisted_at: str, body: bytes
) -> int:
    """CRC-32 over a row, so that a flipped bit or a column edited by hand is found."""
    envelope = f"{event_id}\0{kind}\0{key}\0{tenant}\0{emitted_at}\0{persisted_at}".encode()
    return crc32(envelope, crc32(body, seq & 0xFFFFFFFF))


def row_findings(
    stream: str, rows: Iterable[tuple[int, bool, Place]], origin: Place, last_seq: int, events: int
) -> Iterator[Finding]:
    """Findings for rows in the order of their seq, each with whether it is what was appended, and with its place.

    `origin` comes before every place; `last_seq` and `events` are what the stream's head says. Where there are as many
    events as it says, gaps are no finding: they were adopted with the events around them.
    """
    count, last, last_place = 0, 0, origin
    gaps: list[Finding] = []
    for seq, intact, place in rows:
        count += 1
        if seq != last + 1:
            gaps.append(
                Finding(
                    code="log.events_missing",
                    message=f"Events {last + 1} to {seq - 1} are gone; the stream is intact up to {last}",
                    stream=stream,
                    seq=last + 1,
                )
            )
        if not intact:
            yield Finding(
                code="log.event_changed",
                message=f"The row is not what was appended; the stream is intact up to {last}",
                stream=stream,
                seq=seq,
            )
        if place <= last_place:
            yield Finding(
                code="log.out_of_order",
                message="The event stands before its predecessor in the feed",
                stream=stream,
                seq=seq,
            )
        last, last_place = seq, place
    if count != events:
        yield from gaps
    if last != last_seq or count != events:
        yield Finding(
            code="log.events_missing",
            message=f"The head says {events} events up to {last_seq}, there are {count} up to {last}",
            stream=stream,
            seq=last + 1,
        )
