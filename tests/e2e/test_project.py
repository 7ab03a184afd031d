"""`runstate project` and `runstate lag` as a user runs them: killed, started again, and watched from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fleets import histories

import runstate
from runstate.logs.registry import open_log

wait_s = 60
pytestmark = pytest.mark.slow


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.02)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "runstate", *arguments]


def asked(directory: Path, *arguments: str) -> tuple[int, list[Any]]:
    done = subprocess.run(command(*arguments, "--json"), cwd=directory, capture_output=True, text=True, timeout=wait_s)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def following(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("project", *arguments, "--follow", "--state", "state"),
        cwd=directory,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def append(url: str, seed: int, runs: int = 3) -> list[str]:
    found = histories("engine", seed, runs)
    with runstate.open(url, snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in found.values():
            store.append_events([store.model.parse(line) for line in lines])
    return list(found)


def is_projected(url: str, streams: list[str]) -> bool:
    with runstate.open(url, create=False) as store:
        return all(store.snapshots.stored(stream) == store.fresh_snapshot(stream) for stream in streams)


def test_a_projector_that_was_killed_goes_on_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/fleet.db"
    streams = append(url, 0)
    with following(tmp_path, url) as process:
        until(lambda: is_projected(url, streams))
        streams += append(url, 1)
        process.send_signal(signal.SIGKILL)
        process.wait(wait_s)
    streams += append(url, 2)
    with following(tmp_path, url, "--metrics-port", "0") as process:
        until(lambda: is_projected(url, streams))
        port = next(line for line in iter(process.stderr.readline, "") if "metrics:" in line).rpartition(":")[2]  # type: ignore[union-attr]
        with urllib.request.urlopen(f"http://127.0.0.1:{port.strip()}") as answer:
            assert b"runstate_projector_lag_seconds" in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(wait_s) == 0
    code, (entry, *_) = asked(tmp_path, "lag", url, "--state", "state")
    assert (code, entry["lagS"], entry["stale"]) == (0, 0, 0)


def test_a_follower_says_that_it_has_caught_up_and_in_the_end_how_much_it_was(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/fleet.db"
    append(url, 0)
    first = _events(url)
    told = tmp_path / "told"
    with told.open("w") as file:
        process = subprocess.Popen(command("project", url, "--follow", "--state", "state"), cwd=tmp_path, stderr=file)
    try:
        until(lambda: f"caught up: {first} events; following, Ctrl-C ends\n" in told.read_text())
        streams = append(url, 1)
        until(lambda: is_projected(url, streams))
        process.send_signal(signal.SIGINT)
        assert process.wait(wait_s) == 0
    finally:
        process.kill()
        process.wait()
    assert told.read_text().endswith(f"{_events(url)} events projected\n")


def _events(url: str) -> int:
    with open_log(url, create=False) as log:
        return sum(info.events for info in log.streams())


def test_the_lag_of_a_projector_that_is_dead_is_honest(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/fleet.db"
    (stream, *_) = append(url, 0)
    assert asked(tmp_path, "project", url, "--state", "state")[0] == 0
    with open_log(url) as log:
        # An event that was stored long ago elsewhere, and that no projector has seen yet.
        log.adopt("old", [runstate.Record("old", *_after_stream(record)) for record in log.read(stream, limit=1)])
    code, (entry, *_) = asked(tmp_path, "lag", url, "--state", "state")
    assert code == 1
    assert entry["lagS"] > 3600


def _after_stream(record: runstate.Record) -> tuple[Any, ...]:
    return (
        *(record.seq, record.event_id, record.type, record.key, record.tenant, record.emitted_at),
        *("2026-01-01T00:00:00.000Z", record.body),
    )


def test_a_live_table_shows_the_lag_until_it_is_interrupted(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/fleet.db"
    append(url, 0)
    assert asked(tmp_path, "project", url, "--state", "state")[0] == 0
    watching = subprocess.Popen(
        command("lag", url, "--state", "state", "--watch"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        until(lambda: Path(f"/proc/{watching.pid}/status").exists() and _catches_interrupts(watching.pid))
        watching.send_signal(signal.SIGINT)
        told = watching.communicate(timeout=wait_s)[0]
    finally:
        watching.kill()
    assert watching.returncode == 0
    assert "fleet.db" in told


def test_a_row_is_printed_as_soon_as_it_is_projected(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/fleet.db"
    append(url, 0)
    with following(tmp_path, url, "--to", "console") as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], wait_s)[0]
        assert process.poll() is None
        assert os.read(process.stdout.fileno(), 1000).startswith(b"engine-0-")


def _catches_interrupts(pid: int) -> bool:
    """Whether the process has a handler of its own for SIGTERM, which it gets together with the one for SIGINT."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)
