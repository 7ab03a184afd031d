"""A daemon's state: durable before it is told, the same after every restart, and refused where it makes no sense."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.runtimes.daemon_places import Place, schemes, until

from runstate.errors import (
    AppendOutcomeUnknown,
    InvalidEvent,
    InvalidTransition,
    LogBusy,
    LogClosed,
    LogFull,
    LogNotFound,
    Truncated,
)
from runstate.logs.log import StoredSnapshot
from runstate.logs.registry import open_log
from runstate.models.daemon import DAEMON
from runstate.models.daemon import events as e
from runstate.runtimes.daemon import Daemon
from runstate.runtimes.daemon.journal import load_state

created = e.PipelineCreated("p", "build", "nightly", {}, "h", "/src", "build", 7)


@pytest.fixture(params=schemes)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Place]:
    made = Place("wal", tmp_path)
    yield made
    made.close()


# --- events ----------------------------------------------------------------------------------------------------------


def test_an_event_is_applied_and_has_a_seq(place: Place) -> None:
    daemon = place.open()
    assert [daemon.emit(created), daemon.emit(e.StepStarted("p", "build")), daemon.seq] == [1, 2, 2]
    assert daemon.state.pipelines["p"].current.status == "running"


def test_the_state_is_the_same_after_a_restart(place: Place) -> None:
    daemon = place.open()
    daemon.emit(created)
    daemon.emit(e.StepFailed("p", "build", "no"))
    before = DAEMON.dump(daemon.state)
    daemon.close()
    assert DAEMON.dump(place.open().state) == before


def test_what_is_buffered_is_durable_after_a_flush(place: Place) -> None:
    daemon = place.open()
    seqs = [daemon.emit(e.Custom(str(n)), durable=False) for n in range(250)]
    daemon.flush()
    assert seqs == list(range(1, 251))
    log = daemon._journal.log
    assert [record.seq for record in log.read("daemon")] == seqs


def test_an_event_with_a_known_id_gets_the_first_seq_and_changes_nothing(place: Place) -> None:
    daemon = place.open()
    pushed = e.QueuePushed("q", "1", None, 7, event_id="once")
    first = daemon.emit(pushed)
    daemon.emit(e.Custom("n"))
    assert (daemon.emit(pushed), daemon.seq) == (first, 2)


def test_events_without_an_id_are_events_of_their_own(place: Place) -> None:
    daemon = place.open()
    assert [daemon.emit(e.Custom("n")) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    "event",
    [
        e.StepStarted("p9", "build"),
        e.StepCompleted("p", "elsewhere"),
        e.PipelineAdvanced("p9", "test"),
        created,
        e.QueueTaken("q", "1", "w"),
        e.WorkerStopped("ghost"),
        e.SessionDeleted("s9"),
        e.WorkspaceReady("w9"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_impossible_is_refused_and_nothing_is_written(place: Place, event: e.DaemonEvent) -> None:
    daemon = place.open()
    daemon.emit(created)
    with pytest.raises(InvalidTransition, match="nothing was written"):
        daemon.emit(event)
    assert daemon.seq == 1


def test_an_event_of_another_daemon_is_refused(place: Place) -> None:
    with pytest.raises(InvalidEvent, match="other"):
        place.open().emit(e.Custom("n", daemon="other"))


def test_an_event_put_together_wrongly_is_refused(place: Place) -> None:
    with pytest.raises(InvalidEvent):
        place.open().emit(e.Custom(""))


def test_two_daemons_of_two_names_share_a_directory(wal: Place) -> None:
    one, other = wal.open(), wal.open(name="other")
    one.emit(e.Custom("n"))
    other.emit(created)
    assert (one.seq, list(one.state.pipelines), list(other.state.pipelines)) == (1, [], ["p"])


def test_a_second_daemon_on_the_same_directory_is_told_to_try_again(wal: Place) -> None:
    first = wal.open()
    with pytest.raises(LogBusy, match="Another daemon") as busy:
        wal.open()
    assert busy.value.retryable
    first.close()
    wal.open()


def test_a_daemon_that_is_not_there_is_not_made_unless_asked_for(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        Daemon.open(tmp_path / "none", create=False)
    with Daemon.open(tmp_path / "some"):
        pass
    with Daemon.open(str(tmp_path / "some"), create=False) as daemon:
        assert daemon.seq == 0


def test_a_closed_daemon_refuses_everything(place: Place) -> None:
    daemon = place.open()
    daemon.close()
    daemon.close()
    for ask in (lambda: daemon.emit(created), lambda: daemon.state, daemon.checkpoint, daemon.flush):
        with pytest.raises(LogClosed):
            ask()


def test_many_threads_emit_at_once_and_every_event_is_applied(place: Place) -> None:
    daemon = place.open()
    with ThreadPoolExecutor(8) as pool:
        seqs = list(pool.map(lambda n: daemon.emit(e.QueuePushed("q", str(n), n, 0)), range(200)))
    assert sorted(seqs) == list(range(1, 201))
    before = DAEMON.dump(daemon.state)
    daemon.close()
    assert DAEMON.dump(place.open().state) == before


def test_a_state_is_the_readers_own(place: Place) -> None:
    daemon = place.open()
    daemon.emit(created)
    state = daemon.state
    daemon.emit(e.PipelineDeleted("p"))
    assert list(state.pipelines) == ["p"]
    state.pipelines.clear()
    assert daemon.state.pipelines == {}


# --- when the disk fails -------------------------------------------------------------------------------------------


class Failing:
    """A ticket whose flush fails."""

    def __init__(self, ticket: Any, error: Exception) -> None:
        self.results, self._error = ticket.results, error

    def wait(self, timeout: float | None = None) -> Any:
        raise self._error


def test_a_decision_that_was_not_stored_is_forgotten(wal: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = wal.open()
    daemon.emit(created)
    log: Any = daemon._journal.log
    with monkeypatch.context() as patch:
        # As a full disk does: the entries never come to the file, and the seqs begin again where they were.
        patch.setattr("runstate.logs.wal.writer.Writer._write", lambda *_: LogFull())
        with pytest.raises(LogFull):
            daemon.emit(e.PipelineDeleted("p"))
        assert list(daemon.state.pipelines) == ["p"]
    assert daemon.emit(e.StepStarted("p", "build")) == 2
    assert DAEMON.dump(daemon.state) == DAEMON.dump(DAEMON.fold(DAEMON.initial("daemon"), log.lines("daemon")))


def test_whoever_decided_after_a_failed_flush_decides_anew(wal: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = wal.open()
    daemon.emit(created)
    with monkeypatch.context() as patch:
        patch.setattr("runstate.logs.wal.writer.Writer._write", lambda *_: LogFull())
        seq = daemon.emit(e.PipelineDeleted("p"), durable=False)
        with pytest.raises(LogFull):
            daemon._journal.log.flush("daemon")  # type: ignore[attr-defined]
    # Nobody has told the daemon, whose state is ahead of its log; the log does.
    assert daemon.emit(e.StepStarted("p", "build")) == seq
    assert daemon.state.pipelines["p"].current.status == "running"


def test_after_a_flush_whose_outcome_is_unknown_the_daemon_must_be_opened_again(
    wal: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = wal.open()
    daemon.emit(created)
    with monkeypatch.context() as patch:
        patch.setattr("runstate.logs.wal.writer.Writer._write", lambda *_: AppendOutcomeUnknown())
        with pytest.raises(AppendOutcomeUnknown):
            daemon.emit(e.PipelineDeleted("p"))
    with pytest.raises(LogClosed):
        daemon.emit(e.Custom("n"))
    daemon.close()
    assert list(wal.open().state.pipelines) == ["p"]


def test_a_daemon_whose_log_has_failed_closes_all_the_same(
    wal: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = wal.open()
    daemon.push("q", item_id="1")
    assert daemon.worker("w", "q").take() is not None
    with monkeypatch.context() as patch:
        patch.setattr("runstate.logs.wal.writer.Writer._write", lambda *_: AppendOutcomeUnknown())
        with pytest.raises(AppendOutcomeUnknown):
            daemon.emit(e.Custom("n"))
    daemon.close()
    assert "workers could not be stopped" in caplog.text
    assert wal.open().items("q")[0].status == "taken"


def test_a_log_that_is_binary_noise_is_kept_aside_and_said_so(wal: Place, caplog: pytest.LogCaptureFixture) -> None:
    wal.open().close()
    home = Path(wal.url.removeprefix("wal:")) / "daemon"
    home.mkdir(exist_ok=True)
    noise = random.Random(1).randbytes(2000) + b"\n" + random.Random(2).randbytes(2000) + b"\n"
    (home / "wal.jsonl").write_bytes(noise)
    daemon = wal.open()
    assert (home / "wal.jsonl.bak").read_bytes() == noise
    assert "wal.jsonl.bak" in caplog.text
    assert daemon.emit(created) >= 1


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_keeps_the_state_and_drops_the_events_before_the_previous_one(wal: Place) -> None:
    daemon = wal.open()
    for n in range(10):
        daemon.emit(e.QueuePushed("q", str(n), n, 0))
        if n == 4:
            assert daemon.checkpoint() == 5
    assert daemon.checkpoint() == 10
    with pytest.raises(Truncated):
        daemon.events()
    assert [record.seq for record in daemon.events(after_seq=4)] == [5, 6, 7, 8, 9, 10]
    before = DAEMON.dump(daemon.state)
    daemon.close()
    again = wal.open()
    assert (DAEMON.dump(again.state), again.emit(e.Custom("n"))) == (before, 11)


def test_a_checkpoint_on_any_log_keeps_a_snapshot(place: Place) -> None:
    daemon = place.open()
    daemon.emit(created)
    daemon.checkpoint()
    kept = daemon._journal.log.load_snapshot("daemon", "daemon")
    assert kept is not None
    assert (kept.seq, kept.body) == (1, DAEMON.dump(daemon.state))


def test_a_snapshot_is_never_ahead_of_its_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = place.open()
    daemon.emit(created, durable=False)
    done: list[str] = []
    settle = daemon._settle

    def settled(ticket: Any) -> None:
        settle(ticket)
        done.append("settled")

    monkeypatch.setattr(daemon, "_settle", settled)
    monkeypatch.setattr(daemon._journal, "checkpoint", lambda *_: done.append("kept"))
    daemon.checkpoint()
    assert done == ["settled", "kept"]


def test_the_state_can_be_read_from_the_log_while_its_daemon_checkpoints(
    wal: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = wal.open()
    daemon.emit(created)
    daemon.checkpoint()
    with open_log(wal.url, create=False) as log:
        load = log.load_snapshot

        def load_before_a_checkpoint(stream: str, model: str) -> StoredSnapshot | None:
            """What was there a moment ago: by now the events behind it are dropped."""
            found = load(stream, model)
            monkeypatch.setattr(log, "load_snapshot", load)
            daemon.emit(e.StepStarted("p", "build"))
            daemon.emit(e.StepFailed("p", "build", "no"))
            daemon.checkpoint()
            return found

        monkeypatch.setattr(log, "load_snapshot", load_before_a_checkpoint)
        assert load_state(log, "daemon") == (daemon.state, daemon.seq)


def test_a_checkpoint_of_nothing_does_nothing(wal: Place) -> None:
    daemon = wal.open()
    assert (daemon.checkpoint(), daemon.compact()) == (0, 0)


def test_compaction_drops_what_the_last_checkpoint_made_needless(wal: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = wal.open()
    daemon.emit(created)
    daemon.emit(e.Custom("n"))
    log = daemon._journal.log
    kept = daemon._journal._checkpoint
    monkeypatch.setattr(daemon._journal, "_checkpoint", log.save_snapshot)
    daemon.checkpoint()
    assert len(daemon.events()) == 2
    monkeypatch.setattr(daemon._journal, "_checkpoint", kept)
    assert (daemon.compact(), len(daemon.events(after_seq=1))) == (2, 1)


def test_writers_go_on_while_a_checkpoint_is_written(wal: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = wal.open()
    daemon.emit(created)
    begun, go_on = threading.Event(), threading.Event()
    checkpoint = daemon._journal.checkpoint

    def slowly(*args: Any) -> None:
        begun.set()
        go_on.wait(30)
        checkpoint(*args)

    monkeypatch.setattr(daemon._journal, "checkpoint", slowly)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(daemon.checkpoint)
        assert begun.wait(30)
        daemon.emit(e.StepStarted("p", "build"))
        assert daemon.state.pipelines["p"].current.status == "running"
        go_on.set()
        assert done.result() == 1
    kept = daemon._journal.log.load_snapshot("daemon", "daemon")
    assert kept is not None
    assert DAEMON.load(kept.body).pipelines["p"].current.status == "pending"
    daemon.close()
    assert wal.open().state.pipelines["p"].current.status == "running"


def test_checkpoints_run_in_the_background(wal: Place) -> None:
    daemon = wal.open(checkpoint_every_s=0.02)
    daemon.emit(created)
    until(lambda: daemon._journal.log.load_snapshot("daemon", "daemon"))


def test_a_checkpoint_that_fails_is_told_and_writers_go_on(
    wal: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = wal.open(checkpoint_every_s=0.02)

    def full(*_: Any) -> None:
        raise LogFull()

    monkeypatch.setattr(daemon._journal, "_checkpoint", full)
    with caplog.at_level(logging.WARNING, "runstate.runtimes.daemon"):
        daemon.emit(created)
        until(lambda: "could not be kept on file" in caplog.text)
    assert daemon.emit(e.StepStarted("p", "build")) == 2
    monkeypatch.undo()
    until(lambda: daemon._journal.log.load_snapshot("daemon", "daemon"))


def test_a_snapshot_of_another_version_of_the_model_is_not_used(wal: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = wal.open()
    daemon.emit(created)
    with monkeypatch.context() as patch:
        patch.setattr(type(DAEMON), "version", 0)
        daemon._journal._checkpoint = daemon._journal.log.save_snapshot
        daemon.checkpoint()
    daemon.close()
    assert list(wal.open().state.pipelines) == ["p"]


def test_no_state_is_ahead_of_its_log(wal: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks waits for what is in flight: what was seen cannot be taken back."""
    daemon = wal.open()
    daemon.emit(created, durable=False)
    waited: list[int] = []
    settle: Callable[[Any], None] = daemon._settle

    def noted(ticket: Any) -> None:
        waited.append(ticket.results[0].seq)
        settle(ticket)

    monkeypatch.setattr(daemon, "_settle", noted)
    assert list(daemon.state.pipelines) == ["p"]
    assert waited == [1]
    with open_log(wal.url) as log:
        assert [record.seq for record in log.read("daemon")] == [1]
