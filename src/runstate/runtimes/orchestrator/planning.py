"""Which work items a node consists of, and which of them have to run.

A finished item runs again only if one of its outputs is stale or gone, or if it would now read or write other
artifacts than it did. An item that was interrupted runs again under the same id; one that failed, or is stale, gets a
new attempt.
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
    Output,
    Worker,
    check_scopes,
    matching_sources,
    no_scope,
    ordered_workers,
    scoped,
)
from runstate.runtimes.orchestrator.job import RunView


class Target(msgspec.Struct, frozen=True):
    """An artifact that a work item writes, and how it was declared."""

    artifact: str
    output: Output


class Item(msgspec.Struct):
    """One work item as it is to be run."""

    worker: Worker
    scope_key: str
    attempt: int
    inputs: list[str]
    targets: dict[str, Target]
    """What it writes, by the name that the worker has for it."""
    queued: bool = False
    """The trail has it already: an interrupted item runs under the same id."""
    tries: int = 1
    """How often it has been tried since the orchestrator was started."""

    @property
    def issue_id(self) -> str:
        return f"{self.worker.name}:{self.scope_key}"

    @property
    def gate(self) -> str:
        """The gate of the issues that it reports, unless they name another."""
        return self.worker.name if self.worker.scopes is None else self.issue_id

    @property
    def outputs(self) -> list[str]:
        return [target.artifact for target in self.targets.values()]

    def work_item_id(self, run_id: str) -> str:
        return f"{run_id}:{self.worker.name}:{self.attempt}:{self.scope_key}"

    def again(self) -> Item:
        return msgspec.structs.replace(self, attempt=self.attempt + 1, tries=self.tries + 1, queued=False)


class Planner:
    """Plans against the state of a run as it is now."""

    def __init__(self, graph: Graph, parameters: Mapping[str, Any], paths: Mapping[str, Path]) -> None:
        self._graph, self._view = graph, RunView(parameters, paths)
        makers = [(output, worker) for node in graph.nodes for worker in node.workers for output in worker.outputs]
        self._makers = {output.name: worker for output, worker in makers if worker.scopes is not None}
        self._declared = {output.name: output for output, _ in makers}

    def levels(self, node: Node) -> Iterator[list[Worker]]:
        """The workers of a node in groups: each group needs only what the groups before it have made."""
        waiting = ordered_workers(node)
        while waiting:
            made_later = {output.name for worker in waiting for output in worker.outputs}
            ready = [w for w in waiting if not made_later & set(w.inputs)]
            yield ready
            waiting = [w for w in waiting if w not in ready]

    def items(self, worker: Worker, state: RunDirectory) -> list[Item]:
        """Those work items of a worker that have to run, in the order of their scope keys."""
        newest = newest_items(state)
        items = [self.item(worker, key, newest.get((worker.name, key))) for key in self._keys(worker)]
        return [item for item in items if not _is_done(item, newest.get((worker.name, item.scope_key)), state)]

    def item(self, worker: Worker, key: str, newest: WorkItem | None) -> Item:
        """A work item as it would be run now: what was interrupted under its old id, all else as a new attempt."""
        item = Item(worker, key, 1, self._inputs(worker, key), self._targets(worker, key))
        if newest is not None:
            item.queued = newest.status in ("queued", "running") and _is_same_work(item, newest)
            item.attempt = newest.attempt if item.queued else newest.attempt + 1
        return item

    def check_writers(self, items: list[Item], state: RunDirectory) -> None:
        """
        Raises:
            InvalidGraph: two workers write one artifact, which only the scope keys could tell.
        """
        makers = {w.name for node in self._graph.nodes for w in node.workers}
        writers = {output: item.worker for item in state.work_items if item.worker in makers for output in item.outputs}
        for item in items:
            for output in item.outputs:
                other = writers.setdefault(output, item.worker.name)
                if other != item.worker.name:
                    raise InvalidGraph(f"Two workers write the artifact {output!r}: {other} and {item.worker.name}")

    def is_done(self, node: Node, state: RunDirectory) -> bool:
        """Whether nothing in a node has to run."""
        try:
            if any(self.items(worker, state) for worker in node.workers):
                return False
            return node.loop is None or self.has_passed(node.loop.validate, state)
        except Exception:  # noqa: BLE001 - scopes that read what is not there yet: the node has not been through
            return False

    def has_passed(self, validate: Worker, state: RunDirectory) -> bool:
        """Whether the newest validation of a loop stands, and has found nothing."""
        turn = last_turn(validate, state)
        newest = newest_items(state).get((validate.name, f"round-{turn}"))
        item = self.item(validate, f"round-{turn}", newest)
        return _is_done(item, newest, state) and not open_issues(state, validate.name)

    def _inputs(self, worker: Worker, key: str) -> list[str]:
        """The artifacts that a worker reads in one scope: all scopes of an input, if the worker itself has none."""
        names: list[str] = []
        for name in worker.inputs:
            names += [scoped(name, key)] if worker.scopes is not None else self._all_scopes(name)
        return names

    def _targets(self, worker: Worker, key: str) -> dict[str, Target]:
        if worker.scopes is not None:
            return {output.name: Target(scoped(output.name, key), output) for output in worker.outputs}
        found: dict[str, Target] = {}
        for output in worker.outputs:
            # The fix of a loop may rewrite any scope of an artifact, and calls each by its own name. What it says
            # nothing about is as the artifact's own worker has declared it.
            plain = output.schema_id is None and output.check is None
            declared = self._declared.get(output.name, output) if plain else output
            found.update((name, Target(name, declared)) for name in self._all_scopes(output.name))
        return found

    def _all_scopes(self, name: str) -> list[str]:
        if "{scope}" not in name:
            return [name]
        if name in self._makers:
            return [scoped(name, each) for each in self._keys(self._makers[name])]
        return matching_sources(self._graph, name)

    def _keys(self, worker: Worker) -> list[str]:
        if worker.scopes is None:
            return [no_scope]
        return check_scopes(worker, worker.scopes(self._view))


def _is_same_work(item: Item, known: WorkItem) -> bool:
    return item.inputs == known.inputs and item.outputs == known.outputs


def _is_done(item: Item, newest: WorkItem | None, state: RunDirectory) -> bool:
    """Whether a work item was finished as it stands, and all that it has written is up to date."""
    if newest is None or newest.status != "finished" or not _is_same_work(item, newest):
        return False
    written = [state.artifacts_index.get(name) for name in item.outputs]
    return all(artifact is not None and not artifact.stale for artifact in written)


def last_turn(validate: Worker, state: RunDirectory) -> int:
    """The round that the loop of a validation has come to; 0 before the first."""
    keys = [item.scope_key.removeprefix("round-") for item in state.work_items if item.worker == validate.name]
    return max((int(key) for key in keys if key.isdecimal()), default=0)


def open_issues(state: RunDirectory, gate: str) -> list[Issue]:
    """The open issues of a loop's gate that stand in the way, in their fixed order."""
    return [i for i in state.issues if i.gate == gate and i.status == "OPEN" and i.severity in ("blocker", "error")]
