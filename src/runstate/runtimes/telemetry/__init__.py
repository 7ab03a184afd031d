"""Telling others about runs, without ever failing one: records over HTTP, and OpenTelemetry spans."""

from __future__ import annotations

from pathlib import PurePath
from typing import Protocol

from runstate.errors import InvalidUrl
from runstate.models.rundir.events import RunEvent
from runstate.runtimes.telemetry.http import Backoff, HttpTelemetry
from runstate.runtimes.telemetry.otel import OtelTelemetry
from runstate.runtimes.telemetry.records import Record, records

__all__ = ["Backoff", "HttpTelemetry", "OtelTelemetry", "Record", "Several", "Telemetry", "from_url", "records"]


class Telemetry(Protocol):
    """Somebody who is told about the events of runs. No method raises, and none makes the run wait."""

    def emit(self, event: RunEvent) -> None:
        """Take note of an event, as the log stored it, in the order of the log."""

    def close(self) -> None:
        """Hand on what can be handed on in a few seconds."""


class Several:
    """Tells the same to each of several."""

    def __init__(self, *parts: Telemetry) -> None:
        self._parts = parts

    def emit(self, event: RunEvent) -> None:
        for part in self._parts:
            part.emit(event)

    def close(self) -> None:
        for part in self._parts:
            part.close()


def from_url(url: str, *, outbox: PurePath) -> Telemetry:
    """The telemetry that a URL names: `http://…` or `https://…` for records, with its outbox; `otel:` for spans.

    Raises:
        InvalidUrl: it is none of these.
        Unsupported: `otel:`, and OpenTelemetry is not installed.
    """
    if url == "otel:":
        return OtelTelemetry()
    if url.startswith(("http:", "https:")):
        return HttpTelemetry(url, outbox)
    raise InvalidUrl(f"Telemetry goes to http://…, https://… or otel:, not to {url[:80]!r}", url=url[:200])
