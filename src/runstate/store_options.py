"""How a store behaves, as its caller may choose."""

from __future__ import annotations

from typing import TypedDict

from runstate.models.model import AlertSink

event_bytes_default = 1024 * 1024
"""An event larger than this is refused unless the store was opened with another limit."""


class StoreOptions(TypedDict, total=False):
    """How a store behaves."""

    snapshot_every: int
    """Keep a snapshot with every append (1, the default), once this many events have come (n), or never (0)."""
    check_transitions: bool
    """Refuse an event that is impossible in the state that its stream is in. Default: it is kept, and flagged."""
    strict_keys: bool
    """Refuse an event whose key is not the one that its fields give. Default: a store takes the key it is given."""
    event_bytes_max: int
    """The size beyond which an event is refused. Default: 1 MiB."""
    on_alert: AlertSink | None
    """Called once for each new alert. Default: alerts go to the logger `runstate.alerts`."""
