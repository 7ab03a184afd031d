"""Which work items a node consists of, and which of them have to run.

A finished item runs again only if it is forced, or if one of its outputs is stale or gone. An item that was
interrupted runs again under the same id; one that failed, or is stale, gets a new attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from runstate.models.rundir.events import Issue
from runstate.models.rundir.state import RunDirectory, WorkItem
from runstate.runtimes.orchestrator.artifacts import newest_items
from runstate.runtimes.orchestrator.graph import (
    Graph,
    InvalidGraph,
    Node,
    Worker,
    check_scopes,
    matching_sources,
    no_scope,
    ordered_workers,
    scoped,
)
from runstate.runtimes.orchestrator.job import RunView


class Item(msgspec.Struct):
    """One work item as it is to be run."""

    worker: Worker
    scope_key: str
    attempt: int
    inputs: list[str]
    outputs: dict[str, str]
    queued: bool = False
    """The trail has it already: an interrupted item runs under the same id."""
    tries: int = 1
    """How often it has been tried since the orchestrator was started."""

    @property
    def issue_id(self) -> str:
        return f"{self.worker.name}:{self.scope_key}"

    def work_item_id(self, run_id: str) -> str:
        return f"{run_id}:{self.worker.name}:{self.attempt}:{self.scope_key}"

    def again(self) -> Item:
        return msgspec.structs.replace(self, attempt=self.attempt + 1, tries=self.tries + 1, queued=False)


class Planner:
    """Plans against the state of a run as it is now."""

    def __init__(self, graph: Graph, parameters: Mapping[str, Any], paths: Mapping[str, Path]) -> None:
        self._graph, self._view = graph, RunView(parameters, paths)
        self._makers = {output.name: w for w in graph.workers().values() for output in w.outputs if w.scopes}

    def levels(self, node: Node) -> Iterator[list[Worker]]:
        """The workers of a node in groups: each group needs only what the groups before it have made."""
        waiting = ordered_workers(node)
        while waiting:
            made_later = {output.name for worker in waiting for output in worker.outputs}
            ready = [w for w in waiting if not made_later & set(w.inputs)]
            yield ready
            waiting = [w for w in waiting if w not in ready]

    def items(self, worker: Worker, state: RunDirectory, *, forced: bool) -> list[Item]:
        """Those work items of a worker that have to run, in the order of their scope keys."""
        newest = newest_items(state)
        found = []
        for key in self._keys(worker):
            outputs = {output.name: scoped(output.name, key) for output in worker.outputs}
            attempt, queued = _attempt(newest.get((worker.name, key)), outputs, state, forced)
            if attempt is not None:
                found.append(Item(worker, key, attempt, self.inputs(worker, key), outputs, queued))
        return found

    def inputs(self, worker: Worker, key: str) -> list[str]:
        """The artifacts that a worker reads in one scope: all scopes of an input, if the worker itself has none."""
        names: list[str] = []
        for name in worker.inputs:
            if "{scope}" not in name or worker.scopes is not None:
                names.append(scoped(name, key))
            elif name in self._makers:
                names += [scoped(name, each) for each in self._keys(self._makers[name])]
            else:
                names += matching_sources(self._graph, name)
        return names

    def is_done(self, node: Node, state: RunDirectory) -> bool:
        """Whether nothing in a node has to run."""
        try:
            if any(self.items(worker, state, forced=False) for worker in node.workers):
                return False
        except Exception:  # noqa: BLE001 - scopes that read what is not there yet: the node has not been through
            return False
        if node.loop is None:
            return True
        report = state.artifacts_index.get(gate_report(node))
        return report is not None and not report.stale and not open_issues(state, node)

    def _keys(self, worker: Worker) -> list[str]:
        if worker.scopes is None:
            return [no_scope]
        return check_scopes(worker, worker.scopes(self._view))


def _attempt(
    newest: WorkItem | None, outputs: dict[str, str], state: RunDirectory, forced: bool
) -> tuple[int | None, bool]:
    """The attempt to run, or None; and whether the trail has it already."""
    if newest is None or newest.status in ("queued", "running"):
        return next_attempt(newest)
    fresh = all(
        (artifact := state.artifacts_index.get(name)) is not None and not artifact.stale for name in outputs.values()
    )
    if newest.status == "finished" and fresh and not forced:
        return None, False
    return next_attempt(newest)


def next_attempt(newest: WorkItem | None) -> tuple[int, bool]:
    """The attempt that follows, and whether the trail has it already: what was interrupted runs under the same id."""
    if newest is None:
        return 1, False
    if newest.status in ("queued", "running"):
        return newest.attempt, True
    return newest.attempt + 1, False


def gate_report(node: Node) -> str:
    """The artifact in which the validation of a loop keeps what it has found."""
    if node.loop is None:
        raise InvalidGraph(f"The node {node.name!r} is no loop")
    return f"gates/{node.loop.validate.name}.json"


def open_issues(state: RunDirectory, node: Node) -> list[Issue]:
    """The open issues of a node's gate that stand in the way, in their fixed order."""
    gate = "" if node.loop is None else node.loop.validate.name
    return [i for i in state.issues if i.gate == gate and i.status == "OPEN" and i.severity in ("blocker", "error")]
