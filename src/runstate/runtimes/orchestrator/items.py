"""Work items: from the queue through a worker to artifacts, each step on the trail.

Several run at once, but they are settled in the order in which they were started, whichever finishes first: so two
runs over the same inputs leave the same trail.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from runstate.models.canonical import digest
from runstate.models.rundir.events import Issue
from runstate.runtimes.orchestrator.context import Context, RunCancelled
from runstate.runtimes.orchestrator.graph import Node
from runstate.runtimes.orchestrator.job import JobResult, JobSpec
from runstate.runtimes.orchestrator.planning import Item, Target, open_issues
from runstate.runtimes.orchestrator.pool import Running
from runstate.runtimes.orchestrator.staleness import invalidate

_poll_s = 0.1


class _Active(msgspec.Struct):
    """A work item under way; one that could not even begin has its result already."""

    item: Item
    running: Running | None
    staging: Path | None
    result: JobResult | None = None

    def poll(self, wait_s: float, cancelled: threading.Event) -> JobResult | None:
        if self.running is not None:
            self.result = self.running.poll(wait_s, cancelled)
        return self.result


def run_items(context: Context, items: list[Item], node: Node) -> None:
    """Run work items that do not need each other, at most `parallel` at once.

    Raises:
        RunFailed: one failed for good; those under way were brought to their end first.
        RunCancelled: those under way were ended.
    """
    for item in items:
        _queue(context, item, node)
    waiting, active = deque(items), deque[_Active]()
    failed: tuple[Item, JobResult] | None = None
    try:
        while active or (waiting and failed is None):
            while (
                waiting and len(active) < context.graph.parallel and failed is None and not context.cancelled.is_set()
            ):
                active.append(_begin(context, waiting.popleft(), node))
            if not active:
                break
            result = _settle(context, active[0], _first_result(active, context.cancelled), node)
            item = active.popleft().item
            if result.status == "failed" and not context.cancelled.is_set():
                if item.tries < item.worker.attempts_max and failed is None:
                    waiting.appendleft(item.again())
                    _queue(context, waiting[0], node)
                else:
                    failed = failed or (item, result)
    finally:
        for other in active:
            if other.running is not None:
                other.running.end()
    if context.cancelled.is_set():
        raise RunCancelled()
    if failed is not None:
        item, result = failed
        error = result.error or {}
        message = f"{item.work_item_id(context.run_id)} failed: {error.get('message', '')}"
        context.fail(item.issue_id, str(error.get("code", "FAILED")), message)


def _first_result(active: Iterable[_Active], cancelled: threading.Event) -> JobResult:
    """Wait for the first; meanwhile none of the others may run longer than it is allowed to."""
    first, *others = active
    while (result := first.poll(_poll_s, cancelled)) is None:
        for other in others:
            other.poll(0, cancelled)
    return result


def _queue(context: Context, item: Item, node: Node) -> None:
    if item.queued:
        return
    name = item.work_item_id(context.run_id)
    payload = {
        "work_item_id": name,
        "worker": item.worker.name,
        "attempt": item.attempt,
        "scope_key": item.scope_key,
        "inputs": item.inputs,
        "outputs": item.outputs,
    }
    context.emit("WORK_ITEM_QUEUED", payload, of=name, within=node.name)


def _begin(context: Context, item: Item, node: Node) -> _Active:
    for name in item.inputs:
        known = context.state.artifacts_index.get(name)
        if known is None or known.stale or not context.path(name).is_file():
            message = f"{name!r} is not there: {context.path(name)}"
            return _Active(item, None, None, _failed("MISSING_INPUT", message))
    try:
        staging = context.files.stage()
    except OSError as error:
        return _Active(item, None, None, _failed("STAGING_FAILED", f"There is no place to write to: {error}"))
    name = item.work_item_id(context.run_id)
    context.emit("WORK_ITEM_STARTED", {"work_item_id": name}, of=name, within=node.name)
    fixes = node.loop is not None and item.worker is node.loop.fix
    spec = JobSpec(
        work_item_id=name,
        worker=item.worker.name,
        scope_key=item.scope_key,
        attempt=item.attempt,
        inputs={each: str(context.path(each).absolute()) for each in item.inputs},
        outputs={called: target.artifact for called, target in item.targets.items()},
        staging=str(staging.absolute()),
        parameters=context.parameters,
        issue=open_issues(context.state, node.loop.validate.name)[0] if fixes and node.loop else None,
    )
    try:
        return _Active(item, context.pool.submit(spec, item.worker.timeout_s), staging)
    except OSError as error:
        return _Active(item, None, None, _failed("WORKER_NOT_STARTED", f"No process could be started: {error}"))


def _settle(context: Context, active: _Active, result: JobResult, node: Node) -> JobResult:
    """Make what a job has left part of the run, and say how it ended. The last word is WORK_ITEM_FINISHED."""
    item, name = active.item, active.item.work_item_id(context.run_id)
    validates = node.loop is not None and item.worker is node.loop.validate
    issues = [_of_gate(context, item, issue, validates) for issue in result.issues]
    if result.status == "finished" and active.staging is not None:
        problem = _publish(context, item, active.staging, issues, node)
        result = result if problem is None else problem
    if result.status == "finished":
        _resolve(context, item, {issue.issue_id for issue in issues})
    for issue in issues:
        context.open_issue(issue)
    if validates:
        left = len(open_issues(context.state, item.worker.name))
        passed = result.status == "finished" and not left
        finished = {"gate": item.worker.name, "round": _turn(item), "passed": passed, "issues": left}
        context.emit("GATE_RUN_FINISHED", finished, of=node.name)
    ended = {"work_item_id": name, "status": result.status, "error": result.error}
    context.emit("WORK_ITEM_FINISHED", ended, of=name, within=node.name)
    return result


def _turn(item: Item) -> int:
    return int(item.scope_key.removeprefix("round-"))


def _of_gate(context: Context, item: Item, issue: Issue, validates: bool) -> Issue:
    """An issue with its gate. That of a loop is for the loop's own validation alone: it decides what is fixed next."""
    loops = {node.loop.validate.name for node in context.graph.nodes if node.loop is not None}
    own = validates or not issue.gate or issue.gate in loops
    return msgspec.structs.replace(issue, gate=item.gate if own else issue.gate)


