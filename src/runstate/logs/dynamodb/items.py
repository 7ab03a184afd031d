"""What stands in the table: heads, pages of events, keys, marks and entries of the feed; and under which `pk` and `sk`.

A stream's own items stand under the number that its head has, not under its name: once the head is gone they belong
to nobody, and a stream that is begun again never meets them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import msgspec

from runstate.errors import EventTooLarge, LogDamaged
from runstate.logs.dynamodb.table import Item, Key
from runstate.logs.log import Record
from runstate.logs.tombstones import Tombstone, decode_tombstone
from runstate.models.model import stream_bytes_max

page_bytes_max = 390_000
"""What one item holds of events, a snapshot or a blob. DynamoDB takes 409,600 bytes, with everything around it."""
append_bytes_max = 4_000_000
"""What one append holds. DynamoDB takes 4 MiB in one transaction, with everything around it."""
marks_shards = 4
"""Over how many partitions the marks of fresh events are spread. Part of the format."""

last_text = "\U0010ffff" * (stream_bytes_max // 4 + 1)
"""Sorts after every stream id. A sort key has at most 1024 bytes, a partition key 2048."""
directory = "streams"
blobs = "blobs"
garbage = "garbage"
set_aside = "set_aside"
feed = "feed"
format_key: Key = ("runstate", "format")
counter_key: Key = ("runstate", "feed")

_seq_max = 10**19


def pieces_of(data: bytes) -> list[bytes]:
    """Bytes in as many parts as items are needed for them; one at least."""
    return [data[start : start + page_bytes_max] for start in range(0, len(data) or 1, page_bytes_max)]


_Row = tuple[int, str, str, str, str, str, str, bytes, int]
_rows = msgspec.msgpack.Decoder(list[_Row])


class Head(msgspec.Struct, frozen=True, gc=False):
    """How far a stream has come. Whoever replaces it, on condition of its version, is the append authority."""

    stream: str
    id: str
    version: int
    """How often it was replaced."""
    last_seq: int
    events: int
    tenant: str
    first_at: str
    last_at: str
    unindexed: int = 0
    """From this seq on, keys are still to be written down; 0: none."""
    model: str = ""
    """The model that the stream records; heads of version 1 have no such attribute."""
    restoring: str = ""
    """The tombstone, as JSON, of a stream that is not wholly restored; else there is no such attribute."""

    @property
    def key(self) -> Key:
        return head_key(self.stream)

    def item(self) -> Item:
        values = msgspec.structs.asdict(self)
        for name in ("model", "restoring"):
            if not values[name]:
                del values[name]
        return {"pk": self.key[0], "sk": self.key[1], **values, "crc": _crc_of(values.values())}


class Page(msgspec.Struct, frozen=True, gc=False):
    """Events of one append that stand in one item."""

    token: str
    """Of the append: whoever got no answer knows its own events by it."""
    records: list[Record]
    crcs: list[int]
    """As they were when the page was written, one for each record."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """Events of one stream that have no place in the feed yet."""

    stream: str
    id: str
    since: int
    through: int
    at_ns: int
    """When it was set, by its writer's clock. What follows one after the other is shown so; nothing relies on it."""

    @property
    def key(self) -> Key:
        return mark_key(self.id)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A stretch of one stream in the feed; the position of its last event is the entry's own."""

    stream: str
    id: str
    since: int
    through: int
    position: int

    @property
    def before(self) -> int:
        """The position before its first event."""
        return self.position - (self.through - self.since + 1)

    def item(self) -> Item:
        values = msgspec.structs.asdict(self)
        return {"pk": feed, "sk": number(self.position), **values, "crc": _crc_of(values.values())}


def number(value: int) -> str:
    """A number whose text sorts as it does."""
    return f"{max(0, min(value, _seq_max)):020d}"


def head_key(stream: str) -> Key:
    return f"head:{stream}", "head"


