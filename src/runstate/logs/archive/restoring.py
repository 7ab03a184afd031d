"""An archived run goes back into a log: its blobs first, then its events as they were; then the log is read back."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import islice, takewhile

from msgspec import UNSET

from runstate.errors import LogDamaged, SequenceConflict
from runstate.logs.archive.log import ArchiveLog
from runstate.logs.archive.packs import ArchivedRun, encode_line
from runstate.logs.log import EventLog, Record
from runstate.logs.stream_blobs import Needed, carry_blobs
from runstate.logs.stream_models import check_model

_page = 1000
adopted_max = 10_000
"""Events that are adopted at once: a run of no more comes back as a whole, or not yet."""


def stored(log: EventLog, stream: str, until_seq: int) -> Iterator[Record]:
    """A stream's events up to a seq, a page at a time."""
    after_seq = 0
    while after_seq < until_seq and (page := log.read(stream, after_seq=after_seq, limit=_page)):
        yield from takewhile(lambda record: record.seq <= until_seq, page)
        after_seq = page[-1].seq


def adopt_run(log: EventLog, archive: ArchiveLog, run: ArchivedRun, model: str) -> tuple[int, int]:
    """How many events were added, and how many references lead nowhere in a run that was archived without blobs."""
    new, unresolved = 0, 0
    if run.events > adopted_max:  # In several batches: nothing is restored of a run that has lost a blob.
        carry_blobs(archive, log, stored(archive, run.stream, run.last_seq), _needed(run), dry_run=True)
    records = stored(archive, run.stream, run.last_seq)
    while batch := list(islice(records, adopted_max)):
        # Blobs first, and with each batch: a log keeps a blob that no event refers to yet only for a while.
        unresolved += carry_blobs(archive, log, batch, _needed(run)).unresolved
        new += log.adopt(run.stream, batch, model=model)
    return new, unresolved


def missing_events(log: EventLog | None, archive: ArchiveLog, run: ArchivedRun, model: str) -> tuple[int, int]:
    """What `adopt_run` would return, as far as can be told without trying."""
    records = stored(archive, run.stream, run.last_seq)
    unresolved = carry_blobs(archive, log, records, _needed(run), dry_run=True).unresolved
    info = None if log is None else log.stream(run.stream)
    if info is None or log is None:
        return run.events, unresolved
    check_model(run.stream, info.model, model)
    missing = 0
    there = stored(log, run.stream, min(info.last_seq, run.last_seq))
    for record in stored(archive, run.stream, run.last_seq):
        if record.seq > info.last_seq:
            missing += 1
        elif next(there, None) != record:
            raise SequenceConflict(f"The log holds something else in {run.stream!r} at seq {record.seq}")
    return missing, unresolved


def _needed(run: ArchivedRun) -> Needed:
    blobs = None if run.blobs is UNSET else frozenset(run.blobs)
    return lambda line: blobs


def without_blobs(unresolved: int) -> tuple[str, str]:
    if not unresolved:
        return "", ""
    return "archive.without_blobs", (
        f"An earlier version archived it without its blobs, and the log does not hold them: {unresolved} strings look "
        "like references to some"
    )


def check_restored(log: EventLog, run: ArchivedRun) -> None:
    digest = sha256()
    for record in stored(log, run.stream, run.last_seq):
        digest.update(encode_line(record))
    if digest.hexdigest() != run.sha256:
        raise LogDamaged(f"The log holds {run.stream!r} otherwise than the archive does", stream=run.stream)
