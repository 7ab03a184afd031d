"""A daemon in trouble: a log that lost its head, disks that are full, retries, leases, and clients out of step."""

from __future__ import annotations

import errno
import json
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from tests.unit.runtimes.daemon_places import Clock, Place, schemes, until

from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import (
    AppendOutcomeUnknown,
    InvalidJson,
    InvalidTransition,
    LogClosed,
    LogFailed,
    LogFull,
    RunstateError,
    SnapshotTooNew,
)
from runstate.logs.log import StoredSnapshot
from runstate.logs.registry import open_log
from runstate.logs.wal import WalLog
from runstate.logs.wal.options import WalOptions
from runstate.models.canonical import digest
from runstate.models.daemon import events as e
from runstate.runtimes.daemon import Client, Daemon, DaemonAway, RequestRefused, Server

never_ms = 60_000.0


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(disk: SimulatedDisk, clock: Clock, request: pytest.FixtureRequest) -> Callable[[], Daemon]:
    """Daemons on one simulated disk, one after the other, whose log is flushed only when somebody waits."""

    def opening() -> Daemon:
        log = WalLog(PurePosixPath("/log"), options=WalOptions(flush_interval_ms=never_ms), disk=disk)
        daemon = Daemon(log, checkpoint_every_s=None, clock=clock, lease_s=10)
        request.addfinalizer(daemon.close)
        return daemon

    return opening


@pytest.fixture(params=schemes)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    made.close()


# --- the log -------------------------------------------------------------------------------------------------------


def noise(lines: list[bytes]) -> bytes:
    return bytes(range(256)) * 20


def no_head(lines: list[bytes]) -> bytes:
    return b"".join(lines[2:])


def nothing(lines: list[bytes]) -> bytes:
    return b""


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("loss", [noise, no_head, nothing])
def test_a_daemon_goes_on_from_what_its_snapshot_holds_when_its_log_is_lost(
    tmp_path: Path, loss: Callable[[list[bytes]], bytes], checkpointed: bool
) -> None:
    with Daemon.open(tmp_path, checkpoint_every_s=None) as daemon:
        for number in range(6):
            daemon.push("q", item_id=f"i{number}")
        if checkpointed:
            daemon.checkpoint()
        for number in range(6, 9):
            daemon.push("q", item_id=f"i{number}")
    wal = tmp_path / "daemon" / "wal.jsonl"
    wal.write_bytes(loss(wal.read_bytes().splitlines(keepends=True)))
    # Behind the checkpoint, entries whose predecessors are lost still lead on from it.
    kept = [f"i{number}" for number in range(0 if not checkpointed else 9 if loss is no_head else 6)]
    for turn in (1, 2):
        with Daemon.open(tmp_path, checkpoint_every_s=None) as daemon:
            assert [item.id for item in daemon.items("q")] == kept
            assert daemon.seq >= 9
            kept.append(daemon.push("q", item_id=f"n{turn}"))
            if turn == 2:
                daemon.checkpoint()
    with Daemon.open(tmp_path, checkpoint_every_s=None) as daemon:
        assert [item.id for item in daemon.items("q")] == kept


@pytest.mark.parametrize("compacted", [False, True])
def test_the_snapshot_of_a_newer_model_is_refused_and_left_alone(tmp_path: Path, compacted: bool) -> None:
    with Daemon.open(tmp_path, checkpoint_every_s=None) as daemon:
        for number in range(5):
            daemon.push("q", number)
    newer = StoredSnapshot("daemon", 2, 4, digest(b'{"future":1}'), b'{"future":1}')
    with open_log(f"wal:{tmp_path}") as log:
        (log.checkpoint if compacted else log.save_snapshot)("daemon", newer)  # type: ignore[attr-defined]
    with pytest.raises(SnapshotTooNew):
        Daemon.open(tmp_path, checkpoint_every_s=None)
    with open_log(f"wal:{tmp_path}") as log:
        assert log.load_snapshot("daemon", "daemon") == newer


