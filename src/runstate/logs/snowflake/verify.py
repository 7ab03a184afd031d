"""What `verify` looks at in a Snowflake log: above all that the keys are unique, which nothing else enforces.

No two statements see the same moment. So everything is held against the position that the gate had given when the heads
were read: what was appended later stands behind it, and a stream that was deleted meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby

from runstate.logs.blob_refs import changed_blob
from runstate.logs.log import Finding, Record, StoredSnapshot
from runstate.logs.snowflake.appends import checksum, record_columns
from runstate.logs.snowflake.connections import Row, Session
from runstate.logs.snowflake.repair import set_aside
from runstate.logs.stored_rows import Ends, head_finding, row_findings, snapshot_findings

heads_page = 1000

_heads = """
SELECT s.stream, s.last_seq, s.events, s.first_position, g.last_position, s.tenant, s.first_persisted_at,
    s.last_persisted_at
FROM streams s CROSS JOIN (SELECT MAX(last_position) AS last_position FROM runstate_log) g
WHERE {where} ORDER BY s.stream LIMIT ?
"""
_in_range = "WHERE stream BETWEEN ? AND ?"
_rows = f"""
SELECT stream, {record_columns}, crc, position FROM events {_in_range} AND position <= ? ORDER BY stream, seq, position
"""
_same_keys = f"""
SELECT stream, key, COUNT(DISTINCT seq), MIN(seq), MAX(seq) FROM events {_in_range} AND position <= ?
GROUP BY stream, key HAVING COUNT(DISTINCT seq) > 1 ORDER BY stream, key LIMIT 1000
"""
_snapshots = f"SELECT stream, model, version, seq, digest, body FROM snapshots {_in_range} ORDER BY stream, model"
_incarnations = f"SELECT stream, first_position FROM streams {_in_range}"

_gate = "SELECT COUNT(*) FROM runstate_log"
_orphans = """
SELECT e.stream, COUNT(*), MIN(e.seq) FROM events e WHERE NOT EXISTS (SELECT 1 FROM streams s WHERE s.stream = e.stream)
GROUP BY e.stream ORDER BY e.stream LIMIT 1000
"""
_same_positions = """
SELECT stream, MAX(seq), position FROM events
WHERE position IN (SELECT position FROM events GROUP BY position HAVING COUNT(*) > 1)
GROUP BY stream, position ORDER BY position, stream LIMIT 1000
"""
_ahead = """
SELECT e.stream, e.seq, e.position FROM events e
WHERE e.position > (SELECT MAX(last_position) FROM runstate_log) ORDER BY e.position LIMIT 1000
"""
_blobs = "SELECT digest, part, data FROM blobs ORDER BY digest, part"


def stream_findings(session: Session, after: str, *, only: str | None = None) -> tuple[str | None, list[Finding]]:
    """Findings for a range of streams after `after`, or for one; and the last of the range, None at the end."""
    where = "s.stream > ?" if only is None else "s.stream = ?"
    heads = session.rows(_heads.format(where=where), after, heads_page)
    if not heads:
        return None, []
    first, last, position = heads[0][0], heads[-1][0], heads[0][4]
    found = [*_events(session, heads, position), *_same(session, first, last, position), *_kept(session, first, last)]
    if found:
        there: dict[str, int] = dict(session.rows(_incarnations, first, last))
        gone = {head[0] for head in heads if there.get(head[0]) != head[3]}
        found = [finding for finding in found if finding.stream not in gone]
    return last, found


def rest_findings(session: Session) -> list[Finding]:
    """Findings beyond single streams."""
    ((gates,),) = session.rows(_gate)
    found = []
    if gates != 1:
        found.append(Finding(code="snowflake.gate", message=f"runstate_log has {gates} rows instead of one"))
    for stream, count, seq in session.rows(_orphans):
        message = f"{count} events belong to the stream {stream!r}, which is not there"
        found.append(Finding(code="snowflake.orphan_events", message=message, stream=stream, seq=seq))
    for stream, seq, position in session.rows(_same_positions):
        message = f"Position {position} was given to more than one event; a reader of the feed may miss one"
        found.append(Finding(code="snowflake.duplicate_position", message=message, stream=stream, seq=seq))
    for stream, seq, position in session.rows(_ahead):
        message = f"Position {position} is still to come, so the feed will give it to another event"
        found.append(Finding(code="snowflake.position_ahead", message=message, stream=stream, seq=seq))
    found += set_aside(session)
    return found + list(_changed_blobs(session.each(_blobs)))


def _events(session: Session, heads: list[Row], position: int) -> Iterator[Finding]:
    known: dict[str, Row] = {}
    for head in heads:
        if head[0] in known:
            message = "There is more than one head of this stream"
            yield Finding(code="snowflake.duplicate_head", message=message, stream=head[0], seq=head[1])
        known[head[0]] = head
    seen = set()
    rows = session.each(_rows, heads[0][0], heads[-1][0], position)
    for stream, group in groupby(rows, key=lambda row: str(row[0])):
        if stream in known:  # Events of no stream are found by others.
            seen.add(stream)
            yield from _one(known[stream], group)
    for stream, head in known.items():
        if stream not in seen:
            yield from _one(head, ())


def _one(head: Row, rows: Iterable[Row]) -> Iterator[Finding]:
    stream, last_seq, events, _, _, *columns = head
    twice: dict[int, int] = {}
    ends = Ends()

    def once() -> Iterator[tuple[int, bool, int]]:
        last = None
        for *columns, crc, position in rows:
            record = Record(*columns)
            if record.seq == last:
                twice[record.seq] = twice.get(record.seq, 1) + 1
                continue
            last = record.seq
            is_intact = checksum(position, record) == crc
            yield record.seq, ends.note(is_intact, record.tenant, record.persisted_at), position

    found = list(row_findings(stream, once(), 0, last_seq, events))
    yield from found
    if not found and not ends.fit(*columns):  # Where events are missing, it cannot fit.
        yield head_finding(stream)
    for seq, count in twice.items():
        message = f"{count} rows stand at seq {seq}; the stream is intact up to {seq - 1}"
        yield Finding(code="snowflake.duplicate_seq", message=message, stream=stream, seq=seq)


def _same(session: Session, first: str, last: str, position: int) -> Iterator[Finding]:
    for stream, key, count, first_seq, last_seq in session.rows(_same_keys, first, last, position):
        yield Finding(
            code="snowflake.duplicate_key",
            message=f"The key {key[:80]!r} stands for {count} events, of seq {first_seq} to {last_seq}",
            stream=stream,
            seq=last_seq,
            details={"key": key, "first_seq": first_seq},
        )


def _kept(session: Session, first: str, last: str) -> Iterator[Finding]:
    for stream, *kept in session.each(_snapshots, first, last):
        yield from snapshot_findings(stream, StoredSnapshot(*kept))


def _changed_blobs(rows: Iterable[Row]) -> Iterator[Finding]:
    for name, group in groupby(rows, key=lambda row: str(row[0])):
        found, last = sha256(), None
        for _, part, data in group:
            if part != last:
                found.update(data)
            last = part
        if found.hexdigest() != name:
            yield changed_blob(name)
