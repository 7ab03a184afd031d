"""The rows that events have in a database: the checksum that each carries, and what is asked of them.

No row is returned to a reader that is not what was appended. `verify` asks more of the rows of one stream: that none is
missing or out of its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar
from zlib import crc32

from google_crc32c import extend as extend_crc32c

from runstate.errors import LogDamaged
from runstate.logs.log import Finding, Record, StoredSnapshot

Place = TypeVar("Place", int, tuple[int, int])
"""Where an event stands in the feed."""

record_columns = "e.seq, e.event_id, e.type, e.key, e.tenant, e.emitted_at, e.persisted_at, e.body, e.crc"
"""What `read_records` takes, of the table `events e`."""

_two = -(1 << 63)
"""Added to a pair of checksums: it makes them one negative number of 64 bits."""
_low = 0xFFFFFFFF


def checksum(
    stream: str,
    seq: int,
    event_id: str,
    kind: str,
    key: str,
    tenant: str,
    emitted_at: str,
    persisted_at: str,
    body: bytes,
) -> int:
    """A row's checksums, so that a flipped bit or a column edited by hand is found.

    There are two in one number. Its low 32 bits are the CRC-32C of the line, for those who read nothing else; the next
    31 bits are of the CRC-32C of the whole row. Both are bound to the stream and to `seq`, so that a row that was moved
    is found too. Rows of earlier versions are bound to `seq` alone, or have a CRC-32, which is not negative.
    """
    return _checksum(_start(stream), seq, event_id, kind, key, tenant, emitted_at, persisted_at, body)


def checksums(stream: str, records: Iterable[Record]) -> list[int]:
    """`checksum` of each record of a stream. In one loop, as calls cost more than what they compute."""
    start, found = _start(stream), []
    for r in records:
        line = extend_crc32c(start ^ r.seq & _low, r.body)
        envelope = f"{r.event_id}\0{r.type}\0{r.key}\0{r.tenant}\0{r.emitted_at}\0{r.persisted_at}"
        found.append(_two + ((extend_crc32c(line, envelope.encode()) & 0x7FFFFFFF) << 32 | line))
    return found


def _start(stream: str) -> int:
    """What the checksums of a stream's rows start with, before `seq` is added."""
    found: int = extend_crc32c(0, stream.encode())
    return found


def _checksum(
    start: int,
    seq: int,
    event_id: str,
    kind: str,
    key: str,
    tenant: str,
    emitted_at: str,
    persisted_at: str,
    body: bytes,
) -> int:
    line: int = extend_crc32c(start ^ seq & _low, body)
    row: int = extend_crc32c(line, f"{event_id}\0{kind}\0{key}\0{tenant}\0{emitted_at}\0{persisted_at}".encode())
    return _two + ((row & 0x7FFFFFFF) << 32 | line)


def _checksum_1(
    seq: int, event_id: str, kind: str, key: str, tenant: str, emitted_at: str, persisted_at: str, body: bytes
) -> int:
    envelope = f"{event_id}\0{kind}\0{key}\0{tenant}\0{emitted_at}\0{persisted_at}".encode()
    return crc32(envelope, crc32(body, seq & 0xFFFFFFFF))


def is_intact(stream: str, row: Sequence[Any]) -> bool:
    """Whether the columns of a row still have their checksum, which is the last one."""
    *columns, crc = row
    try:
        if crc >= 0:
            return bool(crc == _checksum_1(*columns))
        return bool(crc == checksum(stream, *columns) or crc == _checksum(0, *columns))
    except (TypeError, ValueError, AttributeError):  # A column of another type than the one that was written.
        return False


def read_records(stream: str, rows: Sequence[Sequence[Any]]) -> list[Record]:
    """
    Raises:
        LogDamaged: one of the rows is not what was appended.
    """
    records: list[Record] = []
    try:
        start = _start(stream)
        for seq, event_id, kind, key, tenant, emitted_at, persisted_at, body, crc in rows:
            # As `checksum` does, without a call for each row of a long read.
            line = extend_crc32c(start ^ seq & _low, body)
            row = extend_crc32c(line, f"{event_id}\0{kind}\0{key}\0{tenant}\0{emitted_at}\0{persisted_at}".encode())
            if crc != _two + ((row & 0x7FFFFFFF) << 32 | line):
                break
            records.append(Record(stream, seq, event_id, kind, key, tenant, emitted_at, persisted_at, body))
        else:
            return records
    except (TypeError, ValueError, AttributeError):  # A column of another type than the one that was written.
        pass
    return [_read_record(stream, row) for row in rows]


