"""What all parts of the orchestrator share while a run is under way: its graph, its trail, its files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from runstate.errors import RunstateError
from runstate.models.rundir.events import Issue
from runstate.models.rundir.state import RunDirectory
from runstate.runtimes.orchestrator.artifacts import ArtifactFiles
from runstate.runtimes.orchestrator.graph import Graph
from runstate.runtimes.orchestrator.planning import Planner
from runstate.runtimes.orchestrator.pool import Pool
from runstate.runtimes.orchestrator.trail import Trail, watching

Progress = Callable[[RunDirectory], None]


class RunFailed(RunstateError):
    """The run has failed; its failure summary says why."""

    code = "run.failed"


class RunCancelled(RunstateError):
    """The run was cancelled; resume goes on with it."""

    code = "run.cancelled"


class Context:
    """One run under way."""

    def __init__(
        self,
        graph: Graph,
        trail: Trail,
        pool: Pool,
        directory: Path,
        parameters: dict[str, Any],
        cancelled: threading.Event,
        progress: Progress | None,
    ) -> None:
        self.graph, self._trail, self.pool, self.directory = graph, trail, pool, directory
        self.parameters, self.cancelled, self._progress = parameters, cancelled, progress
        self.files = ArtifactFiles(directory)

    @property
    def run_id(self) -> str:
        return self._trail.run_id

    @property
    def state(self) -> RunDirectory:
        return self._trail.state

    def emit(self, kind: str, payload: dict[str, Any], *, of: str = "", within: str | None = None) -> None:
        self._trail.emit(kind, payload, of=of, within=within)
        if self._progress is not None:
            with watching():
                self._progress(self.state)

    def change_state(self, new: str) -> None:
        old = self.state.run_state
        if old != new:
            self.emit("RUN_STATE_CHANGED", {"old_state": old, "new_state": new})

    def planner(self) -> Planner:
        """Plans against the run as it is now. What is stale is not there for it."""
        paths = {name: self.path(name) for name, known in self.state.artifacts_index.items() if not known.stale}
        return Planner(self.graph, self.parameters, paths)

    def path(self, name: str) -> Path:
        return self.graph.sources.get(name) or self.files.path(name)

    def open_issue(self, issue: Issue) -> None:
        """Put an issue on record, unless it stands there open and just so."""
        if issue not in self.state.issues:
            self.emit("ISSUE_OPENED", {"issue": msgspec.to_builtins(issue)})

    def resolve_issue(self, issue_id: str) -> None:
        if any(issue.issue_id == issue_id and issue.status == "OPEN" for issue in self.state.issues):
            self.emit("ISSUE_RESOLVED", {"issue_id": issue_id})

    def fail(self, issue_id: str, code: str, message: str) -> NoReturn:
        """
        Raises:
            RunFailed: always, after the blocker is on record.
        """
        self.open_issue(Issue(issue_id, "blocker", message, error_code=code))
        raise RunFailed(message, error_code=code)
