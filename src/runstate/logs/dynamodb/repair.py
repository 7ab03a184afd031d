"""Repairing a stream of a DynamoDB log: what is left of it is written anew, under another number.

The head, the keys, the list of streams and the feed then fit the events by construction. What was there before stays
where it is, as evidence, under the number that the stream had; a note in the partition `set_aside` names it.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator

import msgspec

from runstate.errors import LogDamaged, StreamNotFound
from runstate.logs.dynamodb.items import (
    Head,
    directory,
    entry_of,
    feed,
    garbage,
    head_key,
    head_of,
    key_item,
    last_text,
    mark_key,
    mark_of,
    marks_partitions,
    page_items,
    page_rows,
    proven_rows,
    set_aside,
    tombstone_of,
)
from runstate.logs.dynamodb.refusals import Refused
from runstate.logs.dynamodb.table import Action, Item, Table, absent, actions_max, chunks, encoded, equal
from runstate.logs.dynamodb.verify import verify_stream
from runstate.logs.log import Finding, Record, now
from runstate.logs.record_json import encode_record
from runstate.logs.row_repair import RowRepair, plan_quarantine, plan_repair

_record_chars_max = 90_000
"""A longer record stands in its page alone: an item of DynamoDB ends at 400 KB."""


class _Found(msgspec.Struct):
    """What is there of a damaged stream."""

    stream: str
    item: Item | None
    """In the place of its head."""
    head: Head | None
    """None: it is gone, or not as it was written."""
    id: str
    rows: list[tuple[int, bool]] = []
    records: dict[int, Record] = {}


def repair_stream(table: Table, stream: str, *, dry_run: bool, salvage: bool, quarantine: int) -> list[Finding] | None:
    """What was done, or would be. None: another writer was faster, and nothing was done; begin again.

    Raises:
        StreamNotFound: there is no such stream, and nothing is left of one.
        EventNotFound, LogDamaged: as `plan_quarantine`.
    """
    found = _find(table, stream)
    others = [finding for finding in verify_stream(table, stream) if not finding.code.startswith("snapshot.")]
    _read(table, found, salvage=salvage)
    head = found.head
    plan = plan_repair(
        found.rows,
        0 if head is None else head.last_seq,
        0 if head is None else head.events,
        salvage=salvage,
        is_head_sound=head is not None,
        is_rest_sound=not others,
    )
    if quarantine:
        plan = plan_quarantine(stream, (seq for seq, _ in found.rows), plan, quarantine)
    if plan is None or (not dry_run and not _rewrite(table, found, plan)):
        return None if plan else []
    return [plan.finding(stream, f"the items whose pk is {found.id}")]


def _find(table: Table, stream: str) -> _Found:
    item, listed = table.get(head_key(stream)), table.get((directory, stream))
    try:
        head = head_of(item)
        if head is None and tombstone_of(item) is not None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    except LogDamaged:
        head = None
    if head is not None:
        return _Found(stream, item, head, head.id)
    known = [source["id"] for source in (listed, item) if source is not None and isinstance(source.get("id"), str)]
    for stream_id in (*known, *_ids_in_feed(table, stream)):
        if next(table.query(stream_id, "e", "f", limit=1), None) and not _is_left_over(table, stream_id):
            return _Found(stream, item, None, stream_id)
    if item is None and listed is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    return _Found(stream, item, None, known[0] if known else "")


def _ids_in_feed(table: Table, stream: str) -> Iterator[str]:
    """Numbers that a stream of that name has had, where neither its head nor the list knows one."""
    partitions = [(feed, "0", last_text), *((partition, "0", "g") for partition in marks_partitions())]
    for partition in partitions:
        for items in table.query(*partition):
            for item in items:
                try:
                    place = entry_of(item) if item["pk"] == feed else mark_of(item)
                except LogDamaged:
                    continue
                if place.stream == stream:
                    yield place.id


def _is_left_over(table: Table, stream_id: str) -> bool:
    return any(table.get((notes, stream_id)) is not None for notes in (garbage, set_aside))


def _read(table: Table, found: _Found, *, salvage: bool) -> None:
    """All events. A salvage takes those too whose page stands in the place of another: each of them is proven."""
    read = proven_rows if salvage else page_rows
    for items in table.query(found.id, "e", "f") if found.id else ():
        for item in items:
            for seq, record in read(found.stream, item):
                found.rows.append((seq, record is not None))
                if record is not None:
                    found.records.setdefault(seq, record)
    found.rows.sort()


def _rewrite(table: Table, found: _Found, plan: RowRepair) -> bool:
    """Write what is kept under another number, then make it the stream in one step. False: somebody was faster."""
    new_id, token = secrets.token_hex(16), secrets.token_hex(16)
    note: Item = {"stream": found.stream, "events": len(plan.set_aside), "at": now()}
    for seq in plan.quarantined:
        record = encode_record(found.records[seq]).decode()
        note |= {"quarantined": seq} | ({"record": record} if len(record) < _record_chars_max else {})
    # First: what an interrupted repair leaves is not forgotten.
    table.transact([table.put({"pk": set_aside, "sk": new_id, **note, "events": len(plan.kept)})])
    records = [found.records[seq] for seq in plan.kept]
    for page, held in page_items(new_id, token, records, sys.maxsize) if records else ():
        table.call("put_item", TableName=table.name, Item=encoded(page))
        keys = [table.put(key_item(new_id, record, held[-1].seq)) for record in held]
        for some in chunks(keys, actions_max):
            table.transact(some)
    try:
        table.transact([*_replace(table, found, new_id, records), *_note(table, found, note, new_id)], token)
    except Refused:
        table.transact([table.delete((set_aside, new_id)), table.put({"pk": garbage, "sk": new_id, **note})])
        return False
    return True


def _replace(table: Table, found: _Found, new_id: str, records: list[Record]) -> list[Action]:
    """Put the new head in the place of what is there, with its entry in the list and its mark for the feed."""
    stream, item = found.stream, found.item or {}
    plain = {name: value for name, value in item.items() if isinstance(value, str | int) and name not in ("pk", "sk")}
    is_at = absent if found.item is None else equal(**plain) if plain else {}
    if not records:
        return [table.delete(head_key(stream), is_at), table.delete((directory, stream))]
    first, last = records[0], records[-1]
    version = item.get("version")
    head = Head(
        stream,
        new_id,
        version + 1 if isinstance(version, int) else 1,
        last.seq,
        len(records),
        first.tenant,
        first.persisted_at,
        last.persisted_at,
        0,
        _model(table, found),
        "" if found.head is None else found.head.restoring,
    )
    pk, sk = mark_key(new_id)
    return [
        table.put(head.item(), is_at),
        table.put({"pk": directory, "sk": stream, "id": new_id}),
        table.put({"pk": pk, "sk": sk, "stream": stream, "since": 1, "through": last.seq, "at_ns": time.time_ns()}),
    ]


def _model(table: Table, found: _Found) -> str:
    """The model that the stream records; without a sound head, a snapshot may know it."""
    if found.head is not None:
        return found.head.model
    snapshots = (item for items in table.query(found.id, "s", "t") for item in items) if found.id else ()
    sources = [*snapshots, found.item or {}]
    return next((source["model"] for source in sources if isinstance(source.get("model"), str)), "")


def _note(table: Table, found: _Found, note: Item, new_id: str) -> list[Action]:
    """Set the old items aside; or let them be collected, if the stream keeps all that they hold."""
    actions = [table.delete((set_aside, new_id))]
    if found.id:
        is_evidence = found.head is None or note["events"]
        kept = {"pk": set_aside if is_evidence else garbage, "sk": found.id, **note}
        if found.head is None and found.item is not None:
            kept["head"] = msgspec.json.encode(found.item).decode()
        actions += [table.put(kept), table.delete(mark_key(found.id))]
    return actions