def test_without_file_descriptors_a_push_is_refused_and_the_next_is_not(
    disk: SimulatedDisk, opened: Callable[[], Daemon]
) -> None:
    daemon = opened()
    disk.fail("create", error=errno.EMFILE, persistent=True)
    disk.fail("open", error=errno.EMFILE, persistent=True)
    with pytest.raises(LogFailed):
        daemon.push("q", item_id="1")
    disk.heal()
    assert daemon.push("q", item_id="2") == "2"
    assert [item.id for item in daemon.items("q")] == ["2"]


# --- retries -------------------------------------------------------------------------------------------------------


def test_a_flush_whose_outcome_is_unknown_is_told_once_and_at_once(disk: SimulatedDisk, clock: Clock) -> None:
    lost: list[RunstateError] = []
    log = WalLog(PurePosixPath("/log"), options=WalOptions(flush_interval_ms=never_ms), disk=disk)
    with Daemon(log, checkpoint_every_s=None, clock=clock, on_lost=lost.append) as daemon:
        daemon.push("q", item_id="1")
        disk.capacity_bytes = 0
        with pytest.raises(LogFull):
            daemon.push("q", item_id="2")
        disk.capacity_bytes = None
        assert lost == []  # It takes more as soon as there is room.
        daemon.push("q", item_id="3")
        disk.fail("sync")
        with pytest.raises(AppendOutcomeUnknown):
            daemon.push("q", item_id="4")
        assert [error.code for error in lost] == [LogClosed.code]
        with pytest.raises(LogClosed):
            daemon.push("q", item_id="5")
        assert len(lost) == 1


def test_a_buffered_event_whose_flush_fails_is_told_with_the_next_decision(disk: SimulatedDisk, clock: Clock) -> None:
    lost: list[RunstateError] = []
    log = WalLog(PurePosixPath("/log"), options=WalOptions(flush_interval_ms=never_ms), disk=disk)
    daemon = Daemon(log, checkpoint_every_s=None, clock=clock, on_lost=lost.append)
    daemon.emit(e.Custom("n"))
    daemon.emit(e.Custom("n"), durable=False)
    disk.fail("sync")
    with pytest.raises(AppendOutcomeUnknown):
        log.flush()  # As the log does by itself, when nobody waits.
    with pytest.raises(LogClosed):
        daemon.emit(e.Custom("m"))
    assert len(lost) == 1
    with suppress(RunstateError):
        daemon.close()


def test_a_checkpoint_that_leaves_the_log_in_doubt_is_told(clock: Clock) -> None:
    tellings = 0
    for nth in count(1):
        lost: list[RunstateError] = []
        disk = SimulatedDisk()
        log = WalLog(PurePosixPath("/log"), options=WalOptions(flush_interval_ms=never_ms), disk=disk)
        with Daemon(log, checkpoint_every_s=None, clock=clock, on_lost=lost.append) as daemon:
            daemon.push("q", item_id="1")
            daemon.push("q", item_id="2")
            daemon.checkpoint()
            daemon.emit(e.Custom("n"))
            before = disk.calls["sync_directory"]
            disk.fail("sync_directory", nth=nth, persistent=True)
            with suppress(LogFailed):
                daemon.checkpoint()
            calls = disk.calls["sync_directory"] - before
            disk.heal()
            if calls < nth:
                break
            told = len(lost)
            try:
                daemon.push("q", item_id="3")
            except LogClosed:
                assert told == 1, nth
            else:
                assert told == 0, nth
            tellings += told
    assert tellings == 1


def test_a_closed_daemon_is_not_lost(tmp_path: Path) -> None:
    lost: list[RunstateError] = []
    daemon = Daemon.open(tmp_path / "d", on_lost=lost.append)
    daemon.close()
    with pytest.raises(LogClosed):
        daemon.push("q")
    assert lost == []


def test_only_what_a_worker_has_taken_is_dispatched(place: Place) -> None:
    daemon = place.open()
    daemon.push("q", item_id="1")
    daemon.push("q", item_id="2")
    daemon.worker("w", "q")
    other = daemon.worker("other", "q")
    seq = daemon.seq
    with pytest.raises(InvalidTransition, match="has not taken"):
        daemon.emit(e.WorkerItemDispatched("w", "1", "p"))
    assert other.take(pipeline_id="p") is not None
    for item_id in ("1", "2", "none"):
        with pytest.raises(InvalidTransition, match="has not taken"):
            daemon.emit(e.WorkerItemDispatched("w", item_id, "p"))
    assert other.take(pipeline_id="p") is None
    assert [record.type for record in daemon.events(after_seq=seq)] == ["queue:taken", "worker:item_dispatched"]
    workers = daemon.state.workers
    assert (workers["other"].dispatched, workers["w"].dispatched) == ({"1": "p"}, {})


