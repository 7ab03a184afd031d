"""What `verify` looks at: every event against its checksum, its key and its head; the directory, the feed, blobs.

DynamoDB shows no single moment of a whole table. So a stream is looked at up to where its head was at first, and
what seems wrong is told only if the stream was not deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from runstate.errors import LogDamaged
from runstate.logs.blob_refs import changed_blob
from runstate.logs.dynamodb.appends import read_head
from runstate.logs.dynamodb.blobs import blob_data, list_blobs
from runstate.logs.dynamodb.items import (
    Entry,
    Head,
    Mark,
    counter_key,
    directory,
    entry_of,
    feed,
    garbage,
    head_key,
    head_of,
    key_key,
    last_text,
    mark_key,
    mark_of,
    marks_partitions,
    page_rows,
    page_seq,
    set_aside,
)
from runstate.logs.dynamodb.keepings import load_snapshot, snapshot_key
from runstate.logs.dynamodb.table import Item, Table
from runstate.logs.log import Finding, Record
from runstate.logs.row_repair import set_aside_findings
from runstate.logs.stored_rows import row_findings
from runstate.models.canonical import digest


def verify_table(table: Table, stream: str | None) -> Iterator[Finding]:
    """Findings for one stream, or for the whole log."""
    if stream is not None:
        yield from verify_stream(table, stream)
        return
    yield from verify_rest(table)
    for items in table.query(directory, "\0", last_text):
        for item in items:
            yield from verify_stream(table, item["sk"])


# --- one stream ----------------------------------------------------------------------------------------


def verify_stream(table: Table, stream: str) -> Iterator[Finding]:
    listed = table.get((directory, stream))
    try:
        head = read_head(table, stream)
    except LogDamaged as damaged:
        yield Finding(code="dynamodb.head_changed", message=str(damaged), stream=stream)
        return
    if head is None:
        # Again, since it may have been deleted between the two reads.
        if listed is not None and table.get((directory, stream)) == listed and read_head(table, stream) is None:
            yield Finding(
                code="dynamodb.head_missing", message="The stream is listed, but its head is gone", stream=stream
            )
        return
    if listed is None and table.get((directory, stream)) is None and read_head(table, stream) == head:
        yield _not_listed(stream)
    for finding in _behind(table, head):
        again = read_head(table, stream)
        if again is None or again.id != head.id:
            return
        yield finding


def _behind(table: Table, head: Head) -> Iterator[Finding]:
    walk = _Walk(table, head)
    yield from row_findings(head.stream, walk.rows(), 0, head.last_seq, head.events)
    yield from walk.findings
    if walk.beyond and read_head(table, head.stream) == head:
        yield Finding(
            code="log.events_missing",
            message=f"The head says that {head.last_seq} is the last event, but there is one at {walk.beyond}",
            stream=head.stream,
            seq=walk.beyond,
        )
    yield from _keys(table, head, None if walk.is_changed else walk.keys)
    yield from _mark(table, head)
    yield from _snapshots(table, head)


def _mark(table: Table, head: Head) -> Iterator[Finding]:
    """The stream's mark for the feed, which has no checksum."""
    if (item := table.get(mark_key(head.id))) is None:
        return
    try:
        mark = mark_of(item)
        again = read_head(table, head.stream)  # After the mark: an append moves both.
        is_sound = again is None or (
            mark.stream == head.stream and 0 < mark.since <= mark.through + 1 <= again.last_seq + 1
        )
    except LogDamaged:
        is_sound = False
    if not is_sound:
        message = "The mark of fresh events is not what an append wrote: followers may not see them"
        yield Finding(code="dynamodb.mark_changed", message=message, stream=head.stream)


