"""A fleet report as plain data: what the page shows, and what `report` fills from spans.

Rates are fractions from 0 to 1, durations milliseconds, times RFC 3339. None is what is not known. Lists are shown in
the order in which they are given.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from runstate.models.statuses import StatusGroup
from runstate.pipeline.source.options import InvalidOption

Clock = Literal["emitted", "persisted"]
"""Which time of an event counts: its producer's, or that of the log that stored it."""
clocks: tuple[Clock, ...] = get_args(Clock)


def read_clock(text: str) -> Clock:
    """
    Raises:
        InvalidOption: there is no such clock.
    """
    found = next((clock for clock in clocks if clock == text), None)
    if found is None:
        raise InvalidOption(f"There is no clock {text[:40]!r}; there are: {', '.join(clocks)}")
    return found


Group = StatusGroup | Literal["unreadable"]
"""What a status means in every model. `unreadable` is a run whose events cannot be folded."""

runs_max = 1000
"""Runs that are listed one by one."""


class StatusRow(msgspec.Struct):
    """How many runs of one model have one status."""

    group: Group
    model: str
    status: str
    runs: int


class Totals(msgspec.Struct):
    """The fleet in a few figures."""

    runs: int = 0
    events: int = 0
    statuses: list[StatusRow] = []


class RunRow(msgspec.Struct):
    """One run. Its first and last time are those of its events, by either clock."""

    stream: str
    model: str
    tenant: str
    status: str
    group: Group
    events: int
    first_emitted_at: str | None = None
    last_emitted_at: str | None = None
    first_persisted_at: str | None = None
    last_persisted_at: str | None = None


class StepRow(msgspec.Struct):
    """A step or worker, over all its runs."""

    name: str
    count: int
    """Attempts."""
    failed: int = 0
    retried: int = 0
    failure_rate: float | None = None
    retry_rate: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    wait_p50_ms: float | None = None
    wait_p95_ms: float | None = None


class BinRow(msgspec.Struct):
    """What happened within one bin of time."""

    start: str
    """Its beginning, such as `2026-11-15T09:00:00Z`."""
    events: int = 0
    runs_finished: int = 0
    runs_failed: int = 0


class Throughput(msgspec.Struct):
    """What happened when, by one clock."""

    clock: Clock
    bin_ms: int = 0
    """The width of all bins."""
    bins: list[BinRow] = []
    """Those in which something happened, in order."""
    first_event_at: str | None = None
    last_event_at: str | None = None
    events_without_time: int = 0
    """They are in no bin: this clock has no time of theirs, or none that can be read."""


class SlowRow(msgspec.Struct):
    """One attempt that took long."""

    stream: str
    name: str
    attempt: int
    duration_ms: float | None


class RetriedRow(msgspec.Struct):
    """A step of one run that needed many attempts."""

    stream: str
    name: str
    attempts: int
    failed: int = 0


class CallRow(msgspec.Struct):
    """A model, over all calls of it."""

    model: str
    count: int
    failed: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None


class TenantRow(msgspec.Struct):
    """A tenant and its share of the fleet."""

    tenant: str
    runs: int = 0
    failed: int = 0
    events: int = 0
    cost: float | None = None


class FindingRow(msgspec.Struct):
    """What the audit found, put together by code."""

    severity: str
    code: str
    count: int
    stream: str
    """One stream that it was found in."""
    message: str


class Quarantine(msgspec.Struct):
    """Input that could not be read and was set aside."""

    count: int = 0
    by_reason: list[tuple[str, int]] = []


class Report(msgspec.Struct, kw_only=True):
    """Everything on the page."""

    title: str = "Fleet report"
    generated_from: list[str] = []
    """URLs of the logs. Passwords in them are not shown."""
    as_of: str = ""
    """Up to when the logs were read."""
    totals: Totals = msgspec.field(default_factory=Totals)
    steps: list[StepRow] = []
    clock: Clock = "emitted"
    """The one that the page shows until its reader chooses the other."""
    throughput: list[Throughput] = []
    """By each clock."""
    runs: list[RunRow] = []
    """At most `runs_max`, the newest first: every second place is kept for runs that failed or cannot be read."""
    slowest: list[SlowRow] = []
    most_retried: list[RetriedRow] = []
    calls: list[CallRow] = []
    tenants: list[TenantRow] = []
    findings: list[FindingRow] | None = []
    """None where no audit was made, which is another thing than an audit that found nothing."""
    quarantine: Quarantine = msgspec.field(default_factory=Quarantine)
