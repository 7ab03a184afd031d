"""Streams that retention has moved to an archive: a late retry is answered as the log would have answered before."""

from __future__ import annotations

from collections.abc import Sequence

from runstate.errors import LogBusy, RunstateError, SequenceConflict, StreamDeleted, StreamNotFound
from runstate.logs.log import AppendResult, EventLog, Record, StreamInfo, now
from runstate.logs.planning import first_result
from runstate.logs.stream_models import check_model, shared_model
from runstate.logs.tombstones import Tombstone, deleted_error
from runstate.models.model import Draft


def stream_not_found(log: EventLog, stream: str) -> StreamNotFound:
    """The error for a stream that a log does not have; it says where the stream is if the log remembers."""
    tombstone = log.tombstone(stream)
    moved = f": it was moved to {tombstone.archive}" if tombstone is not None and tombstone.archive else ""
    return StreamNotFound(f"There is no stream {stream!r}{moved}", stream=stream)


def tombstone_for(log: EventLog, info: StreamInfo) -> Tombstone:
    """The tombstone of a stream that is about to be deleted. One that is not wholly restored keeps its old one."""
    return log.tombstone(info.stream) or Tombstone(info.stream, info.last_seq, deleted_at=now())


def source_of(log: EventLog, stream: str) -> EventLog:
    """Where the events of a stream are: the log, or the archive that the stream was moved to.

    Raises:
        StreamDeleted: they are nowhere; or the archive cannot be read, or holds other events of the stream.
    """
    tombstone = log.tombstone(stream)
    if tombstone is None:
        return log
    if not tombstone.archive:
        raise deleted_error(tombstone)
    return _open_archive(tombstone)


def find_event(log: EventLog, stream: str, key: str) -> Record | None:
    """The event that a key stands for, in a log or in the archive that its stream was moved to."""
    found = log.find(stream, key)
    if found is None and (source := source_of(log, stream)) is not log:
        found = source.find(stream, key)
    return found


def check_not_older(log: EventLog, stream: str, last_seq: int) -> None:
    """
    Raises:
        SequenceConflict: the log remembers more events of a deleted stream than a copy of it has.
    """
    tombstone = log.tombstone(stream)
    if tombstone is not None and last_seq < tombstone.last_seq:
        where = f"; its newest state is in {tombstone.archive}" if tombstone.archive else ""
        raise SequenceConflict(
            f"The stream {stream!r} was deleted at seq {tombstone.last_seq}, and this copy of it ends at seq "
            f"{last_seq}{where}. Bring that one back",
            stream=stream,
        )


def answer_from_archive(log: EventLog, stream: str, drafts: Sequence[Draft]) -> list[AppendResult]:
    """The first results of drafts whose stream was deleted from a log.

    Raises:
        StreamDeleted: the stream was not archived, one of the drafts is new, or the archive cannot be read.
        ModelMismatch: the stream is of another model than the drafts.
        LogBusy: the stream was restored meanwhile.
    """
    tombstone = log.tombstone(stream)
    if tombstone is None:
        raise LogBusy(f"The stream {stream!r} was just restored; try again", stream=stream)
    keys = {draft.key for draft in drafts}
    firsts: dict[str, Record] = {}
    if tombstone.archive:
        archive = _open_archive(tombstone)
        if (info := archive.stream(stream)) is not None:
            check_model(stream, info.model, shared_model(stream, drafts))
        firsts = _find(archive, stream, keys)
    if firsts.keys() != keys:
        raise deleted_error(tombstone)
    return [first_result(draft, firsts[draft.key]) for draft in drafts]


def _open_archive(tombstone: Tombstone) -> EventLog:
    from runstate.logs.archive.log import ArchiveLog, archive_path  # Only a late retry needs them.
    from runstate.logs.archive.reading import is_intact

    try:
        archive = ArchiveLog(archive_path(tombstone.archive))
    except RunstateError as error:
        raise _unusable(tombstone, f"which cannot be read: {error}") from error
    copy = archive.contents.runs.get(tombstone.stream)
    if copy is None or copy.run.sha256 != tombstone.digest or not is_intact(archive.directory, copy):
        raise _unusable(tombstone, "and what is there now is not what was moved")
    return archive


def _unusable(tombstone: Tombstone, why: str) -> StreamDeleted:
    error = deleted_error(tombstone)
    error.args = (
        f"The stream {tombstone.stream!r} was moved to {tombstone.archive}, {why}. If the archive is elsewhere now, "
        "bring the stream back with 'runstate restore', and send the events again",
    )
    return error


def _find(log: EventLog, stream: str, keys: set[str]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    after_seq = 0
    while len(found) < len(keys) and (page := log.read(stream, after_seq=after_seq)):
        found |= {record.key: record for record in page if record.key in keys}
        after_seq = page[-1].seq
    return found