class _Walk:
    """All pages of a stream, once: rows for those that look at rows, and what was noticed on the way."""

    def __init__(self, table: Table, head: Head) -> None:
        self._table, self._head = table, head
        self.findings: list[Finding] = []
        self.beyond = 0
        """The first event behind the head."""
        self.keys = 0
        """How many events have their key written down."""
        self.is_changed = False
        """Whether one of the events is not what was appended. Its key is not known then."""

    def rows(self) -> Iterator[tuple[int, bool, int]]:
        for items in self._table.query(self._head.id, "e", "f"):
            for item in items:
                yield from self._page(item)

    def _page(self, item: Item) -> Iterator[tuple[int, bool, int]]:
        last_seq = page_seq(item)
        if last_seq > self._head.last_seq:
            self.beyond = self.beyond or last_seq
            return
        rows = page_rows(self._head.stream, item)
        self.is_changed = self.is_changed or any(record is None for _, record in rows)
        self._check_keys([record for _, record in rows if record is not None], last_seq)
        for seq, record in rows:
            # A stream's places in the feed follow its seqs by construction; the feed itself is looked at elsewhere.
            yield seq, record is not None, seq

    def _check_keys(self, records: list[Record], page_seq: int) -> None:
        expected = {key_key(self._head.id, record.key): record for record in records}
        found = self._table.get_many(expected)
        for place, record in expected.items():
            item = found.get(place)
            if item is None and self._head.unindexed and record.seq >= self._head.unindexed:
                continue
            self.keys += 1
            if item is None or (item.get("seq"), item.get("page")) != (record.seq, page_seq):
                self.findings.append(
                    Finding(
                        code="dynamodb.key_missing" if item is None else "dynamodb.key_changed",
                        message=f"The key {record.key[:80]!r} does not lead to its event: a retry would store it twice",
                        stream=self._head.stream,
                        seq=record.seq,
                    )
                )


def _keys(table: Table, head: Head, expected: int | None) -> Iterator[Finding]:
    """Keys of no event: a retry would take them for known."""
    count = 0
    for items in table.query(head.id, "k", "l"):
        for item in items:
            count += 1
            seq = item.get("seq")
            if isinstance(seq, int) and seq > head.last_seq:
                count -= 1
                if read_head(table, head.stream) == head:
                    yield _stray(head, seq)
    if expected is not None and count > expected and not head.unindexed:
        yield _stray(head, None)


def _stray(head: Head, seq: int | None) -> Finding:
    return Finding(
        code="dynamodb.key_stray",
        message="A key is written down that no event has: a new event of that key would be refused",
        stream=head.stream,
        seq=seq,
    )


def _snapshots(table: Table, head: Head) -> Iterator[Finding]:
    for items in table.query(head.id, "s", "t"):
        for item in items:
            model, seq = item.get("model"), item.get("seq")
            kept = load_snapshot(table, head.stream, str(model))
            if kept is None or not kept.is_intact or item["sk"] != snapshot_key(head, str(model))[1]:
                yield Finding(
                    code="snapshot.digest_mismatch",
                    message=f"The stored {model} snapshot is not what was saved; "
                    "it can be rebuilt with 'runstate replay'",
                    stream=head.stream,
                    seq=seq if isinstance(seq, int) else None,
                )


# --- beyond streams ------------------------------------------------------------------------------------


def verify_rest(table: Table) -> Iterator[Finding]:
    """Findings beyond single streams."""
    yield from _feed(table)
    for items in table.query(set_aside, "0", last_text):
        for item in items:
            place = f"the items whose pk is {item['sk']}"
            yield from set_aside_findings([(item["stream"], item["events"], item["at"])], place)
    for entry in list_blobs(table):
        if digest(blob_data(table, entry)) != entry["sk"]:
            yield changed_blob(entry["sk"])