def _resolve(context: Context, item: Item, reported: set[str]) -> None:
    """What stood in the item's way, or was reported by it before and is no longer, is resolved."""
    context.resolve_issue(item.issue_id)
    for issue in list(context.state.issues):
        if issue.gate == item.gate and issue.issue_id not in reported:
            context.resolve_issue(issue.issue_id)


def _publish(context: Context, item: Item, staging: Path, issues: list[Issue], node: Node) -> JobResult | None:
    """Turn staged outputs into artifacts. All are checked before the first becomes visible; returns what is wrong."""
    name, state = item.work_item_id(context.run_id), context.state
    try:
        outputs = _collect(item, staging, issues, node)
    except _Refused as refused:
        return JobResult("failed", refused.error, issues)
    except OSError as error:
        return JobResult("failed", {"code": "OUTPUT_UNREADABLE", "message": str(error)}, issues)
    digests = {artifact: digest(data) for artifact, data in outputs.items()}
    changed = []
    for artifact, sha256 in digests.items():
        known = state.artifacts_index.get(artifact)
        if known is not None and known.sha256 != sha256:
            changed.append(artifact)
            if item.worker in node.workers and _had_same_inputs(context, item, artifact):
                context.open_issue(_nondeterministic(item, artifact))
    # The report of a loop is not made stale by its fixes: the loop itself knows that it has to validate again.
    invalidate(context, changed, sparing=[] if node.loop is None else [node.loop.validate.receipt or ""])
    try:
        context.files.publish(name, outputs, set(item.inputs) & set(outputs))
    except OSError as error:
        return JobResult("failed", {"code": "PUBLISH_FAILED", "message": f"The disk refused: {error}"}, issues)
    for target in item.targets.values():
        if target.artifact in digests:
            context.emit("ARTIFACT_WRITTEN", _written(context, item, target, digests), of=name, within=node.name)
    return None


def _written(context: Context, item: Item, target: Target, digests: dict[str, str]) -> dict[str, Any]:
    return {
        "name": target.artifact,
        "path": context.files.relative_path(target.artifact),
        "sha256": digests[target.artifact],
        "schema_id": target.output.schema_id,
        "writer_worker": item.worker.name,
    }


class _Refused(Exception):
    """An output is not what was declared."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


def _collect(item: Item, staging: Path, issues: list[Issue], node: Node) -> dict[str, bytes]:
    """The bytes of each output of a work item. A fix may leave artifacts as they are; all else has to be there."""
    fixes = node.loop is not None and item.worker is node.loop.fix
    found: dict[str, bytes] = {}
    for called, target in item.targets.items():
        path = staging / target.artifact
        if called == item.worker.receipt:
            found[target.artifact] = msgspec.json.encode(issues, order="sorted")
            continue
        if not path.is_file():
            if fixes:
                continue
            raise _Refused("OUTPUT_MISSING", f"{target.artifact!r} was declared and not written")
        found[target.artifact] = path.read_bytes()
        try:
            if target.output.check is not None:
                target.output.check(found[target.artifact])
        except Exception as error:
            message = f"{target.artifact!r} breaks its schema: {error}"
            raise _Refused("ARTIFACT_INVALID", message[:_message_max]) from error
    return found


_message_max = 8000


def _failed(code: str, message: str) -> JobResult:
    return JobResult("failed", {"code": code, "message": message})


def _had_same_inputs(context: Context, item: Item, artifact: str) -> bool:
    """Whether an artifact was made by the same worker, from the same inputs, of which none was written since."""
    index, items = context.state.artifacts_index, context.state.work_items
    known = index[artifact]
    if known.writer_worker != item.worker.name or any(index[name].ts > known.ts for name in item.inputs):
        return False
    # The newest attempt is the one that runs now; it made the artifact itself if it is the only one.
    attempts = [each for each in items if each.worker == item.worker.name and each.scope_key == item.scope_key]
    makers = [each for each in attempts if each.status == "finished"] or attempts
    return makers[-1].inputs == item.inputs


def _nondeterministic(item: Item, artifact: str) -> Issue:
    return Issue(
        f"{item.issue_id}:nondeterministic",
        "warn",
        f"{item.worker.name} gave other bytes for {artifact!r} than before, from the same inputs",
        gate="determinism",
        error_code="NONDETERMINISTIC_WORKER",
        files=[artifact],
    )
