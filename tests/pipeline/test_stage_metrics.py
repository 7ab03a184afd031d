"""Metrics of stages in a file: what they are made from, and that trouble with the file fails nothing."""

from __future__ import annotations

import builtins
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.metrics import samples

from runstate.errors import LogFailed, Unsupported
from runstate.metrics import check_metrics_file
from runstate.models.rundir.events import RunEvent
from runstate.pipeline.stage_metrics import StageMetrics


def event(kind: str, second: int, **payload: Any) -> RunEvent:
    ids = {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}
    known = {"work_item_id": "pipeline:replay:1:engine", **payload}
    if kind == "QUEUED":
        known |= {"worker": "replay", "scope_key": "engine"}
    ts = f"2026-11-15T09:30:{second:02}.500Z"
    return RunEvent(event_id=f"e-{second}", run_id="r", ts=ts, type=f"WORK_ITEM_{kind}", payload=known, **ids)


def finished(second: int, status: str = "finished") -> RunEvent:
    return event("FINISHED", second, status=status)


def test_the_last_run_counts_and_earlier_commands_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "out.prom"
    metrics = StageMetrics(tmp_path, path, warn=pytest.fail)
    metrics.recall([event("QUEUED", 0), event("STARTED", 1), finished(2), event("STARTED", 3), finished(4)])
    metrics.emit(event("STARTED", 10))
    metrics.emit(finished(12, "failed"))
    found = samples(path)
    assert found["runstate_pipeline_stage_seconds", "replay", "engine"] == 2
    assert found["runstate_pipeline_stage_ok", "replay", "engine"] == 0
    assert found["runstate_pipeline_stage_success_timestamp_seconds", "replay", "engine"] == 1794735004.5
    assert found["runstate_pipeline_stage_runs_total", "replay", "engine", "finished"] == 2
    assert found["runstate_pipeline_stage_runs_total", "replay", "engine", "failed"] == 1


def test_the_file_is_written_also_if_no_stage_had_to_run(tmp_path: Path) -> None:
    path = tmp_path / "out.prom"
    metrics = StageMetrics(tmp_path, path, warn=pytest.fail)
    metrics.recall([event("QUEUED", 0), event("STARTED", 1), finished(4)])
    assert not path.exists()
    metrics.close()
    assert samples(path)["runstate_pipeline_stage_ok", "replay", "engine"] == 1


def test_a_reader_never_finds_half_a_file(tmp_path: Path) -> None:
    path, over, read = tmp_path / "out.prom", threading.Event(), list[str]()
    metrics = StageMetrics(tmp_path, path, warn=pytest.fail)
    metrics.recall([event("QUEUED", 0), event("STARTED", 1)])
    metrics.emit(finished(2))

    def look() -> None:
        while not over.is_set():
            read.append(path.read_text())

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(300):
        metrics.emit(finished(4))
    over.set()
    reader.join()
    assert read
    assert all("runstate_pipeline_stage_runs_total{" in text and text.endswith("\n") for text in read)
    assert [each.name for each in tmp_path.iterdir()] == ["out.prom"]


def test_a_file_that_cannot_be_written_any_more_is_warned_of_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    metrics = StageMetrics(tmp_path, tmp_path / "gone" / "out.prom", warn=warnings.append)
    for each in (event("QUEUED", 0), event("STARTED", 1), finished(4), finished(5)):
        metrics.emit(each)
    metrics.close()
    (warning,) = warnings
    assert "metrics are not written" in warning


def test_a_place_for_no_file_is_refused_before_anything_is_begun(tmp_path: Path) -> None:
    for path in (tmp_path / "gone" / "out.prom", tmp_path):
        with pytest.raises(LogFailed, match="Metrics cannot be written"):
            check_metrics_file(path)
    check_metrics_file(tmp_path / "out.prom")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def lacking(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError("No module named 'prometheus_client'")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(Unsupported, match=r"pip install 'runstate\[metrics\]'"):
        check_metrics_file(tmp_path / "out.prom")
