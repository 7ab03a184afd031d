"""Archiving that is interrupted anywhere: no run is ever in neither place, none is there in part, and it goes on."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from tests.fleets import histories

import runstate
from runstate.conformance.notes import stored
from runstate.conformance.simulated_disk import Operation, SimulatedDisk, every_crash, every_kill
from runstate.errors import LogFull, LogNotFound, NotALog, RunstateError
from runstate.logs.archive import ArchiveLog, writing
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.blob_refs import blob_refs
from runstate.logs.log import EventLog, Record
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.registry import open_log
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.retention import Archiver, Archiving, RunOutcome, infos

runs, archive = PurePosixPath("/runs"), PurePosixPath("/archive")
everything = Archiving(before=datetime(2100, 1, 1, tzinfo=UTC))
Runs = dict[str, list[Record]]
artifact = b"an artifact"


def event(run: str, number: int, kind: str, payload: dict[str, Any]) -> RunEvent:
    ids = {"event_id": f"{run}-{number}", "run_id": run}
    return RunEvent(**ids, type=kind, payload=payload, trace_id="a" * 32, span_id="b" * 16)


def a_fleet() -> tuple[SimulatedDisk, Runs]:
    """Two finished runs, one of them with a blob, and one that is not over; all of it is durable."""
    disk = SimulatedDisk()
    with NdjsonLog(runs, disk=disk) as log:
        for run in ("done-1", "done-2", "open"):
            events = [event(run, 1, "RUN_CREATED", {"config": {}, "parameters": {}})]
            if run != "open":
                result = {"artifact": log.put_blob(artifact)} if run == "done-1" else {}
                events.append(event(run, 2, "RUN_COMPLETED", {"result": result}))
            log.append(run, [RUNDIR.draft(each)[1] for each in events])
        held = contents(log)
    return disk.killed(), held


def contents(log: EventLog) -> Runs:
    return {info.stream: stored(log, info.stream) for info in log.streams()}


def archived(disk: SimulatedDisk) -> Runs:
    try:
        with ArchiveLog(archive, disk=disk) as log:
            held = contents(log)
            for run, records in held.items():  # What counts in an archive has its blobs there.
                blobs = [log.get_blob(ref) for record in records for ref in blob_refs(record.body)]
                assert blobs == ([artifact] if run == "done-1" else []), run
            return held
    except (LogNotFound, NotALog):
        return {}


def job(disk: SimulatedDisk) -> list[RunOutcome]:
    directory = ArchiveDirectory(archive, disk)
    directory.prepare("rundir")
    with directory.alone(), NdjsonLog(runs, disk=disk, create=False) as log:
        return list(Archiver(log, RUNDIR, directory, everything).run(infos(log)))


def promising(disk: SimulatedDisk) -> Iterator[str]:
    """The job, as a scenario that has promised each run which it has told of."""
    yield from (outcome.stream for outcome in job(disk))


def check_union(disk: SimulatedDisk, fleet: Runs, during: str) -> None:
    """Every run is whole in the log, or whole in the archive; and nothing else is anywhere."""
    with NdjsonLog(runs, disk=disk) as log:
        there = contents(log)
    kept = archived(disk)
    for run, records in fleet.items():
        assert records in (there.get(run), kept.get(run)), f"{run} {during}"
    for place in (there, kept):
        assert all(fleet[run] == records for run, records in place.items()), during


def check_done(disk: SimulatedDisk, fleet: Runs, during: str) -> None:
    with NdjsonLog(runs, disk=disk) as log:
        assert contents(log) == {"open": fleet["open"]}, during
    assert archived(disk) == {run: fleet[run] for run in ("done-1", "done-2")}, during
    with ArchiveLog(archive, disk=disk) as log:
        assert list(log.verify()) == [], during


@pytest.fixture(params=[1, 10], ids=["a-pack-a-run", "one-pack"])
def _pack_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "pack_runs_max", request.param)


@pytest.mark.usefixtures("_pack_runs")
def test_after_every_power_cut_the_job_goes_on_and_nothing_is_lost_or_twice() -> None:
    start, fleet = a_fleet()
    for number, crash in enumerate(every_crash(promising, start, states_max=64)):
        check_union(crash.disk, fleet, crash.during)
        job(crash.disk)
        check_done(crash.disk, fleet, crash.during)
        if number % 11 == 0:  # What the second job leaves survives a power cut, too.
            for crashed in crash.disk.crash_states(states_max=6):
                check_done(crashed, fleet, crash.during)


@pytest.mark.usefixtures("_pack_runs")
def test_killed_before_and_after_every_call_it_goes_on_and_the_power_cut_that_follows_takes_nothing() -> None:
    """The second process sees what the first has left in the page cache; it must not delete runs for it."""
    start, fleet = a_fleet()
    for crash in every_kill(promising, start):
        check_union(crash.disk, fleet, crash.during)
        job(crash.disk)
        for crashed in crash.disk.crash_states(states_max=16):
            # A run whose deletion the first process had begun may be in the log again: it is in the archive, too.
            check_union(crashed, fleet, crash.during)
            job(crashed)
            check_done(crashed, fleet, crash.during)


operations: list[Operation] = [
    "open", "create", "read", "stamp", "write", "truncate", "sync", "names", "rename", "remove",
    "make_directory", "remove_directory", "sync_directory", "lock",
]  # fmt: skip


@pytest.mark.parametrize("operation", operations)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["io", "full"])
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from then on"])
def test_whatever_call_fails_and_whenever_nothing_is_lost(operation: Operation, error: int, persistent: bool) -> None:
    start, fleet = a_fleet()
    for nth in range(1, 200):
        disk = start.killed()
        disk.fail(operation, nth=nth, error=error, persistent=persistent)
        with suppress(RunstateError):  # Nothing but an error of ours; that one may tell of the log, or of the archive.
            job(disk)
        failed = disk.calls[operation] >= nth
        disk.heal()
        for crashed in disk.crash_states(states_max=8):
            check_union(crashed, fleet, f"{operation} {nth}")
        again = disk.killed()
        job(again)
        check_union(again, fleet, f"{operation} {nth}")
        for crashed in again.crash_states(states_max=8):
            check_union(crashed, fleet, f"after {operation} {nth}")
        check_done(again, fleet, f"{operation} {nth}")
        if not failed:
            return
    raise AssertionError("the job makes more such calls than were tried")


def test_a_full_disk_leaves_the_log_as_it_was_and_the_job_goes_on_when_there_is_space() -> None:
    start, fleet = a_fleet()
    size = sum(len(content or b"") for content in start.tree().values())
    for free in range(0, 4000, 97):
        disk = start.killed()
        disk.capacity_bytes = size + free
        with suppress(LogFull):
            job(disk)
        check_union(disk, fleet, f"{free} bytes free")
        disk.heal()
        job(disk)
        check_done(disk, fleet, f"{free} bytes free")


# --- real processes ------------------------------------------------------------------------------------------------

_program = """
import sys
from pathlib import Path
from runstate.cli.main import main
from runstate.logs.archive import writing

