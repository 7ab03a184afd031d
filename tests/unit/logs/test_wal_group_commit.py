"""Group commit: when a flush happens, who shares it, and what its failure means to whom."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePosixPath
from time import monotonic, sleep

import msgspec
import pytest

from runstate.conformance.notes import keys, note, notes, numbered
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.conformance.threads import race_all
from runstate.errors import AppendOutcomeUnknown, LogClosed, LogFailed, LogFull, SequenceConflict
from runstate.logs.wal import Ticket, WalLog
from runstate.logs.wal.options import WalOptions
from runstate.models.model import Draft

root = PurePosixPath("/streams")
never_ms = 60_000.0


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> Iterator[WalLog]:
    """A log that flushes by itself only when 100 entries have gathered."""
    log = WalLog(root, options=WalOptions(flush_interval_ms=never_ms), disk=disk)
    log.append("s", notes("first"))
    yield log
    log.close()


def wait_until_done(*tickets: Ticket) -> None:
    """Bounded, and without asking for a flush."""
    deadline = monotonic() + 20
    while not all(ticket.is_done for ticket in tickets):
        assert monotonic() < deadline, "nobody flushed"
        sleep(0.001)


def test_a_buffered_append_knows_its_seqs_at_once_and_is_not_yet_durable(log: WalLog, disk: SimulatedDisk) -> None:
    before = disk.calls["sync"]
    ticket = log.append_buffered("s", notes("a", "b"))
    assert [result.seq for result in ticket.results] == [2, 3]
    assert (ticket.seq, ticket.is_done) == (3, False)
    assert (disk.calls["sync"], len(log.read("s"))) == (before, 1)
    assert (log.known("s", "a"), log.find("s", "a")) == (2, None)
    assert ticket.wait() == ticket.results
    assert (disk.calls["sync"], len(log.read("s"))) == (before + 1, 3)


def test_one_flush_covers_everything_that_is_buffered(log: WalLog, disk: SimulatedDisk) -> None:
    before = disk.calls["sync"]
    tickets = [log.append_buffered("s", [draft]) for draft in numbered(50)]
    log.flush("s")
    assert all(ticket.is_done for ticket in tickets)
    assert disk.calls["sync"] == before + 1
    log.flush()
    assert disk.calls["sync"] == before + 1, "there was nothing to flush"


def test_enough_entries_are_flushed_though_nobody_waits(log: WalLog) -> None:
    tickets = [log.append_buffered("s", [draft]) for draft in numbered(100)]
    wait_until_done(*tickets)
    assert len(log.read("s")) == 101


def test_the_interval_is_enough_too(disk: SimulatedDisk) -> None:
    with WalLog(root, options=WalOptions(flush_interval_ms=1, flush_entries=1000), disk=disk) as log:
        for number in range(3):
            wait_until_done(log.append_buffered("s", notes(f"k{number}")))


def test_a_lone_caller_does_not_wait_for_the_interval(log: WalLog) -> None:
    started = monotonic()
    for number in range(20):
        log.append("s", notes(f"k{number}"))
        log.append_buffered("s", notes(f"b{number}")).wait()
    assert monotonic() - started < never_ms / 1000 / 2


def test_callers_that_wait_share_flushes(log: WalLog, disk: SimulatedDisk) -> None:
    first_sync, more = threading.Event(), threading.Event()

    def observe(phase: str, operation: str, what: str) -> None:
        if (phase, operation) == ("before", "sync") and not first_sync.is_set():
            first_sync.set()
            assert more.wait(20)

    disk.observer = observe
    before = disk.calls["sync"]
    leader = threading.Thread(target=log.append, args=("s", notes("leader")))
    leader.start()
    assert first_sync.wait(20)
    tickets = [log.append_buffered("s", notes(f"k{number}")) for number in range(30)]
    waiters = [threading.Thread(target=ticket.wait) for ticket in tickets]
    for waiter in waiters:
        waiter.start()
    more.set()
    for thread in [leader, *waiters]:
        thread.join(20)
        assert not thread.is_alive()
    assert disk.calls["sync"] == before + 2


def test_a_wait_that_takes_too_long_ends_and_the_append_goes_on(log: WalLog, disk: SimulatedDisk) -> None:
    is_syncing, more = threading.Event(), threading.Event()

    def observe(phase: str, operation: str, what: str) -> None:
        if (phase, operation) == ("before", "sync"):
            is_syncing.set()
            assert more.wait(20)

    disk.observer = observe
    leader = threading.Thread(target=log.append, args=("s", notes("leader")))
    leader.start()
    assert is_syncing.wait(20)
    ticket = log.append_buffered("s", notes("a"))
    with pytest.raises(TimeoutError):
        ticket.wait(timeout=0.01)
    more.set()
    leader.join(20)
    assert ticket.wait()[0].seq == 3


def test_several_may_wait_for_one_ticket(log: WalLog) -> None:
    ticket = log.append_buffered("s", notes("a"))
    assert race_all([ticket.wait] * 8) == [ticket.results] * 8


def test_a_retry_of_what_is_buffered_stands_and_falls_with_it(log: WalLog, disk: SimulatedDisk) -> None:
    first = log.append_buffered("s", notes("a"))
    again = log.append_buffered("s", [note("a", "other")])
    assert (again.results[0].seq, again.results[0].idempotent, again.results[0].mismatch) == (2, True, True)
    assert not again.is_done
    disk.fail("sync")
    for ticket in (first, again):
        with pytest.raises(AppendOutcomeUnknown):
            ticket.wait()


def test_an_expected_seq_counts_what_is_buffered(log: WalLog) -> None:
    log.append_buffered("s", notes("a", "b"))
    with pytest.raises(SequenceConflict):
        log.append_buffered("s", notes("c"), expected_seq=1)
    assert log.append("s", notes("c"), expected_seq=3)[0].seq == 4


def test_a_failed_flush_fails_every_ticket_and_poisons_the_stream(log: WalLog, disk: SimulatedDisk) -> None:
    tickets = [log.append_buffered("s", [draft]) for draft in numbered(10)]
    disk.fail("sync")
    for ticket in tickets:
        with pytest.raises(AppendOutcomeUnknown):
            ticket.wait()
    disk.heal()
    for call in (partial(log.append, "s", notes("x")), partial(log.append_buffered, "s", notes("x"))):
        with pytest.raises(LogClosed):
            call()
    assert log.append("other", notes("x"))[0].seq == 1
    assert len(log.read("s")) == 1
    log.close()
    with WalLog(root, disk=disk) as heir:
        assert [result.seq for result in heir.append("s", numbered(10))] == list(range(2, 12))


def test_a_failed_flush_fails_what_was_buffered_meanwhile_too(log: WalLog, disk: SimulatedDisk) -> None:
    later: list[Ticket] = []

    def observe(phase: str, operation: str, what: str) -> None:
        if (phase, operation) == ("before", "sync"):
            later.append(log.append_buffered("s", notes("later")))
            raise OSError(errno.EIO, "the disk is gone")

    disk.observer = observe
    with pytest.raises(AppendOutcomeUnknown):
        log.append("s", notes("a"))
    disk.observer = None
    (ticket,) = later
    with pytest.raises(AppendOutcomeUnknown):
        ticket.wait(timeout=20)


@pytest.mark.parametrize(("error", "kind"), [(errno.ENOSPC, LogFull), (errno.EIO, LogFailed)])
def test_a_write_that_was_taken_back_fails_its_tickets_and_nothing_more(
    log: WalLog, disk: SimulatedDisk, error: int, kind: type[Exception]
) -> None:
    tickets = [log.append_buffered("s", [draft]) for draft in numbered(10)]
    disk.fail("write", error=error)
    for ticket in tickets:
        with pytest.raises(kind):
            ticket.wait()
    assert log.append("s", notes("k3"))[0].seq == 2
    assert [record.key for record in log.read("s")] == ["first", "k3"]


def test_whoever_runs_ahead_of_the_disk_waits_for_it(disk: SimulatedDisk) -> None:
    with WalLog(root, options=WalOptions(flush_interval_ms=never_ms, flush_entries=2), disk=disk) as log:
        tickets = [log.append_buffered("s", [draft]) for draft in numbered(2000)]
        assert sum(not ticket.is_done for ticket in tickets) <= 2 * 32 + 1
        log.flush()
        assert [ticket.seq for ticket in tickets] == list(range(1, 2001))


def test_closing_flushes_what_is_buffered(log: WalLog, disk: SimulatedDisk) -> None:
    ticket = log.append_buffered("s", notes("a"))
    log.close()
    assert ticket.wait()[0].seq == 2
    with WalLog(root, disk=disk) as heir:
        assert len(heir.read("s")) == 2
    with pytest.raises(LogClosed):
        log.append_buffered("s", notes("b"))


def test_threads_that_buffer_wait_and_checkpoint_lose_nothing(disk: SimulatedDisk) -> None:
    from runstate.logs.log import StoredSnapshot
    from runstate.models.canonical import digest

    log = WalLog(root, options=WalOptions(flush_interval_ms=1, flush_entries=5, history="archive"), disk=disk)

    def write(number: int) -> list[tuple[str, int]]:
        told = []
        for turn in range(60):
            key = f"{number}-{turn}"
            ticket = log.append_buffered("s", notes(key))
            if turn % 3 == number % 3:
                ticket.wait()
            told.append((key, ticket.seq))
        return told

    def keep(number: int) -> list[tuple[str, int]]:
        for _ in range(15):
            info = log.stream("s")
            if info is not None and info.last_seq:
                log.checkpoint("s", StoredSnapshot("notes", 1, info.last_seq, digest(b"[]"), b"[]"))
        return []

    told = dict(
        pair for pairs in race_all([partial(write, n) for n in range(6)] + [partial(keep, 6)]) for pair in pairs
    )
    log.flush()
    assert {record.key: record.seq for record in log.read("s")} == told
    assert sorted(told.values()) == list(range(1, 361))
    assert list(log.verify()) == []
    log.close()


def broken(key: str) -> Draft:
    """A draft whose line nobody could read."""
    return msgspec.structs.replace(note(key), tail=b'"text":}')


@pytest.mark.parametrize("first", [[], ["a"]], ids=["one alone", "behind another"])
@pytest.mark.parametrize("is_buffered", [False, True], ids=["empty", "buffered"])
def test_a_refused_append_leaves_no_key_behind(log: WalLog, first: list[str], is_buffered: bool) -> None:
    if is_buffered:
        log.append_buffered("s", notes("before"))
    for append in (log.append_buffered, log.append):
        with pytest.raises(LogFailed):
            append("s", [*notes(*first), broken("b")])
    with pytest.raises(SequenceConflict):
        log.append_buffered("s", notes(*first, "b"), expected_seq=7)
    log.append("s", numbered(3))  # They take the places that were refused.
    log.append("s", notes(*first, "b"))
    assert keys(log.read("s"))[-len(first) - 1 :] == [*first, "b"]
    assert len(log.read("s")) == 5 + is_buffered + len(first)


def test_a_key_whose_flush_has_failed_is_new_again(log: WalLog, disk: SimulatedDisk) -> None:
    disk.fail("write", error=errno.ENOSPC)
    ticket = log.append_buffered("s", notes("a", "b"))
    with pytest.raises(LogFull):
        ticket.wait()
    assert log.known("s", "a") is None
    assert [(result.seq, result.idempotent) for result in log.append("s", notes("b", "a"))] == [(2, False), (3, False)]


class Interrupted(BaseException):
    """Raised by a signal's handler, as Python's own does for SIGINT."""


def test_who_is_interrupted_while_waiting_takes_its_append_back_and_leaves_nobody_waiting(log: WalLog) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    writer = log._writers.get("s")
    assert writer is not None
    others = ThreadPoolExecutor(8)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with writer.claimed():
            told = [others.submit(log.append, "s", notes(f"k{number}")) for number in range(4)]
            while len(writer._buffer.filling.jobs) < 4:
                sleep(0.001)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupted):
                log.append("s", notes("mine"))
            told += [others.submit(log.append, "s", notes(f"k{number}")) for number in range(4, 8)]
        assert sorted(future.result(20)[0].seq for future in told) == list(range(2, 10))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        others.shutdown()
    assert "mine" not in keys(log.read("s"))
