"""Repairing a stream of a Snowflake log: damaged rows go to a table of their own, and its head says what is left.

Nothing in Snowflake keeps a stream from having two rows at one seq, two heads, or none: all of that is repaired too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from runstate.errors import LogDamaged, StreamNotFound
from runstate.logs.log import Finding, now
from runstate.logs.row_repair import (
    RowRepair,
    aside_tables,
    count_set_aside,
    plan_quarantine,
    plan_repair,
    set_aside_findings,
)
from runstate.logs.snowflake.appends import checked_columns, insert_heads, read_row, write_rows
from runstate.logs.snowflake.connections import NoSuchTable, Row, Session
from runstate.logs.stored_rows import Ends

create_set_aside = """
CREATE TABLE IF NOT EXISTS {table} (
    position NUMBER(38, 0), stream VARCHAR, seq NUMBER(38, 0), event_id VARCHAR, type VARCHAR, key VARCHAR,
    tenant VARCHAR, emitted_at VARCHAR, persisted_at VARCHAR, crc NUMBER(38, 0), body BINARY, set_aside_at VARCHAR
)
"""
_columns = "position, stream, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body"
_places = "stream = ? AND seq IN (SELECT value::NUMBER(38, 0) FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?))))"
_keep = f"INSERT INTO {{table}} ({_columns}, set_aside_at) SELECT {_columns}, ? FROM events WHERE {_places}"
_heads = """
SELECT last_seq, events, model, tenant, first_persisted_at, last_persisted_at FROM streams WHERE stream = ?
ORDER BY last_seq DESC, events DESC
"""
_rows = f"SELECT {checked_columns} FROM events WHERE stream = ? ORDER BY seq, position"
_some_rows = f"SELECT {checked_columns} FROM events WHERE {_places} ORDER BY seq, position"
_gate = "SELECT last_position FROM runstate_log"


def plan_stream(session: Session, stream: str, *, salvage: bool, quarantine: int) -> RowRepair | None:
    """
    Raises:
        StreamNotFound: there is no such stream, not even a row of it.
        EventNotFound, LogDamaged: as `plan_quarantine`.
    """
    heads = session.rows(_heads, stream)
    ends = Ends()
    rows = list(_intact(session.each(_rows, stream), ends))
    if not heads and not rows:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    if len(heads) != 1:
        plan = plan_repair(rows, 0, 0, salvage=salvage, is_head_sound=False)
    else:
        last_seq, events, _, *columns = heads[0]
        plan = plan_repair(rows, last_seq, events, salvage=salvage, is_rest_sound=ends.fit(*columns))
    return plan_quarantine(stream, (seq for seq, _ in rows), plan, quarantine) if quarantine else plan


def repair_stream(session: Session, stream: str, *, salvage: bool, quarantine: int) -> list[Finding]:
    """What was done. The caller holds the gate, has taken one position, and has made the table for what is set aside.

    Raises:
        StreamNotFound, EventNotFound, LogDamaged: as `plan_stream`.
    """
    plan = plan_stream(session, stream, salvage=salvage, quarantine=quarantine)
    if plan is None:
        return []
    heads = session.rows(_heads, stream)
    once = list(_first_intact(session.rows(_some_rows, stream, _json(plan.doubled))))
    seqs = _json(sorted({*plan.set_aside, *plan.doubled}))
    session.change(_keep.format(table=plan.table), now(), stream, seqs)
    for table in ("streams", "snapshots"):
        session.change(f"DELETE FROM {table} WHERE stream = ?", stream)
    session.change(f"DELETE FROM events WHERE {_places}", stream, seqs)
    write_rows(session, [(row[0], read_row(row)) for row in once])
    if plan.kept:
        ends = session.rows(_some_rows, stream, _json([plan.kept[0], plan.kept[-1]]))
        first, last = (read_row(row) for row in (ends[0], ends[-1]))
        # A new one, not that of the first event: it is part of the stream's version, which must change with a repair.
        ((position,),) = session.rows(_gate)
        times = (first.persisted_at, last.persisted_at)
        model = heads[0][2] if heads else ""
        insert_heads(session, [(stream, first.tenant, last.seq, len(plan.kept), position, *times, model)])
    return [plan.finding(stream)]


def set_aside(session: Session) -> list[Finding]:
    """What earlier repairs have set aside."""
    found: list[Finding] = []
    for table in aside_tables:
        with suppress(NoSuchTable):  # It is made by the first repair.
            found += set_aside_findings(session.rows(count_set_aside.format(table=table)), table)
    return found


def _intact(rows: Iterator[Row], ends: Ends) -> Iterator[tuple[int, bool]]:
    """The seq of each row, and whether it is what was appended. A key stands for the first of its events alone."""
    keys: dict[str, int] = {}
    for row in rows:
        seq = row[2]
        try:
            key = read_row(row).key
        except LogDamaged:
            yield seq, ends.note(False, "", "")
        else:
            yield seq, ends.note(keys.setdefault(key, seq) == seq, row[6], row[8])


def _first_intact(rows: list[Row]) -> Iterator[Row]:
    found: set[int] = set()
    for row in rows:
        ((seq, is_intact),) = _intact(iter([row]), Ends())
        if is_intact and seq not in found:
            found.add(seq)
            yield row


def _json(seqs: list[int]) -> str:
    return msgspec.json.encode(seqs).decode()
