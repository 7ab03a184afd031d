"""Deleting a whole stream: its head goes in one step, and with it the stream; its items are collected afterwards.

The same step notes the stream's number as garbage. Whoever is interrupted while collecting leaves the note, and the
next one that opens the log, or deletes from it, goes on. A stream that is begun again has another number.
"""

from __future__ import annotations

import time

from runstate.errors import LogBusy, StreamNotFound
from runstate.logs.dynamodb.appends import read_head
from runstate.logs.dynamodb.items import directory, garbage, last_text, mark_key
from runstate.logs.dynamodb.refusals import Refused
from runstate.logs.dynamodb.table import Item, Table, equal, pause
from runstate.logs.log import check_expected, now

_keys_only: Item = {"ProjectionExpression": "pk, sk"}


def delete(table: Table, stream: str, expected_seq: int | None) -> None:
    """From its return on, and for everybody at once, the stream is not there.

    Raises:
        StreamNotFound, SequenceConflict: nothing was deleted.
    """
    deadline = time.monotonic() + table.busy_timeout_s
    lost: str | None = None
    for attempt in range(1_000_000):
        head = read_head(table, stream)
        if lost is not None and (head is None or head.id != lost):
            return  # It was ours: the step was done, and only its answer was lost.
        if head is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
        check_expected(stream, head.last_seq, expected_seq)
        note = {"pk": garbage, "sk": head.id, "stream": stream, "at": now()}
        try:
            table.transact(
                [
                    table.delete(head.key, equal(id=head.id, version=head.version)),
                    table.delete((directory, stream)),
                    table.delete(mark_key(head.id)),
                    table.put(note),
                ]
            )
            return
        except Refused as refused:
            lost = head.id if refused.was_lost else lost
            if time.monotonic() > deadline:
                break
            pause(attempt)
    raise LogBusy(f"The stream {stream!r} could not be deleted within {table.busy_timeout_s:g} s; try again")


def collect(table: Table) -> None:
    """Remove the items of all streams that were deleted. Several may do this at once, and stop at any moment."""
    for notes in table.query(garbage, "0", last_text):
        for note in notes:
            for items in table.query(note["sk"], " ", last_text, **_keys_only):
                table.delete_many((item["pk"], item["sk"]) for item in items)
            table.delete_many([(garbage, note["sk"])])
