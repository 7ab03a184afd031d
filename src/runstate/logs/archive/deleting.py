"""Deleting an archived run from its log: only as it was archived, and with a mark that says where it is now."""

from __future__ import annotations

from typing import Literal

from runstate.errors import LogBusy, SequenceConflict, StreamNotFound
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.packs import ArchivedRun, Unfit
from runstate.logs.log import EventLog, Tombstone, now
from runstate.logs.stream_directories import DirectoryLog

Deletion = Literal["deleted", "gone", "moved_on", "busy"]


def delete_run(log: EventLog, directory: ArchiveDirectory, run: ArchivedRun, first_persisted_at: str) -> Deletion:
    """Delete a run that the archive holds.

    `first_persisted_at` is when the stream began that was archived: another one of that id stays.
    """
    tombstone = Tombstone(run.stream, run.last_seq, run.sha256, directory.url, now())
    try:
        log.delete_stream(
            run.stream, expected_seq=run.last_seq, first_persisted_at=first_persisted_at, tombstone=tombstone
        )
    except StreamNotFound:
        return "gone"
    except SequenceConflict:
        return "moved_on"
    except LogBusy:
        return "busy"
    return "deleted"


def was_deleted(log: EventLog, directory: ArchiveDirectory, run: ArchivedRun) -> bool:
    """Whether the log remembers that this very run went to this archive."""
    mark = log.tombstone(run.stream)
    return mark is not None and (mark.digest, mark.archive) == (run.sha256, directory.url)


def check_no_files(log: EventLog, stream: str) -> None:
    """
    Raises:
        Unfit: the deletion of the run would delete files that an archive does not hold.
    """
    if isinstance(log, DirectoryLog) and (files := log.files_beside(stream)):
        raise Unfit(
            f"The run's directory holds {', '.join(files[:3])}, which an archive does not keep: move it elsewhere, "
            "copy the run with --keep, or give the files up with --discard-files",
            stream=stream,
        )
