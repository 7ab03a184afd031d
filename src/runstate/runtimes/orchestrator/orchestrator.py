"""Runs a graph, and goes on with a run that was interrupted: start, resume, force, cancel.

The trail decides everything: what it says is finished is not done again, and what it does not say has not happened.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from runstate.errors import LogBusy, RunstateError, SnapshotTooNew, StreamNotFound
from runstate.models.canonical import digest
from runstate.models.model import check_file_stream
from runstate.models.rundir.events import Issue, RunCreated
from runstate.models.rundir.state import RunDirectory
from runstate.runtimes.orchestrator.artifacts import ArtifactFiles, own_files
from runstate.runtimes.orchestrator.context import Context, Progress, RunCancelled, RunFailed
from runstate.runtimes.orchestrator.graph import Graph, InvalidGraph, Node, Worker
from runstate.runtimes.orchestrator.items import run_items
from runstate.runtimes.orchestrator.loops import run_loop
from runstate.runtimes.orchestrator.planning import Item
from runstate.runtimes.orchestrator.pool import Pool
from runstate.runtimes.orchestrator.staleness import refresh
from runstate.runtimes.orchestrator.summary import drop_failure_summary, write_failure_summary
from runstate.runtimes.orchestrator.trail import RunStore, Trail
from runstate.runtimes.telemetry import Telemetry
from runstate.storage.disk import LockBusy
from runstate.storage.target_directory import cannot_write, refuse_foreign


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
        check_file_stream(run_id)  # It names a directory, also where the events live in a database.
        self._place = place
        self._graph, self._store, self._pool, self.run_id, self._directory = graph, store, pool, run_id, directory
        self._telemetry, self._progress = telemetry or [], progress
        self.cancelled = threading.Event()
        """Set it, from a signal handler or another thread, to cancel the run."""

    def start(self, parameters: dict[str, Any] | None = None) -> RunDirectory:
        """Begin a new run and bring it to its end.

        Raises:
            RunExists, NotALog, MissingInput, LogBusy, LogFailed: nothing was begun.
            RunFailed, RunCancelled: the trail is complete, and `resume` goes on from it.
        """
        self._refuse_existing()
        self._check_sources()
        with self._locked():
            self._refuse_existing()
            context = self._context(parameters or {}, self._store.model.initial(self.run_id))
            nodes = [node.name for node in self._graph.nodes]
            config = {"graph": self._graph.name, "place": self._place, "nodes": nodes}
            context.emit("RUN_CREATED", {"config": config, "parameters": parameters or {}})
            return self._go(context, set())

    def resume(self, *, force: set[str] | None = None) -> RunDirectory:
        """Go on with a run from its last stable state. What is finished and up to date is not done again.

        Raises:
            StreamNotFound: there is no such run.
            LogBusy: somebody else works on it.
            SnapshotTooNew: a newer Runstate has written its snapshot.
            RunFailed, RunCancelled: as in `start`.
        """
        forced = force or set()
        known = [node.name for node in self._graph.nodes]
        if unknown := forced - set(known):
            raise InvalidGraph(f"There is no node {min(unknown)!r} to force; there are: {', '.join(known)}")
        if not self.exists():
            raise StreamNotFound(f"There is no run {self.run_id!r}", stream=self.run_id)
        self._check_sources()
        with self._locked():
            parameters, state = self._recall()
            return self._go(self._context(parameters, state), forced)

    def _go(self, context: Context, forced: set[str]) -> RunDirectory:
        drop_failure_summary(self._directory)
        try:
            try:
                self._advance(context, forced)
            except RunstateError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the trail must be complete
                code = "IO_FAILED" if isinstance(error, OSError) else "UNEXPECTED"
                context.fail("run", code, f"The run cannot go on: {error!r}")
        except RunCancelled:
            context.emit("RUN_CANCELLED", {})
            raise
        except RunFailed as failure:
            context.emit("RUN_FAILED", {"error": {"message": str(failure), **failure.details}})
            write_failure_summary(self._directory, context.state, str(failure))
            raise
        return context.state

    def _advance(self, context: Context, forced: set[str]) -> None:
        context.files.recover(item.work_item_id for item in context.state.work_items if item.status == "running")
        refresh(context, forced)
        position = self._position(context)
        if context.state.run_state != "COMPLETED" or position < len(self._graph.nodes):
            # Back to where the run may rest, if it was left between two such places.
            context.change_state(self._graph.stable_states()[position])
            for node in self._graph.nodes[position:]:
                _run_node(context, node)
            _close(context)
            context.emit("RUN_COMPLETED", {"result": {"artifacts": len(context.state.artifacts_index)}})
        context.files.drop_staging()

    def _position(self, context: Context) -> int:
        """The first node in which something has to run, or of which the trail does not say that it is done."""
        planner, state = context.planner(), context.state
        for number, node in enumerate(self._graph.nodes):
            if state.section_states.get(node.name) != "DONE" or not planner.is_done(node, state):
                return number
        return len(self._graph.nodes)

    def _context(self, parameters: dict[str, Any], state: RunDirectory) -> Context:
        trail = Trail(self._store, self.run_id, self._telemetry, state)
        return Context(self._graph, trail, self._pool, self._directory, parameters, self.cancelled, self._progress)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """
        Raises:
            LogBusy: another orchestrator is at work on this run.
            NotWritable: the run directory cannot be written.
            LogFailed: the disk refused otherwise.
        """
        try:
            lock = ArtifactFiles(self._directory).lock()
        except LockBusy as error:
            raise LogBusy(f"Another orchestrator is at work on the run {self.run_id!r}") from error
        except OSError as error:
            raise cannot_write(self._directory, error) from error
        try:
            yield
        finally:
            lock.release()

    def exists(self) -> bool:
        """Whether there is a run of this id, or what is left of one."""
        return self._store.log.stream(self.run_id) is not None or self._has_snapshot()

    def _refuse_existing(self) -> None:
        if self.exists():
            raise RunExists(f"There is a run {self.run_id!r} already; go on with it by resume")
        refuse_foreign(self._directory, own_files)

    def _check_sources(self) -> None:
        for name, path in self._graph.sources.items():
            if not path.is_file() or not os.access(path, os.R_OK):
                raise MissingInput(f"The source {name!r} is not there: {path.absolute()}", name=name)

    def _has_snapshot(self) -> bool:
        """Whether a snapshot is left of the run, be it without its log."""
        try:
            stored = self._store.snapshots.stored(self.run_id)
            return stored is not None or (self._directory / "snapshot.json").exists()
        except SnapshotTooNew:
            raise
        except RunstateError:
            return True

    def _recall(self) -> tuple[dict[str, Any], RunDirectory]:
        """The parameters of the run and its state: from the snapshot on file, or from one rebuilt from the log.

        Raises:
            SnapshotTooNew: it was left untouched.
            RunFailed: neither can be had; the blocker `SnapshotInvalid` is on record, if anything still can be.
        """
        try:
            if not self._is_snapshot_valid():
                self._store.snapshots.forget(self.run_id)
                self._store.rebuild_snapshot(self.run_id)
            created = recorded_start(self._store, self.run_id)
            graph_name = created.config.get("graph", self._graph.name)
            if graph_name != self._graph.name:
                raise InvalidGraph(f"The run {self.run_id!r} was started with the graph {graph_name!r}")
            return created.parameters, self._store.current_state(self.run_id)
        except (SnapshotTooNew, InvalidGraph):
            raise
        except (RunstateError, msgspec.MsgspecError) as error:
            raise self._without_state(error) from error

    def _is_snapshot_valid(self) -> bool:
        info = self._store.log.stream(self.run_id)
        try:
            stored = self._store.snapshots.stored(self.run_id)
            if stored is None or info is None or stored.seq > info.last_seq or stored.digest != digest(stored.body):
                return False
            return self._store.model.load(stored.body).run_id == self.run_id
        except SnapshotTooNew:
            raise
        except RunstateError:
            return False

    def _without_state(self, cause: Exception) -> RunFailed:
        """Fail a run of which nobody knows how far it was: on the trail, if it can be written to, and beside it."""
        message = f"The snapshot is invalid and cannot be rebuilt from the log: {cause}"
        issue = Issue("SnapshotInvalid", "blocker", message, error_code="SnapshotInvalid")
        state = RunDirectory(self.run_id, "FAILED", issues=[issue])
        if self._store.log.stream(self.run_id) is not None:
            # A log that is gone is not begun anew: what is left of the run would then look like all of it.
            with suppress(RunstateError, msgspec.MsgspecError):
                trail = Trail(self._store, self.run_id, self._telemetry, RunDirectory(self.run_id))
                trail.emit("ISSUE_OPENED", {"issue": msgspec.to_builtins(issue)})
                trail.emit("RUN_FAILED", {"error": {"message": message, "error_code": "SnapshotInvalid"}})
        write_failure_summary(self._directory, state, message)
        return RunFailed(message, error_code="SnapshotInvalid")


def recorded_start(store: RunStore, run_id: str) -> RunCreated:
    """What the first event of a run records. Whoever wrote the run directory wrote it: nothing in it is loaded.

    Raises:
        msgspec.MsgspecError: the payload does not have the shape of such an event.
    """
    return msgspec.convert(store.fetch_events(run_id, limit=1)[0].payload, RunCreated)


def _close(context: Context) -> None:
    """Before a run is completed: what is no longer part of it is skipped, and no blocker stands in its way any more."""
    for item in list(context.state.work_items):
        if item.status in ("queued", "running"):
            reason = {"code": "NOT_NEEDED", "message": "The graph has no such work item any more"}
            ended = {"work_item_id": item.work_item_id, "status": "skipped", "error": reason}
            context.emit("WORK_ITEM_FINISHED", ended, of=item.work_item_id)
    for issue in list(context.state.issues):
        if issue.severity == "blocker" and not issue.gate:
            context.resolve_issue(issue.issue_id)


def _run_node(context: Context, node: Node) -> None:
    context.change_state(node.entry)
    context.emit("SECTION_STATE_CHANGED", {"section": node.name, "new_state": "RUNNING"}, of=node.name)
    for level in context.planner().levels(node):
        run_items(context, _planned(context, level), node)
    run_loop(context, node)
    context.emit("SECTION_STATE_CHANGED", {"section": node.name, "new_state": "DONE"}, of=node.name)
    context.change_state(node.exit)


def _planned(context: Context, level: list[Worker]) -> list[Item]:
    planner, items = context.planner(), list[Item]()
    for worker in level:
        try:
            items += planner.items(worker, context.state)
        except Exception as error:  # noqa: BLE001 - the function that gives the scopes is the user's own
            message = f"The scopes of {worker.name!r} cannot be told: {error!r}"
            context.fail(f"{worker.name}:scopes", "SCOPES_FAILED", message)
    try:
        planner.check_writers(items, context.state)
    except InvalidGraph as error:
        context.fail("run", "TWO_WRITERS", str(error))
    return items
