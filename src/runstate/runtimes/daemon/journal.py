"""The daemon's one way to its log: what it decides is appended in order, and waited for where nobody holds a lock."""

from __future__ import annotations

import time
from collections.abc import Sequence

from runstate.errors import LogDamaged, SnapshotTooNew, Truncated
from runstate.logs.buffering import BufferingLog, Ticket
from runstate.logs.log import AppendResult, EventLog, Record, StoredSnapshot
from runstate.logs.unfoldable import locate, unfoldable
from runstate.models.canonical import digest
from runstate.models.daemon import DAEMON, MaterializedState
from runstate.models.daemon.state import pieces
from runstate.models.model import Draft


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
        self._buffer = log if isinstance(log, BufferingLog) else None
        self._checkpoint = log.save_snapshot if self._buffer is None else self._buffer.checkpoint
        if self._buffer is not None:
            self._buffer.recover(stream)  # Takes the lock: a second daemon learns it now, and not with its first event.

    def check_open(self) -> None:
        """
        Raises:
            LogClosed: the log takes nothing more.
        """
        if self._buffer is not None:
            self._buffer.known(self._stream, "")

    def load(self) -> tuple[MaterializedState, int]:
        """The state that is durable, and its seq."""
        return load_state(self.log, self._stream)

    def append(self, drafts: Sequence[Draft], expected_seq: int) -> Ticket:
        """Append behind `expected_seq`; all or none is durable once the ticket says so.

        Raises:
            SequenceConflict: the stream is not there: an earlier append has failed, or somebody else writes to it.
        """
        if self._buffer is None:
            return _Done(self.log.append(self._stream, drafts, expected_seq=expected_seq))
        return self._buffer.append_buffered(self._stream, drafts, expected_seq=expected_seq)

    def known(self, key: str) -> int | None:
        """The seq of the event that has this key, durable or not yet."""
        if self._buffer is not None:
            return self._buffer.known(self._stream, key)
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
        InvalidEvent: an intact line is no event of a daemon; the error names its seq.
        LogDamaged: the events before the first one were dropped, and no checkpoint that holds their state is intact.
    """
    while True:
        stored, info = _stored(log, stream), log.stream(stream)
        last_seq = 0 if info is None else info.last_seq
        state, seq = (DAEMON.initial(stream), 0) if stored is None else (DAEMON.load(stored.body), stored.seq)
        last_seq = max(seq, last_seq)
        try:
            return DAEMON.fold(state, log.lines(stream, after_seq=seq, until_seq=last_seq)), last_seq
        except unfoldable as error:
            raise locate(log, DAEMON, stream, seq, error) from error
        except Truncated as truncated:
            # A checkpoint has dropped these events meanwhile. Where none has, they are missing.
            if (again := _stored(log, stream)) != stored:
                continue
            if again is not None or log.load_snapshot(stream, DAEMON.name) is None:
                first_seq = int(truncated.details["first_seq"])
                raise LogDamaged(
                    f"The events of {stream!r} before seq {first_seq} were dropped, and no checkpoint that holds their "
                    "state is intact. "
                    f"'runstate daemon tail' shows the events from seq {first_seq} on; 'runstate daemon repair' lets "
                    "the daemon go on with them alone, and --dry-run tells what is lost",
                    stream=stream,
                    first_seq=first_seq,
                ) from truncated
            raise  # The snapshot is of an older version of the model.


def _stored(log: EventLog, stream: str) -> StoredSnapshot | None:
    """The snapshot on file, if it is intact and this version of the model wrote it.

    Raises:
        SnapshotTooNew: a newer one did. To go on without it would be to write over it.
    """
    found = log.load_snapshot(stream, DAEMON.name)
    if found is None or not found.is_intact:
        return None
    if found.version > DAEMON.version:
        raise SnapshotTooNew(
            f"The snapshot of {stream!r} is of version {found.version} of the daemon's model, this Runstate reads up "
            f"to {DAEMON.version}; upgrade Runstate to go on with it. It was left untouched",
            stream=stream,
            version=found.version,
        )
    return found if found.version == DAEMON.version else None
