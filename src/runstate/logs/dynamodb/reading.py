"""Reading streams: pages of events behind a head, the directory of streams, the event of a key."""

from __future__ import annotations

from collections.abc import Iterator

from runstate.errors import InvalidJson
from runstate.logs.dynamodb.appends import known, read_head
from runstate.logs.dynamodb.items import Head, directory, head_key, head_of, last_text, page_key, page_rows
from runstate.logs.dynamodb.table import Table
from runstate.logs.log import Record
from runstate.logs.stored_rows import changed_error

_seq_max = 10**18
heads_page = 1000
"""How many streams are looked up at a time."""


def records_between(
    table: Table, head: Head, after_seq: int, until_seq: int, limit: int | None = None
) -> Iterator[list[Record]]:
    """Records with `after_seq < seq <= until_seq`, a few pages at a time, and no further than the head.

    Raises:
        LogDamaged: the next one is not what was appended. All before it were given.
    """
    until = min(until_seq, head.last_seq)
    # Pages bear the number of their last event, so the last one may reach beyond `until`, but not beyond the head.
    low, high = page_key(head.id, after_seq + 1)[1], page_key(head.id, head.last_seq)[1]
    if after_seq >= until:
        return
    for items in table.query(head.id, low, high, limit=limit):
        rows = [row for item in items for row in page_rows(head.stream, item) if after_seq < row[0] <= until]
        found = list(intact_part(rows))
        if len(found) < len(rows):
            if found:
                yield found
            raise changed_error(head.stream, rows[len(found)][0])
        if found:
            yield found
        if not found or found[-1].seq >= until:
            return


def intact_part(rows: list[tuple[int, Record | None]]) -> Iterator[Record]:
    """The records before the first row that is not what was appended."""
    for _, record in rows:
        if record is None:
            return
        yield record


def read(table: Table, stream: str, after_seq: int, limit: int) -> list[Record]:
    """At most `limit` records. What a deletion takes away meanwhile is taken away as a whole."""
    after_seq = max(after_seq, 0)
    while (head := read_head(table, stream)) is not None:
        found: list[Record] = []
        for some in records_between(table, head, after_seq, _seq_max, limit):
            found += some
            if len(found) >= limit:
                break
        found = found[:limit]
        reached = found[-1].seq if found else after_seq
        is_whole = reached - after_seq == len(found) and (len(found) == limit or reached >= head.last_seq)
        # Gaps are rare: adopted with the events around them, or the stream is just being deleted.
        if is_whole or ((again := read_head(table, stream)) is not None and again.id == head.id):
            return found
    return []


def lines(table: Table, stream: str, after_seq: int, until_seq: int | None) -> Iterator[bytes]:
    head = read_head(table, stream)
    after = max(after_seq, 0)
    if head is None:
        return
    for records in records_between(table, head, after, _seq_max if until_seq is None else until_seq):
        if records[0].seq != after + 1 or records[-1].seq - after != len(records):
            again = read_head(table, stream)
            if again is None or again.id != head.id:
                return  # Deleted meanwhile: a hole is no stretch of a stream.
        for record in records:
            yield record.body
        after = records[-1].seq


def find(table: Table, stream: str, key: str) -> Record | None:
    head = read_head(table, stream)
    first = known(table, head, [key]).get(key)
    if first is not None or head is None:
        return first.record if first else None
    if not head.unindexed:
        return None
    unwritten = records_between(table, head, head.unindexed - 1, head.last_seq)
    return next((record for records in unwritten for record in records if record.key == key), None)


def heads(table: Table, after: str, until: str | None, *, page: int = heads_page) -> Iterator[Head]:
    """The heads of all streams with `after < id <= until`, by code point, which is the order of their bytes too."""
    for text in (after, until or ""):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidJson(f"{text[:40]!r} is no text: it has a lone surrogate") from error
    # No stream id holds a NUL, so this is the first that comes after.
    low, high = f"{after[:250]}\0", last_text if until is None else until[:250]
    for items in table.query(directory, low, high or "\0", Limit=page):
        found = table.get_many(head_key(item["sk"]) for item in items)
        for item in items:
            # One that is missing was deleted between the two reads; or by hand, which is for verify to find.
            head = head_of(found.get(head_key(item["sk"])), is_listed=True)
            if head is not None:
                yield head
