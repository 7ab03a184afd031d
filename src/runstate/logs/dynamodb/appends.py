"""How an append becomes one transaction: the head, on condition of its version, with pages, keys and the feed's mark.

Whoever replaces the head is the append authority: what was looked up before, the next `seq` and which keys are known,
still held at that moment. More keys than one transaction takes are written down after it, from the pages, by whoever
comes next: the head says so until it is done. A key's item never changes, so that may be done twice and at once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from runstate.errors import LogDamaged, LogFailed, RunstateError
from runstate.logs.adoption import key_taken, new_records
from runstate.logs.dynamodb.items import (
    Head,
    directory,
    head_key,
    head_of,
    is_key,
    key_item,
    key_key,
    mark_key,
    page_items,
    page_key,
    page_rows,
    tombstone_of,
)
from runstate.logs.dynamodb.refusals import Refused
from runstate.logs.dynamodb.table import Action, Item, Table, absent, actions_max, chunks, equal
from runstate.logs.log import AppendResult, Record, now
from runstate.logs.planning import StreamPlan
from runstate.logs.stored_rows import changed_error
from runstate.logs.stream_models import model_after
from runstate.logs.tombstones import Tombstone, encode_tombstone, if_counting
from runstate.models.model import Draft

_mark = (
    "SET #stream = :stream, #since = if_not_exists(#since, :since), #through = :through, "
    "#at_ns = if_not_exists(#at_ns, :at_ns)"
)
_headless: Item = {"ConditionExpression": "attribute_not_exists(#id)", "ExpressionAttributeNames": {"#id": "id"}}
"""The condition that there is no head, but maybe a tombstone in its place."""
_mark_names = {"#stream": "stream", "#since": "since", "#through": "through", "#at_ns": "at_ns"}


class First(NamedTuple):
    """The event that a key stands for, and the append that wrote it."""

    record: Record
    token: str


def read_head(table: Table, stream: str) -> Head | None:
    return head_of(table.get(head_key(stream)))


def try_append(
    table: Table, stream: str, drafts: Sequence[Draft], expected_seq: int | None, sent: set[str]
) -> list[AppendResult] | None:
    """Append once. None: another writer was faster, and nothing was written; begin again.

    `sent` holds the tokens of earlier tries: one of them may have gone through though no answer came.
    """
    head, tombstone = _ready_head(table, stream)
    firsts = known(table, head, (draft.key for draft in drafts))
    stands = (0, "", "") if head is None else (head.last_seq, head.tenant, head.model)
    stored = {key: first.record for key, first in firsts.items()}
    plan = StreamPlan(stream, *stands, find=stored.get, tombstone=tombstone)
    if head is not None and any(draft.chained for draft in drafts):
        plan.previous = _last_line(table, head)
    results = plan.add(drafts, expected_seq, now())
    if plan.new:
        table.clock.check()
    is_at = absent if head is None else equal(id=head.id, version=head.version)
    if plan.new and not _write(table, head, is_at, list(plan.new.values()), plan.model, "", sent):
        return None
    return _claim_own(drafts, results, firsts, sent)


def try_adopt(
    table: Table,
    stream: str,
    records: Sequence[Record],
    model: str,
    held: Callable[[Head], Iterable[Record]],
    sent: set[str],
) -> int | None:
    """Adopt once. `held` reads what stands at the records' places. None: as for `try_append`."""
    head, tombstone = _ready_head(table, stream)
    last_seq = 0 if head is None else head.last_seq
    model = model_after(stream, "" if head is None else head.model, model, last_seq)
    new = new_records(stream, records, last_seq, [] if head is None else held(head))
    firsts = known(table, head, (record.key for record in new))
    for record in new:
        if record.key in firsts:
            raise key_taken(record, last_seq)
    if not new and not sent:
        return 0
    if not new:
        # An earlier try, whose answer was lost, has left its token if it went through.
        return sum(1 for first in known(table, head, (r.key for r in records)).values() if first.token in sent)
    is_at = _headless if head is None else equal(id=head.id, version=head.version)
    counting = if_counting(tombstone, new[-1].seq)
    restoring = "" if counting is None else encode_tombstone(counting).decode()
    return len(new) if _write(table, head, is_at, new, model, restoring, sent) else None


def _ready_head(table: Table, stream: str) -> tuple[Head | None, Tombstone | None]:
    """The head, all keys before which are written down, and the tombstone in it or in its place."""
    while (head := head_of(item := table.get(head_key(stream)))) is not None and head.unindexed:
        write_keys(table, head)
    return head, tombstone_of(item)


