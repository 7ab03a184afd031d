"""An optional ability of a log: to save a stream's snapshot in the transaction that appends the events it includes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

from runstate.errors import RunstateError
from runstate.logs.bulk import Answer, Batch, append_many
from runstate.logs.log import AppendResult, EventLog, Record, StoredSnapshot
from runstate.models.model import Draft


class StreamEnd(NamedTuple):
    """Where a stream ended before an append. A state is of this stream only if its last event has this line."""

    first_persisted_at: str = ""
    """Empty for a stream that is not there yet."""
    last_seq: int = 0
    last_digest: str = ""
    """The SHA-256 of the last line."""


MakeSnapshot = Callable[[StreamEnd, Sequence[Record]], StoredSnapshot | None]
"""Makes the snapshot that includes new records of one stream, in order; None if none is to be saved.

It is called before the commit: perhaps in another caller's thread, perhaps for another caller's records too, and again
if the transaction has to be repeated; the last call counts. It never raises, never waits, and never uses the log.
"""


@runtime_checkable
class SnapshottingLog(Protocol):
    """A log whose events and snapshots share commits, so that a snapshot saved with an append is never behind it."""

    def append_with_snapshots(
        self, batches: Sequence[Batch], make: MakeSnapshot, *, expected_seq: int | None = None
    ) -> list[Answer]:
        """Append each batch to its stream as `append` would, and save what `make` returns in the same commit. Where
        nothing is new, nothing is saved. `expected_seq` is for a single batch."""
        ...


def saves_with_appends(log: EventLog) -> TypeGuard[SnapshottingLog]:
    """Whether a log is a `SnapshottingLog`. `isinstance` would look at all members again, at 10 µs for each append."""
    return _saves_with_appends(type(log))


@cache
def _saves_with_appends(kind: type[EventLog]) -> bool:
    return issubclass(kind, SnapshottingLog)


def append_batches(log: EventLog, batches: Sequence[Batch], make: MakeSnapshot | None) -> list[Answer]:
    """`append_many`, with the snapshots in the same commit if the log can do so and the caller keeps snapshots."""
    if make is None or not saves_with_appends(log):
        return append_many(log, batches)
    return log.append_with_snapshots(batches, make)


def append_batch(
    log: EventLog, stream: str, drafts: Sequence[Draft], make: MakeSnapshot | None, expected_seq: int | None
) -> list[AppendResult]:
    """`append`, in the same way."""
    if make is None or not saves_with_appends(log):
        return log.append(stream, drafts, expected_seq=expected_seq)
    (answer,) = log.append_with_snapshots([(stream, drafts)], make, expected_seq=expected_seq)
    if isinstance(answer, RunstateError):
        raise answer
    return answer
