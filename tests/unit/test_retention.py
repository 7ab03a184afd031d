"""Retention: which runs are taken, that nothing is deleted which is not safe, and that everything comes back."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fleets import histories
from tests.log_urls import durable_schemes, servers, url_at

import runstate
from runstate.conformance.notes import note, numbered, stored
from runstate.copying import copy_stream
from runstate.errors import (
    InvalidArgument,
    LogBusy,
    LogDamaged,
    ModelMismatch,
    NotALog,
    SequenceConflict,
    StreamDeleted,
    StreamNotFound,
    Unsupported,
)
from runstate.logs.archive import ArchiveLog, writing
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archived_streams import answer_from_archive
from runstate.logs.log import Capability, EventLog, Record, StoredSnapshot, Tombstone
from runstate.logs.memory import MemoryLog
from runstate.logs.registry import open_log
from runstate.logs.sqlite import SqliteLog
from runstate.logs.wal import WalLog
from runstate.models.canonical import digest
from runstate.models.engine import ENGINE
from runstate.models.registry import find_model
from runstate.models.rundir import RUNDIR
from runstate.retention import Archiver, Archiving, RunOutcome, infos, restore
from runstate.store import Store

everything = Archiving(before=datetime(2100, 1, 1, tzinfo=UTC))
Runs = dict[str, list[Record]]


def fill(log: EventLog, model: str = "engine", runs: int = 8, seed: int = 0) -> set[str]:
    """A fleet; the ids of those of its runs that are over."""
    store = Store(log, find_model(model), on_alert=lambda alert: None)
    for lines in histories(model, seed, runs).values():
        store.append_events([store.model.parse(line) for line in lines])
    return {info.stream for info in log.streams() if store.model.is_over(store.project_snapshot(info.stream))}


def contents(log: EventLog) -> Runs:
    return {info.stream: stored(log, info.stream) for info in infos(log)}


def archive_all(
    log: EventLog, to: Path, archiving: Archiving = everything, model: str = "engine"
) -> dict[str, RunOutcome]:
    directory = ArchiveDirectory(to)
    if not archiving.dry_run:
        directory.prepare(model)
    return {each.stream: each for each in Archiver(log, find_model(model), directory, archiving).run(infos(log))}


def restore_all(to: Path, log: EventLog, model: str = "engine", **options: Any) -> dict[str, str]:
    with ArchiveLog(to) as archived:
        told = restore(archived, log, find_model(model), infos(archived), **options)
        return {each.stream: each.outcome for each in told}


def outcomes(told: dict[str, RunOutcome]) -> dict[str, str]:
    return {stream: each.outcome for stream, each in told.items()}


def files(root: Path) -> dict[str, bytes]:
    """All bytes below a directory. Where SQLite's readers stand, its `-shm`, is no content."""
    found = (path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.endswith("-shm"))
    return {str(path): path.read_bytes() for path in found}


def kinds() -> list[Any]:
    """Every kind of log that takes events; those on servers take their time."""
    return [
        pytest.param(scheme, marks=[pytest.mark.slow] if scheme in servers else [])
        for scheme in ["memory", *durable_schemes()]
    ]


@pytest.fixture(params=kinds())
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLog]:
    """A new log, once for each kind of log that takes events."""
    with open_log(url_at(request.param, tmp_path / "log")) as log:
        yield log


# --- the whole way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["engine", "rundir"])
def test_finished_runs_go_to_the_archive_and_come_back_as_they_were(log: EventLog, tmp_path: Path, model: str) -> None:
    over = fill(log, model)
    fleet, kept = contents(log), {run: log.load_snapshot(run, model) for run in contents(log)}
    assert outcomes(archive_all(log, tmp_path / "archive", model=model)) == dict.fromkeys(over, "archived")
    assert contents(log) == {run: fleet[run] for run in fleet.keys() - over}
    with ArchiveLog(tmp_path / "archive") as archived:
        assert contents(archived) == {run: fleet[run] for run in over}
        assert list(archived.verify()) == []
        dumps = {run: find_model(model).dump(Store(archived, find_model(model)).project_snapshot(run)) for run in over}
    assert restore_all(tmp_path / "archive", log, model) == dict.fromkeys(over, "restored")
    assert contents(log) == fleet
    assert {run: log.load_snapshot(run, model) for run in fleet} == kept
    assert {run: snapshot.body for run, snapshot in kept.items() if snapshot is not None and run in over} == dumps
    assert list(log.verify()) == []
    # Restored, it is archived again without a second copy.
    before = files(tmp_path / "archive" / "packs")
    assert outcomes(archive_all(log, tmp_path / "archive", model=model)) == dict.fromkeys(over, "deleted")
    assert files(tmp_path / "archive" / "packs") == before
    assert contents(log) == {run: fleet[run] for run in fleet.keys() - over}


