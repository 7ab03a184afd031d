"""The other end of the pool: a process that loads the application and does the jobs it is sent."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import traceback

import msgspec

from runstate.errors import redact
from runstate.runtimes.orchestrator.graph import Graph, InvalidGraph, load_graph
from runstate.runtimes.orchestrator.job import Job, JobResult, JobSpec

_die_with_parent = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
_text_max = 8000
"""Characters of an error message or a traceback that reach the trail."""


def run_job(graph: Graph, spec: JobSpec) -> JobResult:
    """Run one worker. Whatever it raises becomes part of the result, an attempt to end the process too."""
    job = Job(spec)
    try:
        graph.workers()[spec.worker].work(job)
    except BaseException as error:  # noqa: BLE001 - a worker may fail in any way, and the trail must say how
        return JobResult("failed", _described(error), job.reported)
    return JobResult("finished", None, job.reported)


def main(place: str, answer_fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # An interrupt is for the orchestrator, which then ends us.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_die_with_parent, signal.SIGKILL)
    # Out of the way of workers that read their standard input, and of programs that they start.
    jobs_fd, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.set_inheritable(answer_fd, False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # What a worker prints is seen at once, through a pipe too.
    graph: Graph | InvalidGraph
    try:
        graph = load_graph(place)
    except InvalidGraph as error:
        graph = error
    with os.fdopen(jobs_fd, "rb") as jobs, os.fdopen(answer_fd, "wb", buffering=0) as answers:
        for line in jobs:
            if isinstance(graph, InvalidGraph):
                result = JobResult("failed", {"code": "GRAPH_INVALID", "message": _cut(str(graph))})
            else:
                result = run_job(graph, msgspec.json.decode(line, type=JobSpec))
            if sys.stdout is not None:
                sys.stdout.flush()
            rest = memoryview(msgspec.json.encode(result) + b"\n")
            while rest:
                rest = rest[answers.write(rest) :]


def _described(error: BaseException) -> dict[str, str]:
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001 - an exception that cannot even say what it is
        message = f"{type(error).__name__}, and its message cannot be had: {second!r}"
    try:
        trace = "".join(traceback.format_exception(error)[-5:])
    except Exception:  # noqa: BLE001 - the same, while it is formatted
        trace = ""
    described = {"code": "WORKER_RAISED", "type": type(error).__name__, "message": message, "traceback": trace}
    return {name: _cut(text) for name, text in described.items()}


def _cut(text: str) -> str:
    """Text that can be stored: without secrets, not too long, and without lone surrogates."""
    stored = redact(text[:_text_max].encode("utf-8", "replace").decode())
    return stored if len(text) <= _text_max else f"{stored}… (cut, it has {len(text)} characters)"
