"""The stages of a pipeline as Prometheus metrics in a file, written anew at the end of each stage.

Everything in it comes from the run's own events and artifacts, so it is complete after any command, whichever stages
that command has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runstate.errors import RunstateError
from runstate.metrics import write_metrics
from runstate.models.canonical import undecodable
from runstate.models.rundir.events import RunEvent
from runstate.pipeline.stages import AuditOutcome, IngestResult, ReplayResult, inputs_in, read_artifact, run_id
from runstate.runtimes.telemetry.trouble import unfailing

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class _Stage(msgspec.Struct):
    """What is known of one stage of one model; of all its attempts."""

    worker: str
    scope: str
    started_s: float = 0.0
    ended_s: float = 0.0
    succeeded_s: float = 0.0
    is_ok: bool = False
    ends: Counter[str] = msgspec.field(default_factory=Counter)


class StageMetrics:
    """Told about the events of the run. `emit` and `close` never raise; the first trouble goes to `warn`."""

    def __init__(self, directory: Path, path: Path, *, warn: Callable[[str], None]) -> None:
        self._directory, self._path, self._warn = directory.absolute(), path, warn
        self._stages: dict[tuple[str, str], _Stage] = {}
        self._of_items: dict[str, _Stage] = {}
        self._has_warned = False

    def recall(self, events: Iterable[RunEvent]) -> None:
        """Learn what earlier commands have done. Never raises."""
        with unfailing("The events before this could not be read for the metrics"):
            for event in events:
                self._learn(event)

    def emit(self, event: RunEvent) -> None:
        with unfailing("An event could not be counted"):
            self._learn(event)
            if event.type == "WORK_ITEM_FINISHED":
                self._write()

    def close(self) -> None:
        """Write the file also if no stage had to run: its time says when the pipeline was last looked after."""
        with unfailing("The metrics could not be written"):
            self._write()

    def _learn(self, event: RunEvent) -> None:
        payload = event.payload
        if event.type == "WORK_ITEM_QUEUED":
            names = payload["worker"], payload["scope_key"]
            self._of_items[payload["work_item_id"]] = self._stages.setdefault(names, _Stage(*names))
        stage = self._of_items.get(str(payload.get("work_item_id")))
        if stage is None:
            return
        if event.type == "WORK_ITEM_STARTED":
            stage.started_s = _seconds(event)
        elif event.type == "WORK_ITEM_FINISHED":
            stage.ended_s, stage.is_ok = _seconds(event), payload["status"] == "finished"
            stage.succeeded_s = stage.ended_s if stage.is_ok else stage.succeeded_s
            stage.ends[payload["status"]] += 1

    def _write(self) -> None:
        try:
            write_metrics(self, self._path)
        except OSError as error:
            if not self._has_warned:
                self._warn(f"metrics are not written; the pipeline goes on without them: {error}")
            self._has_warned = True

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["pipeline", "stage", "model"]
        took = GaugeMetricFamily(
            "runstate_pipeline_stage_seconds", "How long the last run of a stage took.", labels=labels
        )
        is_ok = GaugeMetricFamily(
            "runstate_pipeline_stage_ok", "Whether the last run succeeded: 1 or 0.", labels=labels
        )
        succeeded = GaugeMetricFamily(
            "runstate_pipeline_stage_success_timestamp_seconds", "When a stage last succeeded.", labels=labels
        )
        runs = CounterMetricFamily(
            "runstate_pipeline_stage_runs", "Runs of a stage that have ended.", labels=[*labels, "status"]
        )
        rows = GaugeMetricFamily(
            "runstate_pipeline_rows", "What a stage has made of the logs, by kind.", labels=[*labels, "kind"]
        )
        for stage in self._stages.values():
            of = [str(self._directory), stage.worker, "" if stage.scope == "-" else stage.scope]
            if not stage.ends:
                continue
            took.add_metric(of, max(0.0, stage.ended_s - stage.started_s))
            is_ok.add_metric(of, float(stage.is_ok))
            if stage.succeeded_s:
                succeeded.add_metric(of, stage.succeeded_s)
            for status, count in sorted(stage.ends.items()):
                runs.add_metric([*of, status], count)
        for (worker, model), counts in self._rows():
            for kind, count in counts.items():
                rows.add_metric([str(self._directory), worker, model, kind], count)
        yield from (took, is_ok, succeeded, runs, rows)

    def _rows(self) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
        """What the artifacts say; a stage that has never finished has none."""
        run = self._directory / "runs" / run_id
        for model in _models(self._directory):
            for worker, read in (("ingest", _ingested), ("replay", _replayed), ("audit", _audited)):
                try:
                    yield (worker, model), read(run, f"{worker}/{model}.json")
                except (OSError, *undecodable):
                    continue


def _models(directory: Path) -> list[str]:
    try:
        return sorted(inputs_in(directory))
    except RunstateError:
        return []


def _ingested(run: Path, name: str) -> dict[str, int]:
    found = read_artifact(run, name, IngestResult)
    return {"events": found.events, "quarantined": found.quarantined}


def _replayed(run: Path, name: str) -> dict[str, int]:
    found = read_artifact(run, name, ReplayResult)
    return {"snapshots": found.streams, "failed": found.failed}


def _audited(run: Path, name: str) -> dict[str, int]:
    found = read_artifact(run, name, AuditOutcome)
    counts = {"streams": found.streams, "damage": 0, "warning": 0}
    for each in found.findings:
        counts[each.severity] = counts.get(each.severity, 0) + each.count
    return counts


def _seconds(event: RunEvent) -> float:
    return datetime.fromisoformat(str(event.ts)).timestamp()