def page_key(stream_id: str, last_seq: int) -> Key:
    """Pages are named for their last event: those after a seq are found by one range."""
    return stream_id, f"e{number(last_seq)}"


def key_key(stream_id: str, key: str) -> Key:
    # Its digest: a sort key has at most 1,024 bytes, an event's key any number.
    return stream_id, f"k{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def mark_key(stream_id: str) -> Key:
    return f"mark:{int(stream_id[:8], 16) % marks_shards}", stream_id


def marks_partitions() -> list[str]:
    return [f"mark:{shard}" for shard in range(marks_shards)]


def key_item(stream_id: str, record: Record, page_seq: int) -> Item:
    pk, sk = key_key(stream_id, record.key)
    return {"pk": pk, "sk": sk, "seq": record.seq, "page": page_seq}


def is_key(item: Item) -> bool:
    """Whether a key's item leads anywhere."""
    return isinstance(item.get("seq"), int) and isinstance(item.get("page"), int)


def page_items(
    stream_id: str, token: str, records: list[Record], bytes_max: int = append_bytes_max
) -> Iterator[tuple[Item, list[Record]]]:
    """The pages that records make, as few as can be.

    Raises:
        EventTooLarge: one event fits no item, or all together no transaction.
    """
    total = size = 0
    rows: list[msgspec.Raw] = []
    held: list[Record] = []
    for record in records:
        row = msgspec.msgpack.encode((*_values(record), record_crc(stream_id, record)))
        total += len(row)
        if len(row) > page_bytes_max:
            raise EventTooLarge(
                f"An event has {len(row)} bytes, DynamoDB keeps at most {page_bytes_max} in one item; "
                "keep the payload as a blob and append its reference",
                bytes=len(row),
                bytes_max=page_bytes_max,
            )
        if total > bytes_max:
            raise EventTooLarge(
                f"The append has more than {bytes_max} bytes, and DynamoDB's transactions no more room; "
                "nothing was written, send it in parts",
                bytes_max=bytes_max,
            )
        if rows and size + len(row) > page_bytes_max:
            yield _page_item(stream_id, token, held, rows), held
            rows, held, size = [], [], 0
        rows.append(msgspec.Raw(row))
        held.append(record)
        size += len(row)
    yield _page_item(stream_id, token, held, rows), held


def _page_item(stream_id: str, token: str, held: list[Record], rows: list[msgspec.Raw]) -> Item:
    pk, sk = page_key(stream_id, held[-1].seq)
    return {"pk": pk, "sk": sk, "token": token, "events": msgspec.msgpack.encode(rows)}


def page_of(stream: str, item: Item) -> Page:
    """
    Raises:
        LogDamaged: the item is none that an append wrote.
    """
    try:
        rows = _rows.decode(item["events"])
        return Page(str(item["token"]), [Record(stream, *row[:-1]) for row in rows], [row[-1] for row in rows])
    except (KeyError, TypeError, msgspec.MsgspecError) as error:
        raise LogDamaged(
            f"A page of the stream {stream!r}, the one up to seq {item['sk'][1:].lstrip('0')}, is none that an append "
            f"wrote ({error!r}); run 'runstate verify'",
            stream=stream,
        ) from error


def page_seq(item: Item) -> int:
    """The seq that a page is named for; one behind all others if its name is none that an append gave."""
    name = item["sk"][1:]
    return int(name) if name.isascii() and name.isdecimal() else _seq_max


def proven_rows(stream: str, item: Item) -> list[tuple[int, Record | None]]:
    """The events of a page: their seqs, with the record of each that is what was appended.

    The seq of one that is not is where it stands. A page that cannot be read stands for its last event.
    """
    last_seq = page_seq(item)
    try:
        page = page_of(stream, item)
    except LogDamaged:
        return [(last_seq, None)]
    found: list[tuple[int, Record | None]] = []
    before = 0
    for record, crc in zip(page.records, page.crcs, strict=True):
        if record_crc(item["pk"], record) == crc:
            found.append((record.seq, record))
        else:
            found.append((before + 1 if before else max(1, last_seq - len(page.records) + 1), None))
        before = found[-1][0]
    return found or [(last_seq, None)]