def test_a_retry_does_not_make_what_is_buffered_look_durable(disk: SimulatedDisk, opened: Callable[[], Daemon]) -> None:
    daemon, old = opened(), e.Custom("old", event_id="c1")
    daemon.emit(old)
    daemon.emit(e.Custom("new"))
    daemon.checkpoint()  # From now on only its key is known.
    daemon.emit(e.QueuePushed("q", "1", None, 0), durable=False)
    daemon.emit(old, durable=False)
    before = disk.calls["sync"]
    assert [item.id for item in daemon.items("q")] == ["1"]
    assert disk.calls["sync"] > before


def test_a_retried_command_does_not_make_what_is_buffered_look_durable(
    disk: SimulatedDisk, opened: Callable[[], Daemon]
) -> None:
    daemon, old = opened(), e.Custom("old", event_id="c1")
    daemon.emit(old)
    daemon.emit(e.QueuePushed("q", "1", None, 0), durable=False)
    with daemon._lock:
        daemon._write([old])  # A decision whose events are all known.
    before = disk.calls["sync"]
    assert [item.id for item in daemon.items("q")] == ["1"]
    assert disk.calls["sync"] > before


def test_a_retry_gets_the_first_seq_while_it_is_on_its_way_stored_or_removed(opened: Callable[[], Daemon]) -> None:
    daemon, push = opened(), e.QueuePushed("q", "1", 1, 0, event_id="e1")
    first = daemon.emit(push, durable=False)
    assert daemon.emit(push) == first
    daemon.emit(e.Custom("x"))
    daemon.checkpoint()
    assert daemon.emit(push) == first
    assert len(daemon.items("q")) == 1


def test_a_push_that_is_sent_again_gets_the_same_id(place: Place) -> None:
    daemon = place.open()
    told = [daemon.push("q", 5, event_id="e1") for _ in range(3)]
    assert [item.id for item in daemon.items("q")] == list(dict.fromkeys(told))
    assert daemon.push("other", 5, event_id="e2") != told[0]


# --- workers -------------------------------------------------------------------------------------------------------


def test_a_worker_whose_start_was_not_stored_is_not_held_by_nobody(
    disk: SimulatedDisk, clock: Clock, opened: Callable[[], Daemon]
) -> None:
    daemon = opened()
    daemon.push("q", item_id="1")
    daemon.worker("w", "q", lease_s=5)
    assert daemon.take("w") is not None
    disk.fail("write", error=errno.ENOSPC)
    with pytest.raises(LogFull):
        daemon.worker("w", "q")
    disk.heal()
    clock.at += 100
    daemon._wake()
    until(lambda: daemon.items("q")[0].status == "failed")
    with daemon.worker("w", "q") as again:
        assert again.take() is not None


def test_an_event_cannot_give_a_worker_more_than_it_may_hold(place: Place) -> None:
    daemon = place.open()
    for item_id in "12":
        daemon.push("q", item_id=item_id)
    assert daemon.worker("w", "q").take() is not None
    with pytest.raises(InvalidTransition, match="as many items"):
        daemon.emit(e.QueueTaken("q", "2", "w"))


def test_what_a_worker_held_that_an_event_has_stopped_comes_to_whoever_waits(place: Place) -> None:
    daemon = place.open()
    daemon.push("q", item_id="1")
    assert daemon.worker("w", "q").take() is not None
    waiting = daemon.worker("v", "q")
    taken: list[Any] = []
    waiter = threading.Thread(target=lambda: taken.append(waiting.take(wait_s=20)))
    waiter.start()
    until(lambda: daemon._bells)
    daemon.emit(e.WorkerStopped("w"))
    waiter.join(10)
    assert [item.id for item in taken] == ["1"]


