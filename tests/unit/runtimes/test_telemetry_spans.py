"""OpenTelemetry spans: the ids of the events to the bit, the tree of a run, and no way to fail it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from runstate.errors import InvalidUrl, Unsupported
from runstate.models.rundir import RunEvent
from runstate.runtimes.telemetry import OtelTelemetry, Several, from_url
from runstate.runtimes.telemetry.spans import time_ns

trace = "0af7651916cd43dd8448eb211c80319c"
run_span, node_span, item_span, call_span = ("b7ad6b7169203331", "00f067aa0ba902b7", "0000000000000001", "f" * 16)
start_ns = time_ns("2026-11-15T09:30:00Z")
item = {"work_item_id": "r-1:render:1:home"}


def event(second: int, kind: str, span: str, parent: str | None = None, **payload: Any) -> RunEvent:
    made = RunEvent(
        event_id=f"e-{second}",
        run_id="r-1",
        ts=f"2026-11-15T09:30:{second:02}.000Z",
        type=kind,
        payload=payload,
        trace_id=trace,
        span_id=span,
    )
    if parent is not None:
        made.parent_span_id = parent
    return made


def history(status: str = "finished", last: str = "RUN_COMPLETED") -> list[RunEvent]:
    queued = item | {"worker": "render", "attempt": 1, "scope_key": "home"}
    return [
        event(0, "RUN_CREATED", run_span),
        event(1, "SECTION_STATE_CHANGED", node_span, run_span, section="pages", new_state="RUNNING"),
        event(2, "WORK_ITEM_QUEUED", item_span, node_span, **queued),
        event(3, "WORK_ITEM_STARTED", item_span, node_span, **item),
        event(4, "LLM_CALL_STARTED", call_span, item_span, model="m-1"),
        event(5, "LLM_CALL_FINISHED", call_span, item_span, model="m-1", tokens={"input": 7}),
        event(6, "ARTIFACT_WRITTEN", item_span, node_span, name="a"),
        event(7, "WORK_ITEM_FINISHED", item_span, node_span, status=status, error={"message": "boom"}, **item),
        event(8, "SECTION_STATE_CHANGED", node_span, run_span, section="pages", new_state="BUILT"),
        event(9, last, run_span),
    ]


def exported(events: Sequence[RunEvent], recalled: Sequence[RunEvent] = ()) -> dict[str, ReadableSpan]:
    exporter = InMemorySpanExporter()
    telemetry = OtelTelemetry(exporter)
    telemetry.recall(recalled)
    for one in events:
        telemetry.emit(one)
    telemetry.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def seconds(span: ReadableSpan) -> tuple[float, float]:
    return ((span.start_time or 0) - start_ns) / 1e9, ((span.end_time or 0) - start_ns) / 1e9


def test_ids_are_those_of_the_events() -> None:
    spans = exported(history())
    found = {name: f"{span.context.span_id:016x}" for name, span in spans.items() if span.context}
    assert found == {
        "run r-1": run_span,
        "node pages": node_span,
        "work_item render": item_span,
        "llm_call m-1": call_span,
    }
    assert {f"{span.context.trace_id:032x}" for span in spans.values() if span.context} == {trace}


def test_a_run_holds_nodes_that_hold_work_items() -> None:
    spans = exported(history())
    parents = {name: f"{span.parent.span_id:016x}" if span.parent else None for name, span in spans.items()}
    assert parents == {
        "run r-1": None,
        "node pages": run_span,
        "work_item render": node_span,
        "llm_call m-1": item_span,
    }


def test_times_are_those_of_the_events() -> None:
    spans = exported(history())
    assert seconds(spans["run r-1"]) == (0, 9)
    assert seconds(spans["node pages"]) == (1, 9)  # "BUILT" says nothing about its end, so it ends with the run.
    assert seconds(spans["work_item render"]) == (3, 7)
    assert seconds(spans["llm_call m-1"]) == (4, 5)


def test_a_node_ends_when_its_state_says_so() -> None:
    events = history()
    events[8].payload["new_state"] = "COMPLETED"
    assert seconds(exported(events)["node pages"]) == (1, 8)


def test_a_failure_is_an_error_with_its_message() -> None:
    spans = exported(history("failed", "RUN_FAILED"))
    assert spans["work_item render"].status.status_code is StatusCode.ERROR
    assert spans["work_item render"].status.description == "boom"
    assert spans["run r-1"].status.status_code is StatusCode.ERROR
    assert spans["node pages"].status.status_code is StatusCode.UNSET


def test_success_is_no_error() -> None:
    assert {span.status.status_code for span in exported(history()).values()} == {StatusCode.UNSET}


def test_what_is_no_span_is_noted_in_the_one_that_it_names() -> None:
    notes = [note.name for note in exported(history())["work_item render"].events]
    assert notes == ["ARTIFACT_WRITTEN"]


def test_a_model_call_with_no_span_of_its_own_is_noted_in_its_work_item() -> None:
    events = history()
    events[4].span_id = events[5].span_id = item_span
    spans = exported(events)
    assert len(spans) == 3
    noted = [note.name for note in spans["work_item render"].events]
    assert noted == ["LLM_CALL_STARTED", "LLM_CALL_FINISHED", "ARTIFACT_WRITTEN"]


def test_records_become_attributes() -> None:
    attributes = exported(history())["llm_call m-1"].attributes or {}
    assert attributes["runstate.model"] == "m-1"
    assert attributes["runstate.tokens.input"] == 7


def test_a_span_that_has_not_ended_is_not_exported() -> None:
    assert exported(history()[:4]) == {}


def test_a_resumed_run_keeps_its_start_and_exports_nothing_twice() -> None:
    spans = exported(history()[8:], recalled=history()[:8])
    assert sorted(spans) == ["node pages", "run r-1"]
    assert seconds(spans["run r-1"]) == (0, 9)


class Hostile(SpanExporter):
    def __init__(self) -> None:
        self.freed = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.freed.wait()
        raise OSError("no")


def test_an_exporter_that_hangs_and_raises_holds_up_nobody() -> None:
    exporter = Hostile()
    telemetry = OtelTelemetry(exporter)
    for one in history():
        telemetry.emit(one)
    telemetry.close(timeout_s=0.05)
    telemetry.close()
    telemetry.emit(history()[0])
    exporter.freed.set()


def test_an_impossible_event_does_not_raise(caplog: pytest.LogCaptureFixture) -> None:
    events = history()
    events[3].ts = "yesterday"
    spans = exported(events)
    assert "no RFC 3339 time" in caplog.text
    assert seconds(spans["work_item render"]) == (2, 7)


@pytest.mark.parametrize(
    ("ts", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00.000000001+01:00", 1),
        ("1969-12-31T18:30:00.5-05:30", 500_000_000),
    ],
)
def test_times_are_exact(ts: str, ns: int) -> None:
    assert time_ns(ts) == ns


def test_without_opentelemetry_the_package_imports_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(Unsupported, match=r"pip install 'runstate\[otel\]'"):
        from_url("otel:", outbox=Path("unused"))


def test_importing_the_package_imports_no_opentelemetry() -> None:
    script = "import sys, runstate.runtimes.telemetry; print([m for m in sys.modules if 'opentelemetry' in m])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_several_are_told_the_same() -> None:
    exporters = InMemorySpanExporter(), InMemorySpanExporter()
    several = Several(*(OtelTelemetry(exporter) for exporter in exporters))
    for one in history():
        several.emit(one)
    several.close()
    assert [len(exporter.get_finished_spans()) for exporter in exporters] == [4, 4]


def test_an_unknown_url_is_refused() -> None:
    with pytest.raises(InvalidUrl, match="otel:"):
        from_url("ftp://example/", outbox=Path("unused"))
