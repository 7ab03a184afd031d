"""Every disk that a crash can leave of a compaction, a collection or a repair: no event and no blob in use is lost."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest
from tests.crash.segments_work import bare, blob_of, check_pinned, opened, ref_of, root, send

from runstate.conformance.notes import findings, keys, note, stored
from runstate.conformance.simulated_disk import Operation, SimulatedDisk, every_crash, every_kill
from runstate.errors import AppendOutcomeUnknown, LogDamaged, LogFailed, LogFull, NotWritable
from runstate.logs.segments import session as session_module
from runstate.models.canonical import digest

many = [f"k{number}" for number in range(7)]
home = root / "sessions/r"
upkeep: list[Operation] = [
    "open", "create", "read", "stamp", "write", "truncate", "sync", "names", "rename", "remove", "sync_directory",
    "lock",
]  # fmt: skip


def session_of(plans: list[list[str]]) -> SimulatedDisk:
    disk = SimulatedDisk()
    log = opened(disk)
    for plan in plans:
        send(log, bare, plan)
    log.close()
    return disk


# --- compaction ----------------------------------------------------------------------------------------------------


def compacting(disk: SimulatedDisk) -> Iterator[str]:
    log = opened(disk)
    yield from many
    assert log.compact("r") == 5
    assert log.compact("r") == 0


def check_compacted(disk: SimulatedDisk, during: str) -> None:
    assert keys(stored(opened(disk), "r")) == many, during
    assert [f for f in opened(disk).verify() if f.severity == "damage"] == [], during
    opened(disk).append("r", [bare("after")])
    assert keys(stored(opened(disk), "r")) == [*many, "after"], during
    assert findings(opened(disk)) == [], during
    segments = disk.names(home / "events")
    opened(disk).compact("r")
    assert disk.names(home / "events") == ["00000000-00000003.jsonl", "00000004-00000007.jsonl"], (during, segments)
    assert keys(stored(opened(disk), "r")) == [*many, "after"], during
    check_pinned(disk, during)


def test_every_power_cut_of_a_compaction_leaves_every_event() -> None:
    for crash in every_crash(compacting, session_of([[key] for key in many]), states_max=300):
        check_compacted(crash.disk, crash.during)


def test_every_kill_of_a_compaction_leaves_every_event() -> None:
    start = session_of([[key] for key in many])
    start.write_bytes_max = 97
    for crash in every_kill(compacting, start):
        check_compacted(crash.disk, crash.during)


def test_every_power_cut_of_appends_that_compact_by_themselves_is_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "segments_spare", 2)

    def appending(disk: SimulatedDisk) -> Iterator[str]:
        log = opened(disk)
        for key in many:
            log.append("r", [bare(key)])
            yield key
        assert len(disk.names(home / "events")) < 5

    for crash in every_crash(appending, states_max=100):
        found = keys(stored(opened(crash.disk), "r"))
        assert found[: len(crash.acknowledged)] == list(crash.acknowledged), crash.during
        assert found == many[: len(found)], crash.during
        assert opened(crash.disk).append("r", [bare("after")])[0].seq == len(found) + 1, crash.during
        assert findings(opened(crash.disk)) == [], crash.during


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failure_of_any_call_of_a_compaction_loses_nothing(error: int) -> None:
    start = session_of([[key] for key in many])
    for operation in upkeep:
        for nth in count(1):
            disk = start.killed()
            log = opened(disk)
            log.append("r", [bare("k0")])  # Known already: it opens the session, and writes nothing.
            before = disk.calls[operation]
            disk.fail(operation, nth=nth, error=error)
            with suppress(LogFailed, LogFull, AppendOutcomeUnknown):
                log.compact("r")
            if disk.calls[operation] - before < nth:
                break
            disk.heal()
            assert keys(stored(log, "r")) == many, f"{operation} {nth}"
            for crashed in disk.crash_states(states_max=8):
                check_compacted(crashed, f"{operation} {nth}")


def test_an_append_whose_compaction_fails_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "segments_spare", 2)
    disk = SimulatedDisk()
    log = opened(disk)
    for key in many[:2]:
        log.append("r", [bare(key)])
    disk.fail("rename", nth=2, persistent=True)
    assert log.append("r", [bare("k2")])[0].persisted
    disk.heal()
    assert [log.append("r", [bare(key)])[0].seq for key in many] == [1, 2, 3, 4, 5, 6, 7]
    assert findings(log) == []


# --- collection ----------------------------------------------------------------------------------------------------


def with_garbage() -> SimulatedDisk:
    disk = session_of([["k0"], ["k1"]])
    log = opened(disk)
    for number in range(3):
        log.put_blob(f"garbage {number}".encode())
    log.append("gone", [note("x", ref_of("x"))])
    log.put_blob(blob_of("x"))
    log.append("gone", [note("y", ref_of("x"))])
    log.delete_stream("gone")
    log.close()
    return disk


def test_every_crash_of_a_collection_leaves_what_is_referred_to() -> None:
    def collecting(disk: SimulatedDisk) -> Iterator[str]:
        assert len(opened(disk).collect_blobs().removed) == 4
        yield "collected"

    for crash in every_crash(collecting, with_garbage(), states_max=300):
        check_pinned(crash.disk, crash.during)
        kept = crash.disk.names(root / "snapshots/sha256")
        assert kept == sorted(digest(blob_of(key)) for key in ("k0", "k1")), crash.during
        assert findings(opened(crash.disk)) == [], crash.during


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_failure_of_any_call_of_a_collection_removes_nothing_in_use(error: int) -> None:
    start = with_garbage()
    for operation in upkeep:
        for nth in count(1):
            disk = start.killed()
            log = opened(disk)
            before = disk.calls[operation]
            disk.fail(operation, nth=nth, error=error)
            with suppress(LogFailed, NotWritable):
                log.collect_blobs()
            if disk.calls[operation] - before < nth:
                break
            if operation in ("read", "open", "stamp", "names", "lock"):
                assert len(disk.names(root / "snapshots/sha256")) == 6, f"{operation} {nth}: a doubt deletes nothing"
            disk.heal()
            check_pinned(disk, f"{operation} {nth}")


# --- repair --------------------------------------------------------------------------------------------------------

damaged_files = {
    "segment": ("events/00000002-00000002.jsonl", 2),
    "manifest": ("manifest.jsonl", 0),
}


@pytest.mark.parametrize("name", damaged_files)
def test_every_crash_of_a_repair_leaves_the_damage_or_the_repaired_session_and_all_evidence(name: str) -> None:
    file, intact = damaged_files[name]
    start = session_of([[key] for key in many])
    start.flip_bit(home / file, 20, 0)
    before = {path: data for path, data in start.tree().items() if data and path.is_relative_to(home)}

    def repairing(disk: SimulatedDisk) -> Iterator[str]:
        findings = opened(disk).repair("r")
        assert len(findings) == 1
        yield "repaired"

    for crash in every_crash(repairing, start.killed(), states_max=200):
        disk = crash.disk
        contents = list(disk.tree().values())
        assert [path for path, data in before.items() if data not in contents] == [], f"{crash.during}: evidence"
        log = opened(disk)
        try:
            log.append("r", [bare("k0", ref_of("k0"))])
        except LogDamaged:
            assert not crash.acknowledged, crash.during
            log.repair("r")
            log.append("r", [bare("k0", ref_of("k0"))])
        log.append("r", [bare("after")])
        assert keys(stored(log, "r")) == [*(many[:intact] or ["k0"]), "after"], crash.during
        assert [f for f in opened(disk).verify() if f.severity == "damage"] == [], crash.during
