"""What is appended and not yet flushed: new events get their places here, retries their first answers.

All methods are called with the writer's gate held, and none of them touches the file but to look up a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from runstate.errors import LogFailed, RunstateError
from runstate.logs.log import AppendResult, Record, check_expected, now
from runstate.logs.wal.entries import Entry, Envelope, check_body, write_members
from runstate.logs.wal.recovery import Held
from runstate.logs.wal.tickets import Batch, Outcome, Settler, Ticket
from runstate.models.model import Draft


class Buffer:
    """Two batches: one that fills, and one that is being flushed. Without an entry, either may be nobody's."""

    def __init__(self, stream: str, settler: Settler, stored: Callable[[Held, int], Record]) -> None:
        self.filling, self.flushing = Batch(), Batch()
        self._stream, self._settler, self._stored = stream, settler, stored
        self._told = Outcome(is_known=True)
        self._seq = self._tail = 0
        self._previous: bytes | None = None

    @property
    def is_empty(self) -> bool:
        return not self.filling.entries and not self.flushing.entries

    def rewind(self, held: Held) -> None:
        """Go on from what is durable."""
        self._seq, self._tail, self._previous = held.last_seq, held.tail_seq, held.previous

    def add(self, held: Held, drafts: Sequence[Draft], expected_seq: int | None) -> Ticket:
        """Give new events their places.

        Raises:
            SequenceConflict, LogFailed: nothing was buffered.
        """
        batch, seq, previous, after = self.filling, self._seq, self._previous, self._tail
        filling, flushing, stored, removed = batch.entries, self.flushing.entries, held.keys, held.old_keys
        new: dict[str, Entry] = {}
        results = []
        if not filling:
            batch.persisted_at, batch.born = now(), monotonic()
        try:
            for draft in drafts:
                key, event_id = draft.key, draft.event_id
                if key in filling or key in stored or key in flushing or key in removed or key in new:
                    results.append(self._first_result(held, new.get(key), draft))
                    continue
                seq, persisted_at = seq + 1, batch.persisted_at
                body = draft.render(seq, persisted_at, previous)
                check_body(body)
                envelope = Envelope(
                    event_id,
                    draft.type,
                    persisted_at,
                    None if key == event_id else key,
                    draft.tenant,
                    draft.emitted_at,
                    None if after == seq - 1 else after,
                    0,
                    not (filling or new),
                )
                new[key] = Entry(seq, envelope, body)
                results.append(AppendResult(event_id, seq, persisted_at))
                previous, after = body, seq
            members = [write_members(envelope)] if len(new) == 1 else _members(new)
        except RunstateError:
            raise
        except Exception as error:  # What a draft does wrong must reach its caller as an error of ours.
            raise LogFailed(f"It cannot be written: {error!r}") from error
        if not new:
            return Ticket(self._settler, self._outcome_of(drafts), results)
        # Between the last entry and the last seq that was given out there is nothing left that a caller could not know.
        if expected_seq is None or not self._tail <= expected_seq <= self._seq:
            check_expected(self._stream, self._seq, expected_seq)
        filling |= new
        batch.members += members
        self._seq = self._tail = seq
        self._previous = previous
        return Ticket(self._settler, batch.outcome, results)

    def add_records(self, records: Sequence[Record]) -> Ticket:
        """Take over records of another log, which the caller has found to fit.

        Raises:
            LogFailed: one of them cannot be written.
        """
        entries: dict[str, Entry] = {}
        tail = self._tail
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
                    not (entries or self.filling.entries),
                )
                check_body(record.body)
                entries[record.key] = Entry(record.seq, envelope, record.body)
                tail = record.seq
            members = _members(entries)
        except (ValueError, TypeError, RecursionError) as error:
            raise LogFailed(f"Event {record.seq} of {record.stream!r} cannot be written: {error}") from error
        batch = self.filling
        if not batch.entries:
            batch.born = monotonic()
        batch.entries |= entries
        batch.members += members
        self._seq = self._tail = tail
        self._previous = records[-1].body
        return Ticket(self._settler, batch.outcome, [])

    def begin_flush(self) -> Batch:
        self.flushing, self.filling = self.filling, Batch()
        return self.flushing

    def end_flush(self, held: Held | None, failure: RunstateError | None) -> None:
        """Tell everybody what became of the flush."""
        batch, self.flushing = self.flushing, Batch()
        if failure is None and batch.entries and held is not None:
            entries = list(batch.entries.values())
            ends = entries[0].envelope, entries[-1].envelope
            held.add(batch.entries, [entry.seq for entry in entries], ends, batch.size)
            held.previous = entries[-1].body
        batch.outcome.tell(failure)
        self._told.pass_on()  # Nearly always to nobody; but who was to do it may have been interrupted.
        self._told = batch.outcome
        if failure is not None:
            # What was buffered meanwhile counts on the places before it.
            self.filling.outcome.tell(failure)
            self.filling = Batch()
            if held is not None:
                self.rewind(held)

    def known(self, held: Held, key: str) -> int | None:
        """The seq that a key stands for, be it buffered, stored or removed."""
        entry = self.filling.entries.get(key) or self.flushing.entries.get(key) or held.old_keys.get(key)
        return held.keys.get(key) if entry is None else entry.seq

    def _outcome_of(self, retries: Sequence[Draft]) -> Outcome:
        """A retry of what is on its way stands or falls with it."""
        for batch in (self.filling, self.flushing):
            if any(draft.key in batch.entries for draft in retries):
                return batch.outcome
        return Outcome(is_known=True)

    def _first_result(self, held: Held, entry: Entry | None, draft: Draft) -> AppendResult:
        key = draft.key
        entry = entry or self.filling.entries.get(key) or self.flushing.entries.get(key)
        if entry is not None:
            first = entry.record(self._stream)
        elif (seq := held.keys.get(key)) is not None:
            first = self._stored(held, seq)
        else:
            # Its content is gone, and cannot be compared any more.
            old = held.old_keys[key]
            return AppendResult(old.event_id, old.seq, old.persisted_at, True, False)
        differs = not draft.same_content(first.body)
        return AppendResult(first.event_id, first.seq, first.persisted_at, True, False, differs)


def _members(entries: dict[str, Entry]) -> list[bytes]:
    """What the envelopes of one append become, each told how many entries follow it."""
    more = len(entries)
    members = []
    for entry in entries.values():
        more -= 1
        entry.envelope.more = more
        members.append(write_members(entry.envelope))
    return members
