"""Deleting a whole stream: its head goes in one step, and with it the stream; its items are collected afterwards.

The same step notes the stream's number as garbage. Whoever is interrupted while collecting leaves the note, and the
next one that opens the log, or deletes from it, goes on. A stream that is begun again has another number.
A tombstone takes the place of the head in that step.
"""

from __future__ import annotations

import time

from runstate.errors import LogBusy, StreamNotFound
from runstate.logs.dynamodb.items import (
    Head,
    directory,
    garbage,
    head_key,
    head_of,
    last_text,
    mark_key,
    tombstone_item,
)
from runstate.logs.dynamodb.refusals import Refused
from runstate.logs.dynamodb.table import Action, Item, Table, equal, pause
from runstate.logs.log import check_expected, check_same_stream, now
from runstate.logs.tombstones import Tombstone

_keys_only: Item = {"ProjectionExpression": "pk, sk"}


def delete(
    table: Table, stream: str, expected_seq: int | None, first_persisted_at: str, tombstone: Tombstone | None
) -> None:
    """From its return on, and for everybody at once, the stream is not there, and the tombstone is.

    Without a tombstone, one that is all that is left of the stream is deleted.

    Raises:
        StreamNotFound, SequenceConflict: nothing was deleted.
    """
    deadline = time.monotonic() + table.busy_timeout_s
    lost: str | None = None
    for attempt in range(1_000_000):
        item = table.get(head_key(stream))
        head = head_of(item)
        if lost is not None and (head is None or head.id != lost):
            return  # It was ours: the step was done, and only its answer was lost.
        if head is not None:
            check_expected(stream, head.last_seq, expected_seq)
            check_same_stream(stream, head.first_at, first_persisted_at)
            actions = _actions(table, head, tombstone)
        elif item is not None and tombstone is None:
            actions = [table.delete(head_key(stream), equal(deleted_at=item["deleted_at"]))]
        else:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
        try:
            table.transact(actions)
            return
        except Refused as refused:
            if refused.was_lost:
                lost = "" if head is None else head.id
            if time.monotonic() > deadline:
                break
            pause(attempt)
    raise LogBusy(f"The stream {stream!r} could not be deleted within {table.busy_timeout_s:g} s; try again")


def _actions(table: Table, head: Head, tombstone: Tombstone | None) -> list[Action]:
    is_at = equal(id=head.id, version=head.version)
    return [
        table.delete(head.key, is_at) if tombstone is None else table.put(tombstone_item(tombstone), is_at),
        table.delete((directory, head.stream)),
        table.delete(mark_key(head.id)),
        table.put({"pk": garbage, "sk": head.id, "stream": head.stream, "at": now()}),
    ]


def collect(table: Table) -> None:
    """Remove the items of all streams that were deleted. Several may do this at once, and stop at any moment."""
    for notes in table.query(garbage, "0", last_text):
        for note in notes:
            for items in table.query(note["sk"], " ", last_text, **_keys_only):
                table.delete_many((item["pk"], item["sk"]) for item in items)
            table.delete_many([(garbage, note["sk"])])
