"""What the events of a session say about work: runs, and nodes that wait for their acknowledgement."""

from __future__ import annotations

from runstate.models.activity import Activity, read_name
from runstate.models.session.events import EdgeCreated, NodeCreated, RunStarted, SessionCreated, SessionEvent


def activities(event: SessionEvent) -> list[Activity]:
    """What the event says about work. A node is at work from its creation to the first advance from it."""
    match event:
        case SessionCreated():
            return [Activity(kind="run_queued")]
        case RunStarted():
            # A session may hold several runs; the second goes on with the session, it does not begin it.
            return [Activity(kind="run_resumed", name=read_name(event.data.workflow_id))]
        case NodeCreated() if event.data.is_terminal:
            return [Activity(kind="run_finished")]
        case NodeCreated():
            return [Activity(kind="started", name=event.data.node_kind, scope=event.data.node_id)]
        case EdgeCreated() if event.data.edge_kind == "acked_step":
            return [Activity(kind="finished", scope=event.data.parent_node_id)]
        case _:
            return []
