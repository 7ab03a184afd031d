"""A queue whose workers are killed, and a daemon that is: each item is completed exactly once by the log, none is lost.

This file is also a program: a process with two workers, each with a connection of its own. `make soak` runs it with ten
thousand items and a kill every second.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from runstate.errors import InvalidTransition, LogNotFound, RunstateError
from runstate.logs.registry import open_log
from runstate.models.daemon import DAEMON
from runstate.models.daemon import events as e
from runstate.runtimes.daemon import Client, Daemon, DaemonAway, Server, socket_name
from runstate.runtimes.daemon.journal import load_state

root = Path(__file__).parents[2]
soaking = "RUNSTATE_KILL_ROUNDS" in os.environ
items_count = 10_000 if soaking else 2_000
kill_every_s = 1.0 if soaking else 0.5
processes_count = 4


# --- the program -----------------------------------------------------------------------------------------------------


def work(path: Path, name: str) -> None:
    """Take and complete items until the queue is empty, whoever else works on it, or dies."""
    while True:
        try:
            with Client(path) as client:
                worker = client.worker(name, "builds")
                while True:
                    item = worker.take(wait_s=0.2)
                    if item is not None:
                        time.sleep(0.003)  # The work itself: long enough to be killed in.
                        worker.complete(item.id)
                    elif not any(each.pending + each.taken + each.failed for each in client.stats()):
                        return
        except (DaemonAway, LogNotFound, InvalidTransition):
            time.sleep(0.05)  # The daemon is away: it was killed, or it closes. It will be back.


def main(path: Path, name: str) -> None:
    threads = [Thread(target=work, args=(path, f"{name}-{number}")) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, in memory if possible: a kill loses nothing that was written."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="rs-") as made:
        yield Path(made)


class Crew:
    """Processes with two workers each, of which one is killed now and then and replaced by another."""

    def __init__(self, path: Path) -> None:
        self._path, self._number, self._luck = path, 0, random.Random(7)
        self.kills = 0
        self.processes = [self._spawn() for _ in range(processes_count)]

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._number += 1
        command = [sys.executable, "-m", "tests.crash.test_daemon_queue_kills", str(self._path), f"w{self._number}"]
        return subprocess.Popen(command, cwd=root)

    def kill_one(self) -> None:
        place = self._luck.randrange(len(self.processes))
        victim = self.processes[place]
        if victim.poll() is None:
            self.kills += 1
            victim.kill()
            victim.wait()
            self.processes[place] = self._spawn()

    def are_done(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def check_log(url: str, items: set[str]) -> None:
    """By the log alone: every item was pushed and completed exactly once, and no event was impossible."""
    with open_log(url, create=False) as log:
        refused: list[Any] = []
        lines = list(log.lines("daemon"))
        replayed = DAEMON.fold(DAEMON.initial("daemon"), lines, refused.append)
        assert DAEMON.dump(replayed) == DAEMON.dump(load_state(log, "daemon")[0])
        # What a kill has left of an unfinished flush is kept aside, and a warning.
        assert [finding for finding in log.verify("daemon") if finding.severity == "damage"] == []
    events = [DAEMON.decode(line) for line in lines]
    completed = Counter(event.item_id for event in events if isinstance(event, e.QueueCompleted))
    assert refused == []
    assert completed == Counter(items)
    assert replayed.queue_items == {}


@pytest.mark.slow
def test_workers_that_are_killed_lose_nothing_and_complete_nothing_twice(place: Path) -> None:
    with Daemon.open(place / "d", checkpoint_every_s=None, failures_max=10_000) as daemon:
        for number in range(items_count):
            daemon.emit(e.QueuePushed("builds", f"i{number}", number, 0), durable=False)
        with Server(daemon, place / "d" / socket_name()) as server:
            crew, deadline = Crew(server.path), time.monotonic() + 300
            try:
                while not crew.are_done():
                    assert time.monotonic() < deadline, daemon.stats()
                    time.sleep(kill_every_s)
                    if any(queue.pending + queue.failed for queue in daemon.stats()):
                        crew.kill_one()
            finally:
                crew.end()
        assert crew.kills >= 2
        assert any(record.type == "queue:failed" for record in daemon.events(limit=100_000))
        assert [process.returncode for process in crew.processes] == [0] * processes_count
    check_log(f"wal:{place / 'd'}", {f"i{number}" for number in range(items_count)})


@pytest.mark.slow
def test_a_daemon_that_is_killed_comes_back_with_everything_it_had_answered(place: Path) -> None:
    url = f"wal:{place / 'd'}?history=archive"
    acknowledged, number = set[str](), 0
    crew: Crew | None = None
    rounds = min(100, int(os.environ.get("RUNSTATE_KILL_ROUNDS", "5")))
    try:
        for _ in range(rounds):
            with serving(url) as server:
                client = connected(place)
                crew = crew or Crew(place / "d" / socket_name())
                until_s = time.monotonic() + random.Random(number).uniform(0.1, 0.6)
                while time.monotonic() < until_s:
                    item_id = f"i{number}"
                    number += 1
                    client.push("builds", number, item_id=item_id)
                    acknowledged.add(item_id)
                server.send_signal(signal.SIGKILL)
                server.wait()
                client.close()
        with serving(url) as server:
            deadline = time.monotonic() + 120
            while crew is not None and not crew.are_done():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            server.terminate()
            assert server.wait(30) == 0
    finally:
        if crew is not None:
            crew.end()
    check_log(url, acknowledged)


class serving:  # noqa: N801 - reads as what it is: `with serving(url) as server`
    def __init__(self, url: str) -> None:
        options = ["--failures-max", "10000", "--lease", "0.2", "--checkpoint-every", "0.3"]
        self._command = [sys.executable, "-m", "runstate", "daemon", "serve", url, *options]

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._server = subprocess.Popen(self._command, cwd=root, stderr=subprocess.DEVNULL)
        return self._server

    def __exit__(self, *exc: object) -> None:
        self._server.kill()
        self._server.wait()


def connected(place: Path) -> Client:
    deadline = time.monotonic() + 30
    while True:
        try:
            client = Client(place / "d" / socket_name())
            client.stats()
            return client
        except RunstateError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
