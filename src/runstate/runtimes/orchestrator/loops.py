"""The fix loop: validate, fix the first issue, validate again, until nothing is left or too many rounds have passed."""

from __future__ import annotations

from runstate.models.rundir.state import WorkItem
from runstate.runtimes.orchestrator.artifacts import newest_items
from runstate.runtimes.orchestrator.context import Context
from runstate.runtimes.orchestrator.graph import FixLoop, Node, Worker
from runstate.runtimes.orchestrator.items import run_items
from runstate.runtimes.orchestrator.planning import last_turn, open_issues


def run_loop(context: Context, node: Node) -> None:
    """Go through a node's loop, from where the trail says it was left.

    Raises:
        RunFailed: issues are left after the last round.
    """
    loop = node.loop
    if loop is None:
        return
    gate = loop.validate.name
    turn = last_turn(loop.validate, context.state)
    fixes = _fixes_so_far(context, loop, turn)
    while not context.planner().has_passed(loop.validate, context.state):
        if _fix_is_due(context, loop, turn):
            if fixes >= loop.rounds_max:
                left = len(open_issues(context.state, gate))
                context.fail(f"{gate}:loop", "FIX_LOOP_EXHAUSTED", f"{left} issues are left after {fixes} fixes")
            fixes += 1
            _run(context, node, loop.fix, turn)
        validation = _newest(context, loop.validate, turn)
        if validation is None or validation.status == "finished":
            turn += 1
        context.emit("GATE_RUN_STARTED", {"gate": gate, "round": turn}, of=node.name)
        _run(context, node, loop.validate, turn)


def _run(context: Context, node: Node, worker: Worker, turn: int) -> None:
    key = f"round-{turn}"
    run_items(context, [context.planner().item(worker, key, _newest(context, worker, turn))], node)


def _newest(context: Context, worker: Worker, turn: int) -> WorkItem | None:
    return newest_items(context.state).get((worker.name, f"round-{turn}"))


def _fix_is_due(context: Context, loop: FixLoop, turn: int) -> bool:
    """Whether this turn's validation stands and has found something, and its fix is still to come."""
    validation, fix = _newest(context, loop.validate, turn), _newest(context, loop.fix, turn)
    if validation is None or validation.status != "finished" or (fix is not None and fix.status == "finished"):
        return False
    stands = all(not context.state.artifacts_index[name].stale for name in validation.outputs)
    return stands and bool(open_issues(context.state, loop.validate.name))


def _fixes_so_far(context: Context, loop: FixLoop, turn: int) -> int:
    """The fixes that this pass through the loop has behind it. A loop that was exhausted and is resumed begins anew."""
    if any(i.issue_id == f"{loop.validate.name}:loop" and i.status == "OPEN" for i in context.state.issues):
        return 0
    fixed = {i.scope_key for i in context.state.work_items if i.worker == loop.fix.name and i.status == "finished"}
    last = turn if f"round-{turn}" in fixed else turn - 1
    first = last
    while f"round-{first}" in fixed:
        first -= 1
    return last - first
