"""The daemon's one way to its log: what it decides is appended in order, and waited for where nobody holds a lock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from runstate.errors import SnapshotTooNew, Truncated
from runstate.logs.log import AppendResult, EventLog, Record, StoredSnapshot
from runstate.models.canonical import digest
from runstate.models.daemon import DAEMON, MaterializedState
from runstate.models.daemon.state import pieces
from runstate.models.model import Draft


class Ticket(Protocol):
    """An append on its way to the disk."""

    @property
    def results(self) -> list[AppendResult]: ...

    def wait(self, timeout: float | None = None) -> list[AppendResult]: ...


class _Done:
    """The ticket of an append that is durable already."""

    def __init__(self, results: list[AppendResult]) -> None:
        self.results = results

    def wait(self, timeout: float | None = None) -> list[AppendResult]:
        return self.results


nothing: Ticket = _Done([])


class Journal:
    """One stream of a log, and the state that it gives. Any log will do; a WAL does it with shared flushes."""

    def __init__(self, log: EventLog, stream: str) -> None:
        """
        Raises:
            LogBusy: another daemon has this stream.
        """
        self.log, self._stream = log, stream
        self._append_buffered = getattr(log, "append_buffered", None)
        self._checkpoint = getattr(log, "checkpoint", log.save_snapshot)
        self._known = getattr(log, "known", None)
        recover = getattr(log, "recover", None)
        if recover is not None:
            recover(stream)  # Takes the lock: whoever comes second learns it now, and not with its first event.

    def check_open(self) -> None:
        """
        Raises:
            LogClosed: the log takes nothing more.
        """
        if self._known is not None:
            self._known(self._stream, "")

    def load(self) -> tuple[MaterializedState, int]:
        """The state that is durable, and its seq."""
        return load_state(self.log, self._stream)

    def append(self, drafts: Sequence[Draft], expected_seq: int) -> Ticket:
        """Append behind `expected_seq`; all or none is durable once the ticket says so.

        Raises:
            SequenceConflict: the stream is not there: an earlier append has failed, or somebody else writes to it.
        """
        if self._append_buffered is None:
            return _Done(self.log.append(self._stream, drafts, expected_seq=expected_seq))
        ticket: Ticket = self._append_buffered(self._stream, drafts, expected_seq=expected_seq)
        return ticket

    def known(self, key: str) -> int | None:
        """The seq of the event that has this key, durable or not yet."""
        if self._known is not None:
            found: int | None = self._known(self._stream, key)
            return found
        record = self.log.find(self._stream, key)
        return None if record is None else record.seq

    def read(self, after_seq: int, limit: int) -> list[Record]:
        return self.log.read(self._stream, after_seq=after_seq, limit=limit)

    def checkpoint(self, state: MaterializedState, seq: int) -> None:
        """Keep a snapshot of a state that nobody changes any more, and drop the events that it makes needless."""
        parts = []
        for piece in pieces(state):
            parts.append(piece)
            time.sleep(0)  # Lets go of the interpreter: whoever appends meanwhile waits for one piece at most.
        body = b"".join(parts)
        self._checkpoint(self._stream, StoredSnapshot(DAEMON.name, DAEMON.version, seq, digest(body), body))

    def compact(self) -> int:
        """Drop the events that the snapshot on file makes needless. Returns its seq; 0 where there is none."""
        stored = _stored(self.log, self._stream)
        if stored is None:
            return 0
        self._checkpoint(self._stream, stored)
        return stored.seq


def load_state(log: EventLog, stream: str) -> tuple[MaterializedState, int]:
    """The state that a log gives, and its seq: the snapshot on file, and what came after it.

    Raises:
        SnapshotTooNew: a newer version of the model wrote the snapshot; it was left untouched.
    """
    while True:
        stored, info = _stored(log, stream), log.stream(stream)
        last_seq = 0 if info is None else info.last_seq
        state, seq = (DAEMON.initial(stream), 0) if stored is None else (DAEMON.load(stored.body), stored.seq)
        last_seq = max(seq, last_seq)
        try:
            return DAEMON.fold(state, log.lines(stream, after_seq=seq, until_seq=last_seq)), last_seq
        except Truncated:
            # A checkpoint has dropped these events meanwhile. Where none has, they are missing.
            if _stored(log, stream) == stored:
                raise


def _stored(log: EventLog, stream: str) -> StoredSnapshot | None:
    """The snapshot on file, if this version of the model wrote it.

    Raises:
        SnapshotTooNew: a newer one did. To go on without it would be to write over it.
    """
    found = log.load_snapshot(stream, DAEMON.name)
    if found is not None and found.version > DAEMON.version:
        raise SnapshotTooNew(
            f"The snapshot of {stream!r} is of version {found.version} of the daemon's model, this Runstate reads up "
            f"to {DAEMON.version}; upgrade Runstate to go on with it. It was left untouched",
            stream=stream,
            version=found.version,
        )
    return found if found is not None and found.version == DAEMON.version else None
