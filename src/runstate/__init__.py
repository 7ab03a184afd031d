"""Runstate: a durable, event-sourced state store for things that run.

    import runstate

    with runstate.open("sqlite:runs.db") as store:
        run = store.run("r-1", tenant="acme", plan="nightly")
        run.started()

Events are the truth; snapshots are folds over them that can be thrown away and rebuilt byte for byte.
"""

from runstate.errors import (
    AppendOutcomeUnknown,
    InvalidEvent,
    InvalidTransition,
    LogBusy,
    LogDamaged,
    RunstateError,
    SequenceConflict,
    StreamNotFound,
)
from runstate.logs.log import AppendResult, EventLog, Record
from runstate.models.model import Alert, Model
from runstate.models.tagged import Fact, TaggedModel
from runstate.projector import Projector
from runstate.store import Store, open

__all__ = [
    "Alert",
    "AppendOutcomeUnknown",
    "AppendResult",
    "EventLog",
    "Fact",
    "InvalidEvent",
    "InvalidTransition",
    "LogBusy",
    "LogDamaged",
    "Model",
    "Projector",
    "Record",
    "RunstateError",
    "SequenceConflict",
    "Store",
    "StreamNotFound",
    "TaggedModel",
    "open",
]
