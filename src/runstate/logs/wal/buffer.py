"""What is appended and not yet flushed: new events get their places here, retries their first answers.

All methods are called with the writer's gate held, and none of them reads a file but to look up a retry or a
tombstone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from runstate.errors import LogFailed, RunstateError
from runstate.logs.log import AppendResult, Record, now
from runstate.logs.planning import Stored, StreamPlan
from runstate.logs.tombstones import Tombstone
from runstate.logs.wal.entries import Entry, Envelope, check_body, read_entry, seq_of, write_entry
from runstate.logs.wal.held import Held
from runstate.logs.wal.tickets import Batch, Outcome, Settler, Ticket
from runstate.models.model import Draft

Read = Callable[[Held, int], Record]
FindTombstone = Callable[[], Tombstone | None]


class Removed(NamedTuple):
    """An event whose content is gone. A retry of it cannot be compared any more."""

    event_id: str
    seq: int
    persisted_at: str
    body: bytes = b""


class Buffer:
    """Two batches: one that fills, and one that is being flushed. Without an entry, either may be nobody's."""

    def __init__(self, stream: str, settler: Settler, stored: Read, tombstone: FindTombstone) -> None:
        self.filling, self.flushing = Batch(), Batch()
        self._stream, self._settler, self._stored, self._tombstone = stream, settler, stored, tombstone
        self._told = Outcome(is_known=True)
        self._seq = self._tail = 0
        self._previous: bytes | None = None
        self._model = ""
        self._tenant: str | None = None
        """None: no event tells it."""
        self._deleted: Tombstone | UnsetType | None = UNSET

    @property
    def is_empty(self) -> bool:
        return not self.filling.lines and not self.flushing.lines

    def rewind(self, held: Held) -> None:
        """Go on from what is durable."""
        self._seq, self._tail, self._previous, self._model = held.last_seq, held.tail_seq, held.previous, held.model
        self._tenant = held.tenant if held.events else None
        self._deleted = UNSET

    def add(self, held: Held, drafts: Sequence[Draft], expected_seq: int | None) -> Ticket:
        """Give new events their places.

        Raises:
            ModelMismatch, StreamDeleted, TenantMismatch, SequenceConflict, LogDamaged, LogFailed, OSError: nothing was
                buffered.
        """
        if len(drafts) == 1 and expected_seq is None and self.filling.lines:
            ticket = self._add_one(held, drafts[0])
            if ticket is not None:
                return ticket
        if self._deleted is UNSET:  # Read once: it cannot change while this process holds the lock.
            self._deleted = self._tombstone()
        batch, keys = self.filling, held.keys
        tenant = drafts[0].tenant if self._tenant is None and drafts else self._tenant or ""
        head = (self._stream, self._seq, tenant, self._model)
        find = partial(self._find, held)
        plan = StreamPlan(*head, find=find, previous=self._previous, tombstone=self._deleted)
        # Between the last entry and the last seq given out there is nothing that a caller could not know.
        if expected_seq is not None and self._tail <= expected_seq <= self._seq:
            expected_seq = self._seq
        new: list[Entry] = []

        def render(stream: str, seq: int, persisted_at: str, draft: Draft, previous: bytes | None) -> Record:
            body = draft.render(seq, persisted_at, previous)
            check_body(body)
            after = new[-1].seq if new else self._tail
            own_key, gap = None if draft.key == draft.event_id else draft.key, None if after == seq - 1 else after
            times = (persisted_at, own_key, draft.tenant, draft.emitted_at)
            envelope = Envelope(draft.event_id, draft.type, *times, gap, 0, not (new or batch.lines))
            new.append(Entry(seq, envelope, body))
            keys[draft.key] = seq
            return new[-1].record(stream)

        if not batch.lines:
            batch.persisted_at, batch.born = now(), monotonic()
        try:
            results = plan.add(drafts, expected_seq, batch.persisted_at, render)
            lines = _written(new)
        except BaseException as error:
            for draft in drafts:
                if keys.get(draft.key, 0) > self._seq:
                    del keys[draft.key]
            if isinstance(error, RunstateError) or not isinstance(error, Exception):
                raise
            # What a draft does wrong must reach its caller as an error of ours.
            raise LogFailed(f"It cannot be written: {error!r}") from error
        if not new:
            return Ticket(self._settler, self._outcome_of(held, drafts), results)
        # No call among these: a signal's handler that ran in between would leave a seq used twice, or not at all.
        if batch.first is None:
            batch.first = new[0]
        batch.lines += lines
        batch.last = new[-1]
        batch.model = self._model = plan.model
        self._tenant = plan.tenant
        self._seq = self._tail = plan.last_seq
        self._previous = plan.previous
        return Ticket(self._settler, batch.outcome, results)

    def _add_one(self, held: Held, draft: Draft) -> Ticket | None:
        """`add` for what it is nearly always asked for: one new event, behind others of its flush. None: it is not."""
        batch, keys, seq, key, event_id = self.filling, held.keys, self._seq + 1, draft.key, draft.event_id
        try:
            if draft.model != self._model or draft.tenant != self._tenant or self._deleted is not None:
                return None
            if key in held.old_keys or keys.setdefault(key, seq) < seq:
                return None
            persisted_at = batch.persisted_at
            body = draft.render(seq, persisted_at, self._previous)
            check_body(body)
            own_key = None if key == event_id else key
            envelope = Envelope(event_id, draft.type, persisted_at, own_key, draft.tenant, draft.emitted_at)
            line = write_entry(seq, body, envelope)
            last, results = Entry(seq, envelope, body), [AppendResult(event_id, seq, persisted_at)]
        except BaseException as error:
            if keys.get(key) == seq:
                del keys[key]
            if isinstance(error, Exception):
                return None  # It is found wrong, and told, once more.
            raise
        batch.lines += (line,)
        batch.last = last
        self._seq = self._tail = seq
        self._previous = body
        return Ticket(self._settler, batch.outcome, results)

    def add_records(self, held: Held, records: Sequence[Record], model: str) -> Ticket:
        """Take over records of another log, which the caller has found to fit. The stream records `model` then.

        Raises:
            LogFailed: one of them cannot be written.
        """
        batch, tail = self.filling, self._tail
        new: list[Entry] = []
        if not batch.lines:
            batch.persisted_at, batch.born = now(), monotonic()
        try:
            for record in records:
                envelope = Envelope(
                    record.event_id,
                    record.type,
                    record.persisted_at,
                    None if record.key == record.event_id else record.key,
                    record.tenant,
                    record.emitted_at,
                    None if record.seq == tail + 1 else tail,
                    0,
                    not (new or batch.lines),
                )
                check_body(record.body)
                new.append(Entry(record.seq, envelope, record.body))
                tail = record.seq
            lines = _written(new)
        except (ValueError, TypeError, RecursionError) as error:
            raise LogFailed(f"Event {record.seq} of {record.stream!r} cannot be written: {error}") from error
        held.keys.update((record.key, record.seq) for record in records)
        batch.first = batch.first or new[0]
        batch.lines += lines
        batch.adopted += len(lines)
        batch.last = new[-1]
        batch.model = self._model = model
        self._tenant = records[0].tenant if self._tenant is None else self._tenant
        self._deleted = UNSET
        self._seq = self._tail = tail
        self._previous = new[-1].body
        return Ticket(self._settler, batch.outcome, [])

    def begin_flush(self) -> Batch:
        self.flushing, self.filling = self.filling, Batch()
        return self.flushing

    def end_flush(self, held: Held | None, failure: RunstateError | None) -> None:
        """Tell everybody what became of the flush."""
        batch, self.flushing = self.flushing, Batch()
        if failure is None and held is not None and batch.first is not None and batch.last is not None:
            ends = batch.first.envelope, batch.last.envelope
            held.add(len(batch.lines), batch.last.seq, ends, sum(map(len, batch.lines)))
            held.previous = batch.last.body
        batch.outcome.tell(failure)
        self._told.pass_on()  # Nearly always to nobody; but who was to do it may have been interrupted.
        self._told = batch.outcome
        if failure is not None:
            # What was buffered meanwhile counts on the places before it.
            self.filling.outcome.tell(failure)
            lost, self.filling = [*batch.lines, *self.filling.lines], Batch()
            if held is not None:
                for line in lost:
                    held.keys.pop(self._entry(line).envelope.known_key, None)
                self.rewind(held)

    def known(self, held: Held, key: str) -> int | None:
        """The seq that a key stands for, be it buffered, stored or removed."""
        old = held.old_keys.get(key)
        return held.keys.get(key) if old is None else old.seq

    def _outcome_of(self, held: Held, retries: Sequence[Draft]) -> Outcome:
        """A retry of what is on its way stands or falls with it."""
        seq = max(held.keys.get(draft.key, 0) for draft in retries)
        if seq <= held.tail_seq:
            return Outcome(is_known=True)
        first = self.filling.first
        return (self.flushing if first is None or seq < first.seq else self.filling).outcome

    def _find(self, held: Held, key: str) -> Stored | None:
        """The event that a key stands for: removed, stored or buffered."""
        if (old := held.old_keys.get(key)) is not None:
            return Removed(old.event_id, old.seq, old.persisted_at)
        if (seq := held.keys.get(key)) is None:
            return None
        if seq <= held.tail_seq:
            return self._stored(held, seq)
        lines = [*self.flushing.lines, *self.filling.lines]
        return self._entry(lines[bisect_left(lines, seq, key=seq_of)]).record(self._stream)

    def _entry(self, line: bytes) -> Entry:
        return read_entry(self._stream, line[:-1], None)


def _written(entries: Sequence[Entry]) -> list[bytes]:
    """The lines of one append's entries, each of which tells how many follow it."""
    if len(entries) > 1:
        for entry, more in zip(entries, range(len(entries) - 1, -1, -1), strict=True):
            entry.envelope.more = more
    return [write_entry(entry.seq, entry.body, entry.envelope) for entry in entries]
