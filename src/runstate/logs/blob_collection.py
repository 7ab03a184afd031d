"""Collecting blobs that no stream refers to any more: what a collection does, and what all logs share of it.

Mark and sweep. Whatever any stream of the log names is marked: its events, and what was set aside of them. The rest
is removed if it was put before the grace period: a writer puts a blob, again if the log holds it already, before it
appends the event that refers to it. In any doubt nothing is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import time
from typing import Protocol, runtime_checkable

import msgspec

from runstate.errors import LogDamaged
from runstate.logs.blob_refs import mentioned_refs
from runstate.logs.log import BlobRef, EventLog, begins_after

grace_s_default = 3600.0
"""How long a blob that nothing refers to stays after it was put. A writer needs seconds from there to its event."""
refresh_s = 600.0
"""A blob that is put again counts as new, but for one that was put so recently: that saves a write."""


class Collected(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a collection has removed, or would remove."""

    removed: list[BlobRef]
    removed_bytes: int
    kept: int
    """Blobs that a stream refers to."""
    recent: int
    """Blobs that none refers to, and that were put within the grace period."""
    streams: int
    dry_run: bool


@runtime_checkable
class BlobCollectingLog(Protocol):
    """A log that removes blobs which no stream refers to."""

    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        """Remove the blobs that no stream refers to, and that were put longer than `grace_s` seconds ago.

        Raises:
            LogDamaged: `verify` finds damage other than in blobs; repair it first. Nothing was removed.
            LogBusy: writers are putting blobs; try again. Nothing was removed.
        """
        ...


class Marked(msgspec.Struct, frozen=True):
    """What a log's streams refer to, and what may be removed of the rest."""

    refs: set[BlobRef]
    streams: int
    put_before: float
    """Seconds since 1970. What was put later stays, also if its event was not there yet when its stream was read."""

    def sort(self, found: Iterable[tuple[BlobRef, int, bool]], *, dry_run: bool) -> Collected:
        """What is to be done with blobs of which each comes with its size, and whether it was put before."""
        removed, removed_bytes, kept, recent = list[BlobRef](), 0, 0, 0
        for ref, size, is_old in found:
            if ref in self.refs:
                kept += 1
            elif not is_old:
                recent += 1
            else:
                removed.append(ref)
                removed_bytes += size
        return Collected(
            removed=removed,
            removed_bytes=removed_bytes,
            kept=kept,
            recent=recent,
            streams=self.streams,
            dry_run=dry_run,
        )


def mark_blobs(log: EventLog, grace_s: float | None) -> Marked:
    """Mark what the streams of a log refer to; what was set aside of them is the log's own to add.

    Raises:
        LogDamaged: `verify` finds damage other than in blobs, so that not every reference is known.
    """
    put_before = time() - (grace_s_default if grace_s is None else grace_s)
    for finding in log.verify():
        if finding.severity == "damage" and not finding.code.startswith("blob."):
            where = "" if finding.stream is None else f" in {finding.stream!r}"
            raise LogDamaged(
                f"There is damage{where}, which may hide references to blobs; no blob was removed. Repair it first "
                f"({finding.code}: {finding.message})",
                stream=finding.stream,
            )
    refs, streams = set[BlobRef](), 0
    for head in log.heads(versions=False):
        streams += 1
        for line in log.lines(head.stream, after_seq=begins_after(log, head.stream)):
            refs.update(mentioned_refs(line))
    return Marked(refs, streams, put_before)
