"""The other end of the pool: a process that loads the application and does the jobs it is sent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback

import msgspec

from runstate.runtimes.orchestrator.graph import Graph, load_graph
from runstate.runtimes.orchestrator.job import Job, JobResult, JobSpec

_die_with_parent = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


def run_job(graph: Graph, spec: JobSpec) -> JobResult:
    """Run one worker. Whatever it raises becomes part of the result."""
    job = Job(spec)
    try:
        graph.workers()[spec.worker].work(job)
    except Exception as error:  # noqa: BLE001 - a worker may fail in any way, and the trail must say how
        trace = "".join(traceback.format_exception(error)[-5:])
        return JobResult(
            "failed",
            {"code": "WORKER_RAISED", "type": type(error).__name__, "message": str(error), "traceback": trace},
            job.reported,
        )
    return JobResult("finished", None, job.reported)


def main(place: str, answer_fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # An interrupt is for the orchestrator, which then ends us.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_die_with_parent, signal.SIGKILL)
    graph = load_graph(place)
    with os.fdopen(answer_fd, "wb", buffering=0) as answers:
        for line in sys.stdin.buffer:
            result = run_job(graph, msgspec.json.decode(line, type=JobSpec))
            sys.stdout.flush()
            answers.write(msgspec.json.encode(result) + b"\n")
