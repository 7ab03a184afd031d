"""Runs a graph, and goes on with a run that was interrupted: start, resume, force, cancel.

The trail decides everything: what it says is finished is not done again, and what it does not say has not happened.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from runstate.errors import RunstateError, SnapshotTooNew, StreamNotFound
from runstate.models.rundir.state import RunDirectory
from runstate.runtimes.orchestrator.context import Context, Progress, RunCancelled, RunFailed
from runstate.runtimes.orchestrator.graph import Graph, InvalidGraph, Node
from runstate.runtimes.orchestrator.items import run_items
from runstate.runtimes.orchestrator.loops import run_loop
from runstate.runtimes.orchestrator.planning import Item
from runstate.runtimes.orchestrator.pool import Pool
from runstate.runtimes.orchestrator.staleness import refresh
from runstate.runtimes.orchestrator.summary import write_failure_summary
from runstate.runtimes.orchestrator.trail import RunStore, Telemetry, Trail


class MissingInput(RunstateError):
    """An input of the run is not there."""

    code = "run.missing_input"


class RunExists(RunstateError):
    """There is a run of that id already; go on with it by resume."""

    code = "run.exists"


class Orchestrator:
    """One run of a graph. `directory` is the run's own, with its artifacts; `place` is where the graph was found."""

    def __init__(
        self,
        graph: Graph,
        store: RunStore,
        pool: Pool,
        run_id: str,
        directory: Path,
        *,
        telemetry: list[Telemetry] | None = None,
        progress: Progress | None = None,
        place: str = "",
    ) -> None:
        graph.check()
        self._place = place
        self._graph, self._store, self._pool, self.run_id, self._directory = graph, store, pool, run_id, directory
        self._telemetry, self._progress = telemetry or [], progress
        self.cancelled = threading.Event()
        """Set it, from a signal handler or another thread, to cancel the run."""

    def start(self, parameters: dict[str, Any] | None = None) -> RunDirectory:
        """Begin a new run and bring it to its end.

        Raises:
            RunExists, MissingInput: nothing was begun.
            RunFailed, RunCancelled: the trail is complete, and `resume` goes on from it.
        """
        if self._store.log.stream(self.run_id) is not None:
            raise RunExists(f"There is a run {self.run_id!r} already; go on with it by resume")
        self._check_sources()
        context = self._context(parameters or {})
        config = {"graph": self._graph.name, "place": self._place, "nodes": [node.name for node in self._graph.nodes]}
        context.emit("RUN_CREATED", {"config": config, "parameters": parameters or {}})
        return self._go(context, set())

    def resume(self, *, force: set[str] | None = None) -> RunDirectory:
        """Go on with a run from its last stable state. What is finished and up to date is not done again.

        Raises:
            StreamNotFound: there is no such run.
            SnapshotTooNew: a newer Runstate has written its snapshot.
            RunFailed, RunCancelled: as in `start`.
        """
        forced = force or set()
        known = [node.name for node in self._graph.nodes]
        if unknown := forced - set(known):
            raise InvalidGraph(f"There is no node {min(unknown)!r} to force; there are: {', '.join(known)}")
        if self._store.log.stream(self.run_id) is None:
            raise StreamNotFound(f"There is no run {self.run_id!r}", stream=self.run_id)
        self._check_sources()
        self._check_snapshot()
        created = self._store.fetch_events(self.run_id, limit=1)[0]
        return self._go(self._context(created.payload.get("parameters", {})), forced)

    def _go(self, context: Context, forced: set[str]) -> RunDirectory:
        try:
            refresh(context, forced)
            position = self._position(context, forced)
            if position < len(self._graph.nodes):
                # Back to where the run may rest, if it was left between two such places.
                context.change_state(self._graph.stable_states()[position])
                for node in self._graph.nodes[position:]:
                    _run_node(context, node, node.name in forced)
            if context.state.run_state != "COMPLETED":
                context.emit("RUN_COMPLETED", {"result": {"artifacts": len(context.state.artifacts_index)}})
            context.files.drop_staging()
        except RunCancelled:
            context.emit("RUN_CANCELLED", {})
            raise
        except RunFailed as failure:
            context.emit("RUN_FAILED", {"error": {"message": str(failure), **failure.details}})
            write_failure_summary(self._directory, context.state, str(failure))
            raise
        return context.state

    def _position(self, context: Context, forced: set[str]) -> int:
        """The first node in which something has to run."""
        planner = context.planner()
        for number, node in enumerate(self._graph.nodes):
            if node.name in forced or not planner.is_done(node, context.state):
                return number
        return len(self._graph.nodes)

    def _context(self, parameters: dict[str, Any]) -> Context:
        trail = Trail(self._store, self.run_id, self._telemetry)
        return Context(self._graph, trail, self._pool, self._directory, parameters, self.cancelled, self._progress)

    def _check_sources(self) -> None:
        for name, path in self._graph.sources.items():
            if not path.is_file():
                raise MissingInput(f"The source {name!r} is not there: {path.absolute()}", name=name)

    def _check_snapshot(self) -> None:
        """Make sure that there is a snapshot to go on from: the one on file, or one rebuilt from the log.

        Raises:
            RunFailed: neither can be had; the blocker `SnapshotInvalid` is on record, if anything still can be.
        """
        try:
            stored = self._store.snapshots.stored(self.run_id)
            if stored is not None:
                self._store.model.load(stored.body)
                return
        except SnapshotTooNew:
            raise
        except RunstateError:
            self._store.snapshots.forget(self.run_id)
        try:
            self._store.rebuild_snapshot(self.run_id)
        except RunstateError as error:
            message = f"The snapshot is invalid and cannot be rebuilt from the log: {error}"
            state = RunDirectory(self.run_id, "FAILED")
            with suppress(RunstateError):
                context = self._context({})
                state = context.state
                context.fail("SnapshotInvalid", "SnapshotInvalid", message)
            write_failure_summary(self._directory, state, message)
            raise RunFailed(message, error_code="SnapshotInvalid") from error


def _run_node(context: Context, node: Node, forced: bool) -> None:
    context.change_state(node.entry)
    context.emit("SECTION_STATE_CHANGED", {"section": node.name, "new_state": "RUNNING"}, of=node.name)
    for level in context.planner().levels(node):
        planner, items = context.planner(), list[Item]()
        for worker in level:
            try:
                items += planner.items(worker, context.state, forced=forced)
            except Exception as error:  # noqa: BLE001 - the function that gives the scopes is the user's own
                message = f"The scopes of {worker.name!r} cannot be told: {error!r}"
                context.fail(f"{worker.name}:scopes", "SCOPES_FAILED", message)
            context.resolve_issue(f"{worker.name}:scopes")
        run_items(context, items, node)
    if node.loop is not None and (forced or not context.planner().is_done(node, context.state)):
        run_loop(context, node)
    context.emit("SECTION_STATE_CHANGED", {"section": node.name, "new_state": "DONE"}, of=node.name)
    context.change_state(node.exit)
