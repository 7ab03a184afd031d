"""Run directories: events with a hash chain, and the snapshot of an orchestrated run."""

from runstate.models.hash_chain import event_hash
from runstate.models.rundir.events import Issue, RunEvent
from runstate.models.rundir.model import RUNDIR, RunDirectoryModel
from runstate.models.rundir.state import Artifact, RunDirectory, WorkItem

__all__ = [
    "RUNDIR",
    "Artifact",
    "Issue",
    "RunDirectory",
    "RunDirectoryModel",
    "RunEvent",
    "WorkItem",
    "event_hash",
]
