"""How a group of appends becomes rows, in the transaction of a writer that holds the gate.

While it is held nobody else writes, so what is looked up stays true until the commit: where the streams stand, and
which keys they know. Everything that is sent is one JSON array per statement, whatever the number of rows.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec

from runstate.errors import EventTooLarge, InvalidEvent, LogDamaged, LogFailed, RunstateError
from runstate.logs.adoption import key_taken, new_records
from runstate.logs.log import AppendResult, Record, StoredSnapshot
from runstate.logs.planning import StreamPlan, render_record
from runstate.logs.snapshotting import MakeSnapshot, StreamEnd
from runstate.logs.snowflake.connections import Session
from runstate.logs.snowflake.row_parts import join_rows, rows_table
from runstate.logs.snowflake.snapshots import body_bytes_max, save_with_events
from runstate.logs.stored_rows import changed_error
from runstate.logs.stream_models import model_after
from runstate.logs.tombstones import Tombstone, if_counting
from runstate.models.canonical import digest
from runstate.models.model import Draft

record_columns = "seq, event_id, type, key, tenant, emitted_at, persisted_at, body"
checked_columns = f"position, stream, {record_columns}, crc"

# One round trip: what the gate has given, the streams' heads, the events under these keys, the last lines, tombstones.
_look = f"""
WITH wanted AS (SELECT value[0]::VARCHAR AS stream, value[1]::VARCHAR AS key FROM {rows_table}),
ended AS (SELECT value::VARCHAR AS stream FROM {rows_table})
SELECT 'gate' AS kind, '' AS stream, last_position AS seq, 0 AS events, '' AS key, '' AS event_id,
    TO_CHAR(SYSDATE(), 'YYYY-MM-DD HH24:MI:SS.FF3') AS persisted_at, CAST(NULL AS BINARY) AS body,
    '' AS type, '' AS tenant, '' AS emitted_at, 0 AS position, 0 AS crc FROM runstate_log
UNION ALL
SELECT 'head', stream, last_seq, events, model, tenant, first_persisted_at, CAST(NULL AS BINARY), '', '', '', 0, 0
FROM streams WHERE stream IN (SELECT stream FROM wanted)
UNION ALL
SELECT 'event', e.stream, e.seq, 0, e.key, e.event_id, e.persisted_at, e.body, e.type, e.tenant, e.emitted_at,
    e.position, e.crc
