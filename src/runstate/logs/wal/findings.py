"""What recovery, repair and verification report, and where it is logged."""

from __future__ import annotations

import logging
from typing import Any

from runstate.errors import LogDamaged, Truncated
from runstate.logs.log import Finding
from runstate.logs.wal.entries import Damage
from runstate.logs.wal.files import StreamFiles

logger = logging.getLogger("runstate.logs.wal")
TORN_TAIL = "log.torn_tail"
EVENTS_MISSING = "log.events_missing"
SNAPSHOT_CORRUPT = "snapshot.corrupt"
FILE_DAMAGED = "log.file_damaged"
STATE_LOST = "log.state_lost"


class Rehearsal(list[Finding]):
    """What would be reported. It is not logged: nothing has happened."""


def wal_finding(files: StreamFiles, code: str, message: str, seq: int | None, **details: Any) -> Finding:
    return Finding(code=code, message=message, severity="warning", stream=files.stream, seq=seq, details=details)


def report_finding(report: list[Finding], finding: Finding) -> None:
    if not isinstance(report, Rehearsal):
        logger.warning("%s: %s", finding.stream, finding.message)
    report.append(finding)


def truncated(stream: str, first_seq: int) -> Truncated:
    return Truncated(
        f"The stream {stream!r} begins with seq {first_seq} now: a checkpoint has dropped what was before, which is in "
        f"its snapshot. Read what is there with --after {first_seq - 1} (after_seq={first_seq - 1}). To keep all "
        "events of a WAL, open it with ?history=archive",
        stream=stream,
        first_seq=first_seq,
    )


def damaged(stream: str, damage: Damage, seq: int, offset: int) -> LogDamaged:
    return LogDamaged(
        f"{damage} (stream {stream!r}, entry {seq}, byte {offset}). What is before it is intact; the next append, or "
        "'runstate repair', keeps the whole file as .bak and goes on from there",
        stream=stream,
        seq=seq,
        offset=offset,
        reason=damage.code,
    )


def damage_finding(error: LogDamaged) -> Finding:
    details = dict(error.details)
    stream, seq, code = details.pop("stream"), details.pop("seq"), details.pop("reason")
    return Finding(code=code, message=str(error), stream=stream, seq=seq, details=details)