@pytest.mark.parametrize(
    "archiving", [everything, msgspec.structs.replace(everything, keep=True)], ids=["move", "keep"]
)
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(tmp_path: Path, archiving: Archiving) -> None:
    dry = msgspec.structs.replace(archiving, dry_run=True)
    with SqliteLog(tmp_path / "log.db") as log:
        over = fill(log)
        before, fleet = files(tmp_path), contents(log)
        told = archive_all(log, tmp_path / "archive", dry)
        assert files(tmp_path) == before
        assert contents(log) == fleet
        assert set(told) == over
        done = archive_all(log, tmp_path / "archive", archiving)
        assert done == told
        with ArchiveLog(tmp_path / "archive") as archived:
            before = files(tmp_path)
            told_back = list(restore(archived, log, ENGINE, infos(archived), dry_run=True))
            assert files(tmp_path) == before
            assert list(restore(archived, log, ENGINE, infos(archived))) == told_back


def test_kept_runs_stay_in_the_log_and_are_deleted_by_a_later_job(log: EventLog, tmp_path: Path) -> None:
    over, keeping = fill(log), msgspec.structs.replace(everything, keep=True)
    fleet = contents(log)
    assert outcomes(archive_all(log, tmp_path / "archive", keeping)) == dict.fromkeys(over, "copied")
    assert outcomes(archive_all(log, tmp_path / "archive", keeping)) == dict.fromkeys(over, "held")
    assert contents(log) == fleet
    assert outcomes(archive_all(log, tmp_path / "archive")) == dict.fromkeys(over, "deleted")
    assert archive_all(log, tmp_path / "archive") == {}