def _feed(table: Table) -> Iterator[Finding]:
    """The feed has no hole, and every stream in it is there as a whole, or deleted as a whole."""
    # In this order: what moves on meanwhile, from a head to a mark and from a mark into the feed, is met again there.
    ends = _ends(table)
    marks, foreign = _marks(table)
    for item in foreign:
        if item["sk"] not in ends:  # Else it is a finding of its stream.
            yield Finding(code="dynamodb.feed_changed", message=f"The mark {item['sk']} is none that an append wrote")
    counter = table.get(counter_key)
    last = int(counter["last"]) if counter else 0
    position = 0
    reached: dict[str, int] = {}
    """Of every stream, how far the feed shows it."""
    for items in table.query(feed, "0", last_text):
        entries: list[Entry | Mark] = []
        for item in items:
            try:
                entry = entry_of(item)
            except LogDamaged as damaged:
                yield Finding(code="dynamodb.feed_changed", message=str(damaged))
                continue
            if entry.position > last:
                break
            if entry.before != position or entry.since != reached.get(entry.id, 0) + 1:
                yield _hole(entry.stream, reached.get(entry.id, 0) + 1)
            position, reached[entry.id] = entry.position, entry.through
            entries.append(entry)
        yield from _strays(table, entries, ends)
    if position != last:
        yield Finding(
            code="dynamodb.feed_missing", message=f"The feed should go to position {last}, it ends at {position}"
        )
    yield from _strays(table, [mark for mark in marks if mark.id not in ends], ends)
    for mark in marks:
        if mark.since <= reached.get(mark.id, 0) + 1:
            reached[mark.id] = max(mark.through, reached.get(mark.id, 0))
    for stream_id, (stream, last_seq) in ends.items():
        if reached.get(stream_id, 0) < last_seq:
            head = head_of(table.get(head_key(stream)))
            if head is not None and head.id == stream_id:
                yield _hole(stream, reached.get(stream_id, 0) + 1)


def _ends(table: Table) -> dict[str, tuple[str, int]]:
    """Where every stream ends, by its number."""
    ends: dict[str, tuple[str, int]] = {}
    for items in table.query(directory, "\0", last_text):
        for item in table.get_many(head_key(item["sk"]) for item in items).values():
            try:
                head = head_of(item)
            except LogDamaged:
                continue  # It is a finding of its stream.
            if head is not None:
                ends[head.id] = head.stream, head.last_seq
    return ends


def _marks(table: Table) -> tuple[list[Entry | Mark], list[Item]]:
    """All marks, and the items that are none though they stand among them."""
    found: list[Entry | Mark] = []
    foreign: list[Item] = []
    for item in (i for partition in marks_partitions() for items in table.query(partition, "0", "g") for i in items):
        try:
            found.append(mark_of(item))
        except LogDamaged:
            foreign.append(item)
    return found, foreign


def _hole(stream: str, seq: int) -> Finding:
    return Finding(
        code="dynamodb.feed_missing",
        message="Events are missing in the feed from here on: followers do not see them",
        stream=stream,
        seq=seq,
    )


def _not_listed(stream: str) -> Finding:
    message = "The stream is there, but the list of streams lacks it"
    return Finding(code="dynamodb.not_listed", message=message, stream=stream)


def _strays(table: Table, shown: list[Entry | Mark], ends: dict[str, tuple[str, int]]) -> Iterator[Finding]:
    heads = table.get_many(head_key(place.stream) for place in shown)
    listed = table.get_many((directory, place.stream) for place in shown)
    seen: set[str] = set()
    for place in shown:
        if place.id in seen:
            continue
        seen.add(place.id)
        head = heads.get(head_key(place.stream))
        if head is not None and head.get("id") == place.id:
            if (directory, place.stream) not in listed and table.get(head_key(place.stream)) is not None:
                yield _not_listed(place.stream)
        elif place.id in ends:
            owner = ends[place.id][0]
            message = f"The feed shows events of this stream as those of {place.stream!r}: followers do not see them"
            yield Finding(code="dynamodb.feed_changed", message=message, stream=owner)
        elif not any(table.get((notes, place.id)) for notes in (garbage, set_aside)) and next(
            table.query(place.id, "e", "f", limit=1), None
        ):
            # The notes first: they go last, so where there is none, a deletion has left nothing.
            yield Finding(
                code="dynamodb.orphan_events",
                message=f"Events are left of a stream (number {place.id}) whose head is gone",
                stream=place.stream,
            )
