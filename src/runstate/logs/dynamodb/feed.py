"""The feed: appends leave marks, and whoever reads gives them their places.

An append's transaction only marks its stream as fresh, so appends to different streams never wait for each other.
A reader first turns marks into entries: one transaction moves the feed's counter, on condition of where it stood,
writes the entries behind it, and takes the marks away. A position is handed out only after that, so nothing can come
to stand before it later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from runstate.errors import AppendOutcomeUnknown, LogBusy, LogDamaged
from runstate.logs.decimal_positions import decimal_position
from runstate.logs.dynamodb.items import (
    Entry,
    Head,
    Mark,
    counter_key,
    entry_of,
    feed,
    head_key,
    head_of,
    mark_of,
    marks_partitions,
    number,
    page_key,
    page_rows,
)
from runstate.logs.dynamodb.reading import intact_part, records_between
from runstate.logs.dynamodb.refusals import Refused
from runstate.logs.dynamodb.table import Action, Item, Table, absent, actions_max, equal, pause
from runstate.logs.log import FeedPage, Position, Record

_marks_at_once = (actions_max - 1) // 2
_entries_page = 100


def feed_page(table: Table, after: Position | None, limit: int) -> FeedPage:
    last = _give_places(table)
    place = 0 if after is None else decimal_position(after, last)
    found: list[Record] = []
    try:
        # No further than the counter: a position beyond it was not handed out yet.
        for items in table.query(feed, number(place + 1), number(last), Limit=min(limit, _entries_page)):
            for entry, records in _of_entries(table, items, place, limit - len(found)):
                found += records[: limit - len(found)]
                place = entry.position
                if len(found) == limit or (records and records[-1].seq < entry.through):
                    return FeedPage(found, Position(str(entry.before + found[-1].seq - entry.since + 1)))
    except LogDamaged:  # What comes before it can be handed out.
        if not found:
            raise
    return FeedPage(found, Position(str(place)) if place else after)


def _of_entries(table: Table, items: list[Item], place: int, limit: int) -> Iterator[tuple[Entry, list[Record]]]:
    """Each entry with its records after a place; with none, if its stream was deleted.

    Raises:
        LogDamaged: the entry, or its first event, is not what was written. All before it were given.
    """
    entries: list[Entry] = []
    damage: LogDamaged | None = None
    for item in items:
        try:
            entries.append(entry_of(item))
        except LogDamaged as error:
            damage = error
            break
    # Most entries are one append, and so one page: many of those are read at once.
    pages = table.get_many(page_key(entry.id, entry.through) for entry in entries)
    # After the pages: a stream that is still there now was whole when they were read.
    heads = table.get_many(head_key(entry.stream) for entry in entries)
    for entry in entries:
        head = head_of(heads.get(head_key(entry.stream)))
        if head is None or head.id != entry.id:
            yield entry, []
            continue
        after_seq = entry.since - 1 + max(0, place - entry.before)
        page = pages.get(page_key(entry.id, entry.through))
        rows = [row for row in page_rows(entry.stream, page) if row[0] > after_seq] if page else []
        records = list(intact_part(rows))
        if not records or len(records) < len(rows) or records[0].seq > after_seq + 1:
            records = _rest(table, head, entry, after_seq, limit)
        yield entry, records
    if damage is not None:
        raise damage


def _rest(table: Table, head: Head, entry: Entry, after_seq: int, limit: int) -> list[Record]:
    found: list[Record] = []
    try:
        for records in records_between(table, head, after_seq, entry.through, limit):
            found += records
            if len(found) >= limit:
                break
    except LogDamaged:
        if not found:
            raise
    again = head_of(table.get(head.key))
    return found if again is not None and again.id == head.id else []


def _give_places(table: Table) -> int:
    """Give the events that are marked their places in the feed. The last position that is given.

    All that were marked when this was called, and not what comes meanwhile: else it would not end while others write.
    """
    deadline = time.monotonic() + table.busy_timeout_s
    attempt = 0
    pending: set[str] | None = None
    while True:
        item = table.get(counter_key)
        last = int(item["last"]) if item else 0
        marks = sorted(_fresh(table), key=lambda mark: mark.at_ns)
        pending = {mark.id for mark in marks} if pending is None else pending
        some = [mark for mark in marks if mark.id in pending][:_marks_at_once]
        if not some:
            return last
        try:
            table.transact(_entering(table, last, some, is_first=attempt == 0))
            pending -= {mark.id for mark in some}
            attempt = 0
        except AppendOutcomeUnknown as unknown:
            raise LogBusy(f"The feed could not be continued ({unknown}); ask again") from unknown
        except Refused as refused:
            # Another reader was faster, or a stream got new events meanwhile: look again.
            if time.monotonic() > deadline:
                raise LogBusy(f"The feed could not be continued within {table.busy_timeout_s:g} s") from refused
            pause(attempt)
            attempt += 1
            continue
        if not pending:
            return last + sum(mark.through - mark.since + 1 for mark in some)


def _fresh(table: Table) -> Iterator[Mark]:
    for partition in marks_partitions():
        for items in table.query(partition, "0", "g"):
            for mark in map(mark_of, items):
                if mark.since <= mark.through:
                    yield mark
                else:
                    _forget(table, mark)


def _forget(table: Table, mark: Mark) -> None:
    try:
        table.transact([table.delete(mark.key, equal(since=mark.since, through=mark.through))])
    except Refused:
        return  # It was marked again meanwhile, or somebody else was faster.


def _entering(table: Table, last: int, marks: list[Mark], *, is_first: bool) -> list[Action]:
    """The transaction that gives marked events their places.

    The first try takes the marks away. If a stream gets new events faster than that, the next one leaves its mark and
    only moves the beginning, which holds however far the end has moved meanwhile.
    """
    actions: list[Action] = []
    position = last
    for mark in marks:
        position += mark.through - mark.since + 1
        entry = Entry(mark.stream, mark.id, mark.since, mark.through, position)
        actions.append(table.put(entry.item(), absent))
        if is_first:
            actions.append(table.delete(mark.key, equal(since=mark.since, through=mark.through)))
        else:
            values = {":since": mark.since, ":next": mark.through + 1, ":now": time.time_ns()}
            names = {"#since": "since", "#at_ns": "at_ns"}
            actions.append(
                table.update(mark.key, "SET #since = :next, #at_ns = :now", names, values, "#since = :since")
            )
    counter = {"pk": counter_key[0], "sk": counter_key[1], "last": position}
    return [table.put(counter, equal(last=last) if last else absent), *actions]
