"""Snapshots kept up to date with the appends: with every one, every n events, or never.

A snapshot is a convenience. It may be behind the log, it is never ahead of it, and whatever goes wrong with it is an
alert, not a failure of the append that it follows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Generic

from runstate.alerts import AlertBook
from runstate.errors import StreamNotFound
from runstate.logs.log import EventLog, StoredSnapshot, StreamInfo
from runstate.models.canonical import digest
from runstate.models.model import Alert, Model, S

_states_max = 1000
"""States kept in memory between appends; a forgotten one is loaded again."""


class _Kept(Generic[S]):
    """A state in memory, and how far it and its copy in the log have come."""

    __slots__ = ("born", "saved_seq", "seq", "state")

    def __init__(self, state: S, seq: int, born: str) -> None:
        self.state, self.seq, self.saved_seq, self.born = state, seq, seq, born


class Snapshots(Generic[S]):
    """The snapshots of one model in one log."""

    def __init__(self, log: EventLog, model: Model[Any, Any, S], every: int, alerts: AlertBook) -> None:
        if every < 0:
            raise ValueError("snapshot_every is 0 (never), 1 (with every append) or a number of events")
        self._log, self._model, self._every, self._alerts = log, model, every, alerts
        self._kept: OrderedDict[str, _Kept[S]] = OrderedDict()
        self._kept_lock = Lock()
        # Striped by stream: threads on different streams never wait for each other's folds.
        self._fold_locks = [Lock() for _ in range(64)]

    def stored(self, stream: str) -> StoredSnapshot | None:
        """What is on file, if this version of the model wrote it. Another version's state is discarded."""
        stored = self._log.load_snapshot(stream, self._model.name)
        return stored if stored is not None and stored.version == self._model.version else None

    def of(self, state: S, seq: int) -> StoredSnapshot:
        body = self._model.dump(state)
        return StoredSnapshot(self._model.name, self._model.version, seq, digest(body), body)

    def keep(self, stream: str, state: S, seq: int) -> None:
        """Put a state on file. A stream that was deleted meanwhile has nothing left to keep a snapshot of."""
        with suppress(StreamNotFound):
            self._log.save_snapshot(stream, self.of(state, seq))

    def appended(self, stream: str, lines: Sequence[tuple[int, bytes]]) -> None:
        """Bring the snapshot up to date with events that were just stored: their seq, and their line."""
        if not self._every or not lines:
            return
        try:
            with self._fold_locks[hash(stream) % len(self._fold_locks)]:
                self._advance(stream, lines)
        except Exception as error:  # noqa: BLE001 - the events are stored, and must not look as if they were not
            self.forget(stream)
            self._alerts.raise_once(_failed(stream, error))

    def forget(self, stream: str) -> None:
        with self._kept_lock:
            self._kept.pop(stream, None)

    def _advance(self, stream: str, lines: Sequence[tuple[int, bytes]]) -> None:
        info = self._log.stream(stream)
        if info is None:
            return
        kept = self._state(stream, info)
        last = lines[-1][0]
        if kept.seq >= last:
            return  # Another thread, whose append came later, was here first and has folded this one too.
        fold, alert = self._model.fold, self._alerts.raise_once
        if lines[0][0] == kept.seq + 1 and len(lines) == last - kept.seq:
            kept.state = fold(kept.state, [line for _, line in lines], alert)
        else:
            kept.state = fold(kept.state, self._log.lines(stream, after_seq=kept.seq, until_seq=last), alert)
        kept.seq = last
        if last - kept.saved_seq >= self._every:
            self.keep(stream, kept.state, last)
            kept.saved_seq = last

    def _state(self, stream: str, info: StreamInfo) -> _Kept[S]:
        with self._kept_lock:
            kept = self._kept.get(stream)
            # A stream that was deleted and begun again, perhaps by another process, is another stream.
            if kept is not None and kept.born == info.first_persisted_at and kept.seq <= info.last_seq:
                self._kept.move_to_end(stream)
                return kept
        stored = self.stored(stream)
        if stored is None:
            kept = _Kept(self._model.initial(stream), 0, info.first_persisted_at)
        else:
            kept = _Kept(self._model.load(stored.body), stored.seq, info.first_persisted_at)
        with self._kept_lock:
            self._kept[stream] = kept
            if len(self._kept) > _states_max:
                self._kept.popitem(last=False)
        return kept


def _failed(stream: str, error: Exception) -> Alert:
    return Alert(code="SNAPSHOT_FAILED", level="P2", subject=stream, details={"error": repr(error)})
