"""Activities of one stream put together into spans: what ran from when to when, and how it ended.

Pure Python, and made for whatever order events come in: nothing here trusts that an end has a beginning. Times are the
producers'; they measure, and order nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from runstate.models.activity import Activity
from runstate.models.times import elapsed_ns

Outcome = Literal["finished", "failed", "skipped", "running", "queued", "cancelled", "interrupted"]
"""`interrupted` was begun and never ended: it was begun again, or its run has ended without it."""


class Span(msgspec.Struct, gc=False):
    """Something that took time, or still does. A time is as its producer wrote it; None is what nobody said."""

    stream: str
    tenant: str
    kind: Literal["run", "step", "call"]
    name: str
    attempt: int
    """From 1. A run's counts how often it was begun."""
    queued_at: str | None
    started_at: str | None
    ended_at: str | None
    outcome: Outcome
    wait_ms: float | None
    """From queued to started; None where either is not known, or the clocks went backwards in between."""
    duration_ms: float | None
    """From started to ended, or what a call's event says; None like `wait_ms`, and for what was skipped."""
    cost: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    end_emitted_at: str | None = None
    """`ended_at` where a producer says so; None where only the log has stamped a time."""
    end_persisted_at: str | None = None
    """When the log stored the event that ended it."""


span_fields: list[tuple[str, Literal["string", "int64", "double"]]] = [
    ("stream", "string"),
    ("tenant", "string"),
    ("kind", "string"),
    ("name", "string"),
    ("attempt", "int64"),
    ("queued_at", "string"),
    ("started_at", "string"),
    ("ended_at", "string"),
    ("outcome", "string"),
    ("wait_ms", "double"),
    ("duration_ms", "double"),
    ("cost", "double"),
    ("tokens_in", "int64"),
    ("tokens_out", "int64"),
    ("end_emitted_at", "string"),
    ("end_persisted_at", "string"),
]
"""The fields of `Span` as columns, in its order."""

unnamed = "(unnamed)"
"""Stands where no event says what ran."""


def spans(stream: str, tenant: str, events: Iterable[tuple[str, str, Sequence[Activity]]]) -> Iterator[Span]:
    """The spans of one stream: those that ended, as they end, then those that did not.

    `events` are in the stream's order, each with its `emitted_at` and `persisted_at` and what its model says about it.
    An activity without a time has the event's `emitted_at`, or `persisted_at` where that is empty. A step without a
    scope is told apart by its name, and attempts that no event numbers are counted.

    Never raises. Every `started` and every `call_started` gives exactly one span, and an end without a beginning gives
    one with no duration; an end that follows an end is nothing new.
    """
    pairing = _Pairing(stream, tenant)
    for emitted_at, persisted_at, activities in events:
        for activity in activities:
            emitted = activity.at or emitted_at
            for span in pairing.take(activity, emitted or persisted_at):
                if span.ended_at is not None:
                    span.end_emitted_at, span.end_persisted_at = emitted or None, persisted_at
                yield span
    yield from pairing.rest()


def elapsed_ms(start: str | None, end: str | None) -> float | None:
    """Milliseconds between two times; None where they are none, have no zone, or go backwards."""
    if not start or not end:
        return None
    try:
        nanoseconds = elapsed_ns(start, end)
    except (ValueError, TypeError, OverflowError):
        return None
    return nanoseconds / 1_000_000 if nanoseconds >= 0 else None


_run_ends: dict[str, Outcome] = {"run_finished": "finished", "run_failed": "failed", "run_cancelled": "cancelled"}
_step_ends: dict[str, Outcome] = {"finished": "finished", "failed": "failed", "skipped": "skipped"}


class _Open(msgspec.Struct, gc=False):
    """Something that has not ended yet."""

    name: str
    attempt: int
    queued_at: str | None = None
    started_at: str | None = None


