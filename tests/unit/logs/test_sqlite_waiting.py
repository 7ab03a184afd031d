"""Waiting for more of a SQLite log: woken by whoever appends, and no longer than asked."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runstate.conformance.notes import notes
from runstate.errors import LogClosed
from runstate.logs.sqlite import SqliteLog
from runstate.logs.waiting import WakingLog

for_ever_s = 60.0
_append = """
import sys
from runstate.conformance.notes import notes
from runstate.logs.sqlite import SqliteLog
with SqliteLog(sys.argv[1]) as log:
    log.append("s", notes("b"))
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "fleet.db") as opened:
        yield opened


def test_where_there_is_more_already_nobody_waits(log: SqliteLog) -> None:
    assert isinstance(log, WakingLog)
    log.append("s", notes("a"))
    began = time.monotonic()
    log.wait(None, for_ever_s)
    assert time.monotonic() - began < for_ever_s / 2


def test_an_append_of_another_process_ends_the_wait(log: SqliteLog) -> None:
    log.append("s", notes("a"))
    end = log.feed().next
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.wait, end, for_ever_s)
        subprocess.run([sys.executable, "-c", _append, str(log.path)], check=True)
        waiting.result()
    assert time.monotonic() - began < for_ever_s / 2
    assert [record.key for record in log.feed(after=end).records] == ["b"]


def test_an_append_of_this_process_ends_the_wait(log: SqliteLog) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.wait, None, for_ever_s)
        log.append("s", notes("a"))
        waiting.result()
    assert time.monotonic() - began < for_ever_s / 2


def test_a_wait_for_nothing_ends_in_time(log: SqliteLog) -> None:
    began = time.monotonic()
    log.wait(None, 0.05)
    assert 0.05 <= time.monotonic() - began < for_ever_s / 2


def test_a_log_that_is_closed_meanwhile_is_not_waited_for(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.logs.sqlite.log.time.sleep", lambda seconds: log.close())
    with pytest.raises(LogClosed):
        log.wait(None, 1.0)
