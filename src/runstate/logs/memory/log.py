"""The whole port in dictionaries behind one lock: the shortest log there is, and the easiest to read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from threading import Lock
from time import time
from typing import Self

import msgspec

from runstate.errors import BlobNotFound, InvalidUrl, LogClosed, RunstateError, StreamNotFound
from runstate.logs.adoption import check_records, key_taken, new_records
from runstate.logs.blob_collection import Collected, mark_blobs
from runstate.logs.bulk import Answer, Batch
from runstate.logs.decimal_positions import decimal_position
from runstate.logs.log import (
    AppendResult,
    BlobRef,
    Capability,
    FeedPage,
    Finding,
    Head,
    Position,
    Record,
    StoredSnapshot,
    StreamInfo,
    Tombstone,
    check_expected,
    check_limit,
    check_same_stream,
    is_outdated,
    is_same_stream,
    now,
    refuse,
)
from runstate.logs.planning import StreamPlan
from runstate.logs.snapshotting import MakeSnapshot, StreamEnd
from runstate.logs.stream_models import model_after
from runstate.logs.tombstones import if_counting
from runstate.models.canonical import digest
from runstate.models.model import Draft, check_stream


def open_url(url: str, *, create: bool = True) -> MemoryLog:
    """`memory:`. Each is new, whatever `create` says."""
    if url != "memory:":
        raise InvalidUrl(f"A log in memory has no name: {url[:80]!r} should be 'memory:'")
    return MemoryLog()


class MemoryLog:
    """Events live as long as this object."""

    capabilities = frozenset(Capability) - {Capability.DURABLE, Capability.MULTI_PROCESS, Capability.REPAIR}

    def __init__(self) -> None:
        self._lock = Lock()
        self._streams: dict[str, list[Record]] = {}
        self._keys: dict[str, dict[str, Record]] = {}
        self._models: dict[str, str] = {}
        self._tombstones: dict[str, Tombstone] = {}
        self._feed: list[tuple[int, Record]] = []
        self._last_position = 0
        self._snapshots: dict[str, dict[str, StoredSnapshot]] = {}
        self._blobs: dict[BlobRef, bytes] = {}
        self._put_at: dict[BlobRef, float] = {}
        self._closed = False

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        check_stream(stream)
        with self._open():
            return self._append(stream, drafts, expected_seq)

    def append_with_snapshots(
        self, batches: Sequence[Batch], make: MakeSnapshot, *, expected_seq: int | None = None
    ) -> list[Answer]:
        for stream, _ in batches:
            check_stream(stream)
        answers: list[Answer] = []
        with self._open():
            for stream, drafts in batches:
                try:
                    answers.append(self._append(stream, drafts, expected_seq, make))
                except RunstateError as error:
                    answers.append(error)
        return answers

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        check_stream(stream)
        with self._open():
            check_records(stream, records)
            held, keys = self._streams.get(stream, []), self._keys.get(stream, {})
            last_seq = held[-1].seq if held else 0
            model = model_after(stream, self._models.get(stream, ""), model, last_seq)
            start = _after(held, records[0].seq - 1) if records else 0
            new = new_records(stream, records, last_seq, held[start : start + len(records)])
            for record in new:
                if record.key in keys:
                    raise key_taken(record, last_seq)
            self._keep(stream, new, model)
            if new and if_counting(self._tombstones.get(stream), new[-1].seq) is None:
                self._tombstones.pop(stream, None)
            return len(new)

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_stream(stream)
        check_limit(limit)
        with self._open():
            records = self._streams.get(stream, [])
            start = _after(records, after_seq)
            return records[start : start + limit]

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        check_stream(stream)
        with self._open():
            records = self._streams.get(stream, [])
            found = records[_after(records, after_seq) : None if until_seq is None else _after(records, until_seq)]
        return (record.body for record in found)

    def find(self, stream: str, key: str) -> Record | None:
        check_stream(stream)
        with self._open():
            return self._keys.get(stream, {}).get(key)

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        check_limit(limit)
        with self._open():
            position = 0 if after is None else decimal_position(after, self._last_position)
            start = bisect_right(self._feed, position, key=lambda entry: entry[0])
            page = self._feed[start : start + limit]
            return FeedPage([record for _, record in page], Position(str(page[-1][0])) if page else after)

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        with self._open():
            names = sorted(name for name in self._streams if name > after)[:limit]
            return [_info(self._streams[name], self._models[name]) for name in names]

    def stream(self, stream: str) -> StreamInfo | None:
        check_stream(stream)
        with self._open():
            records = self._streams.get(stream)
            return _info(records, self._models[stream]) if records else None

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        with self._open():
            names = sorted(name for name in self._streams if name > after and (until is None or name <= until))
            return iter([_head(name, self._streams[name], self._models[name]) for name in names])

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        check_stream(stream)
        with self._open():
            return self._snapshots.get(stream, {}).get(model)

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        check_stream(stream)
        with self._open():
            if (records := self._streams.get(stream)) is None:
                raise StreamNotFound(stream=stream)
            if not is_same_stream(records[0].persisted_at, snapshot.first_persisted_at):
                return
            kept = self._snapshots.setdefault(stream, {})
            old = kept.get(snapshot.model)
            if old is None or not is_outdated(snapshot, old.version, old.seq, records[-1].seq):
                kept[snapshot.model] = msgspec.structs.replace(snapshot, first_persisted_at="")

    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        check_stream(stream)
        with self._open():
            if (records := self._streams.get(stream)) is None:
                if tombstone is None and self._tombstones.pop(stream, None) is not None:
                    return
                raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
            check_expected(stream, records[-1].seq, expected_seq)
            check_same_stream(stream, records[0].persisted_at, first_persisted_at)
            self._tombstones.pop(stream, None)
            if tombstone is not None:
                self._tombstones[stream] = tombstone
            del self._streams[stream], self._keys[stream], self._models[stream]
            self._snapshots.pop(stream, None)
            self._feed = [entry for entry in self._feed if entry[1].stream != stream]

    def tombstone(self, stream: str) -> Tombstone | None:
        check_stream(stream)
        with self._open():
            return self._tombstones.get(stream)

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        """Nothing: what is in memory is as it was put there."""
        if stream is not None:
            check_stream(stream)
        with self._open():
            return iter(())

    def verify_rest(self) -> Iterator[Finding]:
        return self.verify()

    def repair(
        self, stream: str, *, dry_run: bool = False, salvage: bool = False, quarantine: int = 0
    ) -> list[Finding]:
        raise refuse(Capability.REPAIR, "memory")

    def put_blob(self, data: bytes) -> BlobRef:
        with self._open():
            ref = BlobRef(f"sha256:{digest(data)}")
            self._blobs[ref], self._put_at[ref] = bytes(data), time()
            return ref

    def get_blob(self, ref: BlobRef) -> bytes:
        with self._open():
            try:
                return self._blobs[ref]
            except KeyError as error:
                raise BlobNotFound(ref=ref) from error

    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        marked = mark_blobs(self, grace_s)
        with self._open():
            found = ((ref, len(data), self._put_at[ref] < marked.put_before) for ref, data in self._blobs.items())
            collected = marked.sort(found, dry_run=dry_run)
            for ref in () if dry_run else collected.removed:
                del self._blobs[ref], self._put_at[ref]
            return collected

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _append(
        self, stream: str, drafts: Sequence[Draft], expected_seq: int | None, make: MakeSnapshot | None = None
    ) -> list[AppendResult]:
        """The caller holds the lock, which is this log's commit."""
        plan, held = self._plan(stream), self._streams.get(stream)
        end = StreamEnd(held[0].persisted_at, held[-1].seq, digest(held[-1].body)) if make and held else StreamEnd()
        results = plan.add(drafts, expected_seq, now())
        new = list(plan.new.values())
        self._keep(stream, new, plan.model)
        if make is not None and new and (snapshot := make(end, new)) is not None:
            self._snapshots.setdefault(stream, {})[snapshot.model] = snapshot
        return results

    def _plan(self, stream: str) -> StreamPlan:
        find, tombstone = self._keys.get(stream, {}).get, self._tombstones.get(stream)
        if not (records := self._streams.get(stream)):
            return StreamPlan(stream, find=find, tombstone=tombstone)
        first, last = records[0], records[-1]
        model = self._models[stream]
        return StreamPlan(stream, last.seq, first.tenant, model, find=find, previous=last.body, tombstone=tombstone)

    def _keep(self, stream: str, records: Collection[Record], model: str) -> None:
        if records:
            self._models[stream] = model
            self._streams.setdefault(stream, []).extend(records)
            self._keys.setdefault(stream, {}).update((record.key, record) for record in records)
            positions = range(self._last_position + 1, self._last_position + len(records) + 1)
            self._feed += zip(positions, records, strict=True)
            self._last_position += len(records)

    def _open(self) -> Lock:
        if self._closed:
            raise LogClosed()
        return self._lock


def _after(records: list[Record], seq: int) -> int:
    """Where the records after a seq begin. Adopted ones may leave gaps."""
    return bisect_right(records, seq, key=lambda record: record.seq)


def _head(stream: str, records: list[Record], model: str) -> Head:
    first, last = records[0], records[-1]
    version = f"{first.persisted_at}.{first.event_id}.{last.seq}.{last.event_id}"
    return Head(stream, len(records), version, last.seq, model)


def _info(records: list[Record], model: str) -> StreamInfo:
    first, last = records[0], records[-1]
    return StreamInfo(first.stream, first.tenant, last.seq, len(records), first.persisted_at, last.persisted_at, model)
