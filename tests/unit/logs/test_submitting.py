"""Appends that no thread waits for: how many flushes they share, and what an interrupted caller does to them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runstate.conformance.notes import keys, notes, stored
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.conformance.threads import meanwhile
from runstate.logs.log import AppendResult
from runstate.logs.ndjson.log import NdjsonLog
from runstate.logs.sqlite.log import SqliteLog
from runstate.logs.sqlite.writer import Writer

patience_s = 20


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append("s", notes("first"))
        yield log


@contextmanager
def commits_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Thread]]:
    """The threads that committed, once for each commit. The first one waits until the block is over."""
    committed: list[threading.Thread] = []
    is_over, finish = threading.Event(), Writer._finish

    def count(writer: Writer, connection: object) -> None:
        committed.append(threading.current_thread())
        assert is_over.wait(patience_s)
        finish(writer, connection)  # type: ignore[arg-type]

    monkeypatch.setattr(Writer, "_finish", count)
    yield committed
    is_over.set()


def test_appends_that_one_thread_submits_to_many_streams_share_two_commits(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commits_counted(monkeypatch) as committed:
        futures = [log.submit(f"s{number}", notes("a")) for number in range(100)]
    assert [future.result(patience_s)[0].seq for future in futures] == [1] * 100
    assert len(committed) <= 2
    assert threading.current_thread() not in committed


def test_bulk_appends_share_a_commit(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    with commits_counted(monkeypatch) as committed:
        pass
    assert len(log.append_many([(f"s{number}", notes("a")) for number in range(100)])) == 100
    assert len(committed) == 1


def test_appends_that_are_submitted_to_a_run_share_its_flushes() -> None:
    disk = SimulatedDisk()
    log = NdjsonLog(Path("/runs"), disk=disk)
    log.append("r", notes("first"))
    before, run = disk.calls["sync"], log._runs["r"]
    with run.turn:  # The background thread waits for it with the first, and the others gather.
        futures = [log.submit("r", notes(f"k{number}")) for number in range(50)]
    assert sorted(future.result(patience_s)[0].seq for future in futures) == list(range(2, 52))
    assert disk.calls["sync"] - before <= 2
    log.close()


class Interrupted(BaseException):
    """Raised by a signal's handler, as Python's own does for SIGINT."""


@contextmanager
def interrupts(every_s: float) -> Iterator[list[bool]]:
    """A switch: while it holds True, this thread is interrupted again and again."""
    is_on = [False]

    def interrupt(*_: object) -> None:
        if is_on[0]:
            is_on[0] = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield is_on
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["sqlite", "ndjson"])
def test_a_caller_that_is_interrupted_again_and_again_loses_no_append_of_another(tmp_path: Path, kind: str) -> None:
    log = SqliteLog(tmp_path / "log.db") if kind == "sqlite" else NdjsonLog(tmp_path / "runs")
    count = 60

    def wait(caller: int) -> list[list[AppendResult]]:
        return [log.append("s", notes(f"{caller}-{number}")) for number in range(count)]

    with log, meanwhile(lambda _: wait(0)) as one, meanwhile(lambda _: wait(1)) as two, interrupts(0.002) as is_on:
        futures = [log.submit("s", notes(f"2-{number}")) for number in range(count)]
        interrupted = 0
        while not (one.done() and two.done()):
            try:
                is_on[0] = True
                log.append("s", notes(f"mine-{interrupted}"))
            except Interrupted:
                interrupted += 1
            finally:
                is_on[0] = False
        assert all(len(done.result(patience_s)) == count for done in (one, two))
        assert all(future.result(patience_s) for future in futures)
        found = [key for key in keys(stored(log, "s")) if not key.startswith("mine")]
        assert sorted(found) == sorted(f"{caller}-{number}" for caller in range(3) for number in range(count))
        assert list(log.verify()) == []
    assert interrupted > 0