class _Pairing:
    """What is open in one stream, and what is known of the rest."""

    def __init__(self, stream: str, tenant: str) -> None:
        self._stream, self._tenant = stream, tenant
        self._run: _Open | None = None
        self._run_begun, self._run_name = 0, ""
        self._run_outcome: Outcome | None = None
        self._steps: dict[str, _Open] = {}
        self._calls: dict[str, deque[_Open]] = {}
        self._named: dict[str, tuple[str, int]] = {}
        self._begun: dict[str, int] = {}
        """How often a step was started whose attempts no event numbers."""

    def take(self, activity: Activity, at: str) -> Iterator[Span]:
        kind = activity.kind
        if kind == "call_started":
            # Calls at the same time may share a scope, when their producer knows no better: first begun, first ended.
            self._calls.setdefault(activity.scope, deque()).append(_Open(activity.name, activity.attempt, None, at))
        elif kind == "call":
            yield self._call(activity, at)
        elif kind.startswith("run_"):
            yield from self._take_run(activity, at)
        else:
            yield from self._take_step(activity, at)

    def rest(self) -> Iterator[Span]:
        """What has not ended. What its run has left behind does not run any more, whatever it was last heard of."""
        left: Outcome | None = None
        if self._run is not None:
            yield self._span("run", self._run)
        elif self._run_outcome is not None:
            left = "cancelled" if self._run_outcome == "cancelled" else "interrupted"
        for step in self._steps.values():
            yield self._span("step", step, outcome=left)
        for calls in self._calls.values():
            for call in calls:
                yield self._span("call", call, outcome=left)

    def _take_run(self, activity: Activity, at: str) -> Iterator[Span]:
        self._run_name = self._run_name or activity.name
        known = self._run is not None or self._run_outcome is not None
        if self._run is None and (not known or activity.kind == "run_resumed"):
            self._run_begun += 1
            self._run = _Open(self._run_name, self._run_begun)
        run = self._run
        if run is None:
            return  # It has ended, and only `run_resumed` begins it again.
        run.name = self._run_name
        outcome = _run_ends.get(activity.kind)
        if outcome is not None:
            self._run, self._run_outcome = None, outcome
            yield self._span("run", run, at, outcome)
        elif activity.kind == "run_queued":
            run.queued_at = run.queued_at or at
        else:
            run.started_at = run.started_at or at

    def _take_step(self, activity: Activity, at: str) -> Iterator[Span]:
        scope = activity.scope or activity.name
        # What was said first holds: a later event of the same scope may know less, or guess.
        name, attempt = self._named.get(scope, ("", 0))
        name, attempt = name or activity.name, attempt or activity.attempt
        ended = scope in self._named and scope not in self._steps
        self._named[scope] = name, attempt
        step = self._steps.get(scope)
        if step is not None:
            step.name, step.attempt = name, attempt or step.attempt
        outcome = _step_ends.get(activity.kind)
        if outcome is not None:
            if not ended:
                self._steps.pop(scope, None)
                yield self._span("step", step or _Open(name, attempt), at, outcome)
        elif activity.kind == "queued":
            if step is None:
                self._steps[scope] = _Open(name, attempt, at)
        else:
            if step is not None and step.started_at is not None:
                yield self._span("step", self._steps.pop(scope), outcome="interrupted")
                step = None
            if not attempt:
                attempt = self._begun[scope] = self._begun.get(scope, 0) + 1
            self._steps[scope] = _Open(name, attempt, step.queued_at if step else None, at)

    def _call(self, activity: Activity, at: str) -> Span:
        begun = self._calls.get(activity.scope)
        call = begun.popleft() if begun else _Open(activity.name, activity.attempt)
        call.name, call.attempt = activity.name or call.name, activity.attempt or call.attempt
        span = self._span("call", call, at, activity.outcome)
        if activity.duration_ms is not None:
            span.duration_ms = activity.duration_ms
        span.cost, span.tokens_in, span.tokens_out = activity.cost, activity.tokens_in, activity.tokens_out
        return span

    def _span(
        self,
        kind: Literal["run", "step", "call"],
        what: _Open,
        ended_at: str | None = None,
        outcome: Outcome | None = None,
    ) -> Span:
        outcome = outcome or ("queued" if what.started_at is None else "running")
        return Span(
            stream=self._stream,
            tenant=self._tenant,
            kind=kind,
            name=what.name or unnamed,
            attempt=what.attempt or 1,
            queued_at=what.queued_at,
            started_at=what.started_at,
            ended_at=ended_at,
            outcome=outcome,
            wait_ms=elapsed_ms(what.queued_at, what.started_at),
            duration_ms=None if outcome == "skipped" else elapsed_ms(what.started_at, ended_at),
        )
