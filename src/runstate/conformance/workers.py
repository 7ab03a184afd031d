"""The kit's end of a writer process: give it tasks, hear what it acknowledges, kill it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Self

import msgspec

from runstate.conformance.notes import keys, seqs, stored
from runstate.conformance.writer import Task, kill_order
from runstate.logs.log import EventLog
from runstate.models.model import Draft

Acknowledged = dict[str, int]
"""The seq of every key that a writer has told of."""


class Worker:
    """A process with `runstate.conformance.writer` in it. One task at a time."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runstate.conformance.writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        # Not by the command line, which everybody on the machine can read: a URL may hold a password.
        self._order(url.encode() + b"\n")

    def start(self, task: Task) -> None:
        """Start a task in a new process; returns while it is still opening the log."""
        self._order(msgspec.json.encode(task) + b"\n")
        assert self._hear() == ["started"]

    def kill(self, *, after_acknowledged: int, pause_s: float) -> Acknowledged:
        """Kill the task's process `pause_s` after it has told of that many events; everything it told."""
        told: Acknowledged = {}
        while len(told) < after_acknowledged:
            word, seq, *key = self._hear()
            if word == "ended":
                return told  # It was done before its time came.
            told[key[0]] = int(seq)
        time.sleep(pause_s)  # Not to wait for anything: the moment of the kill is what is being varied.
        self._order(kill_order)
        return told | self._listen(expected=(0, -signal.SIGKILL))

    def finish(self) -> Acknowledged:
        """Wait for the end of the task; everything it told of."""
        return self._listen(expected=(0,))

    def _listen(self, expected: tuple[int, ...]) -> Acknowledged:
        told: Acknowledged = {}
        while True:
            word, seq, *key = self._hear()
            if word == "ended":
                assert int(seq) in expected, f"a writer ended with status {seq}; its stderr says why"
                return told
            told[key[0]] = int(seq)

    def _order(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _hear(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        assert line, "the writer process is gone; its stderr says why"
        return line.split()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()


def check_stored(log: EventLog, tasks: list[Task], told: Acknowledged) -> None:
    """Acknowledged ⊆ stored ⊆ sent, in order, each key once, whole batches, and the seqs as they were told.

    Raises:
        AssertionError: with what is missing, double, or out of order.
    """
    records = stored(log, tasks[0].stream)
    assert seqs(records) == list(range(1, len(records) + 1))
    held = {record.key: record for record in records}
    assert len(held) == len(records), "a key was stored twice"
    assert {key: seq for key, seq in told.items() if key not in held} == {}, "acknowledged events were lost"
    assert told == {key: held[key].seq for key in told}
    for task in tasks:
        for thread in range(task.threads):
            mine = [record for record in records if record.key.startswith(f"{task.name}/{thread}/")]
            sent: list[Draft] = []
            for batch in task.sent(thread):
                if len(sent) >= len(mine):
                    break
                sent += batch
            # Equal, not only a prefix: a batch that is cut short shows as a difference here.
            assert keys(mine) == [draft.key for draft in sent]
            assert [r.body for r in mine] == [d.render(r.seq, r.persisted_at) for d, r in zip(sent, mine, strict=True)]