def read_feed(rows: Sequence[Sequence[Any]]) -> list[Record]:
    """The records of rows that begin with their stream, up to one that is not what was appended.

    Raises:
        LogDamaged: it is the first one.
    """
    by_stream: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        by_stream.setdefault(row[0], []).append(row[1:])
    try:
        read = {stream: iter(read_records(stream, own)) for stream, own in by_stream.items()}
        return [next(read[row[0]]) for row in rows]
    except LogDamaged:
        return _read_feed_up_to_damage(rows)


def _read_feed_up_to_damage(rows: Sequence[Sequence[Any]]) -> list[Record]:
    records: list[Record] = []
    try:
        for row in rows:
            records.append(_read_record(row[0], row[1:]))
    except LogDamaged:
        if not records:
            raise
    return records


def _read_record(stream: str, row: Sequence[Any]) -> Record:
    if not is_intact(stream, row):
        raise changed_error(stream, row[0])
    return Record(stream, *row[:-1])


def read_lines(stream: str, rows: Sequence[tuple[Any, Any, Any]]) -> list[bytes] | None:
    """The lines of rows of seq, body and crc. None if one has the checksum of an earlier version, of the row alone.

    Raises:
        LogDamaged: one of them is not what was appended.
    """
    start = _start(stream)
    try:
        lines = [body for seq, body, crc in rows if crc & _low == extend_crc32c(start ^ seq & _low, body)]
    except TypeError:
        lines = []
    if len(lines) == len(rows):
        return lines
    for seq, body, crc in rows:
        if not isinstance(crc, int) or not isinstance(body, bytes) or not isinstance(seq, int):
            raise changed_error(stream, seq)
        if crc >= 0:
            return None
        if crc & _low not in (extend_crc32c(start ^ seq & _low, body), extend_crc32c(seq & _low, body)):
            raise changed_error(stream, seq)
    return [body for _, body, _ in rows]


def changed_error(stream: str, seq: object) -> LogDamaged:
    return LogDamaged(
        f"Event {seq} of {stream!r} is not what was appended: a column was changed. 'runstate verify' lists what is "
        "damaged, 'runstate repair' sets it aside",
        stream=stream,
        seq=seq,
    )


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


class Ends:
    """The first and the last event of a stream, to compare with what its head repeats of them."""

    def __init__(self) -> None:
        self._first: tuple[bool, object, object] | None = None
        self._last: tuple[bool, object, object] | None = None

    def note(self, is_intact: bool, tenant: object, persisted_at: object) -> bool:
        """Take note of the next event. Returns whether it is intact."""
        self._last = (is_intact, tenant, persisted_at)
        self._first = self._first or self._last
        return is_intact

    def fit(self, tenant: object, first_persisted_at: object, last_persisted_at: object) -> bool:
        """Whether a head repeats them. Where they are not intact themselves, nothing can be said against it."""
        if self._first is None or self._last is None or not (self._first[0] and self._last[0]):
            return True
        return (*self._first[1:], self._last[2]) == (tenant, first_persisted_at, last_persisted_at)


def head_finding(stream: str) -> Finding:
    message = "The tenant or a time in the head of the stream is not that of its events; repair corrects it"
    return Finding(code="log.head_changed", message=message, stream=stream)


def snapshot_findings(stream: str, kept: StoredSnapshot, last_seq: int | None = None) -> Iterator[Finding]:
    """Findings for a stored snapshot of a stream that ends at `last_seq`, where both were read at one moment."""
    rebuild = "it can be rebuilt with 'runstate replay'"
    if not kept.is_intact:
        message = f"The stored {kept.model} snapshot is not what was saved; {rebuild}"
        yield Finding(code="snapshot.digest_mismatch", message=message, stream=stream, seq=kept.seq)
    elif last_seq is not None and kept.seq > last_seq:
        message = f"The stored {kept.model} snapshot is at seq {kept.seq}, but the stream ends at {last_seq}; {rebuild}"
        yield Finding(code="snapshot.beyond_end", message=message, stream=stream, seq=kept.seq)
