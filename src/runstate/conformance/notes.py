"""The kit's own events: notes. As little meaning as possible, so that only the log is tested."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from runstate.logs.log import EventLog, FeedPage, Finding, Position, Record, StoredSnapshot
from runstate.logs.set_aside import SET_ASIDE
from runstate.models.canonical import digest
from runstate.models.model import Draft, stable_uuid

emitted_default = "2026-11-15T09:30:00.000Z"
held_since = "2024-02-29T23:59:59.999Z"
_prefix = b'{"seq":%d,"persistedAt":"%b",'
_volatile = frozenset({"emittedAt"})


def note(
    key: str, text: str = "", *, tenant: str = "acme", emitted_at: str = emitted_default, model: str = "notes"
) -> Draft:
    """A draft named by its key. A retry may send another `emitted_at`, never another text."""
    body = msgspec.json.encode({"key": key, "text": text, "tenant": tenant, "emittedAt": emitted_at})
    return Draft(
        event_id=stable_uuid("note", key, text),
        type="noted",
        key=key,
        tenant=tenant,
        emitted_at=emitted_at,
        prefix=_prefix,
        tail=body[1:],
        volatile=_volatile,
        model=model,
    )


def notes(*keys: str) -> list[Draft]:
    return [note(key) for key in keys]


def numbered(count: int, prefix: str = "k") -> list[Draft]:
    return [note(f"{prefix}{number}") for number in range(1, count + 1)]


def as_held(
    stream: str, drafts: Iterable[Draft], *, after_seq: int = 0, persisted_at: str = held_since
) -> list[Record]:
    """Drafts as another log holds them, for this one to adopt."""
    return [
        Record(
            stream, seq, d.event_id, d.type, d.key, d.tenant, d.emitted_at, persisted_at, d.render(seq, persisted_at)
        )
        for seq, d in enumerate(drafts, after_seq + 1)
    ]


def snapshot(seq: int, *, version: int = 1, model: str = "notes", text: str = "") -> StoredSnapshot:
    body = msgspec.json.encode({"seq": seq, "text": text})
    return StoredSnapshot(model, version, seq, digest(body), body)


def stored(log: EventLog, stream: str, *, page: int = 1000) -> list[Record]:
    """The whole stream, page by page.

    Raises:
        AssertionError: the pages do not ascend; with such a log one might turn pages for ever.
    """
    found: list[Record] = []
    while records := log.read(stream, after_seq=found[-1].seq if found else 0, limit=page):
        found += records
        if seqs(found[-len(records) - 1 :]) != sorted(set(seqs(found[-len(records) - 1 :]))):
            raise AssertionError(f"the stream {stream!r} was not read in ascending order: {seqs(found)[-10:]}")
    return found


def followed(log: EventLog, after: Position | None = None, *, page: int = 1000) -> FeedPage:
    """The feed from a position to where it ends now, page by page, as one page.

    Raises:
        AssertionError: an event came twice; with such a log one might turn pages for ever.
    """
    found: dict[tuple[str, int], Record] = {}
    while records := (answer := log.feed(after=after, limit=page)).records:
        for record in records:
            if found.setdefault((record.stream, record.seq), record) is not record:
                raise AssertionError(f"the feed gave event {record.seq} of {record.stream!r} twice")
        after = answer.next
    return FeedPage(list(found.values()), after)


def findings(log: EventLog, stream: str | None = None) -> list[Finding]:
    """What `verify` finds, but for the files that a recovery has set aside: those stay until someone removes them."""
    return [finding for finding in log.verify(stream) if finding.code != SET_ASIDE]


def keys(records: Iterable[Record]) -> list[str]:
    return [record.key for record in records]


def seqs(records: Iterable[Record]) -> list[int]:
    return [record.seq for record in records]
