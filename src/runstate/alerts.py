"""Alerts, raised once: a book that remembers which are open, and tells each listener only what is new."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

import msgspec

from runstate.logs.log import AppendResult
from runstate.models.model import Alert, AlertSink, Draft

_logger = logging.getLogger("runstate.alerts")

remembered_max = 100_000
"""Alerts that the book remembers. The oldest are forgotten first: at worst one of them is raised again."""


class AlertBook:
    """Every alert passes through here. Raising one that is open does nothing; clearing it makes it new again."""

    def __init__(self, sink: AlertSink | None = None) -> None:
        self._sink = sink or log_alert
        self._cleared: AlertSink | None = None
        self._lock = Lock()
        self._open: OrderedDict[str, Alert] = OrderedDict()

    def tell(self, raised: AlertSink, cleared: AlertSink, known: Iterable[Alert] = ()) -> None:
        """From now on, tell these of each alert that is new, and of each that was open and is no longer.

        Those that are `known` are open already.
        """
        self._sink, self._cleared = raised, cleared
        with self._lock:
            self._open.update((alert.alert_id, alert) for alert in known)

    def raise_once(self, alert: Alert) -> None:
        with self._lock:
            if alert.alert_id in self._open:
                return
            self._open[alert.alert_id] = alert
            if len(self._open) > remembered_max:
                self._open.popitem(last=False)
        self._sink(alert)

    def clear(self, alert_id: str) -> bool:
        """Close an alert; True when it was open."""
        with self._lock:
            found = self._open.pop(alert_id, None)
        if found is not None and self._cleared is not None:
            self._cleared(found)
        return found is not None

    def active(self) -> list[Alert]:
        """What is open, oldest first."""
        with self._lock:
            return list(self._open.values())


def log_alert(alert: Alert) -> None:
    _logger.warning("%s", msgspec.json.encode(alert).decode())


def content_mismatch(stream: str, draft: Draft, result: AppendResult) -> Alert:
    """The alert for a draft whose key stands for other content in the stream. The first content stays."""
    return Alert(
        code="IDEMPOTENCY_CONTENT_MISMATCH",
        level="P2",
        subject=stream,
        event_id=draft.event_id,
        details={"key": draft.key, "type": draft.type, "storedEventId": result.event_id, "storedSeq": result.seq},
    )