def known(table: Table, head: Head | None, keys: Iterable[str]) -> dict[str, First]:
    """Of the keys, those that the stream holds up to its head, as far as they are written down.

    Raises:
        LogDamaged: a key's item leads to no event of that key.
    """
    if head is None:
        return {}
    places = {key_key(head.id, key): key for key in keys}
    found = {places[place]: item for place, item in table.get_many(places).items()}
    pages = table.get_many(page_key(head.id, item["page"]) for item in found.values() if is_key(item))
    firsts: dict[str, First] = {}
    for key, item in found.items():
        page = pages.get(page_key(head.id, item["page"])) if is_key(item) else None
        rows: dict[Any, Record | None] = {} if page is None else dict(page_rows(head.stream, page))
        seq = item.get("seq")
        if page is not None and seq in rows and rows[seq] is None:
            raise changed_error(head.stream, seq)
        record = rows.get(seq)
        if page is None or record is None or record.key != key:
            raise LogDamaged(
                f"The key {key[:80]!r} of the stream {head.stream!r} leads to seq {seq}, "
                "where its event is not; run 'runstate verify'",
                stream=head.stream,
                seq=seq,
            )
        firsts[key] = First(record, str(page["token"]))
    return firsts


def _last_line(table: Table, head: Head) -> bytes | None:
    item = table.get(page_key(head.id, head.last_seq))
    if item is None:
        return None
    seq, record = page_rows(head.stream, item)[-1]
    if record is None:
        raise changed_error(head.stream, seq)
    return record.body


def _claim_own(
    drafts: Sequence[Draft], results: list[AppendResult], firsts: dict[str, First], sent: set[str]
) -> list[AppendResult]:
    """What an earlier try of this call has written, though its answer was lost, is no retry: once, as in the call."""
    for index, draft in enumerate(drafts):
        first = firsts.get(draft.key)
        if first is not None and first.token in sent:
            record = first.record
            results[index] = AppendResult(record.event_id, record.seq, record.persisted_at)
            firsts[draft.key] = First(record, "")
    return results


def _write(
    table: Table, head: Head | None, is_at: Item, new: list[Record], model: str, restoring: str, sent: set[str]
) -> bool:
    """Write records behind a head, all or none. It has `model` and `restoring` then.

    `is_at` is the condition on the head's item. False: it does not hold, since the head has moved; nothing was written.
    """
    stream, token = new[0].stream, secrets.token_hex(16)
    stream_id = secrets.token_hex(16) if head is None else head.id
    try:
        pages = list(page_items(stream_id, token, new))
    except UnicodeEncodeError as error:
        raise LogFailed(f"It cannot be written: {error!r}") from error
    keys = [key_item(stream_id, record, held[-1].seq) for _, held in pages for record in held]
    fits = len(pages) + len(keys) + 3 <= actions_max
    moved = Head(
        stream,
        stream_id,
        1 if head is None else head.version + 1,
        new[-1].seq,
        len(new) + (0 if head is None else head.events),
        new[0].tenant if head is None else head.tenant,
        new[0].persisted_at if head is None else head.first_at,
        new[-1].persisted_at,
        0 if fits else new[0].seq,
        model,
        restoring,
    )
    actions = [table.put(moved.item(), is_at)]
    if head is None:
        actions.append(table.put({"pk": directory, "sk": stream, "id": stream_id}, absent))
    since = 1 if head is None else head.last_seq + 1
    marked: Item = {":stream": stream, ":since": since, ":through": new[-1].seq, ":at_ns": time.time_ns()}
    actions.append(table.update(mark_key(stream_id), _mark, _mark_names, marked))
    actions += [table.put(page, absent) for page, _ in pages]
    if fits:
        actions += [table.put(item, absent) for item in keys]
    if not _sent(table, actions, token, stream, sent):
        return False
    if not fits:
        _write_keys_now(table, moved)
    return True


def _sent(table: Table, actions: list[Action], token: str, stream: str, sent: set[str]) -> bool:
    sent.add(token)
    try:
        table.transact(actions, token)
    except Refused as refused:
        if not refused.failed[0]:
            raise LogDamaged(
                f"The stream {stream!r} holds more than its head says; nothing was written, run 'runstate verify'",
                stream=stream,
            ) from refused
        return False
    return True


def _write_keys_now(table: Table, head: Head) -> None:
    try:
        write_keys(table, head)
    except RunstateError:
        # The events are stored, which is all that was promised. The next append finishes this before anything else.
        return


def write_keys(table: Table, head: Head) -> None:
    """Write down the keys that the head says are missing. Several may do this at once, and stop at any moment."""
    check = table.check(head.key, equal(id=head.id))  # Else they would outlive a stream that is being deleted.
    try:
        for some in chunks([table.put(item) for item in _unwritten(table, head)], actions_max - 1):
            table.transact([check, *some])
        done = msgspec.structs.replace(head, version=head.version + 1, unindexed=0)
        table.transact([table.put(done.item(), equal(id=head.id, version=head.version))])
    except Refused:
        return  # Somebody else has done it, or deleted the stream.


def _unwritten(table: Table, head: Head) -> Iterator[Item]:
    low, high = page_key(head.id, head.unindexed)[1], page_key(head.id, head.last_seq)[1]
    for items in table.query(head.id, low, high):
        for item in items:
            rows = page_rows(head.stream, item)
            for seq, record in rows:
                if record is None:
                    raise changed_error(head.stream, seq)
                yield key_item(head.id, record, rows[-1][0])
