"""Draws the graph of a run for a terminal: the line to the preferred tip, and the forks that leave it."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from runstate.cli.output import stdout_console, words, write_json
from runstate.errors import RunstateError
from runstate.logs.log import EventLog
from runstate.models.escaping import escape_controls
from runstate.models.session import Projections
from runstate.models.session.ids import NodeId, RunId
from runstate.runtimes.session.places import standing
from runstate.runtimes.session.stretches import Stretch, every, shown, stretches

_id_characters = 13
"""Of a node's id. Commands take the beginning of one for the whole, if it is the only one that begins so."""


def draw(log: EventLog, seen: Projections, run: RunId, limit: int) -> None:
    """The whole graph of a run, or the `limit` stretches of it that were touched last."""
    trees = stretches(seen, run)
    total = len(every(trees))
    head = Tree(Text.assemble((run, "bold"), f"  {seen.state.runs[run].workflow_id}  {seen.run_status(run)}"))
    begun = [(head, stretch) for stretch in reversed(shown(trees, limit))]
    drawn = 0
    while begun:
        above, stretch = begun.pop()
        branch = above.add(_line(log, seen, stretch))
        drawn += 1
        if stretch.hidden_forks:
            branch.add(Text(f"… older forks: {stretch.hidden_forks}", "dim"))
        begun += [(branch, fork) for fork in reversed(stretch.forks)]
    stdout_console().print(head)
    if drawn < total:
        words.print(f"{drawn} of {total} lines of nodes; --limit {total} shows them all")


def write_nodes(seen: Projections, run: RunId) -> None:
    """Every node of a run as data, in the order in which they were created."""
    tip = seen.preferred_tip(run)
    for name in seen.dag(run).nodes:
        node = seen.state.nodes[name]
        write_json(
            {
                "runId": run,
                "nodeId": name,
                "parentNodeId": node.parent_node_id,
                "edgeKind": node.edge_kind,
                "nodeKind": node.node_kind,
                "createdIndex": node.created_index,
                "touchedIndex": node.touched_index,
                "isTip": not node.children,
                "isTerminal": node.is_terminal,
                "isPreferred": name == tip,
                "currentOutputId": node.current_output_id,
            }
        )


def _line(log: EventLog, seen: Projections, stretch: Stretch) -> Text:
    first, tip = stretch.nodes[0], stretch.nodes[-1]
    text = Text()
    if stretch.forked_from is not None:
        text.append(f"fork at {stretch.forked_from[:_id_characters]}: ", "yellow")
    text.append(first[:_id_characters])
    if len(stretch.nodes) > 2:
        text.append(f" ─ {len(stretch.nodes) - 2} more ─ ", "dim")
    elif len(stretch.nodes) == 2:
        text.append(" ─ ", "dim")
    if tip != first:
        text.append(tip[:_id_characters])
    text.append(f"  {_doing(log, seen, tip)}", "dim")
    if stretch.is_preferred:
        text.append("  ★ preferred", "bold green")
    return text


def _doing(log: EventLog, seen: Projections, tip: NodeId) -> str:
    if seen.state.nodes[tip].is_terminal:
        return "finished"
    try:
        found = standing(log, seen.state, tip)
    except RunstateError as error:
        return f"unreadable: {error.code}"
    step = None if found.snapshot.step_id is None else found.workflow.step(found.snapshot.step_id)
    return "" if step is None else escape_controls(f"at {step.id}: {step.title}")
