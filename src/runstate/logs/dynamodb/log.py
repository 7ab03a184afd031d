"""The port over a DynamoDB table: many writers at once, on as many streams as there are.

The append authority is the version of a stream's head: one transaction replaces it and writes the events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TypeVar
from zlib import crc32

from runstate.errors import LogBusy, LogFailed
from runstate.logs.adoption import check_records
from runstate.logs.blob_collection import Collected, mark_blobs
from runstate.logs.dynamodb import blobs, deletion, keepings, reading
from runstate.logs.dynamodb.appends import read_head, try_adopt, try_append
from runstate.logs.dynamodb.feed import feed_page
from runstate.logs.dynamodb.items import Head as StoredHead
from runstate.logs.dynamodb.items import head_key, tombstone_of
from runstate.logs.dynamodb.repair import repair_stream
from runstate.logs.dynamodb.schema import prepare
from runstate.logs.dynamodb.table import Table, busy_timeout_default_s, pause
from runstate.logs.dynamodb.verify import verify_rest, verify_table
from runstate.logs.handle import Handle
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
    check_limit,
)
from runstate.models.model import Draft, check_stream

T = TypeVar("T")
_turns = 64


class DynamoLog(Handle):
    """A log in one table. Threads, processes and machines may share it; a forked child must open its own."""

    capabilities = frozenset(Capability)

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        create: bool = True,
        busy_timeout_s: float = busy_timeout_default_s,
    ) -> None:
        """Find the table, or make it if it is not there; and finish deletions that were interrupted.

        Raises:
            LogNotFound: it is not there, and `create` is false.
            NotALog: it holds something else.
            LogTooNew: a newer Runstate wrote it.
            LogFailed: DynamoDB cannot be reached, or does not let us in.
        """
        super().__init__()
        # Threads that append to one stream take turns here, and not by colliding in the table.
        self._turns = [Lock() for _ in range(_turns)]
        self._table = Table(table, region=region, endpoint=endpoint, busy_timeout_s=busy_timeout_s)
        try:
            prepare(self._table, create=create)
            with suppress(LogFailed):  # A reader is not allowed to, and need not be.
                deletion.collect(self._table)
        except BaseException:
            self._table.close()
            raise

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        check_stream(stream)
        self._check_open()
        if not drafts:
            return []
        return self._in_turn(stream, lambda sent: try_append(self._table, stream, drafts, expected_seq, sent))

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        check_stream(stream)
        self._check_open()
        check_records(stream, records)
        if not records:
            return 0

        def held(head: StoredHead) -> list[Record]:
            places = reading.records_between(self._table, head, records[0].seq - 1, records[-1].seq)
            return [record for some in places for record in some]

        return self._in_turn(stream, lambda sent: try_adopt(self._table, stream, records, model, held, sent))

    def _in_turn(self, stream: str, work: Callable[[set[str]], T | None]) -> T:
        """Try until nobody else was faster, or the time is over."""
        timeout_s = self._table.busy_timeout_s
        deadline = time.monotonic() + timeout_s
        turn = self._turns[crc32(stream.encode()) % _turns]
        if turn.acquire(timeout=timeout_s):
            try:
                sent: set[str] = set()
                attempt = 0
                while (done := work(sent)) is None and time.monotonic() < deadline:
                    pause(attempt)
                    attempt += 1
                if done is not None:
                    return done
            finally:
                turn.release()
        raise LogBusy(f"The stream {stream!r} could not be written within {timeout_s:g} s; try again")

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_stream(stream)
        check_limit(limit)
        self._check_open()
        return reading.read(self._table, stream, after_seq, limit)

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        check_stream(stream)
        self._check_open()
        yield from reading.lines(self._table, stream, after_seq, until_seq)

    def find(self, stream: str, key: str) -> Record | None:
        check_stream(stream)
        self._check_open()
        return reading.find(self._table, stream, key)

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        check_limit(limit)
        self._check_open()
        return feed_page(self._table, after, limit)

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        self._check_open()
        found = reading.heads(self._table, after, None, page=min(limit, reading.heads_page))
        return [_info(head) for head, _ in zip(found, range(limit), strict=False)]

    def stream(self, stream: str) -> StreamInfo | None:
        check_stream(stream)
        self._check_open()
        head = read_head(self._table, stream)
        return None if head is None else _info(head)

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        self._check_open()
        for head in reading.heads(self._table, after, until):
            # No number of a stream is given twice, and nothing but an append changes a stream.
            version = f"{head.id}-{head.last_seq}" if versions else ""
            yield Head(head.stream, head.events, version, head.last_seq, head.model)

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        check_stream(stream)
        self._check_open()
        return keepings.load_snapshot(self._table, stream, model)

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        check_stream(stream)
        self._check_open()
        keepings.save_snapshot(self._table, stream, snapshot)

    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        check_stream(stream)
        self._check_open()
        deletion.delete(self._table, stream, expected_seq, first_persisted_at, tombstone)
        deletion.collect(self._table)

    def tombstone(self, stream: str) -> Tombstone | None:
        check_stream(stream)
        self._check_open()
        return tombstone_of(self._table.get(head_key(stream)))

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        if stream is not None:
            check_stream(stream)
        self._check_open()
        yield from verify_table(self._table, stream)

    def verify_rest(self) -> Iterator[Finding]:
        self._check_open()
        yield from verify_rest(self._table)

    def repair(
        self, stream: str, *, dry_run: bool = False, salvage: bool = False, quarantine: int = 0
    ) -> list[Finding]:
        check_stream(stream)
        self._check_open()
        repair = partial(repair_stream, stream=stream, dry_run=dry_run, salvage=salvage, quarantine=quarantine)
        return self._in_turn(stream, lambda _: repair(self._table))

    def put_blob(self, data: bytes) -> BlobRef:
        self._check_open()
        return blobs.put_blob(self._table, data)

    def get_blob(self, ref: BlobRef) -> bytes:
        self._check_open()
        return blobs.get_blob(self._table, ref)

    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        self._check_open()
        marked = mark_blobs(self, grace_s)
        blobs.mark_set_aside(self._table, marked)
        return blobs.collect(self._table, marked, dry_run=dry_run)

    def _release(self) -> None:
        self._table.close()


def _info(head: StoredHead) -> StreamInfo:
    return StreamInfo(head.stream, head.tenant, head.last_seq, head.events, head.first_at, head.last_at, head.model)
