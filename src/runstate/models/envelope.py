"""What a line says about itself, whatever its model: which stream it belongs to, what it is, and where it stood."""

from __future__ import annotations

import msgspec


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """The envelope of one line, as a producer writes it or as a log has stored it."""

    stream: str
    seq: int | None
    """The place that a log gave it; None where the line does not tell, as no line of a run directory does."""
    event_id: str
    type: str
    key: str
    tenant: str
    emitted_at: str
    persisted_at: str | None
    """When a log stored it; None for a line as a producer writes it."""

    @property
    def is_stored(self) -> bool:
        """Whether a log has written the line. Such a line is kept as it is; any other is still to be rendered."""
        return self.persisted_at is not None
