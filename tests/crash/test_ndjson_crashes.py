"""Every disk that a crash can leave of a run directory: nothing acknowledged is lost, and the run goes on."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import PurePosixPath
from typing import Any

import pytest

from runstate.conformance.notes import findings, keys, note, stored
from runstate.conformance.simulated_disk import Operation, SimulatedDisk, every_crash, every_kill
from runstate.errors import AppendOutcomeUnknown, LogFailed, LogFull, StreamNotFound
from runstate.logs.log import StoredSnapshot
from runstate.logs.ndjson import NdjsonLog
from runstate.models.canonical import digest
from runstate.models.model import Draft
from runstate.models.rundir import RUNDIR, RunEvent

root = PurePosixPath("/runs")
sent = [f"k{number}" for number in range(5)]


def run_draft(key: str) -> Draft:
    payload: dict[str, Any] = {"section": key, "new_state": "DONE"}
    event = RunEvent(
        event_id=key, run_id="r", type="SECTION_STATE_CHANGED", payload=payload, trace_id="a" * 32, span_id="b" * 16
    )
    return RUNDIR.draft(event)[1]


def fold_run(lines: list[bytes]) -> bytes:
    return RUNDIR.dump(RUNDIR.fold(RUNDIR.initial("r"), lines))


def fold_notes(lines: list[bytes]) -> bytes:
    return digest(b"\n".join(lines)).encode()


Form = tuple[str, Callable[[str], Draft], Callable[[list[bytes]], bytes]]
forms: list[Form] = [("rundir", run_draft, fold_run), ("notes", note, fold_notes)]
each_form = pytest.mark.parametrize("form", forms, ids=["bare", "framed"])


def keep_snapshot(log: NdjsonLog, form: Form) -> None:
    model, _, fold = form
    lines = list(log.lines("r"))
    body = fold(lines)
    log.save_snapshot("r", StoredSnapshot(model, 1, len(lines), digest(body), body))


def history(form: Form, batches: list[list[str]], *, snapshots: bool) -> Callable[[SimulatedDisk], Iterator[str]]:
    def scenario(disk: SimulatedDisk) -> Iterator[str]:
        log = NdjsonLog(root, disk=disk)
        for batch in batches:
            log.append("r", [form[1](key) for key in batch])
            yield from batch
            if snapshots:
                keep_snapshot(log, form)
        log.close()

    return scenario


def check_stored(log: NdjsonLog, acknowledged: tuple[str, ...], during: str) -> list[str]:
    """Acknowledged ⊆ stored ⊆ sent, in order, and no damage."""
    seen = keys(stored(log, "r"))
    assert seen == sent[: len(seen)], during
    assert len(seen) >= len(acknowledged), during
    assert [finding for finding in log.verify() if finding.severity == "damage"] == [], during
    return seen


def check_snapshot(log: NdjsonLog, form: Form) -> None:
    """There is none, or it is what a replay up to its seq gives."""
    model, _, fold = form
    found = log.load_snapshot("r", model)
    if found is not None:
        lines = list(log.lines("r", until_seq=found.seq))
        assert (len(lines), found.body) == (found.seq, fold(lines))


def check_recovered(disk: SimulatedDisk, form: Form, acknowledged: tuple[str, ...], during: str) -> None:
    """What a crash left is right before recovery and after it, and the run goes on."""
    log = NdjsonLog(root, disk=disk)
    seen = check_stored(log, acknowledged, during)
    check_snapshot(log, form)
    assert log.append("r", [form[1]("after")])[0].persisted
    recovered = keys(stored(log, "r"))
    # Recovery may find one line more: a whole one that lacked its newline.
    assert recovered[:-1] in (seen, sent[: len(seen) + 1]), during
    keep_snapshot(log, form)
    check_snapshot(log, form)


def check_lasting(disk: SimulatedDisk, during: str) -> None:
    """What a log holds now is there after the next power cut too."""
    held = keys(stored(NdjsonLog(root, disk=disk), "r"))
    for crashed in disk.crash_states(states_max=8):
        log = NdjsonLog(root, disk=crashed)
        assert keys(stored(log, "r")) == held, during
        assert findings(log) == [], during


@pytest.mark.slow
@each_form
def test_every_crash_of_five_events_with_a_snapshot_after_each_is_recovered(form: Form) -> None:
    for number, crash in enumerate(every_crash(history(form, [[key] for key in sent], snapshots=True))):
        check_recovered(crash.disk, form, crash.acknowledged, crash.during)
        if number % 23 == 0:
            check_lasting(crash.disk, crash.during)


@each_form
def test_every_kill_is_recovered(form: Form) -> None:
    for crash in every_kill(history(form, [[key] for key in sent[:3]], snapshots=True)):
        check_recovered(crash.disk, form, crash.acknowledged, crash.during)
        check_lasting(crash.disk, crash.during)


# --- several events in one append ----------------------------------------------------------------------------------

batches = [sent[:2], sent[2:3], sent[3:]]
whole_batches = [0, 2, 3, 5]


@pytest.mark.slow
@each_form
def test_a_power_cut_leaves_an_append_of_several_events_whole_or_not_at_all(form: Form) -> None:
    for crash in every_crash(history(form, batches, snapshots=False), states_max=300):
        seen = check_stored(NdjsonLog(root, disk=crash.disk), crash.acknowledged, crash.during)
        assert len(seen) in whole_batches, crash.during
        check_recovered(crash.disk, form, crash.acknowledged, crash.during)
        assert len(keys(stored(NdjsonLog(root, disk=crash.disk), "r"))) - 1 in whole_batches, crash.during


@each_form
def test_a_kill_at_any_byte_leaves_an_append_of_several_events_whole_or_not_at_all(form: Form) -> None:
    disk = SimulatedDisk(write_bytes_max=37)
    for crash in every_kill(history(form, batches, snapshots=False), disk):
        seen = check_stored(NdjsonLog(root, disk=crash.disk), crash.acknowledged, crash.during)
        assert len(seen) in whole_batches, crash.during
        check_recovered(crash.disk, form, crash.acknowledged, crash.during)
        check_lasting(crash.disk, crash.during)


# --- a crash of the recovery from a crash --------------------------------------------------------------------------


def torn_disks(form: Form) -> list[SimulatedDisk]:
    """Disks whose last line is torn in different ways, of a run with two acknowledged events."""
    found: dict[bytes, SimulatedDisk] = {}
    for crash in every_crash(history(form, [[key] for key in sent[:3]], snapshots=False)):
        data = crash.disk.tree().get(root / "r" / "events.ndjson") or b""
        if data.count(b"\n") >= 2 and len(crash.acknowledged) == 2 and (not data.endswith(b"}\n") or b"\0" in data):
            found[data] = crash.disk
    disks = list(found.values())
    return disks[:: max(1, len(disks) // 6)]


@pytest.mark.slow
@each_form
def test_every_crash_of_a_recovery_is_recovered(form: Form) -> None:
    disks = torn_disks(form)
    assert len(disks) > 5

    def recover(disk: SimulatedDisk) -> Iterator[str]:
        log = NdjsonLog(root, disk=disk)
        yield from sent[:2]
        log.append("r", [form[1](sent[2])])
        yield sent[2]

    for disk in disks:
        for crash in every_crash(recover, disk.killed(), states_max=150):
            check_recovered(crash.disk, form, crash.acknowledged, crash.during)


@each_form
def test_a_torn_tail_is_kept_beside_the_file_and_told(form: Form) -> None:
    for disk in torn_disks(form):
        before = disk.read(root / "r" / "events.ndjson")
        log = NdjsonLog(root, disk=disk)
        log.append("r", [form[1]("after")])
        (told,) = log.recoveries
        assert (told.code, told.severity, told.stream) == ("log.torn_tail", "warning", "r")
        assert before.endswith(disk.read(root / "r" / "events.ndjson.torn-1"))
        assert before[told.details["offset"] :] == disk.read(root / "r" / "events.ndjson.torn-1")


# --- calls that fail -----------------------------------------------------------------------------------------------

operations: list[Operation] = [
    "open", "create", "read", "write", "truncate", "sync", "names", "rename", "remove", "make_directory",
    "sync_directory", "lock",
]  # fmt: skip


def work(log: NdjsonLog, form: Form) -> list[str]:
    """Send everything, whatever fails; what was acknowledged."""
    told: list[str] = []
    for batch in batches:
        try:
            log.append("r", [form[1](key) for key in batch])
            told += batch
            keep_snapshot(log, form)
        except (LogFailed, LogFull, AppendOutcomeUnknown, StreamNotFound):
            continue
    return told


@pytest.mark.slow
@each_form
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failure_of_any_call_loses_nothing_and_the_run_goes_on(form: Form, persistent: bool, error: int) -> None:
    for operation in operations:
        for nth in count(1):
            disk = SimulatedDisk()
            log = NdjsonLog(root, disk=disk)
            before = disk.calls[operation]
            disk.fail(operation, nth=nth, error=error, persistent=persistent)
            told = work(log, form)
            if disk.calls[operation] - before < nth:
                break
            during = f"{operation} {nth}"
            disk.heal()
            assert [key for key in told if key not in keys(stored(log, "r"))] == [], during
            again = work(log, form)
            assert again == sent, during
            assert sorted(keys(stored(log, "r"))) == sent, during
            log.close()
            for crashed in disk.crash_states(states_max=8):
                survivor = NdjsonLog(root, disk=crashed)
                assert sorted(keys(stored(survivor, "r"))) == sent, during
                assert findings(survivor) == [], during


@each_form
def test_what_a_failed_flush_may_have_dropped_is_never_taken_for_stored(form: Form) -> None:
    disk = SimulatedDisk()
    log = NdjsonLog(root, disk=disk)
    log.append("r", [form[1]("k0")])
    disk.fail("sync")
    with pytest.raises(AppendOutcomeUnknown):
        log.append("r", [form[1]("k1")])
    heir = NdjsonLog(root, disk=disk.killed())  # Killed now: its page cache still holds the line.
    assert heir.append("r", [form[1]("k1")])[0].seq == 2
    survivors = list(heir._disk.crash_states())  # type: ignore[attr-defined]
    assert [keys(stored(NdjsonLog(root, disk=d), "r")) for d in survivors] == [["k0", "k1"]] * len(survivors)


@each_form
def test_a_full_disk_refuses_and_takes_more_once_there_is_room(form: Form) -> None:
    disk = SimulatedDisk()
    log = NdjsonLog(root, disk=disk)
    log.append("r", [form[1]("k0")])
    used = sum(len(data or b"") for data in disk.tree().values())
    for room in (0, 1, 50, 100):
        disk.capacity_bytes = used + room
        with pytest.raises(LogFull):
            log.append("r", [form[1]("k1")])
        assert keys(stored(log, "r")) == ["k0"]
    disk.capacity_bytes = None
    assert log.append("r", [form[1]("k1")])[0].seq == 2
    assert log.recoveries == []
    assert findings(log) == []


# --- deleting --------------------------------------------------------------------------------------------------------


def test_every_crash_of_a_deletion_leaves_the_whole_run_or_none() -> None:
    disk = SimulatedDisk()
    log = NdjsonLog(root, disk=disk)
    log.append("r", [note("k0"), note("k1")])
    log.append("other", [note("k0")])
    log.close()

    def delete(disk: SimulatedDisk) -> Iterator[str]:
        NdjsonLog(root, disk=disk).delete_stream("r")
        yield "deleted"

    for crash in every_crash(delete, disk.killed()):
        log = NdjsonLog(root, disk=crash.disk)
        assert keys(stored(log, "r")) in ([] if crash.acknowledged else ["k0", "k1"], []), crash.during
        assert [info.stream for info in log.streams()][-1] == ("r" if log.stream("r") else "other")
        log.append("r", [note("new")])
        log.delete_stream("other")
        assert [name for name in crash.disk.names(root) if name.startswith(".deleted")] == []
