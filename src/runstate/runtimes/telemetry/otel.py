"""Telemetry as OpenTelemetry spans (extra `otel`), with exactly the trace and span ids of the events."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from runstate.errors import Unsupported
from runstate.models.rundir.events import RunEvent
from runstate.runtimes.telemetry.spans import Span, SpanBook
from runstate.runtimes.telemetry.trouble import unfailing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext


class OtelTelemetry:
    """Exports the spans of runs, each when it has ended, in the background and in batches.

    `emit` and `close` never raise. A full queue drops spans, as OpenTelemetry's batch processor does; the log of the
    run still holds everything.
    """

    def __init__(self, exporter: SpanExporter | None = None, *, service_name: str = "runstate") -> None:
        """Without an exporter: OTLP over HTTP, set up by the usual OTEL_EXPORTER_OTLP_* variables.

        Raises:
            Unsupported: OpenTelemetry is not installed.
        """
        export = _needed("opentelemetry.sdk.trace.export")
        resources = _needed("opentelemetry.sdk.resources")
        if exporter is None:
            exporter = _needed("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
        self._resource = resources.Resource.create({"service.name": service_name})
        self._processor = export.BatchSpanProcessor(exporter)
        self._book = SpanBook()
        self._mutex = threading.Lock()
        self._closed = False

    def emit(self, event: RunEvent) -> None:
        """Take note of an event, as the log stored it. Returns at once and never raises."""
        with unfailing("An event could not be told to OpenTelemetry"):
            with self._mutex:
                ended = [] if self._closed else self._book.take(event)
            for span in ended:
                self._processor.on_end(_readable(span, self._resource))

    def recall(self, events: Iterable[RunEvent]) -> None:
        """Learn what an earlier process has emitted, before resuming its run: spans that are still open go on with
        their own start. What has ended is not exported again. Never raises."""
        with unfailing("The events before this could not be told to OpenTelemetry"), self._mutex:
            for event in events:
                self._book.take(event)

    def close(self, timeout_s: float = 5.0) -> None:
        """Export what has ended, within that time. What is still open belongs to whoever resumes the run."""
        with unfailing("OpenTelemetry could not be closed"):
            with self._mutex:
                already, self._closed = self._closed, True
            if not already:
                # An exporter may take as long as it likes, so it ends in a thread that nobody has to wait for.
                ending = threading.Thread(target=self._processor.shutdown, name="runstate-otel-close", daemon=True)
                ending.start()
                ending.join(timeout_s)


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unsupported(f"Spans need OpenTelemetry: pip install 'runstate[otel]' ({error})") from error


def _readable(span: Span, resource: Any) -> ReadableSpan:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Status, StatusCode

    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=None if span.parent_span_id is None else _context(span.trace_id, span.parent_span_id),
        resource=resource,
        attributes=span.attributes,
        events=[Event(name, timestamp=at_ns) for name, at_ns in span.notes],
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("runstate"),
    )


def _context(trace_id: str, span_id: str) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=sampled)