@settings(max_examples=25)
@given(data=st.data())
def test_whatever_is_archived_kept_and_restored_every_event_is_somewhere(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A random fleet, and random jobs over it, some of which are broken off in the middle."""
    root, log = tmp_path_factory.mktemp("fleet"), MemoryLog()
    seed = data.draw(st.integers(0, 1000))
    over = fill(log, runs=data.draw(st.integers(1, 6)), seed=seed)
    fleet = contents(log)
    ArchiveDirectory(root).prepare("engine")
    for kind in data.draw(st.lists(st.sampled_from(["archive", "keep", "restore", "append"]), max_size=6)):
        stop = data.draw(st.integers(0, 8))
        if kind == "append":
            for run in sorted(over & contents(log).keys())[:1]:
                log.append(run, [note(f"late-{len(fleet[run])}", tenant="", model="")])
                fleet[run] = stored(log, run)
            continue
        with ArchiveLog(root) as archived:
            archiving = msgspec.structs.replace(everything, keep=kind == "keep")
            told = (
                restore(archived, log, None, infos(archived))
                if kind == "restore"
                else Archiver(log, _Lenient(), ArchiveDirectory(root), archiving).run(infos(log))
            )
            for _, _ in zip(range(stop), told, strict=False):
                pass
            told.close()  # type: ignore[attr-defined]
        with ArchiveLog(root) as archived:
            there, kept = contents(log), contents(archived)
            assert list(archived.verify()) == []
        for run, records in fleet.items():
            assert records in (there.get(run), kept.get(run))


class _Lenient(type(ENGINE)):  # type: ignore[misc]
    """The engine, for runs that have got notes of the kit behind their end."""

    def fold(self, state: Any, lines: Any, alert: Any = None) -> Any:
        return super().fold(state, [line for line in lines if b'"runId"' in line], alert)


# --- which runs --------------------------------------------------------------------------------------------------


def test_only_runs_whose_last_event_is_old_enough_are_taken(tmp_path: Path) -> None:
    log = MemoryLog()
    over = fill(log)
    last = min(datetime.fromisoformat(info.last_persisted_at) for info in log.streams() if info.stream in over)
    young = Archiving(before=last)
    archiver = Archiver(log, ENGINE, ArchiveDirectory(tmp_path / "none"), young)
    assert list(archiver.run(infos(log))) == []
    assert archiver.passed_over == {"recent": 8}
    archiver = Archiver(
        log, ENGINE, ArchiveDirectory(tmp_path / "none"), msgspec.structs.replace(everything, dry_run=True)
    )
    assert {each.stream for each in archiver.run(infos(log))} == over
    assert archiver.passed_over == {"unfinished": 8 - len(over)}


def test_a_model_that_does_not_say_when_a_run_is_over_keeps_all_runs(tmp_path: Path) -> None:
    class Silent(type(ENGINE)):  # type: ignore[misc]
        is_over = runstate.Model.is_over

    log = MemoryLog()
    fill(log)
    assert list(Archiver(log, Silent(), ArchiveDirectory(tmp_path), everything).run(infos(log))) == []


@pytest.mark.parametrize(
    ("model", "status", "over"),
    [
        (ENGINE, {"status": "COMPLETED"}, True),
        (ENGINE, {"status": "FAILED"}, True),
        (ENGINE, {"status": "CANCELLED"}, True),
        (ENGINE, {"status": "PAUSED"}, False),
        (ENGINE, {}, False),
        (RUNDIR, {"run_state": "COMPLETED"}, True),
        (RUNDIR, {"run_state": "CANCELLED"}, True),
        (RUNDIR, {"run_state": "RENDERING"}, False),
        (RUNDIR, {}, False),
    ],
)
def test_models_say_which_runs_are_over(model: Any, status: dict[str, str], over: bool) -> None:
    state = model.initial("r")
    for name, value in status.items():
        setattr(state, name, value)
    assert model.is_over(state) is over


def test_many_runs_make_several_packs_and_each_run_is_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "pack_runs_max", 2)
    log = MemoryLog()
    over, fleet = fill(log), contents(log)
    archive_all(log, tmp_path)
    with ArchiveLog(tmp_path) as archived:
        assert len(archived.contents.manifests) == -(-len(over) // 2)
        assert archived.contents.others == []
        assert contents(archived) == {run: fleet[run] for run in over}


# --- what happens meanwhile --------------------------------------------------------------------------------------


class Meddled(MemoryLog):
    """A log in which something happens right before a run is deleted."""

    def __init__(self, happens: Any) -> None:
        super().__init__()
        self._happens = happens

    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        self._happens(self, stream)
        super().delete_stream(
            stream, expected_seq=expected_seq, first_persisted_at=first_persisted_at, tombstone=tombstone
        )


def test_a_run_that_gets_an_event_before_it_is_deleted_stays_and_is_taken_another_time(tmp_path: Path) -> None:
    def append(log: MemoryLog, stream: str) -> None:
        if stream == first and len(stored(log, stream)) == len(fleet[stream]):
            log.append(stream, late)

    log = Meddled(append)
    over = fill(log)
    first, fleet = min(over), contents(log)
    late = [Store(log, ENGINE).model.draft(ENGINE.parse(histories("engine", 9, 1)["engine-9-0000"][0]))[1]]
    told = outcomes(archive_all(log, tmp_path))
    assert told == dict.fromkeys(over, "archived") | {first: "moved_on"}
    assert [record.body for record in stored(log, first)][: len(fleet[first])] == [each.body for each in fleet[first]]
    longer = stored(log, first)
    assert len(longer) == len(fleet[first]) + 1
    # The archive has an earlier state of it, which the next job replaces.
    assert outcomes(archive_all(log, tmp_path)) == {first: "archived"}
    with ArchiveLog(tmp_path) as archived:
        assert stored(archived, first) == longer
        assert list(archived.verify()) == []


def test_a_run_that_was_deleted_and_begun_again_meanwhile_is_not_deleted(tmp_path: Path) -> None:
    log = MemoryLog()
    over = fill(log, runs=1)
    (run,), directory = over, ArchiveDirectory(tmp_path)
    directory.prepare("engine")
    (info,) = log.streams()
    archiver = Archiver(log, ENGINE, directory, everything)

    def again() -> Iterator[Any]:
        yield info
        log.delete_stream(run)
        fill(log, runs=1)

    assert [each.outcome for each in archiver.run(again())] == ["moved_on"]
    assert log.stream(run) is not None


def test_a_run_that_somebody_else_has_deleted_or_holds_is_told(tmp_path: Path) -> None:
    def gone(log: MemoryLog, stream: str) -> None:
        MemoryLog.delete_stream(log, stream)

    def busy(log: MemoryLog, stream: str) -> None:
        raise LogBusy()

    for happens, outcome in ((gone, "gone"), (busy, "busy")):
        log = Meddled(happens)
        over = fill(log)
        assert outcomes(archive_all(log, tmp_path / outcome)) == dict.fromkeys(over, outcome)
        with ArchiveLog(tmp_path / outcome) as archived:
            assert set(contents(archived)) == over


def test_two_jobs_on_the_same_runs_at_once_leave_each_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As two attempts at one task of Spark do: step by step in turns, each with what it knew when it began."""
    monkeypatch.setattr(writing, "pack_runs_max", 2)
    for seed in range(6):
        log, luck, to = MemoryLog(), random.Random(seed), tmp_path / str(seed)
        over, fleet = fill(log), contents(log)
        ArchiveDirectory(to).prepare("engine")
        jobs = [Archiver(log, ENGINE, ArchiveDirectory(to), everything).run(infos(log)) for _ in range(2)]
        told: list[str] = []
        while jobs:
            job = luck.choice(jobs)
            done = next(job, None)
            if done is None:
                jobs.remove(job)
            else:
                told.append(done.outcome)
        assert set(told) <= {"archived", "gone"}
        assert told.count("archived") == len(over)
        assert contents(log) == {run: fleet[run] for run in fleet.keys() - over}
        with ArchiveLog(to) as archived:
            assert contents(archived) == {run: fleet[run] for run in over}
            assert list(archived.verify()) == []


# --- what is refused ---------------------------------------------------------------------------------------------


def test_a_run_of_which_the_archive_holds_other_events_is_named_and_stays(tmp_path: Path) -> None:
    log = MemoryLog()
    over = fill(log)
    archive_all(log, tmp_path)
    for run in over:
        log.delete_stream(run)  # So that nothing keeps them from being begun again.
    fill(log)  # The same runs once more, at another time.
    fleet, before = contents(log), files(tmp_path)
    told = archive_all(log, tmp_path)
    assert {(each.outcome, each.code) for each in told.values()} == {("refused", "archive.conflict")}
    assert set(told) == over
    assert all(stream in each.reason for stream, each in told.items())
    assert (contents(log), files(tmp_path)) == (fleet, before)


def test_a_shorter_run_than_the_archived_one_is_not_taken_for_it(tmp_path: Path) -> None:
    log = MemoryLog()
    (run,) = fill(log, runs=1)
    whole = stored(log, run)
    archive_all(log, tmp_path)
    log.adopt(run, whole[:-1])

    class Over(type(ENGINE)):  # type: ignore[misc]
        def is_over(self, state: Any) -> bool:
            return True

    (told,) = Archiver(log, Over(), ArchiveDirectory(tmp_path), everything).run(infos(log))
    assert (told.outcome, told.code) == ("refused", "archive.unfit")
    assert f"not wholly restored: seq {len(whole) - 1} of {len(whole)}" in told.reason
    with open_log("memory:") as other:
        other.adopt(run, whole[:-1])
        (told,) = Archiver(other, Over(), ArchiveDirectory(tmp_path), everything).run(infos(other))
        assert (told.outcome, told.code) == ("refused", "archive.conflict")
    assert stored(log, run) == whole[:-1]


def test_a_damaged_run_stays_where_the_evidence_is(tmp_path: Path) -> None:
    import sqlite3

    with SqliteLog(tmp_path / "log.db") as log:
        over = fill(log)
    run = min(over)
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("DROP TRIGGER IF EXISTS events_are_never_updated")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        query = "UPDATE events SET body = replace(body, 'nightly', 'nightLy') WHERE seq = 2 AND stream_id = ("
        connection.execute(f"{query} SELECT id FROM streams WHERE stream = ?)", [run])
    connection.close()
    with SqliteLog(tmp_path / "log.db") as log:
        told = archive_all(log, tmp_path / "archive")
        assert (told[run].outcome, told[run].code) == ("refused", "log.damaged")
        assert outcomes(told) == dict.fromkeys(over, "archived") | {run: "refused"}
        assert log.stream(run) is not None


def test_a_run_that_the_model_cannot_read_stays(tmp_path: Path) -> None:
    log = MemoryLog()
    over = fill(log)
    log.append("notes", [note("a", model=""), note("b", model="")])  # As an older version left it.
    told = archive_all(log, tmp_path)
    assert outcomes(told) == dict.fromkeys(over, "archived") | {"notes": "refused"}
    assert told["notes"].code == "model.failed"


def test_a_held_run_whose_pack_has_rotted_is_not_deleted(tmp_path: Path) -> None:
    log = MemoryLog()
    over = fill(log)
    archive_all(log, tmp_path, msgspec.structs.replace(everything, keep=True))
    (pack,) = tmp_path.rglob("*.ndjson")
    pack.write_bytes(pack.read_bytes().replace(b"nightly", b"nightLy"))
    fleet = contents(log)
    told = archive_all(log, tmp_path)
    assert {(each.outcome, each.code) for each in told.values()} == {("refused", "log.damaged")}
    assert set(told) == over
    assert contents(log) == fleet


def test_a_run_directory_with_artifacts_is_deleted_only_if_they_are_given_up(tmp_path: Path) -> None:
    with open_log(f"ndjson:{tmp_path}/runs") as log:
        over = fill(log, "rundir")
        run = min(over)
        (tmp_path / "runs" / run / "artifacts").mkdir()
        assert not files(tmp_path / "runs" / run / "artifacts")
        (tmp_path / "runs" / max(over) / "artifacts").mkdir()
        (tmp_path / "runs" / max(over) / "artifacts" / "page.html").write_text("precious")
        told = archive_all(log, tmp_path / "archive", model="rundir")
        assert outcomes(told) == dict.fromkeys(over, "archived") | {max(over): "refused"}
        assert "artifacts" in told[max(over)].reason
        assert (tmp_path / "runs" / max(over) / "artifacts" / "page.html").read_text() == "precious"
        giving_up = msgspec.structs.replace(everything, discard_files=True)
        assert outcomes(archive_all(log, tmp_path / "archive", giving_up, model="rundir")) == {max(over): "archived"}
        assert not (tmp_path / "runs" / max(over)).exists()


@pytest.mark.parametrize(("scheme", "below"), [("ndjson", ""), ("wal", ""), ("segments", "sessions")])
def test_a_file_that_others_put_into_a_stream_s_directory_is_deleted_only_if_it_is_given_up(
    tmp_path: Path, scheme: str, below: str
) -> None:
    with open_log(f"{scheme}:{tmp_path}/log") as log:
        over = fill(log)
        mine = tmp_path / "log" / below / min(over) / "notes.tmp"
        mine.write_text("precious")
        told = archive_all(log, tmp_path / "archive")
        assert outcomes(told) == dict.fromkeys(over, "archived") | {min(over): "refused"}
        assert "notes.tmp" in told[min(over)].reason
        assert mine.read_text() == "precious"
        giving_up = msgspec.structs.replace(everything, discard_files=True)
        assert outcomes(archive_all(log, tmp_path / "archive", giving_up)) == {min(over): "archived"}


def test_a_log_that_cannot_delete_is_only_copied_from(tmp_path: Path) -> None:
    class Lasting(MemoryLog):
        capabilities = MemoryLog.capabilities - {Capability.DELETE}

    log = Lasting()
    fill(log)
    with pytest.raises(Unsupported, match="--keep"):
        archive_all(log, tmp_path)
    assert archive_all(log, tmp_path, msgspec.structs.replace(everything, keep=True))


def test_a_directory_of_something_else_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    log = MemoryLog()
    fill(log)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    archive_all(log, tmp_path / "other", model="engine")
    before, fleet = files(tmp_path), contents(log)
    for place, model in (("foreign", "engine"), ("file", "engine"), ("other", "rundir")):
        for job in (everything, msgspec.structs.replace(everything, dry_run=True)):
            if not job.dry_run:
                with pytest.raises(NotALog):
                    archive_all(log, tmp_path / place, job, model)
        with pytest.raises(NotALog):
            ArchiveDirectory(tmp_path / place).check(model)
    assert (files(tmp_path), contents(log)) == (before, fleet)


def test_two_jobs_do_not_archive_to_one_directory(tmp_path: Path) -> None:
    directory = ArchiveDirectory(tmp_path / "archive")
    directory.prepare("engine")
    with directory.alone(), pytest.raises(LogBusy), ArchiveDirectory(tmp_path / "archive").alone():
        pass


# --- back --------------------------------------------------------------------------------------------------------


def test_a_restore_that_was_broken_off_goes_on(log: EventLog, tmp_path: Path) -> None:
    over, fleet = fill(log), contents(log)
    archive_all(log, tmp_path / "archive")
    first, second = sorted(over)[:2]
    log.adopt(first, fleet[first])
    log.adopt(second, fleet[second][:2])
    told = restore_all(tmp_path / "archive", log)
    assert told == dict.fromkeys(over, "restored") | {first: "held"}
    assert contents(log) == fleet
    assert restore_all(tmp_path / "archive", log) == dict.fromkeys(over, "held")


def test_a_run_that_has_moved_on_since_stays_as_it_is_and_one_that_differs_is_refused(tmp_path: Path) -> None:
    log = MemoryLog()
    over = fill(log)
    archive_all(log, tmp_path, msgspec.structs.replace(everything, keep=True))
    longer, other = sorted(over)[:2]
    log.append(longer, [note("late", tenant="", model="")])
    log.delete_stream(other)
    log.append(other, numbered(2))
    fleet = contents(log)
    dry = restore_all(tmp_path, log, dry_run=True)
    assert restore_all(tmp_path, log) == dry == dict.fromkeys(over, "held") | {other: "refused"}
    assert contents(log) == fleet


def test_a_long_run_comes_back_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.logs.archive.restoring.adopted_max", 3)
    log = MemoryLog()
    over, fleet = fill(log), contents(log)
    archive_all(log, tmp_path)
    assert restore_all(tmp_path, log) == dict.fromkeys(over, "restored")
    assert contents(log) == fleet


def test_nothing_is_restored_to_a_log_that_cannot_adopt(tmp_path: Path) -> None:
    log = MemoryLog()
    fill(log)
    archive_all(log, tmp_path)
    with ArchiveLog(tmp_path) as archived, pytest.raises(Unsupported):
        list(restore(archived, archived, None, infos(archived)))


def test_a_log_that_keeps_something_else_than_it_was_given_is_found_out(tmp_path: Path) -> None:
    class Careless(MemoryLog):
        def adopt(self, stream: str, records: Any, *, model: str = "") -> int:
            changed = [msgspec.structs.replace(each, tenant="?") for each in records]
            return super().adopt(stream, changed, model=model)

    log = MemoryLog()
    fill(log, runs=1)
    archive_all(log, tmp_path)
    with pytest.raises(LogDamaged, match="otherwise"):
        restore_all(tmp_path, Careless())


def test_a_time_that_is_none_makes_no_run_old(tmp_path: Path) -> None:
    log = MemoryLog()
    (run,) = fill(log, runs=1)
    records = [msgspec.structs.replace(each, persisted_at="long ago") for each in stored(log, run)]
    log.delete_stream(run)
    log.adopt(run, records)
    archiver = Archiver(log, ENGINE, ArchiveDirectory(tmp_path), everything)
    assert list(archiver.run(infos(log))) == []
    assert archiver.passed_over == {"recent": 1}


# --- what the log remembers ------------------------------------------------------------------------------------------


def late_events(log: EventLog, run: str) -> list[Any]:
    """What a producer that did not hear its answers sends once more."""
    return [ENGINE.parse(line) for line in histories("engine", 0, 8)[run]]


def test_a_late_retry_is_answered_as_before_the_archive(log: EventLog, tmp_path: Path) -> None:
    run = sorted(fill(log))[0]
    store = Store(log, ENGINE, on_alert=lambda alert: None)
    before = store.append_events(late_events(log, run))
    archive_all(log, tmp_path / "archive")
    assert store.append_events(late_events(log, run)) == before
    assert store.append_event(late_events(log, run)[0]) == before[0]
    assert log.stream(run) is None


def test_a_retry_with_other_content_is_reported_as_before(log: EventLog, tmp_path: Path) -> None:
    run = sorted(fill(log))[0]
    archive_all(log, tmp_path / "archive")
    alerts: list[str] = []
    store = Store(log, ENGINE, on_alert=lambda alert: alerts.append(alert.code))
    changed = msgspec.structs.replace(late_events(log, run)[0], payload={"changed": True})
    assert store.append_event(changed).mismatch
    assert alerts == ["IDEMPOTENCY_CONTENT_MISMATCH"]


@pytest.mark.parametrize("check_transitions", [False, True])
def test_new_events_of_an_archived_run_are_refused_with_its_address(
    log: EventLog, tmp_path: Path, check_transitions: bool
) -> None:
    run = sorted(fill(log))[0]
    archive_all(log, tmp_path / "archive")
    store = Store(log, ENGINE, check_transitions=check_transitions, on_alert=lambda alert: None)
    new = msgspec.structs.replace(late_events(log, run)[0], idempotency_key="new", event_id=str(uuid4()))
    for events in ([new], [*late_events(log, run), new]):
        with pytest.raises(StreamDeleted, match=f"archive:{tmp_path}/archive"):
            store.append_events(events)
    with pytest.raises(StreamNotFound, match=f"moved to archive:{tmp_path}/archive"):
        store.project_snapshot(run)
    assert log.stream(run) is None


def test_a_producer_repeats_its_script_over_an_archived_run(log: EventLog, tmp_path: Path) -> None:
    def script() -> list[int]:
        with_producer = Store(log, ENGINE, on_alert=lambda alert: None).run("script", tenant="t", plan="p")
        sent = [
            with_producer.started(),
            with_producer.step_started("s"),
            with_producer.step_completed("s"),
            with_producer.completed(),
        ]
        return [result.seq for result in sent]

    first = script()
    records = stored(log, "script")
    archive_all(log, tmp_path / "archive")
    assert log.stream("script") is None
    assert script() == first
    assert log.stream("script") is None
    for count in (1, 2, 3):  # A restore that was killed half-way.
        log.adopt("script", records[:count], model="engine")
        assert script() == first
        assert stored(log, "script") == records[:count]


def test_a_restored_run_takes_new_events_and_is_archived_again(log: EventLog, tmp_path: Path) -> None:
    run = sorted(fill(log))[0]
    archive_all(log, tmp_path / "archive")
    Store(log, ENGINE, on_alert=lambda alert: None).append_events(late_events(log, run))
    assert restore_all(tmp_path / "archive", log)[run] == "restored"
    assert log.tombstone(run) is None
    note_ = msgspec.structs.replace(
        late_events(log, run)[0], event_type="Note", idempotency_key="later", event_id=str(uuid4()), payload={}
    )
    assert Store(log, ENGINE, on_alert=lambda alert: None).append_event(note_).persisted
    assert outcomes(archive_all(log, tmp_path / "archive"))[run] == "archived"
    assert restore_all(tmp_path / "archive", log)[run] == "restored"


def test_an_archive_that_is_gone_refuses_the_retry_and_says_what_to_do(log: EventLog, tmp_path: Path) -> None:
    run = sorted(fill(log))[0]
    archive_all(log, tmp_path / "archive")
    (tmp_path / "archive").rename(tmp_path / "moved")
    store = Store(log, ENGINE, on_alert=lambda alert: None)
    with pytest.raises(StreamDeleted, match="runstate restore"):
        store.append_events(late_events(log, run))
    assert restore_all(tmp_path / "moved", log)[run] == "restored"
    assert not store.append_events(late_events(log, run))[0].persisted


def test_a_deleted_stream_is_not_begun_again_unless_it_is_forgotten(log: EventLog) -> None:
    run = sorted(fill(log))[0]
    store = Store(log, ENGINE, on_alert=lambda alert: None)
    store.delete_stream(run)
    with pytest.raises(StreamDeleted, match="was deleted at seq"):
        store.append_events(late_events(log, run))
    store.delete_stream(run, forget=True)
    assert store.append_events(late_events(log, run))[0].seq == 1


def test_a_second_deletion_does_not_let_an_archived_run_begin_again(log: EventLog, tmp_path: Path) -> None:
    run = sorted(fill(log))[0]
    archive_all(log, tmp_path / "archive")
    store = Store(log, ENGINE, on_alert=lambda alert: None)
    with pytest.raises(StreamNotFound, match="moved to archive:"):
        store.delete_stream(run)
    assert not store.append_events(late_events(log, run))[0].persisted
    assert log.stream(run) is None


def test_an_older_archive_does_not_take_the_place_of_a_newer_one(log: EventLog, tmp_path: Path) -> None:
    run = sorted(fill(log))[0]
    archive_all(log, tmp_path / "older")
    restore_all(tmp_path / "older", log)
    later = msgspec.structs.replace(
        late_events(log, run)[0], event_type="Note", idempotency_key="later", event_id=str(uuid4()), payload={}
    )
    Store(log, ENGINE, on_alert=lambda alert: None).append_event(later)
    archive_all(log, tmp_path / "newer")
    assert restore_all(tmp_path / "older", log)[run] == "refused"
    with open_log("memory:") as copied:
        restore_all(tmp_path / "older", copied)
        with pytest.raises(SequenceConflict, match=f"its newest state is in archive:{tmp_path}/newer"):
            copy_stream(copied, log, run)
    assert log.stream(run) is None
    assert restore_all(tmp_path / "newer", log)[run] == "restored"


def test_nothing_is_restored_or_answered_from_a_pack_that_was_changed(log: EventLog, tmp_path: Path) -> None:
    run = sorted(fill(log))[0]
    archive_all(log, tmp_path / "archive")
    for pack in (tmp_path / "archive" / "packs").glob("*.ndjson"):
        pack.write_bytes(pack.read_bytes().replace(b"RunStarted", b"RunStartef"))
    store = Store(log, ENGINE, on_alert=lambda alert: None)
    with pytest.raises(StreamDeleted, match="is not what was moved"):
        store.append_events(late_events(log, run))
    assert set(restore_all(tmp_path / "archive", log).values()) == {"refused"}
    assert log.stream(run) is None


def test_a_retry_during_a_restore_that_was_killed_is_answered_and_not_stored_again(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.logs.archive.restoring.adopted_max", 2)
    run = max(sorted(fill(log)), key=lambda name: len(stored(log, name)))
    fleet = contents(log)
    store = Store(log, ENGINE, on_alert=lambda alert: None)
    before = store.append_events(late_events(log, run))
    archive_all(log, tmp_path / "archive")
    assert log.adopt(run, fleet[run][:2], model="engine") == 2
    for checked in (store, Store(log, ENGINE, check_transitions=True, on_alert=lambda alert: None)):
        assert checked.append_events(late_events(log, run)) == before
    new = msgspec.structs.replace(late_events(log, run)[0], idempotency_key="new", event_id=str(uuid4()))
    with pytest.raises(StreamDeleted, match="runstate restore"):
        store.append_event(new)
    assert outcomes(archive_all(log, tmp_path / "other")).get(run, "unfinished") in ("refused", "unfinished")
    store.delete_stream(run)
    assert store.append_events(late_events(log, run)) == before
    assert restore_all(tmp_path / "archive", log)[run] == "restored"
    assert contents(log) == fleet
    assert store.append_event(new).seq == len(fleet[run]) + 1


def test_a_run_that_was_deleted_and_not_archived_has_no_producer(log: EventLog) -> None:
    store = Store(log, ENGINE, on_alert=lambda alert: None)
    run = store.run("r-1", tenant="t", plan="p")
    run.started()
    store.delete_stream("r-1")
    with pytest.raises(StreamDeleted, match="was deleted at seq 1"):
        run.completed()
    with pytest.raises(StreamDeleted, match="was deleted at seq 1"):
        store.run("r-1", tenant="t", plan="p")


def test_a_compacted_stream_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    with open_log(f"wal:{tmp_path}/log") as log:
        over = fill(log)
        assert isinstance(log, WalLog)
        compacted = sorted(over)[0]
        last = log.read(compacted)[-1].seq
        log.checkpoint(compacted, StoredSnapshot("engine", 2, last, digest(b"{}"), b"{}"))
        told = archive_all(log, tmp_path / "archive")
        assert told[compacted].outcome == "refused"
        assert {stream for stream, each in told.items() if each.outcome == "archived"} == over - {compacted}


def test_an_archive_whose_path_is_no_text_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        ArchiveDirectory(tmp_path / os.fsdecode(b"\xff")).prepare("engine")
    assert list(tmp_path.iterdir()) == []


def test_an_event_of_another_model_is_not_answered_from_the_archive(log: EventLog, tmp_path: Path) -> None:
    run = sorted(fill(log))[0]
    first = stored(log, run)[0]
    archive_all(log, tmp_path / "archive")
    draft = note(first.key, tenant="", model="notes")
    with pytest.raises(ModelMismatch, match="'engine', not of 'notes'"):
        answer_from_archive(log, run, [draft])
