"""Snapshots kept up to date with the appends: with every one, every n events, lazily, or never.

A log that is a `SnapshottingLog` saves the snapshot in the commit of the append. In others, a save costs more than the
append. So unless the caller says how often, they are lazy: saved with the first event of a stream, and then once
`lazy_events_max` events have come, `lazy_delay_s` after the first unsaved one, when the state falls out of memory, and
on `close`. A stored snapshot may be behind the log for longer after a kill or under contention. It is never ahead of
it, and it is brought up to date by the next append or read. What goes wrong with it is an alert, not a failure of the
append.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Generic

import msgspec

from runstate import lazy_saves
from runstate.alerts import AlertBook
from runstate.errors import InvalidJson, LogBusy, LogClosed, RunstateError, StreamNotFound, Truncated
from runstate.lazy_saves import LazySaves
from runstate.logs.log import EventLog, Record, StoredSnapshot, StreamInfo, begins_after
from runstate.logs.snapshotting import MakeSnapshot, SnapshottingLog, StreamEnd
from runstate.models.canonical import digest
from runstate.models.model import Alert, AlertSink, Model, S

_states_max = 1000
"""States kept in memory between appends; a forgotten one is loaded again."""


class _Kept(Generic[S]):
    """A state in memory, how far it and its copy in the log have come, and which history it is of."""

    __slots__ = ("born", "line_digest", "saved_seq", "seq", "state")

    def __init__(self, state: S, seq: int, born: str) -> None:
        self.state, self.seq, self.saved_seq, self.born = state, seq, seq, born
        self.line_digest = ""
        """Of the line at `seq`; empty where there is none: at the beginning, or below what a compacted log holds."""


class StoredState(msgspec.Struct, Generic[S], frozen=True):
    """A snapshot as it is stored."""

    state: S
    seq: int
    behind: int
    """How far the log is ahead of it: the difference of their last seqs."""


class Snapshots(Generic[S]):
    """The snapshots of one model in one log."""

    def __init__(self, log: EventLog, model: Model[Any, Any, S], every: int | None, alerts: AlertBook) -> None:
        """`every` is 0 (never), 1 (with every append) or a number of events. None means with every append where the
        log saves it in the same commit, and lazily elsewhere."""
        if every is not None and every < 0:
            raise ValueError("snapshot_every is 0 (never), 1 (with every append), a number of events, or None")
        self._log, self._model, self._alerts = log, model, alerts
        self._lazy: LazySaves | None = None
        if every is None and not isinstance(log, SnapshottingLog):
            every, self._lazy = lazy_saves.lazy_events_max, LazySaves(self._save_late, lazy_saves.lazy_delay_s)
        self._every = 1 if every is None else every
        self._kept: OrderedDict[str, _Kept[S]] = OrderedDict()
        self._kept_lock = Lock()
        # Striped by stream: threads on different streams never wait for each other's folds.
        self._fold_locks = [Lock() for _ in range(64)]
        self._is_saved_with_appends = self._every > 0 and isinstance(log, SnapshottingLog)
        self._evicted: list[tuple[str, _Kept[S]]] = []
        """States that fell out of memory with unsaved events."""

    def stored(self, stream: str) -> StoredSnapshot | None:
        """The stored snapshot, if its bytes still have their digest and this version of the model wrote it.

        Another version's state is discarded. Where the log was compacted there are no events to rebuild it from: then
        the model upgrades it, if it can.
        """
        stored = self._log.load_snapshot(stream, self._model.name)
        if stored is None:
            return None
        is_current = stored.version == self._model.version
        if not is_current and not begins_after(self._log, stream):
            return None
        if not stored.is_intact:
            self._alerts.raise_once(_damaged(stream, stored))
            return None
        if is_current:
            return stored
        body = self._model.upgrade(stored.version, stored.body)
        return (
            None if body is None else StoredSnapshot(stored.model, self._model.version, stored.seq, digest(body), body)
        )

    def load(self, stream: str, stored: StoredSnapshot) -> S | None:
        """The state in a stored snapshot. None where it is none of this model, whose state was changed without a new
        `version`: then only the events tell."""
        try:
            return self._model.load(stored.body)
        except InvalidJson:
            self._alerts.raise_once(_damaged(stream, stored))
            return None

    def save_current(self, info: StreamInfo, state: S) -> None:
        """Save a state that a reader had to bring up to date, so that the next one need not. A reader may lack the
        permission to write, or meet a writer: then the stored snapshot stays behind, and the answer is still right."""
        if self._every:
            with suppress(RunstateError):
                self.keep(info.stream, state, info.last_seq, info.first_persisted_at)
                if self._lazy is not None:
                    self._note_saved(info)

    def of(self, state: S, seq: int) -> StoredSnapshot:
        body = self._model.dump(state)
        return StoredSnapshot(self._model.name, self._model.version, seq, digest(body), body)

    def keep(self, stream: str, state: S, seq: int, first_persisted_at: str) -> None:
        """Put a state on file. A stream that was deleted meanwhile has nothing left to keep a snapshot of."""
        with suppress(StreamNotFound):
            made = self.of(state, seq)
            self._log.save_snapshot(stream, msgspec.structs.replace(made, first_persisted_at=first_persisted_at))

    @contextmanager
    def making(self, *streams: str) -> Iterator[MakeSnapshot | None]:
        """What an append to these streams gives to its log, so that the snapshots are in its own commit. None where
        the log cannot do so. Alerts of the new events are raised once the append is done."""
        if not self._is_saved_with_appends:
            yield None
            return
        for stream in streams:
            if stream not in self._kept:
                # The state before the append is loaded now, while nothing is locked. What fails here fails there too.
                with suppress(RunstateError), self._fold_lock(stream):
                    if (info := self._log.stream(stream)) is not None:
                        self._state(stream, info)
        alerts: list[Alert] = []
        yield lambda end, records: self._make(end, records, alerts.append)
        for alert in alerts:
            self._alerts.raise_once(alert)

    def _make(self, end: StreamEnd, records: Sequence[Record], alert: AlertSink) -> StoredSnapshot | None:
        """The snapshot with new records; None if it is not due, or if the state before them is not in memory: then
        `appended` brings the snapshot up to date."""
        stream, last = records[0].stream, records[-1]
        lock = self._fold_lock(stream)
        # Its holder may be waiting for the very transaction that this is part of.
        if not lock.acquire(blocking=False):
            return None
        try:
            kept = self._kept_before(stream, end, records[0])
            if kept is None:
                return None
            kept.state = self._model.fold(kept.state, [record.body for record in records], alert)
            kept.seq, kept.line_digest = last.seq, digest(last.body)
            if kept.seq - kept.saved_seq < self._every:
                return None
            kept.saved_seq = kept.seq
            return self.of(kept.state, kept.seq)
        except Exception:  # noqa: BLE001 - `appended` meets it again, and reports it
            self.forget(stream)
            return None
        finally:
            lock.release()

    def is_current(self, stream: str, seq: int) -> bool:
        """Whether the commit of an append that ended with `seq` took care of the snapshot."""
        with self._kept_lock:
            kept = self._kept.get(stream)
        return self._is_saved_with_appends and kept is not None and kept.seq >= seq

    def _kept_before(self, stream: str, end: StreamEnd, first: Record) -> _Kept[S] | None:
        """The state in memory, if it is of the event that the stream ended with before."""
        with self._kept_lock:
            kept = self._kept.get(stream)
            if not end.last_seq:
                kept = self._remember(stream, _Kept(self._model.initial(stream), 0, first.persisted_at))
            elif kept is not None:
                if (kept.born, kept.seq, kept.line_digest) != end:
                    # Of a transaction that was rolled back, or another process has appended.
                    del self._kept[stream]
                    return None
                self._kept.move_to_end(stream)
            return kept

    def _fold_lock(self, stream: str) -> Lock:
        return self._fold_locks[hash(stream) % len(self._fold_locks)]

    def _remember(self, stream: str, kept: _Kept[S]) -> _Kept[S]:
        """The caller holds `_kept_lock`."""
        self._kept[stream] = kept
        if len(self._kept) > _states_max:
            oldest = self._kept.popitem(last=False)
            if self._lazy is not None and oldest[1].seq > oldest[1].saved_seq:
                self._evicted.append(oldest)
        return kept

    def appended(self, stream: str, lines: Sequence[tuple[int, bytes]]) -> None:
        """Bring the snapshot up to date with events that were just stored: their seq, and their line.

        Without lines, the append was a retry: an earlier one may have been killed before it saved the snapshot.
        """
        if not self._every:
            return
        try:
            with self._fold_lock(stream):
                self._advance(stream, lines)
        except Exception as error:  # noqa: BLE001 - the events are stored, and must not look as if they were not
            self._fail(stream, error)
        # Now, with no lock held: the lock of an evicted stream may be held by a thread that evicts this one.
        while self._evicted:
            try:
                evicted = self._evicted.pop()
            except IndexError:
                return  # Another thread took the last one.
            self._save_late(*evicted)

    def save_now(self, stream: str) -> None:
        """Save the snapshot of a stream if it has unsaved events and snapshots are lazy."""
        if self._lazy is not None:
            self._lazy.discard(stream)
            self._save_late(stream)

    def close(self) -> None:
        """Save what lazy snapshots have not saved yet. The log must still be open."""
        if self._lazy is not None:
            self._lazy.close()

    def _save_late(self, stream: str, kept: _Kept[S] | None = None) -> None:
        """Save a state some time after its events were appended: `kept`, or the one in memory."""
        try:
            with self._fold_lock(stream):
                with self._kept_lock:
                    kept = kept or self._kept.get(stream)
                if kept is None or kept.saved_seq >= kept.seq:
                    return
                info = self._log.stream(stream)
                if info is None or not self._is_of(stream, info, kept):
                    self.forget(stream)  # The stream was deleted or begun again. A reader saves what it is now.
                    return
                self._save(stream, kept)
        except LogClosed:
            return  # By its owner, while this store was not closed: as after a kill, the next reader saves it.
        except Exception as error:  # noqa: BLE001 - no caller waits for it
            self._fail(stream, error)

    def _fail(self, stream: str, error: Exception) -> None:
        self.forget(stream)
        self._alerts.raise_once(_failed(stream, error))

    def _note_saved(self, info: StreamInfo) -> None:
        """A reader has saved the snapshot: what this store has folded so far need not be saved again."""
        with self._kept_lock:
            kept = self._kept.get(info.stream)
            if kept is not None and kept.born == info.first_persisted_at:
                kept.saved_seq = max(kept.saved_seq, min(kept.seq, info.last_seq))

    def forget(self, stream: str) -> None:
        with self._kept_lock:
            self._kept.pop(stream, None)

    def _advance(self, stream: str, lines: Sequence[tuple[int, bytes]]) -> None:
        info = self._log.stream(stream)
        if info is None:
            return
        kept = self._state(stream, info)
        last = lines[-1][0] if lines else info.last_seq
        if kept.seq >= last:
            # Another thread, whose append came later, was here first and has folded this one too.
            self._save_if_due(stream, kept)
            return
        fold, alert = self._model.fold, self._alerts.raise_once
        if lines and lines[0][0] == kept.seq + 1 and len(lines) == last - kept.seq:
            kept.state = fold(kept.state, [line for _, line in lines], alert)
        else:
            kept.state = fold(kept.state, self._log.lines(stream, after_seq=kept.seq, until_seq=last), alert)
        kept.seq, kept.line_digest = last, digest(lines[-1][1]) if lines else self._line_digest(stream, last)
        self._save_if_due(stream, kept)

    def _save_if_due(self, stream: str, kept: _Kept[S]) -> None:
        # The first snapshot of a stream is never late: none at all would look like one that was lost.
        if kept.seq - kept.saved_seq >= self._every or (self._lazy is not None and not kept.saved_seq):
            self._save(stream, kept)
        elif self._lazy is not None and kept.seq > kept.saved_seq:
            self._lazy.add(stream)

    def _save(self, stream: str, kept: _Kept[S]) -> None:
        try:
            self.keep(stream, kept.state, kept.seq, kept.born)
        except LogBusy:
            # Contention: the next append or read, or a lazy save, brings the stored snapshot up to date.
            if self._lazy is not None:
                self._lazy.add(stream)
            return
        kept.saved_seq = kept.seq
        if self._lazy is not None:
            self._lazy.discard(stream)

    def _state(self, stream: str, info: StreamInfo) -> _Kept[S]:
        with self._kept_lock:
            kept = self._kept.get(stream)
            if kept is not None:
                self._kept.move_to_end(stream)
        if kept is not None and self._is_of(stream, info, kept):
            return kept
        # What was saved of a history that is gone may still be on file: only the log tells what has come in its place.
        may_load = kept is None or begins_after(self._log, stream) > 0
        stored = self.stored(stream) if may_load else None
        state = None if stored is None else self.load(stream, stored)
        if stored is None or state is None:
            kept = _Kept(self._model.initial(stream), 0, info.first_persisted_at)
        else:
            kept = _Kept(state, stored.seq, info.first_persisted_at)
            with suppress(Truncated):
                kept.line_digest = self._line_digest(stream, stored.seq)
        with self._kept_lock:
            return self._remember(stream, kept)

    def _is_of(self, stream: str, info: StreamInfo, kept: _Kept[S]) -> bool:
        """Whether a state is of the history that the log holds now. Another process may have deleted the stream or cut
        it back, and begun again. Imports keep ids and times, so the line itself must stand where the state stands."""
        if kept.born != info.first_persisted_at or kept.seq > info.last_seq:
            return False
        try:
            return kept.line_digest == self._line_digest(stream, kept.seq)
        except Truncated:
            return False  # A checkpoint has removed it, and has a snapshot of what came after.

    def _line_digest(self, stream: str, seq: int) -> str:
        return (
            "".join(digest(line) for line in self._log.lines(stream, after_seq=seq - 1, until_seq=seq)) if seq else ""
        )


def _damaged(stream: str, stored: StoredSnapshot) -> Alert:
    details = {"seq": stored.seq, "model": stored.model}
    return Alert(code="SNAPSHOT_DAMAGED", level="P2", subject=stream, event_id=stored.digest, details=details)


def _failed(stream: str, error: Exception) -> Alert:
    return Alert(code="SNAPSHOT_FAILED", level="P2", subject=stream, details={"error": repr(error)})
