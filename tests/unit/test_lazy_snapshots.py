"""Snapshots of a store with default settings, on logs that cannot save them in the commit of the events."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.log_urls import url_at

import runstate
from runstate.contracts import EngineStore
from runstate.errors import LogBusy, LogFull
from runstate.lazy_saves import Deadlines, LazySaves
from runstate.logs.log import StoredSnapshot
from runstate.models.engine import ENGINE, RunEventWrite
from runstate.models.model import Alert

Write = Callable[..., RunEventWrite]

never_s = 3600.0
soon_s = 0.01
patience_s = 20.0
"""How long a test waits for another thread before it fails."""


@pytest.fixture(params=["ndjson", "segments", "wal"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_at(request.param, tmp_path / "log")


@pytest.fixture(autouse=True)
def delay_s(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`delay_s(seconds)`: how long a snapshot may be behind. As long as a test does not say so, for ever."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr("runstate.lazy_saves.lazy_delay_s", seconds)

    set_to(never_s)
    return set_to


def open_store(url: str, **options: Any) -> EngineStore:
    return runstate.open(url, "engine", **options)


def notes(write: Write, count: int, run: str = "r-1", first: int = 1) -> list[RunEventWrite]:
    return [write("Note", attempt=number, run=run) for number in range(first, first + count)]


def append_one_by_one(store: EngineStore, events: list[RunEventWrite]) -> None:
    for event in events:
        store.append_event(event)


def stored_seq(store: EngineStore, run: str = "r-1") -> int | None:
    stored = store.snapshots.stored(run)
    return None if stored is None else stored.seq


def is_proven(store: EngineStore, run: str = "r-1") -> bool:
    """Whether the stored snapshot is what a replay up to its place gives."""
    stored = store.snapshots.stored(run)
    return stored is not None and stored.body == ENGINE.dump(store.snapshot_at(run, seq=stored.seq))


Threads = Callable[[], list[threading.Thread]]


@pytest.fixture
def saving_threads() -> Threads:
    """`saving_threads()`: those that were started in this test. A store of an earlier one may still have its own."""
    before = set(threading.enumerate())
    return lambda: [
        thread for thread in threading.enumerate() if thread.name == "runstate-snapshots" and thread not in before
    ]


class Saves:
    """Stands for `save_snapshot` of a store's log: counts the saves, and can be waited for."""

    def __init__(self, store: EngineStore, monkeypatch: pytest.MonkeyPatch, *errors: type[Exception]) -> None:
        self._save, self._errors, self._came = store.log.save_snapshot, list(errors), threading.Semaphore(0)
        self.seqs: list[int] = []
        monkeypatch.setattr(store.log, "save_snapshot", self)

    def __call__(self, stream: str, snapshot: StoredSnapshot) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self._save(stream, snapshot)
        self.seqs.append(snapshot.seq)
        self._came.release()

    def wait(self) -> None:
        assert self._came.acquire(timeout=patience_s), "nothing was saved"


# --- when they are saved ---------------------------------------------------------------------------------------------


def test_the_first_snapshot_of_a_stream_is_saved_with_its_first_append(url: str, write: Write) -> None:
    with open_store(url) as store:
        append_one_by_one(store, notes(write, 3))
        stored = store.stored_snapshot("r-1")
        assert stored is not None
        assert (stored.seq, stored.behind) == (1, 2)


