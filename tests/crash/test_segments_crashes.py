"""Every disk that a crash can leave of an append to a session: a plan is whole or never happened."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import count

import pytest
from tests.crash.segments_work import (
    Form,
    blob_of,
    check_lasting,
    check_pinned,
    check_recovered,
    forms,
    history,
    opened,
    plans,
    ref_of,
    root,
    send,
    sent,
)

from runstate.conformance.notes import findings, keys, stored
from runstate.conformance.simulated_disk import Operation, SimulatedDisk, every_crash, every_kill
from runstate.errors import AppendOutcomeUnknown, LogFailed, LogFull
from runstate.logs.log import StoredSnapshot
from runstate.logs.segments import SegmentsLog
from runstate.models.canonical import digest

each_form = pytest.mark.parametrize("form", forms.values(), ids=list(forms))


@each_form
def test_every_power_cut_leaves_each_plan_whole_or_not_at_all(form: Form) -> None:
    for number, crash in enumerate(every_crash(history(form, plans), states_max=300)):
        check_recovered(crash.disk, form, crash.acknowledged, crash.during)
        if number % 7 == 0:
            check_lasting(crash.disk, crash.during)


@each_form
def test_a_kill_at_any_byte_leaves_each_plan_whole_or_not_at_all(form: Form) -> None:
    for crash in every_kill(history(form, plans), SimulatedDisk(write_bytes_max=37)):
        check_recovered(crash.disk, form, crash.acknowledged, crash.during)
        check_lasting(crash.disk, crash.during)


def test_every_crash_of_the_append_after_a_crash_is_recovered() -> None:
    """Each of its states is what the append finds: torn lines, segments without one, pins that are missing."""
    form = forms["bare"]
    found = {
        frozenset(crash.disk.tree().items()): crash
        for crash in every_crash(history(form, plans[:2]), states_max=300)
        if len(crash.acknowledged) == 2
    }
    crashes = list(found.values())
    assert len(crashes) > 50

    def go_on(disk: SimulatedDisk) -> Iterator[str]:
        log = opened(disk)
        yield from sent[:2]
        send(log, form, plans[1])
        yield sent[2]
        send(log, form, plans[2])
        yield from plans[2]

    for crash in crashes[:: len(crashes) // 12]:
        for second in every_crash(go_on, crash.disk.killed(), states_max=60):
            check_recovered(second.disk, form, second.acknowledged, f"{crash.during}, then {second.during}")


def test_a_killed_writers_missing_pins_are_completed_before_the_next_append() -> None:
    form = forms["bare"]
    bare_of_pins = 0
    for crash in every_kill(history(form, plans[:1])):
        log = opened(crash.disk)
        manifest = crash.disk.tree().get(root / "sessions/r/manifest.jsonl") or b""
        bare_of_pins += b"segment_closed" in manifest and b"snapshot_pinned" not in manifest
        if b"segment_closed" in manifest:
            # Nothing new to write: the retry alone has to complete them.
            assert not log.append("r", [form("k0", ref_of("k0"))])[0].persisted
            check_pinned(crash.disk, crash.during)
    assert bare_of_pins > 0


def test_a_torn_line_of_the_manifest_and_a_segment_without_its_line_are_set_aside_and_told() -> None:
    form, told, segments = forms["bare"], 0, list[str]()
    for crash in every_crash(history(form, plans[:2]), states_max=300):
        log = opened(crash.disk)
        before = crash.disk.tree().get(root / "sessions/r/manifest.jsonl") or b""
        log.append("r", [form("after", "")])
        for finding in log.recoveries:
            told += 1
            assert (finding.code, finding.severity, finding.stream) == ("log.torn_tail", "warning", "r")
            names = finding.details["setAside"]
            kept = {name: crash.disk.read(root / "sessions/r" / name) for name in names}
            assert kept.get("manifest.jsonl.torn-1", b"") == before[finding.details["offset"] :]
            segments += [name for name in names if name.startswith("events/")]
    assert told > 10
    assert set(segments) == {f"events/{first:08d}-{last:08d}.jsonl.torn-1" for first, last in ((0, 1), (2, 2))}


def test_a_snapshot_never_tells_of_an_event_that_a_power_cut_takes_away() -> None:
    """A writer was killed before it flushed its line; the next process saves a snapshot of what it sees."""
    for crash in every_kill(history(forms["bare"], plans[:2])):
        log = opened(crash.disk)
        seen = stored(log, "r")
        if seen:
            body = digest(b"".join(record.body for record in seen)).encode()
            log.save_snapshot("r", StoredSnapshot("notes", 1, len(seen), digest(body), body))
        for crashed in crash.disk.crash_states(states_max=12):
            assert [f for f in opened(crashed).verify() if f.severity == "damage"] == [], crash.during
            assert opened(crashed).append("r", [forms["bare"]("after", "")])[0].persisted, crash.during


# --- calls that fail -----------------------------------------------------------------------------------------------

operations: list[Operation] = [
    "open", "create", "read", "stamp", "write", "truncate", "sync", "names", "rename", "remove", "make_directory",
    "sync_directory", "lock",
]  # fmt: skip


def work(log: SegmentsLog, form: Form) -> list[str]:
    """Send everything, whatever fails; what was acknowledged."""
    told: list[str] = []
    for plan in plans:
        try:
            send(log, form, plan)
            told += plan
            body = digest(b"\n".join(log.lines("r"))).encode()
            log.save_snapshot("r", StoredSnapshot("notes", 1, len(told), digest(body), body))
            log.compact("r")
        except (LogFailed, LogFull, AppendOutcomeUnknown):
            continue
    return told


@each_form
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failure_of_any_call_loses_nothing_and_the_session_goes_on(form: Form, persistent: bool, error: int) -> None:
    for operation in operations:
        for nth in count(1):
            disk = SimulatedDisk()
            log = opened(disk)
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
                survivor = opened(crashed)
                assert sorted(keys(stored(survivor, "r"))) == sent, during
                assert findings(survivor) == [], during


@each_form
@pytest.mark.parametrize("nth", [1, 2, 3], ids=["segment", "manifest", "pins"])
def test_what_a_failed_flush_may_have_dropped_is_never_taken_for_stored(form: Form, nth: int) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    send(log, form, ["k0"])
    log.put_blob(blob_of("k1"))
    disk.fail("sync", nth=nth)
    with pytest.raises((AppendOutcomeUnknown, LogFailed)):
        log.append("r", [form("k1", ref_of("k1"))])
    heir = opened(after := disk.killed())  # Killed now: its page cache still holds what was written.
    assert heir.append("r", [form("k1", ref_of("k1"))])[0].seq == 2
    for survivor in after.crash_states():
        assert keys(stored(opened(survivor), "r")) == ["k0", "k1"]
        check_pinned(survivor, "")


@each_form
def test_a_full_disk_refuses_and_takes_more_once_there_is_room(form: Form) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    send(log, form, ["k0"])
    used = sum(len(data or b"") for data in disk.tree().values())
    for room in (0, 1, 50, 150):
        disk.capacity_bytes = used + room
        with pytest.raises(LogFull):
            log.append("r", [form("k1", "")])
        assert keys(stored(log, "r")) == ["k0"]
    disk.capacity_bytes = None
    assert log.append("r", [form("k1", "")])[0].seq == 2
    assert log.recoveries == []
    assert findings(log) == []


# --- deleting --------------------------------------------------------------------------------------------------------


def test_every_crash_of_a_deletion_leaves_the_whole_session_or_none() -> None:
    disk, form = SimulatedDisk(), forms["framed"]
    log = opened(disk)
    send(log, form, ["k0", "k1"])
    log.append("other", [form("k0", "")])
    log.close()

    def delete(disk: SimulatedDisk) -> Iterator[str]:
        opened(disk).delete_stream("r")
        yield "deleted"

    for crash in every_crash(delete, disk.killed()):
        log = opened(crash.disk)
        assert keys(stored(log, "r")) in ([] if crash.acknowledged else ["k0", "k1"], []), crash.during
        assert [info.stream for info in log.streams()][-1] == ("r" if log.stream("r") else "other")
        log.append("r", [form("new", "")])
        log.delete_stream("other")
        assert [name for name in crash.disk.names(root / "sessions") if name.startswith(".deleted")] == []
