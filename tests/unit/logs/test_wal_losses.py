"""What a WAL does after a loss: what is gone is told apart from what a checkpoint removed, and repaired once."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import pytest

from runstate.conformance.notes import note, notes
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import AppendOutcomeUnknown, LogClosed, LogFailed, SnapshotTooNew
from runstate.logs.log import StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.logs.wal.options import WalOptions
from runstate.logs.wal.verify import verify_stream
from runstate.models.canonical import digest

root = PurePosixPath("/streams")


def snapshot(seq: int, version: int = 1) -> StoredSnapshot:
    return StoredSnapshot("daemon", version, seq, digest(b"[]"), b"[]")


def noise(lines: list[bytes]) -> bytes:
    return bytes(range(256)) * 20


def flipped_head(lines: list[bytes]) -> bytes:
    return b"".join([lines[0].replace(b"key", b"kez"), *lines[1:]])


def no_head(lines: list[bytes]) -> bytes:
    return b"".join(lines[2:])


def no_tail(lines: list[bytes]) -> bytes:
    return b"".join(lines[:2])


def nothing(lines: list[bytes]) -> bytes:
    return b""


losses = [noise, flipped_head, no_head, no_tail, nothing]


def left_behind(place: Path, *, compacted: bool) -> Path:
    with WalLog(place) as log:
        for number in range(1, 7):
            log.append("s", notes(f"k{number}"))
        for _ in range(2 if compacted else 0):  # A checkpoint removes the entries before the previous one.
            log.checkpoint("s", snapshot(3))
    return place / "s" / "wal.jsonl"


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("loss", losses)
def test_a_loss_is_found_then_repaired_and_the_stream_goes_on_from_its_snapshot(
    tmp_path: Path, loss: Callable[[list[bytes]], bytes], compacted: bool
) -> None:
    wal = left_behind(tmp_path, compacted=compacted)
    wal.write_bytes(loss(wal.read_bytes().splitlines(keepends=True)))
    start = 3 if compacted else 0
    with WalLog(tmp_path) as log:
        assert "damage" in {finding.severity for finding in log.verify()}
        assert log.repair("s")
        assert [finding.severity for finding in log.verify()] == []
        before = [record.key for record in log.read("s", after_seq=start)]
        assert log.append("s", notes("new"))[0].seq > 6
        assert [record.key for record in log.read("s", after_seq=start)] == [*before, "new"]
    with WalLog(tmp_path) as log:
        assert [finding.severity for finding in log.verify()] == []
        assert [record.key for record in log.read("s", after_seq=start)] == [*before, "new"]
        assert log.append("s", notes("newer"))[0].seq > 7


def test_a_wal_that_the_seeds_daemon_truncated_is_whole_and_one_that_lost_its_head_since_is_not(tmp_path: Path) -> None:
    wal = tmp_path / "s" / "wal.jsonl"
    wal.parent.mkdir()
    wal.write_bytes(b'{"seq":5,"event":{"type":"x"}}\n{"seq":6,"event":{"type":"y"}}\n')
    with WalLog(tmp_path) as log:
        assert log.append("s", [note("a", tenant=""), note("b", tenant="")])[1].seq == 8
        assert log.recoveries == list(log.verify()) == []
    wal.write_bytes(b"".join(wal.read_bytes().splitlines(keepends=True)[1:]))
    with WalLog(tmp_path) as log:
        assert [finding.code for finding in log.verify()] == ["log.out_of_order"]
        assert [finding.code for finding in log.recover("s")] == ["log.out_of_order"]
        assert log.append("s", [note("c", tenant="")])[0].seq == 9


def test_a_compaction_that_is_interrupted_behind_its_rename_acknowledges_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    log = WalLog(root, disk=disk)
    for number in range(1, 7):
        log.append("s", notes(f"k{number}"))
    rename = disk.rename

    def interrupted(source: PurePath, target: PurePath) -> None:
        rename(source, target)
        if target.name == "wal.jsonl":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", interrupted)
        log.checkpoint("s", snapshot(4))
        with pytest.raises(KeyboardInterrupt):
            log.checkpoint("s", snapshot(4))
    with pytest.raises((LogClosed, AppendOutcomeUnknown)):
        log.append("s", notes("lost"))
    log.close()
    with WalLog(root, disk=disk) as heir:
        assert heir.append("s", notes("kept"))[0].seq == 7
        assert [record.key for record in heir.read("s", after_seq=4)] == ["k5", "k6", "kept"]


def test_whoever_leaves_a_ticket_leaves_the_others_waiting_who_share_it() -> None:
    disk = SimulatedDisk()
    log = WalLog(root, options=WalOptions(flush_interval_ms=60_000.0), disk=disk)
    log.append("s", notes("first"))
    is_syncing, more = threading.Event(), threading.Event()

    def observe(phase: str, operation: str, what: str) -> None:
        if (phase, operation) == ("before", "sync"):
            is_syncing.set()
            assert more.wait(20)

    disk.observer = observe
    leader = threading.Thread(target=log.append, args=("s", notes("leader")), daemon=True)
    leader.start()
    assert is_syncing.wait(20)
    ticket = log.append_buffered("s", notes("shared"))
    waiters = [threading.Thread(target=ticket.wait, daemon=True) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    while len(ticket.outcome.waiters) < 3:  # Bounded by the leader, who gives up after 20 s.
        assert leader.is_alive()
    with pytest.raises(TimeoutError):
        ticket.wait(timeout=0.02)
    more.set()
    for thread in [leader, *waiters]:
        thread.join(20)
        assert not thread.is_alive()
    log.close()


@pytest.mark.parametrize("operation", ["create", "write"])
def test_a_ledger_that_cannot_be_written_refuses_the_append_and_nothing_more(operation: Any) -> None:
    disk = SimulatedDisk()
    log = WalLog(root, disk=disk)
    assert log.recover("s") == []
    disk.fail(operation, error=errno.EMFILE, persistent=True)
    disk.fail("open", error=errno.EMFILE, persistent=True)
    with pytest.raises(LogFailed):
        log.append("s", notes("a"))
    disk.heal()
    assert log.append("s", notes("b"))[0].seq == 1
    log.close()


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_checkpoint_never_replaces_the_snapshot_of_a_newer_model(tmp_path: Path, is_compacted: bool) -> None:
    left_behind(tmp_path, compacted=False)
    with WalLog(tmp_path) as log:
        (log.checkpoint if is_compacted else log.save_snapshot)("s", snapshot(4, version=2))
        with pytest.raises(SnapshotTooNew):
            log.checkpoint("s", snapshot(6))
        kept = log.load_snapshot("s", "daemon")
        assert kept is not None
        assert (kept.version, kept.seq) == (2, 4)
        assert log.read("s", after_seq=5)[0].key == "k6"


def test_verifying_beside_a_writer_takes_nothing_that_is_new_for_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(tmp_path, compacted=False)
    with WalLog(tmp_path) as writer, WalLog(tmp_path) as beside:

        def meanwhile(*arguments: Any) -> Any:
            writer.append("s", notes("meanwhile"))
            return verify_stream(*arguments)

        monkeypatch.setattr("runstate.logs.wal.log.verify_stream", meanwhile)
        assert list(beside.verify("s")) == []


def test_a_key_is_known_while_it_is_buffered_stored_or_removed(tmp_path: Path) -> None:
    with WalLog(tmp_path, options=WalOptions(flush_interval_ms=60_000.0)) as log:
        log.append_buffered("s", notes("a"))
        assert (log.known("s", "a"), log.known("s", "b")) == (1, None)
        log.append("s", notes("b"))
        assert (log.known("s", "a"), log.known("s", "b")) == (1, 2)
        for _ in range(2):
            log.checkpoint("s", snapshot(2))
            assert (log.known("s", "a"), log.known("s", "b")) == (1, 2)
