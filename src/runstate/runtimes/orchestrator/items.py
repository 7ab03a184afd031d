"""Work items: from the queue through a worker to artifacts, each step on the trail.

Several run at once, but they are settled in the order in which they were started, whichever finishes first: so two
runs over the same inputs leave the same trail.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from runstate.models.rundir.events import Issue
from runstate.runtimes.orchestrator.context import Context, RunCancelled
from runstate.runtimes.orchestrator.graph import Node, Output
from runstate.runtimes.orchestrator.job import JobResult, JobSpec
from runstate.runtimes.orchestrator.planning import Item, gate_report, open_issues
from runstate.runtimes.orchestrator.pool import Running


def run_items(context: Context, items: list[Item], node: Node) -> None:
    """Run work items that do not need each other, at most `parallel` at once.

    Raises:
        RunFailed: one failed for good; those under way were brought to their end first.
        RunCancelled: those under way were ended.
    """
    for item in items:
        _queue(context, item, node)
    waiting, active = deque(items), deque[tuple[Item, Running]]()
    failed: tuple[Item, JobResult] | None = None
    while active or (waiting and failed is None):
        while waiting and len(active) < context.graph.parallel and failed is None and not context.cancelled.is_set():
            item = waiting.popleft()
            active.append((item, _begin(context, item, node)))
        if not active:
            break
        item, running = active.popleft()
        result = _settle(context, item, running.result(context.cancelled), node)
        if result.status == "failed" and not context.cancelled.is_set():
            if item.tries < item.worker.attempts_max and failed is None:
                retry = item.again()
                _queue(context, retry, node)
                waiting.appendleft(retry)
            else:
                failed = failed or (item, result)
    if context.cancelled.is_set():
        raise RunCancelled()
    if failed is not None:
        item, result = failed
        error = result.error or {}
        message = f"{item.work_item_id(context.run_id)} failed: {error.get('message', '')}"
        context.fail(item.issue_id, str(error.get("code", "FAILED")), message)


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
        "outputs": list(item.outputs.values()),
    }
    context.emit("WORK_ITEM_QUEUED", payload, of=name, within=node.name)


class _NotBegun:
    """A job that could not even begin."""

    def __init__(self, result: JobResult) -> None:
        self._result = result

    def result(self, cancelled: object) -> JobResult:
        return self._result


def _begin(context: Context, item: Item, node: Node) -> Running:
    name = item.work_item_id(context.run_id)
    paths = {each: context.path(each) for each in item.inputs}
    for each, path in paths.items():
        if not path.is_file():
            message = f"{each!r} is not there: {path}"
            return _NotBegun(JobResult("failed", {"code": "MISSING_INPUT", "message": message}))
    context.emit("WORK_ITEM_STARTED", {"work_item_id": name}, of=name, within=node.name)
    fixes = node.loop is not None and item.worker is node.loop.fix
    spec = JobSpec(
        work_item_id=name,
        worker=item.worker.name,
        scope_key=item.scope_key,
        attempt=item.attempt,
        inputs={each: str(path.absolute()) for each, path in paths.items()},
        outputs=item.outputs,
        staging=str(context.files.stage(name).absolute()),
        parameters=context.parameters,
        issue=open_issues(context.state, node)[0] if fixes else None,
    )
    return context.pool.submit(spec, item.worker.timeout_s)


def _settle(context: Context, item: Item, result: JobResult, node: Node) -> JobResult:
    """Make what a job has left part of the run, and say how it ended."""
    name = item.work_item_id(context.run_id)
    if result.status == "finished":
        if node.loop is not None and item.worker is node.loop.validate:
            _take_report(context, item, result, node)
        problem = _publish(context, item, node)
        if problem is not None:
            result = JobResult("failed", problem, result.issues)
    for issue in result.issues:
        context.open_issue(issue)
    ended = {"work_item_id": name, "status": result.status, "error": result.error}
    context.emit("WORK_ITEM_FINISHED", ended, of=name, within=node.name)
    if result.status == "finished":
        context.resolve_issue(item.issue_id)
    return result


def _publish(context: Context, item: Item, node: Node) -> dict[str, Any] | None:
    """Turn staged outputs into artifacts. All are checked before the first becomes visible; returns what is wrong."""
    name = item.work_item_id(context.run_id)
    staging = context.files.staging(name)
    outputs = {output.name: output for output in item.worker.outputs}
    ready: list[tuple[str, bytes, Output]] = []
    for declared, artifact in item.outputs.items():
        output = outputs.get(declared, Output(declared))
        problem = _problem(staging / artifact, artifact, output)
        if problem is not None:
            return problem
        ready.append((artifact, (staging / artifact).read_bytes(), output))
    for artifact, data, output in ready:
        old = context.state.artifacts_index.get(artifact)
        sha256 = context.files.publish(artifact, data)
        same_writer = old is not None and not old.stale and old.writer_worker == item.worker.name
        if old is not None and same_writer and old.sha256 != sha256 and item.worker in node.workers:
            context.open_issue(_nondeterministic(item, artifact))
        written = {
            "name": artifact,
            "path": context.files.relative_path(artifact),
            "sha256": sha256,
            "schema_id": output.schema_id,
            "writer_worker": item.worker.name,
        }
        context.emit("ARTIFACT_WRITTEN", written, of=name, within=node.name)
    return None


def _problem(path: Path, artifact: str, output: Output) -> dict[str, Any] | None:
    if not path.is_file():
        return {"code": "OUTPUT_MISSING", "message": f"{artifact!r} was declared and not written"}
    if output.check is not None:
        try:
            output.check(path.read_bytes())
        except Exception as error:  # noqa: BLE001 - whatever a check raises means that the artifact is wrong
            return {"code": "ARTIFACT_INVALID", "message": f"{artifact!r} breaks its schema: {error}"}
    return None


def _take_report(context: Context, item: Item, result: JobResult, node: Node) -> None:
    """What a validation reports becomes an artifact, and what it no longer reports is resolved."""
    gate = item.worker.name
    result.issues = [msgspec.structs.replace(issue, gate=gate) for issue in result.issues]
    reported = {issue.issue_id for issue in result.issues}
    for issue in open_issues(context.state, node):
        if issue.issue_id not in reported:
            context.resolve_issue(issue.issue_id)
    path = context.files.staging(item.work_item_id(context.run_id)) / gate_report(node)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(result.issues, order="sorted"))


def _nondeterministic(item: Item, artifact: str) -> Issue:
    return Issue(
        f"{item.issue_id}:nondeterministic",
        "warn",
        f"{item.worker.name} gave other bytes for {artifact!r} than before, from the same inputs",
        error_code="NONDETERMINISTIC_WORKER",
        files=[artifact],
    )
