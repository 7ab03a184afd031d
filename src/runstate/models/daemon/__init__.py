"""A daemon's events, and the state that they fold into: pipelines, sessions, workspaces, runbooks, workers, queues."""

from runstate.models.daemon.events import DaemonEvent, event_types
from runstate.models.daemon.model import DAEMON, DaemonModel
from runstate.models.daemon.state import MaterializedState, Pipeline, QueueItem, WorkerRecord, scoped

__all__ = [
    "DAEMON",
    "DaemonEvent",
    "DaemonModel",
    "MaterializedState",
    "Pipeline",
    "QueueItem",
    "WorkerRecord",
    "event_types",
    "scoped",
]