def page_rows(stream: str, item: Item) -> list[tuple[int, Record | None]]:
    """As `proven_rows`; but no event of a page that stands in the place of another is what was appended there."""
    found = proven_rows(stream, item)
    seqs = [seq for seq, _ in found]
    if seqs[-1] == page_seq(item) and seqs == sorted(set(seqs)):
        return found
    return [(page_seq(item), None)]


def head_of(item: Item | None, *, is_listed: bool = False) -> Head | None:
    """In a list, a head that was changed stands as it is, as far as it can be read: a read of the stream refuses it.

    Raises:
        LogDamaged: the item is none that an append wrote.
    """
    if item is None or _is_tombstone(item):
        return None
    if is_listed:
        return _listed(item)
    head: Head = _checked(Head, item, f"The head {item['pk'][:240]!r}")
    return head


def _listed(item: Item) -> Head:
    values = {
        field.name: value if isinstance(value := item.get(field.name), field.type) else field.type()
        for field in msgspec.structs.fields(Head)
    }
    return Head(**values | {"stream": item["pk"].removeprefix("head:")})


def tombstone_item(tombstone: Tombstone) -> Item:
    """It takes the place of the stream's head: an append that finds no item there may begin the stream, no other."""
    pk, sk = head_key(tombstone.stream)
    values = msgspec.structs.asdict(tombstone)
    return {"pk": pk, "sk": sk, **values, "crc": _crc_of(values.values())}


def tombstone_of(item: Item | None) -> Tombstone | None:
    """The tombstone that stands in the place of a head, or in a head whose stream is not wholly restored.

    Raises:
        LogDamaged: it is not as it was written.
    """
    if item is None:
        return None
    if not _is_tombstone(item):
        head = head_of(item)
        return None if head is None or not head.restoring else decode_tombstone(head.restoring.encode())
    tombstone = Tombstone(**{name: item.get(name, "") for name in Tombstone.__struct_fields__})
    if tombstone_item(tombstone) != item:
        raise LogDamaged(
            f"The tombstone {item['pk'][:240]!r} was changed by hand; delete the stream again to forget it",
            stream=tombstone.stream,
        )
    return tombstone


def _is_tombstone(item: Item) -> bool:
    return "deleted_at" in item


def entry_of(item: Item) -> Entry:
    made: Entry = _checked(Entry, item, f"The entry {item['sk']} of the feed")
    return made


def mark_of(item: Item) -> Mark:
    try:
        return msgspec.convert({"id": item["sk"], **item}, Mark)
    except (KeyError, msgspec.ValidationError) as error:
        raise LogDamaged(f"The mark {item['sk']} is none that an append wrote ({error})") from error


def _checked(kind: type[Any], item: Item, what: str) -> Any:
    try:
        made = msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        raise LogDamaged(f"{what} is none that Runstate wrote ({error}); run 'runstate verify'") from error
    if made.item() != item:
        raise LogDamaged(f"{what} was changed by hand; run 'runstate verify'", stream=made.stream)
    return made


def _values(record: Record) -> tuple[Any, ...]:
    return (
        record.seq,
        record.event_id,
        record.type,
        record.key,
        record.tenant,
        record.emitted_at,
        record.persisted_at,
        record.body,
    )


def record_crc(stream_id: str, record: Record) -> int:
    """CRC-32 over a stored event and where it stands, so that a flipped bit or a page in the wrong place is found."""
    seq, *texts, body = _values(record)
    return crc32("\0".join([stream_id, *texts]).encode("utf-8", "surrogatepass"), crc32(body, seq & 0xFFFFFFFF))


def _crc_of(values: Any) -> int:
    return crc32("\0".join(map(str, values)).encode("utf-8", "surrogatepass"))
