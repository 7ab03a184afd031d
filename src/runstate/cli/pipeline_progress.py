"""The progress of a pipeline run: the stage under way in a display, and a line for each stage that has ended."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from runstate.cli.output import words
from runstate.cli.progress_display import Progress, can_animate
from runstate.models.rundir import RunDirectory
from runstate.models.rundir.state import WorkItem
from runstate.pipeline.spark.progress import read_progress


class PipelineProgress:
    """Kept current by the orchestrator; Spark's tasks are counted by the process of the stage."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._statuses: dict[str, str] = {}
        self._stage, self._progress = "", Progress("starting", unit="tasks")

    def update(self, state: RunDirectory) -> None:
        """Print a line for each stage that has started or ended since the last call."""
        is_first = not self._statuses
        for item in state.work_items:
            before, self._statuses[item.work_item_id] = self._statuses.get(item.work_item_id), item.status
            if item.status == before or item.status == "queued":
                continue
            if item.status == "running":
                self._start(_stage(item))
            elif is_first:
                words.print(f"{_stage(item)}: {item.status} earlier")
            else:
                is_cancelled = (item.error or {}).get("code") == "CANCELLED"
                words.print(f"{_stage(item)}: {'interrupted' if is_cancelled else item.status}{_duration(item)}")

    def __rich__(self) -> Progress:
        """Called by the display's thread."""
        found, stage, progress = read_progress(self._directory), self._stage, self._progress
        if found is None:
            progress.doing = f"{stage}: starting Spark"
        elif found.stage == stage:
            progress.doing, progress.done, progress.total = stage, found.done, found.total
        return progress

    def _start(self, stage: str) -> None:
        self._stage, self._progress = stage, Progress(stage, unit="tasks")
        if not can_animate():
            words.print(f"{stage}: running")


def _stage(item: WorkItem) -> str:
    return item.worker if item.scope_key == "-" else f"{item.worker} {item.scope_key}"


def _duration(item: WorkItem) -> str:
    if item.started_at is None or item.finished_at is None:
        return ""
    took = datetime.fromisoformat(item.finished_at) - datetime.fromisoformat(item.started_at)
    return f" after {took.total_seconds():.1f} s"
