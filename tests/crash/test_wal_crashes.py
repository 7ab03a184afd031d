"""Every disk that a crash can leave of a WAL: nothing acknowledged is lost, no seq comes twice, the stream goes on."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import count, pairwise
from pathlib import PurePosixPath
from typing import Literal

import msgspec
import pytest

from runstate.conformance.notes import note, notes
from runstate.conformance.simulated_disk import Operation, SimulatedDisk, every_crash, every_kill
from runstate.errors import AppendOutcomeUnknown, LogClosed, LogFailed, LogFull, StreamNotFound
from runstate.logs.log import Record, StoredSnapshot
from runstate.logs.wal import WalLog, compaction
from runstate.logs.wal.archive import segments
from runstate.logs.wal.entries import proven_entry
from runstate.logs.wal.files import StreamFiles
from runstate.logs.wal.ledger import Ledger, read_ledger, reserve_step
from runstate.logs.wal.options import WalOptions
from runstate.logs.wal.writer import Writer
from runstate.models.canonical import digest
from runstate.storage.disk import File

root = PurePosixPath("/streams")
wal = root / "s" / "wal.jsonl"
sent = [f"k{number}" for number in range(5)]
History = Literal["drop", "archive"]
each_history = pytest.mark.parametrize("history", ["drop", "archive"])


def opened(disk: SimulatedDisk, history: History = "drop") -> WalLog:
    return WalLog(root, options=WalOptions(history=history), disk=disk)


def state(log: WalLog) -> list[str]:
    """The keys of all events, from the snapshot and the entries behind it: what any model would fold."""
    kept = log.load_snapshot("s", "notes")
    keys: list[str] = [] if kept is None else msgspec.json.decode(kept.body)
    return keys + [record.key for record in log.read("s", after_seq=0 if kept is None else kept.seq)]


def checkpoint(log: WalLog) -> None:
    info = log.stream("s")
    assert info is not None
    body = msgspec.json.encode(state(log))
    log.checkpoint("s", StoredSnapshot("notes", 1, info.last_seq, digest(body), body))


def work(batches: list[list[str]], history: History, *, checkpoints: bool) -> Callable[[SimulatedDisk], Iterator[str]]:
    def scenario(disk: SimulatedDisk) -> Iterator[str]:
        log = opened(disk, history)
        for batch in batches:
            log.append("s", notes(*batch))
            yield from batch
            if checkpoints:
                checkpoint(log)
        log.close()

    return scenario


def has_zeros(disk: SimulatedDisk) -> bool:
    """Whether the WAL hides what stood somewhere, and with it how far the seqs have come. A newline hides nothing."""
    data = disk.tree().get(wal) or b""
    is_newline = data.count(b"\0") == 1 and proven_entry(data.rpartition(b"\n")[2].removesuffix(b"\0")) is not None
    return b"\0" in data and not is_newline


def check_recovered(disk: SimulatedDisk, history: History, acknowledged: tuple[str, ...], during: str) -> list[str]:
    """What a crash left is right before recovery and after it, and the stream goes on. Its state before that."""
    ledger = read_ledger(disk, StreamFiles(root, "s")) or Ledger()
    zeros = has_zeros(disk)
    log = opened(disk, history)
    seen, found = state(log), log.stream("s")
    assert seen == sent[: len(seen)], during
    assert len(seen) >= len(acknowledged), during
    assert [finding for finding in log.verify() if finding.severity == "damage"] == [], during
    (result,) = log.append("s", notes("after"))
    recovered = state(log)
    # Recovery may find one entry more: a whole one that lacked its newline.
    assert recovered[:-1] in (seen, sent[: len(seen) + 1]), during
    assert result.persisted, during
    last_seq, is_salvaged = 0 if found is None else found.last_seq, recovered[:-1] != seen
    if zeros and not is_salvaged:
        # What stood there may have been acknowledged. The end tells up to where, unless it is hidden itself.
        assert result.seq in (ledger.reserved + 1, *range(last_seq + 2, last_seq + 5)), during
    else:
        assert result.seq == (last_seq + is_salvaged + 1 if ledger.floor_seq else len(recovered)), during
    assert log.append("s", notes("after"))[0].seq == result.seq, during
    info = log.stream("s")
    assert info is not None
    assert (info.last_seq, info.events) == (result.seq, len(recovered)), during
    checkpoint(log)
    assert state(log) == recovered, during
    if history == "archive":
        assert [record.key for record in log.read("s")] == recovered, during
        assert zeros or ledger.floor_seq or log.read("s")[-1].seq == len(recovered), during
        spans = segments(disk, StreamFiles(root, "s"))
        assert all(left.last_seq + 1 == right.first_seq for left, right in pairwise(spans)), during
    log.close()
    return seen


def check_lasting(disk: SimulatedDisk, history: History, during: str) -> None:
    """What a log holds now is there after the next power cut too, and so is every seq."""
    log = opened(disk, history)
    held, info = state(log), log.stream("s")
    for crashed in disk.crash_states(states_max=8):
        log = opened(crashed, history)
        assert (state(log), log.stream("s")) == (held, info), during
        assert list(log.verify()) == [], during


@pytest.mark.slow
@each_history
def test_every_crash_of_appends_with_a_checkpoint_after_each_is_recovered(history: History) -> None:
    scenario = work([[key] for key in sent[:3]], history, checkpoints=True)
    for number, crash in enumerate(every_crash(scenario, states_max=200)):
        check_recovered(crash.disk, history, crash.acknowledged, crash.during)
        if number % 29 == 0:
            check_lasting(crash.disk, history, crash.during)


@each_history
def test_every_kill_of_appends_and_checkpoints_is_recovered(history: History) -> None:
    for crash in every_kill(work([[key] for key in sent[:3]], history, checkpoints=True)):
        check_recovered(crash.disk, history, crash.acknowledged, crash.during)
        check_lasting(crash.disk, history, crash.during)


# --- several events in one append ----------------------------------------------------------------------------------

batches = [sent[:2], sent[2:3], sent[3:]]
whole_batches = [0, 2, 3, 5]


@pytest.mark.slow
def test_a_power_cut_leaves_an_append_of_several_events_whole_or_not_at_all() -> None:
    for crash in every_crash(work(batches, "drop", checkpoints=False), states_max=300):
        seen = check_recovered(crash.disk, "drop", crash.acknowledged, crash.during)
        assert len(seen) in whole_batches, crash.during
        assert len(state(opened(crash.disk))) - 1 in whole_batches, crash.during


def test_a_kill_at_any_byte_leaves_an_append_of_several_events_whole_or_not_at_all() -> None:
    for crash in every_kill(work(batches, "drop", checkpoints=False), SimulatedDisk(write_bytes_max=37)):
        seen = check_recovered(crash.disk, "drop", crash.acknowledged, crash.during)
        assert len(seen) in whole_batches, crash.during
        check_lasting(crash.disk, "drop", crash.during)


# --- one flush of many appends -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_torn_flush_of_many_appends_loses_no_acknowledged_one_and_is_no_damage() -> None:
    many = [f"k{number}" for number in range(60)]

    def scenario(disk: SimulatedDisk) -> Iterator[str]:
        log = WalLog(root, options=WalOptions(flush_interval_ms=60_000, flush_entries=1000), disk=disk)
        for keys in (many[:20], many[20:40], many[40:]):
            tickets = [log.append_buffered("s", notes(key)) for key in keys]
            tickets[-1].wait()
            yield from keys
        log.close()

    for crash in every_crash(scenario, states_max=300):
        log = opened(crash.disk)
        seen = state(log)
        assert seen == many[: len(seen)], crash.during
        assert len(seen) >= len(crash.acknowledged), crash.during
        assert [finding for finding in log.verify() if finding.severity == "damage"] == [], crash.during
        is_hidden = has_zeros(crash.disk)
        seq = log.append("s", notes("after"))[0].seq
        if is_hidden and len(log.read("s")) == len(seen) + 1:
            assert seq > 20 * (len(seen) // 20 + 1), crash.during  # None of the flush that was torn.
        else:
            assert seq in (len(seen) + 1, len(seen) + 2), crash.during
        assert not crash.disk.exists(wal.with_name("wal.jsonl.bak")), crash.during
        log.close()


# --- a crash of the recovery from a crash --------------------------------------------------------------------------


def torn_disks() -> list[SimulatedDisk]:
    """Disks whose last entry is torn in different ways, of a stream with two acknowledged events."""
    found: dict[bytes, SimulatedDisk] = {}
    for crash in every_crash(work([[key] for key in sent[:3]], "drop", checkpoints=False), states_max=300):
        data = crash.disk.tree().get(wal) or b""
        if data.count(b"\n") >= 2 and len(crash.acknowledged) == 2 and (not data.endswith(b"}\n") or b"\0" in data):
            found[data] = crash.disk
    disks = list(found.values())
    return disks[:: max(1, len(disks) // 6)]


def damaged_disk(offset: int) -> SimulatedDisk:
    """A disk with five acknowledged events, of which one has a flipped bit."""
    disk = SimulatedDisk()
    log = opened(disk)
    for key in sent:
        log.append("s", notes(key))
    log.close()
    data = disk.read(wal)
    disk.flip_bit(wal, data.index(b'"k2"') + offset, 0)
    return disk


@pytest.mark.slow
def test_every_crash_of_a_recovery_is_recovered() -> None:
    disks = torn_disks()
    assert len(disks) > 5

    def recover(disk: SimulatedDisk) -> Iterator[str]:
        log = opened(disk)
        yield from sent[:2]
        log.append("s", notes(sent[2]))
        yield sent[2]

    for disk in disks:
        for crash in every_crash(recover, disk.killed(), states_max=60):
            check_recovered(crash.disk, "drop", crash.acknowledged, crash.during)


@pytest.mark.slow
def test_every_crash_of_a_rotation_keeps_the_entries_before_the_damage_and_the_evidence() -> None:
    start = damaged_disk(1)
    damaged = start.read(wal)

    def rotate(disk: SimulatedDisk) -> Iterator[int]:
        log = opened(disk)
        yield log.append("s", notes("new"))[0].seq
        log.close()

    for crash in every_crash(rotate, start.killed(), states_max=300):
        log = opened(crash.disk)
        is_hidden = has_zeros(crash.disk)
        first, second = log.append("s", notes("new", "newer"))
        # The three behind the damage are gone from the WAL, and their seqs are never used again.
        assert (first.seq == 6) == (first.idempotent or not is_hidden), crash.during
        assert second.seq == first.seq + 1, crash.during
        assert [record.key for record in log.read("s")] == ["k0", "k1", "new", "newer"], crash.during
        assert crash.disk.read(wal.with_name("wal.jsonl.bak")) == damaged, crash.during
        assert not crash.disk.exists(wal.with_name("wal.jsonl.bak.2")), crash.during
        assert list(log.verify()) == [], crash.during
        log.close()


@pytest.mark.slow
def test_every_crash_of_a_crashed_rotation_is_recovered() -> None:
    def rotate(disk: SimulatedDisk) -> Iterator[int]:
        yield opened(disk).append("s", notes("new"))[0].seq

    crashes = list(every_crash(rotate, damaged_disk(1).killed(), states_max=40))
    for first in crashes[:: max(1, len(crashes) // 12)]:
        for crash in every_crash(rotate, first.disk.killed(), states_max=20):
            is_hidden = has_zeros(crash.disk) or has_zeros(first.disk)
            log = opened(crash.disk)
            assert log.append("s", notes("new"))[0].seq == 6 or is_hidden, crash.during
            assert [record.key for record in log.read("s")] == ["k0", "k1", "new"], crash.during
            assert crash.disk.exists(wal.with_name("wal.jsonl.bak")), crash.during
            assert not crash.disk.exists(wal.with_name("wal.jsonl.bak.2")), crash.during


def test_a_torn_tail_is_kept_beside_the_file_and_told() -> None:
    for disk in torn_disks():
        before = disk.read(wal)
        log = opened(disk)
        log.append("s", notes("after"))
        (told,) = log.recoveries
        assert (told.code, told.severity, told.stream) == ("log.torn_tail", "warning", "s")
        assert before[told.details["offset"] :] == disk.read(wal.with_name("wal.jsonl.torn"))


# --- calls that fail -----------------------------------------------------------------------------------------------

operations: list[Operation] = [
    "open", "create", "read", "write", "truncate", "sync", "names", "rename", "remove", "make_directory",
    "sync_directory", "lock",
]  # fmt: skip


def attempt(log: WalLog) -> dict[str, int]:
    """Send everything, whatever fails; the seqs that were acknowledged."""
    told: dict[str, int] = {}
    for batch in batches:
        try:
            results = log.append("s", notes(*batch))
            told |= {key: result.seq for key, result in zip(batch, results, strict=True)}
            checkpoint(log)
        except (LogFailed, LogFull, LogClosed, AppendOutcomeUnknown, StreamNotFound):
            continue
    return told


@pytest.mark.slow
@each_history
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failure_of_any_call_loses_nothing_and_the_stream_goes_on(
    persistent: bool, error: int, history: History
) -> None:
    for operation in operations:
        for nth in count(1):
            disk = SimulatedDisk()
            log = opened(disk, history)
            before = disk.calls[operation]
            disk.fail(operation, nth=nth, error=error, persistent=persistent)
            told = attempt(log)
            if disk.calls[operation] - before < nth:
                break
            during = f"{operation} {nth}"
            disk.heal()
            log.close()
            log = opened(disk, history)
            assert [key for key in told if key not in state(log)] == [], during
            again = attempt(log)
            assert sorted(again) == sent, during
            assert {key: seq for key, seq in again.items() if told.get(key, seq) != seq} == {}, during
            assert sorted(state(log)) == sent, during
            log.close()
            for crashed in disk.crash_states(states_max=8):
                survivor = opened(crashed, history)
                assert sorted(state(survivor)) == sent, during
                assert list(survivor.verify()) == [], during


def test_a_failed_flush_refuses_everything_until_the_log_is_opened_again() -> None:
    disk = SimulatedDisk()
    log = WalLog(root, options=WalOptions(flush_interval_ms=60_000), disk=disk)
    log.append("s", notes("k0"))
    tickets = [log.append_buffered("s", notes("k1")), log.append_buffered("s", notes("k2"))]
    disk.fail("sync")
    for ticket in tickets:
        with pytest.raises(AppendOutcomeUnknown):
            ticket.wait()
    with pytest.raises(LogClosed):
        log.append("s", notes("k3"))
    log.close()
    heir = opened(disk.killed())  # Killed now: its page cache still holds the entries.
    assert heir.append("s", notes("k1"))[0].seq == 2
    heir.close()
    survivors = list(heir._disk.crash_states())  # type: ignore[attr-defined]
    assert [state(opened(survivor)) for survivor in survivors] == [["k0", "k1"]] * len(survivors)


def test_a_full_disk_refuses_and_takes_more_once_there_is_room() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    log.append("s", notes("k0"))
    used = sum(len(data or b"") for data in disk.tree().values())
    for room in (0, 1, 50, 100):
        disk.capacity_bytes = used + room
        with pytest.raises(LogFull):
            log.append("s", notes("k1"))
        assert state(log) == ["k0"]
    disk.capacity_bytes = None
    assert log.append("s", notes("k1"))[0].seq == 2
    assert log.recoveries == []
    assert list(log.verify()) == []


@pytest.mark.parametrize("room", [0, 40, 400, 700])
def test_a_disk_that_is_full_in_mid_checkpoint_removes_nothing_and_lets_writers_go_on(room: int) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    for key in sent[:4]:
        log.append("s", notes(key))
    checkpoint(log)
    before = disk.read(wal)
    disk.capacity_bytes = sum(len(data or b"") for data in disk.tree().values()) + room
    with pytest.raises(LogFull):
        checkpoint(log)
    assert disk.read(wal) == before
    disk.capacity_bytes = None
    assert log.append("s", notes(sent[4]))[0].seq == 5
    assert state(log) == sent
    for _ in range(2):
        checkpoint(log)
        assert state(log) == sent
    assert disk.read(wal).count(b"\n") == 1


def test_what_is_appended_right_after_a_compaction_outlives_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    log.append("s", notes("k0", "k1"))
    checkpoint(log)
    amend = Writer.amend_ledger
    crashed: list[SimulatedDisk] = []

    def append_first(writer: Writer, **changes: object) -> None:
        if changes == {"swapping": False}:
            log.append("s", notes("k2"))
            crashed.extend(disk.crash_states())
        amend(writer, **changes)

    monkeypatch.setattr(Writer, "amend_ledger", append_first)
    checkpoint(log)
    monkeypatch.undo()
    assert len(crashed) > 0
    assert [state(opened(survivor)) for survivor in crashed] == [sent[:3]] * len(crashed)


def test_what_is_appended_while_entries_are_copied_is_copied_too(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    log.append("s", notes("k0", "k1"))
    checkpoint(log)
    claimed = Writer.claimed

    def append_first(writer: Writer) -> AbstractContextManager[None]:
        log.append("s", notes("k2"))
        return claimed(writer)

    monkeypatch.setattr(Writer, "claimed", append_first)
    checkpoint(log)
    monkeypatch.undo()
    log.append("s", notes("k3"))
    assert state(log) == sent[:4]
    log.close()
    assert state(opened(disk)) == sent[:4]
    assert list(opened(disk).verify()) == []


def test_a_wal_whose_new_name_could_not_be_flushed_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for nth in count(1):
        disk = SimulatedDisk()
        log = opened(disk)
        log.append("s", notes("k0", "k1"))
        checkpoint(log)
        before = disk.calls["sync_directory"]
        disk.fail("sync_directory", nth=nth, persistent=True)
        with suppress(LogFailed):
            checkpoint(log)
        if disk.calls["sync_directory"] - before < nth:
            break
        disk.heal()
        log.close()
        with opened(disk) as heir:
            heir.append("s", notes("k2"))
        for crashed in disk.crash_states():
            assert state(opened(crashed)) == sent[:3], nth


def test_zeros_in_front_of_a_later_flush_are_damage_and_no_torn_write() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    for key in sent:
        log.append("s", notes(key))
    left = disk.killed()
    data = left.read(wal)
    lines = data.splitlines(keepends=True)
    zeroed = b"".join([*lines[:2], b"\0" * len(lines[2]), *lines[3:]])
    with left.open(wal) as file:
        file.truncate(0)
        file.append(zeroed)
    heir = opened(left)
    assert [finding.code for finding in heir.verify("s") if finding.severity == "damage"] == ["log.entry_damaged"]
    assert heir.append("s", notes("new"))[0].seq == 6
    assert left.read(wal.with_name("wal.jsonl.bak")) == zeroed


def test_zeros_in_place_of_an_acknowledged_flush_bring_no_seq_back() -> None:
    for hidden in range(1, 4):
        disk = SimulatedDisk()
        log = WalLog(root, options=WalOptions(flush_interval_ms=60_000), disk=disk)
        log.append("s", notes("k0"))
        tickets = [log.append_buffered("s", notes(key)) for key in sent[1:4]]
        tickets[-1].wait()
        left = disk.killed()
        lines = left.read(wal).splitlines(keepends=True)
        zeroed = b"".join([*lines[:-hidden], bytes(sum(map(len, lines[-hidden:])))])
        with left.open(wal) as file:
            file.truncate(0)
            file.append(zeroed)
            file.sync()

        def recover(disk: SimulatedDisk) -> Iterator[int]:
            log = opened(disk)
            yield log.append("s", notes("new"))[0].seq
            log.close()

        for crash in every_crash(recover, left.killed(), states_max=40):
            heir = opened(crash.disk)
            (result,) = heir.append("s", notes("new"))
            assert result.seq > tickets[-1].seq, crash.during
            assert [record.key for record in heir.read("s")] == [*sent[: 4 - hidden], "new"], crash.during
            assert list(heir.verify()) == [], crash.during
            heir.close()


def test_what_a_kill_leaves_of_a_flush_makes_no_gap() -> None:
    for kill in every_kill(work([["k0"], ["k1"]], "drop", checkpoints=False), SimulatedDisk(write_bytes_max=37)):
        heir = opened(kill.disk)
        heir.append("s", notes("new"))
        assert [record.seq for record in heir.read("s")] == list(range(1, len(heir.read("s")) + 1)), kill.during
        heir.close()


def test_what_a_killed_writer_left_unflushed_is_durable_before_a_retry_is_told_so() -> None:
    left = [kill.disk for kill in every_kill(work([["k0"], ["k1"]], "drop", checkpoints=False))]
    for disk in left:
        heir = opened(disk)
        if heir.stream("s") is not None and state(heir) == sent[:2]:
            assert heir.append("s", notes("k1"))[0].idempotent
            assert all(state(opened(crashed)) == sent[:2] for crashed in disk.crash_states())
        heir.close()


# --- deleting --------------------------------------------------------------------------------------------------------


def test_every_crash_of_a_deletion_leaves_the_whole_stream_or_none() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    log.append("s", [note("k0"), note("k1")])
    log.append("other", [note("k0")])
    log.close()

    def delete(disk: SimulatedDisk) -> Iterator[str]:
        opened(disk).delete_stream("s")
        yield "deleted"

    for crash in every_crash(delete, disk.killed(), states_max=300):
        log = opened(crash.disk)
        assert state(log) in ([] if crash.acknowledged else ["k0", "k1"], []), crash.during
        assert [info.stream for info in log.streams()] in (["other", "s"], ["other"]), crash.during
        log.append("s", [note("new")])
        log.delete_stream("other")
        assert [name for name in crash.disk.names(root) if name.startswith(".deleted")] == []
        log.close()


def adopting(records: list[Record]) -> Callable[[SimulatedDisk], Iterator[str]]:
    """A copy in two stretches, and an append of this log's own behind it."""

    def scenario(disk: SimulatedDisk) -> Iterator[str]:
        log = opened(disk)
        for first in (0, 2):
            log.adopt("s", records[first : first + 3])
            yield from sent[first : first + 3]
        log.append("s", notes("own"))
        yield "own"
        log.close()

    return scenario


