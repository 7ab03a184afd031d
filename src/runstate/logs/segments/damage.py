"""What is wrong with a session, where, and how much before it is intact: as an error, and as a finding."""

from __future__ import annotations

import msgspec

from runstate.errors import LogDamaged
from runstate.logs.log import Finding

MANIFEST_DAMAGED = "log.manifest_damaged"
MANIFEST_CUT = "log.manifest_cut"
SEGMENT_DAMAGED = "log.segment_damaged"
SEGMENT_MISSING = "log.segment_missing"
EVENTS_MISSING = "log.events_missing"


class Spot(msgspec.Struct, frozen=True):
    """Bytes that no append wrote there, or that are gone. `intact` events before them are whole."""

    code: str
    message: str
    intact: int
    file: str
    """Relative to the session's directory."""
    offset: int = 0
    bytes: int = 0


def damaged(stream: str, spot: Spot) -> LogDamaged:
    return LogDamaged(
        f"{spot.message} (session {stream!r}, {spot.file}, byte {spot.offset}). {spot.intact} events before it are "
        "intact. 'runstate repair --dry-run' says what a repair keeps, and with --salvage how much more",
        stream=stream,
        seq=spot.intact + 1,
        intact=spot.intact,
        reason=spot.code,
        what=spot.message,
        file=spot.file,
        offset=spot.offset,
        bytes=spot.bytes,
    )


def spot_of(error: LogDamaged) -> Spot:
    """The spot that `damaged` has told of."""
    told = error.details
    return Spot(told["reason"], told["what"], told["intact"], told["file"], told["offset"], told["bytes"])


def damage_finding(stream: str, spot: Spot) -> Finding:
    details = {"file": spot.file, "offset": spot.offset, "bytes": spot.bytes, "intact": spot.intact}
    return Finding(code=spot.code, message=spot.message, stream=stream, seq=spot.intact + 1, details=details)
