"""repair --quarantine: one event that is intact, and that its model cannot use, is taken out of its stream."""

from __future__ import annotations

from typing import Any

import msgspec

from runstate.cli.stream_stores import AnyStore, StreamStores
from runstate.errors import LogDamaged, Truncated, Unsupported
from runstate.logs.log import Capability, Finding, Record
from runstate.logs.quarantine import absent_event, check_intact
from runstate.logs.quarantine_reasons import reason_of


def quarantine_event(stores: StreamStores, stream: str, seq: int, dry_run: bool) -> list[Finding]:
    """Set one event aside, and rebuild the snapshot of what is left. Returns what was done, or would be.

    Raises:
        StreamNotFound, EventNotFound: there is no such stream, or no such event.
        InvalidArgument: nothing is wrong with the event.
        LogDamaged: the stream is damaged: repair that first.
        Unsupported: the log cannot do it.
        LogBusy: another writer holds the stream.
    """
    log = stores.log
    if Capability.REPAIR not in log.capabilities:
        raise Unsupported(
            "This log cannot be repaired. Copy the stream to one that can ('runstate copy', or 'runstate restore' for "
            "an archive), and quarantine the event there"
        )
    store = stores.of(stores.find(stream))
    check_intact(stream, log.verify(stream))
    record = _record(store, stream, seq)
    reason = reason_of(log, store.model, record, *_start(store, stream))
    findings = log.repair(stream, dry_run=dry_run, quarantine=seq)
    if not findings:  # The stream is intact, and what the log is kept in is not.
        raise LogDamaged(
            f"Nothing can be written to this log: 'runstate verify' says what is damaged. {stream!r} was left as it is",
            stream=stream,
        )
    if not dry_run and Capability.SNAPSHOTS in log.capabilities:
        stores.rebuild_snapshot(stream)
    details = {"type": record.type, "key": record.key, "eventId": record.event_id, "reason": reason}
    return [
        msgspec.structs.replace(
            finding,
            message=f"Event {seq} ({record.type}) {reason}. {finding.message}",
            details=finding.details | details,
        )
        if finding.seq == seq
        else finding
        for finding in findings
    ]


def _record(store: AnyStore, stream: str, seq: int) -> Record:
    for record in store.log.read(stream, after_seq=seq - 1, limit=1):
        if record.seq == seq:
            return record
    raise absent_event(stream, seq)


def _start(store: AnyStore, stream: str) -> tuple[Any, int]:
    """Where a fold of the stream begins: before its first event, or with its snapshot where the log was compacted."""
    try:
        store.log.read(stream, limit=1)
    except Truncated:
        stored = store.snapshots.stored(stream)
        if stored is None or (state := store.snapshots.load(stream, stored)) is None:
            raise
        return state, stored.seq
    return store.model.initial(stream), 0
