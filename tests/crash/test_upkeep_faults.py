"""Calls to the disk that fail, once or from then on, while a log is kept up: recovery of a damaged WAL, checkpoints,
archive, restore, key files. Nothing acknowledged is lost, and the same work ends well once the disk is healthy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import msgspec
import pytest
from tests.crash.faults import every_fault

from runstate.conformance.notes import keys, note, notes, stored
from runstate.conformance.simulated_disk import SimulatedDisk, every_crash
from runstate.errors import AppendOutcomeUnknown, LogClosed, LogNotFound, NotALog, RunstateError
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.log import ArchiveLog
from runstate.logs.log import EventLog, Record, StoredSnapshot
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.ndjson import run as run_module
from runstate.logs.segments import SegmentsLog
from runstate.logs.wal import WalLog
from runstate.logs.wal.options import WalOptions
from runstate.models.canonical import digest
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.retention import Archiver, Archiving, RunOutcome, infos, restore

root, archive = PurePosixPath("/log"), PurePosixPath("/archive")
Open = Callable[[SimulatedDisk], Any]
Runs = dict[str, list[Record]]


def as_is(disk: SimulatedDisk) -> SimulatedDisk:
    return disk


# The first two crash states are the disk that has lost nothing, and the one that has lost all that was not synced.

# --- the WAL ---------------------------------------------------------------------------------------------------


def wal(disk: SimulatedDisk, **options: Any) -> WalLog:
    return WalLog(root, options=WalOptions(**options), disk=disk)


def state(log: WalLog) -> list[str]:
    kept = log.load_snapshot("s", "notes")
    found: list[str] = [] if kept is None else msgspec.json.decode(kept.body)
    return found + keys(log.read("s", after_seq=0 if kept is None else kept.seq))


def checkpoint(log: WalLog) -> None:
    body = msgspec.json.encode(state(log))
    info = log.stream("s")
    assert info is not None
    log.checkpoint("s", StoredSnapshot("notes", 1, info.last_seq, digest(body), body))


def damaged_wal() -> SimulatedDisk:
    disk = SimulatedDisk()
    with wal(disk) as log:
        for key in "abcde":
            log.append("s", notes(key))
    data = disk.read(root / "s/wal.jsonl")
    disk.flip_bit(root / "s/wal.jsonl", data.index(b'"c"') + 1, 0)
    return disk


def outcome(disk: SimulatedDisk, salvage: bool) -> tuple[list[str], int]:
    with wal(disk) as log:
        log.repair("s", salvage=salvage)
        assert [finding for finding in log.verify("s") if finding.severity == "damage"] == []
        return keys(stored(log, "s")), log.append("s", notes("new"))[0].seq


@pytest.mark.slow
@pytest.mark.parametrize("salvage", [False, True], ids=["plain", "salvage"])
def test_a_failure_of_any_call_of_a_wals_recovery_loses_no_entry_and_no_evidence(salvage: bool) -> None:
    start = damaged_wal()
    evidence = start.read(root / "s/wal.jsonl")
    right = outcome(start.killed(), salvage)
    assert right == (list("abde") if salvage else list("ab"), 6)

    def repair(disk: SimulatedDisk) -> None:
        with wal(disk) as log:
            log.repair("s", salvage=salvage)

    for during, disk, _ in every_fault(start, as_is, repair):
        for crashed in disk.crash_states(states_max=2):
            assert outcome(crashed, salvage) == right, during
            assert crashed.read(root / "s/wal.jsonl.bak") == evidence, during


@pytest.mark.slow
@pytest.mark.parametrize("salvage", [False, True], ids=["plain", "salvage"])
def test_a_power_cut_at_any_moment_of_a_wals_repair_loses_no_entry(salvage: bool) -> None:
    start = damaged_wal().killed()
    right = outcome(start.killed(), salvage)

    def repair(disk: SimulatedDisk) -> list[str]:
        wal(disk).repair("s", salvage=salvage)
        return ["repaired"]

    for crash in every_crash(repair, start.killed(), states_max=40):
        assert outcome(crash.disk, salvage) == right, crash.during


@pytest.mark.slow
@pytest.mark.parametrize("history", ["drop", "archive"])
def test_a_writer_goes_on_after_a_failed_checkpoint_or_says_that_it_must_be_reopened(history: str) -> None:
    start = SimulatedDisk()
    with wal(start, history=history) as log:
        log.append("s", notes("a", "b"))
        checkpoint(log)
        log.append("s", notes("c"))
    writers: dict[int, tuple[WalLog, list[str]]] = {}

    def work(disk: SimulatedDisk) -> None:
        log, told = writers[id(disk)] = wal(disk, history=history), []
        for key in "de":
            with suppress(RunstateError):
                log.append("s", notes(key))
                told.append(key)
            with suppress(RunstateError):
                checkpoint(log)

    for during, disk, _ in every_fault(start.killed(), as_is, work):
        told = list[str]()
        if id(disk) in writers:
            log, told = writers.pop(id(disk))
            with suppress(AppendOutcomeUnknown, LogClosed):  # The error says so: open the log again.
                log.append("s", notes("f"))
                told.append("f")
            with suppress(RunstateError):
                log.close()
        for crashed in disk.crash_states(states_max=2):
            with wal(crashed, history=history) as heir:
                found = state(heir)
                assert found == sorted(set(found)), during
                assert {"a", "b", "c", *told} <= set(found) <= set("abcdef"), during
                assert [each for each in heir.verify() if each.severity == "damage"] == [], during
                assert heir.append("s", notes("new"))[0].persisted, during
                assert history == "drop" or keys(heir.read("s")) == [*found, "new"], during


# --- archive and restore ---------------------------------------------------------------------------------------

openers: dict[str, Open] = {
    "wal": lambda disk: WalLog(root, disk=disk),
    "segments": lambda disk: SegmentsLog(root, disk=disk),
    "ndjson": lambda disk: NdjsonLog(root, disk=disk),
}


def event(run: str, number: int, kind: str, payload: dict[str, Any]) -> RunEvent:
    ids = {"event_id": f"{run}-{number}", "run_id": run}
    return RunEvent(**ids, type=kind, payload=payload, trace_id="a" * 32, span_id="b" * 16)


def fleet(open_log: Open) -> tuple[SimulatedDisk, Runs]:
    """A finished run and one that is not over; all of it is durable."""
    disk = SimulatedDisk()
    with open_log(disk) as log:
        for run in ("done", "open"):
            events = [event(run, 1, "RUN_CREATED", {"config": {}, "parameters": {}})]
            events += [event(run, 2, "RUN_COMPLETED", {"result": {}})] if run == "done" else []
            log.append(run, [RUNDIR.draft(each)[1] for each in events])
        held = contents(log)
    return disk.killed(), held


def contents(log: EventLog) -> Runs:
    return {info.stream: stored(log, info.stream) for info in log.streams()}


def archive_runs(disk: SimulatedDisk, open_log: Open) -> list[RunOutcome]:
    directory = ArchiveDirectory(archive, disk)
    directory.prepare("rundir")
    archiving = Archiving(before=datetime(2100, 1, 1, tzinfo=UTC))
    with directory.alone(), open_log(disk) as log:
        return list(Archiver(log, RUNDIR, directory, archiving).run(infos(log)))


def restore_runs(disk: SimulatedDisk, open_log: Open) -> list[RunOutcome]:
    with ArchiveLog(archive, disk=disk) as kept, open_log(disk) as log:
        return list(restore(kept, log, RUNDIR, infos(kept)))


def check_kept(disk: SimulatedDisk, open_log: Open, held: Runs, during: str) -> None:
    """Each run is whole in the log or in the archive; what is there besides is a part of it."""
    with open_log(disk) as log:
        there = contents(log)
    try:
        with ArchiveLog(archive, disk=disk) as log:
            kept = contents(log)
    except (LogNotFound, NotALog):
        kept = {}
    for run, records in held.items():
        assert records in (there.get(run), kept.get(run)), f"{run} {during}"
        assert there.get(run, []) == records[: len(there.get(run, []))], f"{run} {during}"


def check_restored(disk: SimulatedDisk, open_log: Open, held: Runs, during: str) -> None:
    restore_runs(disk, open_log)
    for crashed in (disk, next(iter(disk.crash_states(states_max=2)))):
        with open_log(crashed) as log:
            assert contents(log) == held, during
            assert [each for each in log.verify() if each.severity == "damage"] == [], during
            draft = RUNDIR.draft(event("open", 9, "RUN_COMPLETED", {"result": {}}))[1]
            assert log.append("open", [draft])[0].persisted, during
            assert not log.append("done", [RUNDIR.draft(event("done", 2, "RUN_COMPLETED", {"result": {}}))[1]])[
                0
            ].persisted


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wal", "segments"])  # Run directories: test_archive_kills.
def test_a_failure_of_any_call_of_an_archive_job_loses_no_run(kind: str) -> None:
    open_log = openers[kind]
    start, held = fleet(open_log)
    for during, disk, _ in every_fault(start, as_is, lambda disk: archive_runs(disk, open_log)):
        for crashed in disk.crash_states(states_max=2):
            check_kept(crashed, open_log, held, during)
            archive_runs(crashed, open_log)
            with ArchiveLog(archive, disk=crashed) as kept:
                assert contents(kept) == {"done": held["done"]}, during
            with open_log(crashed) as log:
                assert contents(log) == {"open": held["open"]}, during


@pytest.mark.slow
@pytest.mark.parametrize("kind", openers)
def test_a_failure_of_any_call_of_a_restore_loses_no_run_and_the_next_restore_ends_it(kind: str) -> None:
    open_log = openers[kind]
    start, held = fleet(open_log)
    archive_runs(start, open_log)
    for during, disk, _ in every_fault(start.killed(), as_is, lambda disk: restore_runs(disk, open_log)):
        for crashed in disk.crash_states(states_max=2):
            check_kept(crashed, open_log, held, during)
            check_restored(crashed, open_log, held, during)


@pytest.mark.slow
@pytest.mark.parametrize("kind", openers)
def test_a_power_cut_at_any_moment_of_a_restore_loses_no_run_and_none_that_was_told(kind: str) -> None:
    open_log = openers[kind]
    start, held = fleet(open_log)
    archive_runs(start, open_log)

    def restoring(disk: SimulatedDisk) -> list[str]:
        return [outcome.stream for outcome in restore_runs(disk, open_log)]

    for crash in every_crash(restoring, start.killed(), states_max=12):
        check_kept(crash.disk, open_log, held, crash.during)
        if crash.acknowledged:
            with open_log(crash.disk.killed()) as log:
                assert contents(log) == held, crash.during
        check_restored(crash.disk, open_log, held, crash.during)


# --- key files of run directories ------------------------------------------------------------------------------


def test_a_failure_of_any_call_of_a_key_files_writing_hides_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "keys_behind_max", 1)
    start, told = SimulatedDisk(), dict[int, list[str]]()
    with openers["ndjson"](start) as log:
        log.append("r", notes("a", "b", "c"))

    def work(disk: SimulatedDisk) -> None:
        acknowledged = told[id(disk)] = list("abc")
        with suppress(RunstateError):
            log = openers["ndjson"](disk)
            log.append("r", notes("d"))
            acknowledged.append("d")
            log.close()
            log = openers["ndjson"](disk)
            log.append("r", notes("e", "f"))
            acknowledged += "ef"
            log.close()

    for during, disk, _ in every_fault(start.killed(), as_is, work):
        acknowledged = told.pop(id(disk))
        for crashed in disk.crash_states(states_max=2):
            with openers["ndjson"](crashed) as log:
                assert not any(result.persisted for result in log.append("r", notes(*acknowledged))), during
                found = keys(stored(log, "r"))
                assert found[: len(acknowledged)] == acknowledged, during
                assert found == list("abcdef")[: len(found)], during
                assert log.append("r", [note("new")])[0].seq == len(found) + 1, during