def test_a_snapshot_is_behind_by_fewer_events_than_the_bound(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.lazy_saves.lazy_events_max", 3)
    seqs = []
    with open_store(url) as store:
        for event in notes(write, 8):
            store.append_event(event)
            seqs.append(stored_seq(store))
        assert (seqs, is_proven(store)) == ([1, 1, 1, 4, 4, 4, 7, 7], True)


def test_the_bounds_are_a_hundred_events_and_a_second(url: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    delays: list[float] = []

    def lazy_saves(save: Callable[[str], None], delay: float) -> LazySaves:
        delays.append(delay)
        return LazySaves(save, never_s)

    monkeypatch.setattr("runstate.snapshots.LazySaves", lazy_saves)
    with open_store(url) as store:
        store.append_event(notes(write, 1)[0])
        store.append_events(notes(write, 99, first=2))
        before = stored_seq(store)
        store.append_event(notes(write, 1, first=101)[0])
        assert (delays, before, stored_seq(store)) == ([1.0], 1, 101)


def test_a_snapshot_of_an_idle_store_is_saved_after_the_delay(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch, delay_s: Callable[[float], None]
) -> None:
    delay_s(soon_s)
    with open_store(url) as store:
        saves = Saves(store, monkeypatch)
        append_one_by_one(store, notes(write, 2))
        while 2 not in saves.seqs:
            saves.wait()
        assert (stored_seq(store), is_proven(store)) == (2, True)


def test_a_deadline_is_that_of_the_first_unsaved_event() -> None:
    deadlines = Deadlines(1.0)
    deadlines.add("s", 10.0)
    deadlines.add("t", 10.5)
    deadlines.add("s", 10.9)
    assert (deadlines.next_due_at(), deadlines.take_due(10.99)) == (11.0, None)
    assert [deadlines.take_due(11.0), deadlines.take_due(11.0), deadlines.next_due_at()] == ["s", None, 11.5]


def test_close_saves_what_is_unsaved(url: str, write: Write) -> None:
    with open_store(url) as store:
        append_one_by_one(store, notes(write, 3) + notes(write, 2, "r-2"))
    with open_store(url, snapshot_every=0) as reader:
        assert [stored_seq(reader, run) for run in ("r-1", "r-2")] == [3, 2]
        assert is_proven(reader)


def test_a_state_that_falls_out_of_memory_is_saved(url: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.snapshots._states_max", 1)
    with open_store(url) as store:
        append_one_by_one(store, notes(write, 3))
        store.append_event(write(run="r-2"))
        assert (stored_seq(store), is_proven(store)) == (3, True)


def test_threads_that_push_each_other_out_of_memory_end_with_every_snapshot(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.snapshots._states_max", 1)
    runs = [f"r-{number}" for number in range(4)]
    with open_store(url) as store:
        threads = [threading.Thread(target=append_one_by_one, args=(store, notes(write, 10, run))) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience_s)
            assert not thread.is_alive()
    with open_store(url, snapshot_every=0) as reader:
        assert [(stored_seq(reader, run), is_proven(reader, run)) for run in runs] == [(10, True)] * 4


def test_save_now_saves_one_stream(url: str, write: Write) -> None:
    with open_store(url) as store:
        append_one_by_one(store, notes(write, 2) + notes(write, 2, "r-2"))
        store.snapshots.save_now("r-1")
        assert [stored_seq(store, run) for run in ("r-1", "r-2")] == [2, 1]


def test_a_read_saves_the_snapshot_and_it_is_not_saved_a_second_time(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(url) as store:
        saves = Saves(store, monkeypatch)
        append_one_by_one(store, notes(write, 3))
        found = store.get_snapshot("r-1")
        assert found is not None
        assert (found.last_event_seq, stored_seq(store)) == (3, 3)
    assert saves.seqs == [1, 3]


@pytest.mark.parametrize(("every", "seqs"), [(0, [None] * 4), (1, [1, 2, 3, 4]), (3, [None, None, 3, 3])])
def test_a_number_of_events_keeps_its_meaning(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch, every: int, seqs: list[int | None], saving_threads: Threads
) -> None:
    found = []
    with open_store(url, snapshot_every=every) as store:
        for event in notes(write, 4):
            store.append_event(event)
            found.append(stored_seq(store))
        assert (found, saving_threads()) == (seqs, [])
        saves = Saves(store, monkeypatch)
    assert saves.seqs == []


def test_a_read_does_not_change_when_every_third_event_is_due(url: str, write: Write) -> None:
    with open_store(url, snapshot_every=3) as store:
        append_one_by_one(store, notes(write, 2))
        store.get_snapshot("r-1")
        store.append_event(write("RunCompleted"))
        assert stored_seq(store) == 3


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_late_save_that_fails_is_an_alert_and_the_next_append_goes_on(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch, delay_s: Callable[[float], None]
) -> None:
    delay_s(soon_s)
    raised: list[Alert] = []
    came = threading.Event()

    def note(alert: Alert) -> None:
        raised.append(alert)
        came.set()

    with open_store(url, on_alert=note) as store:
        store.append_event(write())
        Saves(store, monkeypatch, LogFull)
        store.append_event(write("Note"))
        assert came.wait(patience_s)
        assert [(alert.code, alert.subject) for alert in raised] == [("SNAPSHOT_FAILED", "r-1")]
        store.append_event(write("RunCompleted"))
    with open_store(url, snapshot_every=0) as reader:
        assert (stored_seq(reader), is_proven(reader), len(raised)) == (3, True, 1)


def test_a_failure_on_close_is_an_alert_and_the_log_is_closed(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Alert] = []
    store = open_store(url, on_alert=raised.append)
    append_one_by_one(store, notes(write, 2))
    Saves(store, monkeypatch, LogFull)
    store.close()
    assert [alert.code for alert in raised] == ["SNAPSHOT_FAILED"]
    with pytest.raises(runstate.RunstateError, match="closed"):
        store.log.stream("r-1")


def test_a_late_save_that_meets_contention_is_tried_again_without_an_alert(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch, delay_s: Callable[[float], None]
) -> None:
    delay_s(soon_s)
    raised: list[Alert] = []
    with open_store(url, on_alert=raised.append) as store:
        store.append_event(write())
        saves = Saves(store, monkeypatch, LogBusy, LogBusy)
        store.append_event(write("Note"))
        saves.wait()
        assert (stored_seq(store), raised) == (2, [])


def test_an_alert_sink_that_raises_keeps_no_other_stream_from_being_saved(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch, delay_s: Callable[[float], None]
) -> None:
    def refuse(alert: Alert) -> None:
        raise ValueError(alert.code)

    with open_store(url, on_alert=refuse) as store:
        append_one_by_one(store, [write(), write(run="r-2")])
    delay_s(soon_s)
    with open_store(url, on_alert=refuse) as store:
        saves = Saves(store, monkeypatch, LogFull)
        append_one_by_one(store, [write("Note"), write("Note", run="r-2")])
        saves.wait()
        assert (stored_seq(store, "r-1"), stored_seq(store, "r-2")) in [(1, 2), (2, 1)]


@pytest.mark.parametrize("is_begun_again", [False, True])
def test_a_stream_that_was_deleted_meanwhile_gets_no_snapshot_of_what_it_was(
    url: str, write: Write, is_begun_again: bool
) -> None:
    raised: list[Alert] = []
    with open_store(url, on_alert=raised.append) as store:
        append_one_by_one(store, [write(), write("StepStarted", "a"), write("StepFailed", "a")])
        store.log.delete_stream("r-1")  # Behind the store's back, as another process would.
        if is_begun_again:
            drafts = [ENGINE.draft(write("StepStarted", step))[1] for step in ("x", "y", "z")]
            store.log.append("r-1", drafts)
    with open_store(url, snapshot_every=0) as reader:
        assert (stored_seq(reader), raised) == (None, [])


def test_another_history_with_the_same_beginning_gets_no_snapshot_of_the_one_that_is_gone(
    url: str, write: Write
) -> None:
    """Deleted and taken over again from elsewhere: ids and times of the beginning are the same, what follows is not."""
    with open_store(url) as store, runstate.open("memory:") as elsewhere:
        append_one_by_one(store, [write(), write("StepStarted", "a"), write("StepFailed", "a")])
        elsewhere.log.adopt("r-1", store.log.read("r-1")[:2], model="engine")
        elsewhere.append_event(write("StepCompleted", "a"))
        store.log.delete_stream("r-1")
        store.log.adopt("r-1", elsewhere.log.read("r-1"), model="engine")
    with open_store(url, snapshot_every=0) as reader:
        assert stored_seq(reader) is None


def test_a_log_that_is_closed_under_its_store_is_no_alert(
    url: str, write: Write, delay_s: Callable[[float], None]
) -> None:
    raised: list[Alert] = []
    store = open_store(url, on_alert=raised.append)
    append_one_by_one(store, notes(write, 2))
    store.log.close()
    store.close()
    assert raised == []


# --- two stores on one log -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first_closed_first", [True, False])
def test_two_stores_on_one_log_end_with_the_snapshot_of_the_last_event(
    url: str, write: Write, is_first_closed_first: bool
) -> None:
    with open_store(url) as first:
        second = runstate.Store(first.log, ENGINE)
        for number, event in enumerate(notes(write, 9)):
            (first, second)[number % 2].append_event(event)
        for store in (first, second) if is_first_closed_first else (second, first):
            store.snapshots.close()
        assert (stored_seq(first), is_proven(first)) == (9, True)


def test_a_late_save_does_not_replace_a_newer_snapshot(url: str, write: Write) -> None:
    with open_store(url) as first:
        append_one_by_one(first, notes(write, 3))
        runstate.Store(first.log, ENGINE, snapshot_every=1).append_event(write("RunCompleted"))
        first.snapshots.close()
        assert (stored_seq(first), is_proven(first)) == (4, True)


# --- the thread ------------------------------------------------------------------------------------------------------


def test_a_store_that_never_appended_has_no_thread(url: str, write: Write, saving_threads: Threads) -> None:
    with open_store(url) as store:
        store.append_event(write())  # Its snapshot is saved, so nothing is unsaved.
        store.get_snapshot("r-1")
        assert saving_threads() == []


def test_one_thread_serves_all_streams_and_is_gone_after_close(url: str, write: Write, saving_threads: Threads) -> None:
    with open_store(url) as store:
        for run in ("r-1", "r-2", "r-3"):
            append_one_by_one(store, notes(write, 2, run))
        assert [thread.daemon for thread in saving_threads()] == [True]
    assert saving_threads() == []


def test_close_waits_for_a_save_that_has_begun(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch, delay_s: Callable[[float], None], saving_threads: Threads
) -> None:
    delay_s(soon_s)
    store = open_store(url)
    store.append_event(write())
    save, begun, may_end = store.log.save_snapshot, threading.Event(), threading.Event()

    def slow(stream: str, snapshot: StoredSnapshot) -> None:
        begun.set()
        assert may_end.wait(patience_s)
        save(stream, snapshot)

    monkeypatch.setattr(store.log, "save_snapshot", slow)
    store.append_event(write("Note"))
    assert begun.wait(patience_s)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    may_end.set()
    closing.join(patience_s)
    assert saving_threads() == []
    with open_store(url, snapshot_every=0) as reader:
        assert stored_seq(reader) == 2


def test_a_thread_that_cannot_start_is_an_alert_and_the_next_append_starts_one(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch, saving_threads: Threads
) -> None:
    raised: list[Alert] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open_store(url, on_alert=raised.append) as store:
        store.append_event(write())
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            assert store.append_event(write("Note")).persisted
        assert [alert.code for alert in raised] == ["SNAPSHOT_FAILED"]
        store.append_event(write("RunCompleted"))
        assert len(saving_threads()) == 1


def test_the_thread_ends_when_nothing_is_unsaved_and_another_one_begins(
    url: str, write: Write, monkeypatch: pytest.MonkeyPatch, delay_s: Callable[[float], None], saving_threads: Threads
) -> None:
    delay_s(soon_s)
    with open_store(url) as store:
        saves = Saves(store, monkeypatch)
        for event in notes(write, 3):
            store.append_event(event)
            saves.wait()
            for thread in saving_threads():
                thread.join(patience_s)
            assert saving_threads() == []
        assert saves.seqs == [1, 2, 3]


# --- processes -------------------------------------------------------------------------------------------------------

_appending = """
import os, sys
import runstate, runstate.lazy_saves
from tests.unit.conftest import make_write

runstate.lazy_saves.lazy_delay_s = 3600.0
store = runstate.open(sys.argv[1], "engine")
for number in (1, 2, 3):
    store.append_event(make_write("Note", attempt=number))
"""


def run_script(url: str, last: str) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "ignore", "-c", _appending + last, url]
    subprocess.run(command, cwd=root, check=True, timeout=patience_s)


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "append"])
def test_a_killed_process_leaves_a_snapshot_behind_which_the_next_one_brings_up_to_date(
    url: str, write: Write, is_read: bool
) -> None:
    run_script(url, "os._exit(0)")  # As a kill does, it runs nothing more.
    with open_store(url) as store:
        stored = store.stored_snapshot("r-1")
        assert stored is not None
        assert (stored.seq, stored.behind) == (1, 2)
        if is_read:
            store.get_snapshot("r-1")
            assert (stored_seq(store), is_proven(store)) == (3, True)
        else:
            store.append_event(write("RunCompleted"))
            store.snapshots.save_now("r-1")
            assert (stored_seq(store), is_proven(store)) == (4, True)


def test_a_store_that_is_not_closed_does_not_hold_its_process_open(url: str) -> None:
    run_script(url, "")


def test_a_forked_child_closes_its_copy_at_once_and_leaves_the_snapshot_to_the_parent(url: str) -> None:
    forking = """
import threading
held, done = threading.Event(), threading.Event()

def hold():
    with store.snapshots._lazy._changed:  # As the saving thread may, when the process forks.
        held.set()
        done.wait()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if child == 0:
    store.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert store.stored_snapshot("r-1").seq == 1
done.set()
holder.join()
store.close()
"""
    run_script(url, forking)
    with open_store(url, snapshot_every=0) as reader:
        assert (stored_seq(reader), is_proven(reader)) == (3, True)
