"""Where workers run: in processes of their own, which can be killed, or in threads of this one, which cannot.

A process loads the application once and then does one job after the other. It reads jobs from one pipe and answers
through another, so that what a worker prints does no harm. It dies with the orchestrator.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Protocol

import msgspec

from runstate.runtimes.orchestrator.graph import Graph
from runstate.runtimes.orchestrator.job import JobResult, JobSpec
from runstate.runtimes.orchestrator.worker_process import run_job

_exit_s = 1.0
"""How long a process that answers no more may take to end by itself, and to tell its exit code."""
_start = (
    "import sys; from runstate.runtimes.orchestrator.worker_process import main; main(sys.argv[1], int(sys.argv[2]))"
)


class Running(Protocol):
    """A job under way."""

    def poll(self, wait_s: float, cancelled: threading.Event) -> JobResult | None:
        """Its result; None when there is none after `wait_s`. A job that is late, or cancelled, is ended."""
        ...

    def end(self) -> None:
        """End it. Nobody asks for its result any more."""
        ...


class Pool(Protocol):
    def submit(self, spec: JobSpec, timeout_s: float) -> Running: ...

    def close(self) -> None: ...


def _failure(code: str, message: str) -> JobResult:
    return JobResult("failed", {"code": code, "message": message})


class ProcessPool:
    """Runs each job in a process. `place` is where the graph is: `app.py:graph`.

    What workers print goes to the file descriptor `output`, by default standard error.
    """

    def __init__(self, place: str, output: int = 2) -> None:
        self._place, self._output = place, output
        self._idle: list[_Process] = []
        self._busy: list[_Process] = []

    def submit(self, spec: JobSpec, timeout_s: float) -> Running:
        process = self._ready()
        self._busy.append(process)
        process.send(msgspec.json.encode(spec) + b"\n")
        return _ProcessJob(self, process, spec, time.monotonic() + timeout_s)

    def take_back(self, process: _Process) -> None:
        self._busy.remove(process)
        self._idle.append(process)

    def discard(self, process: _Process) -> int:
        """End a process and all that it has started. Returns its exit code."""
        self._busy.remove(process)
        return process.kill()

    def close(self) -> None:
        for process in [*self._idle, *self._busy]:
            process.kill()
        self._idle, self._busy = [], []

    def _ready(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.alive():
                return process
            process.kill()
        return _Process(self._place, self._output)


class _Process:
    def __init__(self, place: str, output: int) -> None:
        answers, answer_end = os.pipe()
        jobs_end, jobs = os.pipe()
        command = [sys.executable, "-c", _start, place, str(answer_end)]
        try:
            # A group of its own: an interrupt at the terminal does not reach it, and what it starts ends with it.
            self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, stdin=jobs_end, stdout=output, stderr=output, pass_fds=[answer_end], process_group=0
            )
        except BaseException:
            os.close(answers)
            os.close(jobs)
            raise
        finally:
            os.close(answer_end)
            os.close(jobs_end)
        os.set_blocking(jobs, False)
        self._jobs, self._answers = jobs, answers
        self._unsent, self._buffer = b"", b""
        self._closed = False

    def send(self, line: bytes) -> None:
        self._unsent += line
        self._push()

    def answer(self, wait_s: float) -> bytes | None:
        """The next answer, b"" when the process is gone, None when there is none yet."""
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._buffer:
            self._push()
            gone = not self.alive()
            rest_s = 0.0 if gone else max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._answers], [self._jobs] if self._unsent else [], [], rest_s)
            if readable:
                chunk = os.read(self._answers, 1 << 20)
                if not chunk:
                    return b""
                self._buffer += chunk
            elif gone:
                return b""  # Something that it has started holds the pipe open.
            elif time.monotonic() >= deadline:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def alive(self) -> bool:
        return self._child.poll() is None

    def wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_exit_s)

    def kill(self) -> int:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        code = self._child.wait()
        if not self._closed:
            self._closed = True
            os.close(self._answers)
            os.close(self._jobs)
        return code

    def _push(self) -> None:
        # Never waits: a process that hangs before it reads its job must not hang the orchestrator.
        with suppress(BlockingIOError):
            while self._unsent:
                try:
                    self._unsent = self._unsent[os.write(self._jobs, self._unsent) :]
                except BrokenPipeError:
                    self._unsent = b""  # It died; whoever waits for its answer will see that.


class _ProcessJob:
    def __init__(self, pool: ProcessPool, process: _Process, spec: JobSpec, deadline: float) -> None:
        self._pool, self._process, self._spec, self._deadline = pool, process, spec, deadline
        self._result: JobResult | None = None

    def poll(self, wait_s: float, cancelled: threading.Event) -> JobResult | None:
        if self._result is None:
            self._result = self._look(wait_s, cancelled)
        return self._result

    def end(self) -> None:
        if self._result is None:
            self._result = _failure("CANCELLED", "The job was ended")
            self._pool.discard(self._process)

    def _look(self, wait_s: float, cancelled: threading.Event) -> JobResult | None:
        answer = self._process.answer(wait_s)
        if answer == b"":
            self._process.wait()
            return _failure("WORKER_KILLED", f"The process {_ending(self._pool.discard(self._process))}")
        if answer is not None:
            return self._take(answer)
        if cancelled.is_set():
            self._pool.discard(self._process)
            return _failure("CANCELLED", "The run was cancelled")
        if time.monotonic() > self._deadline:
            self._pool.discard(self._process)
            return _failure("TIMEOUT", f"{self._spec.work_item_id} took too long and was killed")
        return None

    def _take(self, answer: bytes) -> JobResult:
        try:
            result = msgspec.json.decode(answer, type=JobResult)
        except msgspec.MsgspecError as error:
            self._pool.discard(self._process)
            return _failure("WORKER_KILLED", f"The process has answered nonsense: {error}")
        self._pool.take_back(self._process)
        return result


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code} before its work was done"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class ThreadPool:
    """Runs jobs in threads: for graphs that stand in no file. A job that hangs is given up, not ended."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def submit(self, spec: JobSpec, timeout_s: float) -> Running:
        return _ThreadJob(self._graph, spec, time.monotonic() + timeout_s)

    def close(self) -> None:
        """Nothing to do: no thread outlives the process."""


class _ThreadJob:
    def __init__(self, graph: Graph, spec: JobSpec, deadline: float) -> None:
        self._graph, self._spec, self._deadline = graph, spec, deadline
        self._result: JobResult | None = None
        self._thread = threading.Thread(target=self._run, name=f"runstate-{spec.worker}", daemon=True)
        self._thread.start()

    def poll(self, wait_s: float, cancelled: threading.Event) -> JobResult | None:
        if self._result is None:
            self._thread.join(wait_s)
        if self._result is None and cancelled.is_set():
            self._result = _failure("CANCELLED", "The run was cancelled")
        if self._result is None and time.monotonic() > self._deadline:
            self._result = _failure("TIMEOUT", f"{self._spec.work_item_id} took too long and was given up")
        return self._result

    def end(self) -> None:
        """A thread cannot be ended; what it still does goes to a place where nobody looks."""

    def _run(self) -> None:
        result = run_job(self._graph, self._spec)
        if self._result is None:
            self._result = result