writing.pack_runs_max = 3
sys.argv = ["runstate", "archive", sys.argv[1], "--to", sys.argv[2], "--older-than", "0s", "--json"]
main()
"""


@pytest.mark.parametrize(("scheme", "model"), [("sqlite", "engine"), ("ndjson", "rundir")])
def test_killed_at_random_moments_it_ends_like_an_unbroken_job(tmp_path: Path, scheme: str, model: str) -> None:
    url, to, luck = f"{scheme}:{tmp_path}/log", tmp_path / "archive", random.Random(7)
    with runstate.open(url, model, snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in histories(model, 3, 40).values():
            store.append_events([store.model.parse(line) for line in lines])
        fleet = contents(store.log)
        finished = {run for run in fleet if store.model.is_over(store.project_snapshot(run))}
    assert 5 < len(finished) < 40
    killed = 0
    for _ in range(60):
        command = [sys.executable, "-c", _program, url, str(to)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            # Killed after so many runs were told, at any moment of what comes next.
            for _, _ in zip(range(luck.randrange(1, 5)), process.stdout, strict=False):
                pass
            process.send_signal(signal.SIGKILL)
            process.stdout.read()
        killed += process.returncode == -signal.SIGKILL
        there, kept = everywhere(url, to)
        for run, records in fleet.items():
            assert records in (there.get(run), kept.get(run))
        assert all(fleet[run] == records for run, records in [*there.items(), *kept.items()])
        if set(kept) == finished == fleet.keys() - there.keys():
            break
    done = subprocess.run([sys.executable, "-c", _program, url, str(to)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert killed > 3
    there, kept = everywhere(url, to)
    assert (set(kept), set(there)) == (finished, fleet.keys() - finished)
    with ArchiveLog(to) as log:
        assert [finding for finding in log.verify() if finding.code != "archive.unfinished_pack"] == []
    names = {path.suffix for path in (to / "packs").iterdir()}
    assert names == {".ndjson", ".json"}


def everywhere(url: str, to: Path) -> tuple[Runs, Runs]:
    with open_log(url, create=False) as log:
        there = contents(log)
    try:
        with ArchiveLog(to) as kept:
            return there, contents(kept)
    except (LogNotFound, NotALog):
        return there, {}
