"""How snapshots of many streams are saved: in one transaction if the log has such, else one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from runstate.errors import StreamNotFound
from runstate.logs.log import EventLog, StoredSnapshot

together_max = 500
"""Snapshots that share a transaction. With more, whoever appends meanwhile would have to wait for long."""


@runtime_checkable
class SavingLog(Protocol):
    """A log for which many snapshots cost hardly more than one."""

    def save_snapshots(self, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> None:
        """Keep snapshots, each as `save_snapshot` does, all or none; those of streams that are gone are passed over."""
        ...


def save_snapshots(log: EventLog, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> None:
    """Keep snapshots of many streams. A stream that was deleted meanwhile has nothing left to keep one of."""
    if isinstance(log, SavingLog):
        for start in range(0, len(snapshots), together_max):
            log.save_snapshots(snapshots[start : start + together_max])
        return
    for stream, snapshot in snapshots:
        with suppress(StreamNotFound):
            log.save_snapshot(stream, snapshot)