def test_a_copy_that_a_power_cut_ended_is_finished_by_the_next_one() -> None:
    source = opened(SimulatedDisk())
    source.append("s", notes(*sent))
    records, hidden = source.read("s"), 0
    for crash in every_crash(adopting(records), states_max=300):
        hidden += has_zeros(crash.disk)
        is_own = "own" in crash.acknowledged
        log = opened(crash.disk)
        log.adopt("s", records)
        held = log.read("s")
        assert held[:5] == records, crash.during
        assert [record.key for record in held[5:]] in ([["own"]] if is_own else [[], ["own"]]), crash.during
        (result,) = log.append("s", notes("own"))
        # Its own seqs are given out once: behind zeros that may hide one, it goes on behind all that were reserved.
        assert result.seq == 6 or result.seq > 6 + reserve_step, crash.during
        assert [finding for finding in log.verify() if finding.severity == "damage"] == [], crash.during
        log.close()
    assert hidden, "no crash left zeros, and the case in question was not met"


def test_what_is_appended_while_a_checkpoint_copies_the_wal_survives_a_power_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scenario(disk: SimulatedDisk) -> Iterator[str]:
        log, copy = opened(disk), compaction._copied
        for key in sent[:3]:
            log.append("s", notes(key))
            yield key
            if key != "k2":
                checkpoint(log)

        def copy_and_append(file: File, start: int, end: int, target: File) -> int:
            copied = copy(file, start, end, target)
            monkeypatch.setattr(compaction, "_copied", copy)
            log.append("s", notes("k3"))
            return copied

        monkeypatch.setattr(compaction, "_copied", copy_and_append)
        checkpoint(log)
        yield "k3"
        log.close()

    met = 0
    for crash in every_crash(scenario, states_max=300):
        seen = state(opened(crash.disk))
        assert seen == sent[: len(seen)], crash.during
        assert len(seen) >= len(crash.acknowledged), crash.during
        met += "k3" in crash.acknowledged
    assert met
