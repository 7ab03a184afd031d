"""A fleet report as plain data: what the page shows, and what `report` fills from spans.

Rates are fractions from 0 to 1, durations milliseconds, times RFC 3339. None is what is not known. Lists are shown in
the order in which they are given.
"""

from __future__ import annotations

import msgspec


class Totals(msgspec.Struct):
    """The fleet in a few figures."""

    runs: int = 0
    events: int = 0
    streams_by_status: list[tuple[str, int]] = []
    first_event_at: str | None = None
    last_event_at: str | None = None


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


class HourRow(msgspec.Struct):
    """What was stored within one hour, and which runs ended in it."""

    hour: str
    """Its beginning, such as `2026-11-15T09:00:00Z`."""
    events: int = 0
    runs_finished: int = 0
    runs_failed: int = 0


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
    throughput: list[HourRow] = []
    slowest: list[SlowRow] = []
    most_retried: list[RetriedRow] = []
    calls: list[CallRow] = []
    tenants: list[TenantRow] = []
    findings: list[FindingRow] | None = []
    """None where no audit was made, which is another thing than an audit that found nothing."""
    quarantine: Quarantine = msgspec.field(default_factory=Quarantine)
