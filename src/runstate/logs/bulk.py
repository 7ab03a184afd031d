"""Appends to many streams at once: in one commit if the log has such, else one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from runstate.errors import RunstateError
from runstate.logs.log import AppendResult, EventLog
from runstate.models.model import Draft

Batch = tuple[str, Sequence[Draft]]
"""A stream, and what is to be appended to it."""
Answer = list[AppendResult] | RunstateError


@runtime_checkable
class BulkLog(Protocol):
    """A log for which appends to many streams cost hardly more than one."""

    def append_many(self, batches: Sequence[Batch]) -> list[Answer]:
        """Append to many streams. Each batch is answered as `append` would answer it: one that is refused, with its
        error, keeps no other from being written."""
        ...


def append_many(log: EventLog, batches: Sequence[Batch]) -> list[Answer]:
    """Append to many streams, with as few commits as the log can. Each batch is written as a whole or not at all."""
    if len(batches) > 1 and isinstance(log, BulkLog):
        return log.append_many(batches)
    return [_append(log, stream, drafts) for stream, drafts in batches]


def _append(log: EventLog, stream: str, drafts: Sequence[Draft]) -> Answer:
    try:
        return log.append(stream, drafts)
    except RunstateError as error:
        return error
