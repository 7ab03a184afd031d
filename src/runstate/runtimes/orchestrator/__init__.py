"""The orchestrator: runs that replay, resume without repeating finished work, and redo exactly what went stale."""

from runstate.runtimes.orchestrator.context import RunCancelled, RunFailed
from runstate.runtimes.orchestrator.graph import Graph, InvalidGraph, Node, Output, load_graph
from runstate.runtimes.orchestrator.job import Job, RunView
from runstate.runtimes.orchestrator.orchestrator import MissingInput, Orchestrator, RunExists

__all__ = [
    "Graph",
    "InvalidGraph",
    "Job",
    "MissingInput",
    "Node",
    "Orchestrator",
    "Output",
    "RunCancelled",
    "RunExists",
    "RunFailed",
    "RunView",
    "load_graph",
]
