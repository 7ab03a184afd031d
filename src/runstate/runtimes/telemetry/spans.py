"""Which spans a run is made of: a pure fold from events to spans, with the ids that the events carry.

A run, a node, a work item, a gate and a model call is a span each. It begins with the first event about it and is
handed over when it has ended. An event about anything else is noted in the span that it names, if that is open.
"""

from __future__ import annotations

import calendar
import re
import time
from collections import OrderedDict
from typing import Any

import msgspec
from msgspec import UNSET

from runstate.models.rundir.events import RunEvent
from runstate.models.rundir.evolve import terminal_states
from runstate.runtimes.telemetry.records import Record, records, text_of

open_max = 100_000
"""Spans that may be open at once. The oldest are forgotten first: they are never exported."""

notes_max = 128
"""Events noted in one span, as in the limits of OpenTelemetry."""

ended_states = frozenset({"completed", "finished", "done", "failed", "cancelled", "skipped"})
"""States in which a node is over, in any case of letters. A node in another one ends with its run."""

_failed = frozenset({"failed", "error"})


class Span(msgspec.Struct):
    """Something that took time. Times are nanoseconds since 1970; `error` is None unless it failed."""

    key: tuple[str, ...]
    name: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    notes: list[tuple[str, int]] = []
    error: str | None = None


class SpanBook:
    """The spans that are open. Not thread-safe."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, ...], Span] = OrderedDict()
        self._by_id: dict[tuple[str, str], Span] = {}

    def take(self, event: RunEvent) -> list[Span]:
        """Note an event; returns the spans that it ended, children before their parents."""
        at_ns = time_ns(event.ts) if event.ts is not UNSET else time.time_ns()
        owner = self._by_id.get((event.trace_id, event.span_id))
        for record in records(event):
            key = _key(record)
            if record["kind"] in ("gate", "llm_call") and owner is not None and owner.key != key:
                break  # It has no span of its own: it happened within the one that it names.
            return self._told(record, key, at_ns)
        if owner is not None and len(owner.notes) < notes_max:
            owner.notes.append((event.type, at_ns))
        return []

    def _told(self, record: Record, key: tuple[str, ...], at_ns: int) -> list[Span]:
        span = self._open.get(key) or self._begin(record, key, at_ns)
        span.end_ns = max(span.start_ns, at_ns)
        span.attributes |= _attributes(record)
        kind, what = record["kind"], record["type"]
        if what == "WORK_ITEM_STARTED":
            span.start_ns = span.end_ns = at_ns
        elif len(span.notes) < notes_max and kind in ("run", "node"):
            span.notes.append((f"{what} {record.get('state', '')}".strip(), at_ns))
        if _is_failure(record):
            span.error = text_of(record.get("error")) or "failed"
        if what in terminal_states:
            return [self._end(s, at_ns) for s in self._within(record["run_id"], span)] + [self._end(span, at_ns)]
        over = what in ("WORK_ITEM_FINISHED", "GATE_RUN_FINISHED", "LLM_CALL_FINISHED", "LLM_CALL_FAILED")
        if over or (kind == "node" and str(record.get("state")).lower() in ended_states):
            return [self._end(span, at_ns)]
        return []

    def _begin(self, record: Record, key: tuple[str, ...], at_ns: int) -> Span:
        span = Span(
            key=key,
            name=_name(record),
            trace_id=record["trace_id"],
            span_id=record["span_id"],
            parent_span_id=record.get("parent_span_id"),
            start_ns=at_ns,
            end_ns=at_ns,
            attributes={"runstate.run_id": record["run_id"], "runstate.kind": record["kind"]},
        )
        self._open[key] = span
        self._by_id.setdefault((span.trace_id, span.span_id), span)
        if len(self._open) > open_max:
            self._close(next(iter(self._open.values())))
        return span

    def _within(self, run_id: str, run: Span) -> list[Span]:
        """What a run leaves open when it ends, newest first: its nodes, and whatever it never heard of again."""
        return [span for span in reversed(self._open.values()) if span.key[1] == run_id and span is not run]

    def _end(self, span: Span, at_ns: int) -> Span:
        span.end_ns = max(span.start_ns, at_ns)
        self._close(span)
        return span

    def _close(self, span: Span) -> None:
        del self._open[span.key]
        if self._by_id.get((span.trace_id, span.span_id)) is span:
            del self._by_id[span.trace_id, span.span_id]


def _key(record: Record) -> tuple[str, ...]:
    kind, run_id = record["kind"], record["run_id"]
    if kind == "run":
        return (kind, run_id)
    named = {"node": "node", "work_item": "work_item_id"}.get(kind, "span_id")
    return (kind, run_id, str(record.get(named)))


def _name(record: Record) -> str:
    kind = record["kind"]
    if kind == "work_item":
        parts = str(record.get("work_item_id", "")).removeprefix(f"{record['run_id']}:")
        return f"work_item {record.get('worker') or parts.partition(':')[0]}"
    detail = {"run": "run_id", "node": "node", "gate": "gate", "llm_call": "model"}[kind]
    return f"{kind} {record.get(detail, '')}".strip()


_ids = ("event_id", "kind", "type", "run_id", "ts", "trace_id", "span_id", "parent_span_id", "version", "error")


def _attributes(record: Record) -> dict[str, Any]:
    """A record's own members as attributes; a group of numbers becomes one attribute for each."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat |= {f"runstate.{name}.{part}": number for part, number in value.items()}
        elif name not in _ids:
            flat[f"runstate.{name}"] = value
    return flat


def _is_failure(record: Record) -> bool:
    if record["type"] in ("RUN_FAILED", "LLM_CALL_FAILED") or record.get("passed") is False:
        return True
    return str(record.get("status") or record.get("state")).lower() in _failed


_time = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))")


def time_ns(ts: str) -> int:
    """An RFC 3339 time in nanoseconds since 1970, to the last digit.

    ValueError: it is none.
    """
    found = _time.fullmatch(ts)
    if found is None:
        raise ValueError(f"{ts[:40]!r} is no RFC 3339 time")
    *fields, fraction, sign, hours, minutes = found.groups()
    seconds = calendar.timegm(tuple(int(field) for field in fields))
    if sign is not None:
        seconds -= (1 if sign == "+" else -1) * (int(hours) * 3600 + int(minutes) * 60)
    return seconds * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))