def test_a_worker_holds_items_of_one_id_in_two_queues(place: Place) -> None:
    daemon = place.open()
    for queue in ("q1", "q2"):
        daemon.push(queue, item_id="1")
    worker = daemon.worker("w", "q1", concurrency=2)
    assert worker.take() is not None
    daemon.emit(e.WorkerStarted("w", "", "", "q2", 2))
    assert daemon.take("w", lease=worker.lease) is not None
    daemon.stop_worker("w")
    assert [daemon.items(queue)[0].status for queue in ("q1", "q2")] == ["pending", "pending"]
    assert daemon.worker("v", "q1").take() is not None


def test_no_wait_is_too_long_for_the_platform(place: Place) -> None:
    daemon = place.open()
    worker = daemon.worker("w", "q", lease_s=1e10)
    taken: list[Any] = []
    waiter = threading.Thread(target=lambda: taken.append(worker.take(wait_s=1e10)))
    waiter.start()
    until(lambda: daemon._bells)
    daemon._wake()
    daemon.push("q", item_id="1")
    waiter.join(10)
    assert [item.id for item in taken] == ["1"]
    assert daemon._housekeeper.is_alive()


@pytest.mark.parametrize("lease_s", [0.0, -1.0, float("nan")])
def test_a_lease_that_is_no_time_is_refused(place: Place, lease_s: float) -> None:
    daemon = place.open()
    with pytest.raises(ValueError, match="lease_s"):
        daemon.worker("w", "q", lease_s=lease_s)
    with pytest.raises(ValueError, match="lease_s"):
        Daemon(open_log("memory:"), lease_s=lease_s)


# --- the socket ----------------------------------------------------------------------------------------------------


@pytest.fixture
def server(clock: Clock) -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(prefix="rs-") as short,
        Daemon.open(Path(short) / "d", checkpoint_every_s=None, clock=clock) as daemon,
        Server(daemon, Path(short) / "s") as made,
    ):
        yield made


def test_a_remote_worker_whose_lease_ran_out_does_not_complete_for_its_successor(server: Server, clock: Clock) -> None:
    with Client(server.path) as first, Client(server.path) as second:
        first.push("q", item_id="1")
        late = first.worker("w", "q", lease_s=5)
        assert late.take() is not None
        clock.at += 100
        heir = second.worker("w", "q", lease_s=5)
        assert heir.take(wait_s=20) is not None
        for act in (lambda: late.complete("1"), lambda: late.fail("1", "no"), late.take):
            with pytest.raises(InvalidTransition, match="gone"):
                act()
        heir.complete("1")
        assert second.items("q") == []


def test_a_lease_that_is_no_time_is_refused_over_the_socket(server: Server) -> None:
    with Client(server.path) as client, pytest.raises(RequestRefused, match="lease_s"):
        client.worker("w", "q", lease_s=-1)


class Alarm(Exception):
    """An interrupt, as a signal's handler may raise it."""


def test_a_client_that_was_interrupted_never_takes_an_answer_for_another(server: Server) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Client(server.path) as client:
            worker = client.worker("w", "q")
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Alarm):
                worker.take(wait_s=20)
            with pytest.raises(DaemonAway):
                client.push("q", item_id="1")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_push_that_is_too_large_is_refused_and_the_connection_goes_on(server: Server) -> None:
    with Client(server.path) as client:
        with pytest.raises(RequestRefused, match="longer than") as refused:
            client.push("q", "x" * 30_000_000)
        assert not refused.value.retryable
        assert client.seq == 0


def test_data_that_readers_would_read_differently_is_refused(server: Server) -> None:
    with socket.socket(socket.AF_UNIX) as bare, Client(server.path) as client:
        bare.connect(str(server.path))
        bare.sendall(b'{"op":"push","queue":"q","data":{"a":1,"a":2}}\n')
        answer = json.loads(bare.makefile("rb").readline())
        assert answer["error"]["code"] == InvalidJson.code
        assert client.items("q") == []
        client.push("q", {"a": [1.5, None, "ü"]}, item_id="1")
        assert client.items("q")[0].data == {"a": [1.5, None, "ü"]}
