"""Where workers run: in processes of their own, which can be killed, or in threads of this one, which cannot.

A process loads the application once and then does one job after the other. It reads jobs from its standard input
and answers through a pipe of its own, so that what a worker prints does no harm. It dies with the orchestrator.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Protocol

import msgspec

from runstate.runtimes.orchestrator.graph import Graph
from runstate.runtimes.orchestrator.job import JobResult, JobSpec
from runstate.runtimes.orchestrator.worker_process import run_job

_poll_s = 0.1
_start = (
    "import sys; from runstate.runtimes.orchestrator.worker_process import main; main(sys.argv[1], int(sys.argv[2]))"
)


class Running(Protocol):
    """A job under way."""

    def result(self, cancelled: threading.Event) -> JobResult:
        """Wait for it, at most as long as its timeout. A job that is late, or cancelled, is ended."""
        ...


class Pool(Protocol):
    def submit(self, spec: JobSpec, timeout_s: float) -> Running: ...

    def close(self) -> None: ...


def _failure(code: str, message: str) -> JobResult:
    return JobResult("failed", {"code": code, "message": message})


class ProcessPool:
    """Runs each job in a process. `place` is where the graph is: `app.py:graph`."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._idle: list[_Process] = []
        self._all: list[_Process] = []

    def submit(self, spec: JobSpec, timeout_s: float) -> Running:
        process = self._idle.pop() if self._idle else _Process(self._place)
        self._all = [known for known in self._all if known.alive()]
        self._all.append(process)
        process.send(spec)
        return _ProcessJob(self, process, spec, time.monotonic() + timeout_s)

    def take_back(self, process: _Process) -> None:
        self._idle.append(process)

    def close(self) -> None:
        for process in self._all:
            process.kill()


class _Process:
    def __init__(self, place: str) -> None:
        answers, answer_end = os.pipe()
        os.set_inheritable(answer_end, True)
        command = [sys.executable, "-c", _start, place, str(answer_end)]
        self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.PIPE, stdout=sys.stderr.fileno(), pass_fds=[answer_end]
        )
        os.close(answer_end)
        self._answers = os.fdopen(answers, "rb", buffering=0)
        self._buffer = b""

    def send(self, spec: JobSpec) -> None:
        try:
            self._child.stdin.write(msgspec.json.encode(spec) + b"\n")  # type: ignore[union-attr]
            self._child.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            return  # It died; whoever waits for its answer will see that.

    def answer(self, wait_s: float) -> bytes | None:
        """The next answer, b"" when the process is gone, None when there is none yet."""
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([self._answers], [], [], wait_s)
            if not readable:
                return None
            chunk = os.read(self._answers.fileno(), 1 << 20)
            if not chunk:
                return b""
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def alive(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> int:
        self._child.kill()
        code = self._child.wait()
        self._answers.close()
        if self._child.stdin is not None:
            with suppress(BrokenPipeError):
                self._child.stdin.close()
        return code


class _ProcessJob:
    def __init__(self, pool: ProcessPool, process: _Process, spec: JobSpec, deadline: float) -> None:
        self._pool, self._process, self._spec, self._deadline = pool, process, spec, deadline

    def result(self, cancelled: threading.Event) -> JobResult:
        while True:
            answer = self._process.answer(_poll_s)
            if answer:
                self._pool.take_back(self._process)
                return msgspec.json.decode(answer, type=JobResult)
            if answer == b"":
                code = self._process.kill()
                return _failure("WORKER_KILLED", f"The process of {self._spec.work_item_id} ended with {code}")
            if cancelled.is_set():
                self._process.kill()
                return _failure("CANCELLED", "The run was cancelled")
            if time.monotonic() > self._deadline:
                self._process.kill()
                return _failure("TIMEOUT", f"{self._spec.work_item_id} took too long and was killed")


class ThreadPool:
    """Runs jobs in threads: for graphs that stand in no file. A job that hangs is given up, not ended."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._threads = ThreadPoolExecutor(max_workers=graph.parallel, thread_name_prefix="runstate-worker")

    def submit(self, spec: JobSpec, timeout_s: float) -> Running:
        return _ThreadJob(self._threads.submit(run_job, self._graph, spec), time.monotonic() + timeout_s)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _ThreadJob:
    def __init__(self, future: Future[JobResult], deadline: float) -> None:
        self._future, self._deadline = future, deadline

    def result(self, cancelled: threading.Event) -> JobResult:
        while True:
            try:
                return self._future.result(_poll_s)
            except FutureTimeout:
                if cancelled.is_set():
                    return _failure("CANCELLED", "The run was cancelled")
                if time.monotonic() > self._deadline:
                    return _failure("TIMEOUT", "The worker took too long and was given up")