FROM events e JOIN (SELECT DISTINCT stream, key FROM wanted) w ON e.stream = w.stream AND e.key = w.key
UNION ALL
SELECT 'last', e.stream, e.seq, 0, '', '', '', e.body, '', '', '', 0, 0
FROM events e JOIN streams s ON e.stream = s.stream AND e.seq = s.last_seq
WHERE s.stream IN (SELECT stream FROM ended)
UNION ALL
SELECT 'tombstone', stream, last_seq, 0, digest, archive, deleted_at, CAST(NULL AS BINARY), '', '', '', 0, 0
FROM tombstones WHERE stream IN (SELECT stream FROM wanted)
"""
# What a MERGE inserts when nothing matches. The gate and the look-up have seen to that; whoever writes past them is met
# here: then fewer rows are written than were sent.
_write = f"""
INSERT INTO events (position, stream, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
SELECT n.* FROM (
    SELECT value[0]::NUMBER(38, 0) AS position, value[1]::VARCHAR AS stream, value[2]::NUMBER(38, 0) AS seq,
        value[3]::VARCHAR AS event_id, value[4]::VARCHAR AS type, value[5]::VARCHAR AS key, value[6]::VARCHAR AS tenant,
        value[7]::VARCHAR AS emitted_at, value[8]::VARCHAR AS persisted_at, value[9]::NUMBER(38, 0) AS crc,
        TO_BINARY(value[10]::VARCHAR, 'BASE64') AS body
    FROM {rows_table}
) n
LEFT JOIN events k ON k.stream = n.stream AND k.key = n.key
LEFT JOIN events s ON s.stream = n.stream AND s.seq = n.seq
WHERE k.stream IS NULL AND s.stream IS NULL
"""
_heads = f"""(
    SELECT value[0]::VARCHAR AS stream, value[1]::VARCHAR AS tenant, value[2]::NUMBER(38, 0) AS last_seq,
        value[3]::NUMBER(38, 0) AS events, value[4]::NUMBER(38, 0) AS first_position,
        value[5]::VARCHAR AS first_persisted_at, value[6]::VARCHAR AS last_persisted_at, value[7]::VARCHAR AS model
    FROM {rows_table}
) n"""
_move_heads = f"""
UPDATE streams SET last_seq = n.last_seq, events = n.events, last_persisted_at = n.last_persisted_at
FROM {_heads} WHERE streams.stream = n.stream
"""
_new_heads = f"""
INSERT INTO streams (stream, tenant, last_seq, events, first_position, first_persisted_at, last_persisted_at, model)
SELECT stream, tenant, last_seq, events, first_position, first_persisted_at, last_persisted_at, model FROM {_heads}
"""
drop_tombstone = "DELETE FROM tombstones WHERE stream = ?"
_held = f"SELECT {record_columns} FROM events WHERE stream = ? AND seq BETWEEN ? AND ?"


class Stream(StreamPlan):
    """Where a stream stands, with what this transaction adds to it."""

    __slots__ = ("end", "events", "first_persisted_at", "make", "rows")

    def __init__(
        self,
        stream: str,
        last_seq: int = 0,
        tenant: str = "",
        model: str = "",
        events: int = 0,
        first_persisted_at: str = "",
    ) -> None:
        self.rows: dict[str, tuple[Any, ...]] = {}
        """Of the keys that were asked for, those that are known."""
        super().__init__(stream, last_seq, tenant, model, find=self._find)
        self.events = events
        """As they were before; 0: the stream is new."""
        self.first_persisted_at = first_persisted_at
        self.make: MakeSnapshot | None = None
        self.end = None if events else StreamEnd()
        """Where the stream ended before; None where its last line was not asked for."""

    def add_append(self, append: Append, persisted_at: str) -> list[AppendResult]:
        """`add`, for one append of a group. The last one that keeps snapshots makes one for all of them."""
        results = self.add(append.drafts, append.expected_seq, persisted_at, _render_checked)
        self.make = append.make or self.make
        return results

    def make_snapshot(self) -> StoredSnapshot | None:
        """The snapshot to be saved with what is new."""
        if self.make is None or self.end is None or not self.new:
            return None
        return self.make(self.end, list(self.new.values()))

    def _find(self, key: str) -> Record | None:
        """
        Raises:
            LogDamaged: the event of that key is not what was appended.
        """
        return read_row(self.rows[key]) if key in self.rows else None


class Append:
    """One caller's append: what it asks for, and what came of it."""

    __slots__ = ("drafts", "error", "expected_seq", "make", "result", "stream")

    def __init__(
        self, stream: str, drafts: Sequence[Draft], expected_seq: int | None, make: MakeSnapshot | None = None
    ) -> None:
        self.stream, self.drafts, self.expected_seq, self.make = stream, drafts, expected_seq, make
        self.result: list[AppendResult] = []
        self.error: RunstateError | None = None

    def answer(self) -> list[AppendResult]:
        if self.error is not None:
            raise self.error
        return self.result


def checksum(position: int, record: Record) -> int:
    """CRC-32 over a row, so that a flipped bit or a column edited by hand is found."""
    r = record
    envelope = f"{position}\0{r.stream}\0{r.seq}\0{r.event_id}\0{r.type}\0{r.key}\0{r.tenant}\0{r.emitted_at}"
    return crc32(f"{envelope}\0{r.persisted_at}".encode(), crc32(r.body))


def read_row(row: Sequence[Any]) -> Record:
    """The record in a row of `checked_columns`.

    Raises:
        LogDamaged: the row is not what was appended.
    """
    position, *columns, crc = row
    record = Record(*columns)
    try:
        is_intact = checksum(position, record) == crc
    except (TypeError, ValueError):  # A column of another type than the one that was written.
        is_intact = False
    if not is_intact:
        raise changed_error(record.stream, record.seq)
    return record


def append_group(session: Session, appends: Sequence[Append]) -> None:
    """Write a group of appends. Each gets its result, or the error that refuses it and it alone."""
    wanted = [(append.stream, draft.key) for append in appends for draft in append.drafts]
    ended = {append.stream for append in appends if append.make or any(draft.chained for draft in append.drafts)}
    streams, last_position, persisted_at = _look_up(session, wanted, ended)
    for append in appends:
        append.error = None
        try:
            append.result = streams[append.stream].add_append(append, persisted_at)
        except RunstateError as error:
            append.error = error
    _write_streams(session, streams, last_position - len(wanted))
    made = [(name, at.make_snapshot(), at.events == 0) for name, at in streams.items()]
    save_with_events(session, [(name, snapshot, is_new) for name, snapshot, is_new in made if snapshot is not None])


def adopt_records(session: Session, stream: str, records: Sequence[Record], model: str) -> int:
    """Write those of a log's records that are new to the stream; how many they are.

    Raises:
        ModelMismatch: the stream records another model; nothing was written.
        SequenceConflict: the stream holds something else in their place; nothing was written.
        InvalidEvent, EventTooLarge: one of them cannot be kept.
    """
    streams, last_position, _ = _look_up(session, [(stream, record.key) for record in records], set())
    at = streams[stream]
    at.model = model_after(stream, at.model, model, at.last_seq)
    held = session.rows(_held, stream, records[0].seq, min(records[-1].seq, at.last_seq)) if at.last_seq else []
    new = new_records(stream, records, at.last_seq, (Record(stream, *row) for row in held))
    for record in new:
        if record.key in at.rows:
            raise key_taken(record, at.last_seq)
        _check(record)
    at.new = {record.key: record for record in new}
    _write_streams(session, streams, last_position - len(records))
    if new and at.tombstone is not None and if_counting(at.tombstone, new[-1].seq) is None:
        session.change(drop_tombstone, stream)
    return len(new)


def _look_up(
    session: Session, wanted: Sequence[tuple[str, str]], ended: set[str]
) -> tuple[dict[str, Stream], int, str]:
    """The streams as they stand, the last position that was given to this transaction, and the server's time.

    `ended` are those whose last line is needed.
    """
    streams: dict[str, Stream] = {}
    last_position, time = 0, ""
    found = session.rows(_look, _json(wanted), _json(sorted(ended)))
    for kind, stream, seq, events, model, tenant, began_at, *_ in found:
        if kind == "head":
            streams[stream] = Stream(stream, seq, tenant, model, events, began_at)
    for stream, _ in wanted:
        streams.setdefault(stream, Stream(stream))
    for kind, stream, seq, _, key, event_id, persisted_at, body, *rest in found:
        if kind == "gate":
            last_position, time = seq, f"{persisted_at.replace(' ', 'T')}Z"
        elif kind == "event":
            type_, tenant, emitted_at, position, crc = rest
            envelope = (seq, event_id, type_, key, tenant, emitted_at, persisted_at)
            streams[stream].rows[key] = (position, stream, *envelope, body, crc)
        elif kind == "last":
            at = streams[stream]
            at.previous, at.end = body, StreamEnd(at.first_persisted_at, seq, digest(body))
        elif kind == "tombstone":
            streams[stream].tombstone = Tombstone(stream, seq, key, event_id, persisted_at)
    return streams, last_position, time


def _render_checked(stream: str, seq: int, persisted_at: str, draft: Draft, previous: bytes | None) -> Record:
    record = render_record(stream, seq, persisted_at, draft, previous)
    _check(record)
    return record


def _check(record: Record) -> None:
    if len(record.body) > body_bytes_max:
        raise EventTooLarge(
            f"The event has {len(record.body)} bytes, and Snowflake keeps {body_bytes_max} at most; "
            "keep the payload as a blob and append its reference"
        )
    texts = (record.event_id, record.type, record.key, record.tenant, record.emitted_at, record.persisted_at)
    if any("\0" in text for text in texts):
        raise InvalidEvent("The event has a NUL in its id, type, key, tenant or time")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise LogFailed(f"It cannot be written: {error!r}") from error


def _write_streams(session: Session, streams: dict[str, Stream], position: int) -> None:
    """Write what is new, at the positions after `position`."""
    heads: dict[bool, list[tuple[Any, ...]]] = {True: [], False: []}
    rows: list[tuple[int, Record]] = []
    for name, at in streams.items():
        if not (new := list(at.new.values())):
            continue
        first, last, events = new[0], new[-1], at.events + len(new)
        times = (first.persisted_at, last.persisted_at)
        is_new = at.events == 0
        heads[is_new].append((name, first.tenant, last.seq, events, position + len(rows) + 1, *times, at.model))
        rows += enumerate(new, position + len(rows) + 1)
    written = write_rows(session, rows)
    if heads[True]:
        written += insert_heads(session, heads[True])
    if heads[False]:
        written += session.change(_move_heads, _json(heads[False]))
    if written != len(rows) + len(heads[True]) + len(heads[False]):
        raise LogDamaged(
            "The tables hold events that no append of this log wrote; nothing was written, run 'runstate verify'"
        )


def write_rows(session: Session, rows: Sequence[tuple[int, Record]]) -> int:
    """Write records at their positions; how many were written."""
    return sum(session.change(_write, part) for part in join_rows(_encode(*row) for row in rows))


def insert_heads(session: Session, heads: Sequence[tuple[Any, ...]]) -> int:
    return session.change(_new_heads, _json(heads))


def _encode(position: int, r: Record) -> bytes:
    envelope = (position, r.stream, r.seq, r.event_id, r.type, r.key, r.tenant, r.emitted_at, r.persisted_at)
    return msgspec.json.encode((*envelope, checksum(position, r), b64encode(r.body).decode()))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
