"""How a store behaves, as its caller may choose."""

from __future__ import annotations

from typing import TypedDict

from runstate.models.model import AlertSink

event_bytes_default = 1024 * 1024
"""An event larger than this is refused unless the store was opened with another limit."""


class StoreOptions(TypedDict, total=False):
    """How a store behaves."""

    snapshot_every: int | None
    """Save a snapshot with every append (1), once this many events have come (n), or never (0). Default, None: with
    every append where the log saves it in the same commit. Elsewhere with the first event of a stream, then at the
    latest with 100 unsaved events, 1 s after the first of them, and on `close`."""
    check_transitions: bool
    """Refuse an event that is impossible in the state that its stream is in. Default: it is kept, and flagged."""
    strict_keys: bool
    """Refuse an event whose key is not the one that its fields give. Default: a store takes the key it is given."""
    event_bytes_max: int
    """The size beyond which an event is refused. Default: 1 MiB."""
    on_alert: AlertSink | None
    """Called once for each new alert. Default: alerts go to the logger `runstate.alerts`."""
