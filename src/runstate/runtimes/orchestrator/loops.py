"""The fix loop: validate, fix the first issue, validate again, until nothing is left or too many rounds have passed."""

from __future__ import annotations

from runstate.runtimes.orchestrator.artifacts import newest_items
from runstate.runtimes.orchestrator.context import Context
from runstate.runtimes.orchestrator.graph import Node, Worker
from runstate.runtimes.orchestrator.items import run_items
from runstate.runtimes.orchestrator.planning import Item, gate_report, next_attempt, open_issues


def run_loop(context: Context, node: Node) -> None:
    """Go through a node's loop, from where the trail says it was left.

    Raises:
        RunFailed: issues are left after the last round.
    """
    loop = node.loop
    if loop is None:
        return
    gate, report = loop.validate.name, gate_report(node)
    turn, fixes = _last_turn(context, loop.validate), 0
    while True:
        if turn and _was_validated(context, node, turn) and open_issues(context.state, node):
            if fixes == loop.rounds_max:
                left = len(open_issues(context.state, node))
                context.fail(f"{gate}:loop", "FIX_LOOP_EXHAUSTED", f"{left} issues are left after {fixes} fixes")
            fixes += 1
            outputs = {output.name: output.name for output in loop.fix.outputs}
            run_items(context, [_item(context, loop.fix, turn, outputs)], node)
        if not _is_dangling(context, loop.validate, turn):
            turn += 1
        context.emit("GATE_RUN_STARTED", {"gate": gate, "round": turn}, of=node.name)
        run_items(context, [_item(context, loop.validate, turn, {report: report})], node)
        left = len(open_issues(context.state, node))
        finished = {"gate": gate, "round": turn, "passed": not left, "issues": left}
        context.emit("GATE_RUN_FINISHED", finished, of=node.name)
        if not left:
            context.resolve_issue(f"{gate}:loop")
            return


def _item(context: Context, worker: Worker, turn: int, outputs: dict[str, str]) -> Item:
    newest = newest_items(context.state).get((worker.name, f"round-{turn}"))
    attempt, queued = next_attempt(newest)
    return Item(worker, f"round-{turn}", attempt, context.planner().inputs(worker, "-"), outputs, queued)


def _last_turn(context: Context, worker: Worker) -> int:
    turns = [int(i.scope_key.removeprefix("round-")) for i in context.state.work_items if i.worker == worker.name]
    return max(turns, default=0)


def _is_dangling(context: Context, worker: Worker, turn: int) -> bool:
    """Whether the validation of this turn was interrupted or failed: then the same turn is tried again."""
    newest = newest_items(context.state).get((worker.name, f"round-{turn}"))
    return newest is not None and newest.status != "finished"


def _was_validated(context: Context, node: Node, turn: int) -> bool:
    """Whether this turn's validation stands, and its fix is still to come."""
    if node.loop is None or _is_dangling(context, node.loop.validate, turn):
        return False
    report = context.state.artifacts_index.get(gate_report(node))
    fixed = newest_items(context.state).get((node.loop.fix.name, f"round-{turn}"))
    return report is not None and not report.stale and (fixed is None or fixed.status != "finished")
