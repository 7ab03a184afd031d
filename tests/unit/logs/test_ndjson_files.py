"""The ndjson log's own promises: the seed's file, damage, repair, the index, one writer, many runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from runstate.conformance.notes import findings, keys, note, notes, numbered, snapshot, stored
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.conformance.workers import Worker, check_stored
from runstate.conformance.writer import Task
from runstate.errors import InvalidUrl, LogBusy, LogClosed, LogDamaged, LogFailed, LogNotFound, NotALog, NotWritable
from runstate.logs.log import StoredSnapshot
from runstate.logs.ndjson import NdjsonLog, open_url
from runstate.logs.ndjson import log as log_module
from runstate.logs.registry import open_log
from runstate.models.canonical import digest
from runstate.models.model import Draft
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.storage.disk import File, RealDisk

SRC = Path(__file__).parents[3] / "src"


def event(key: str, run: str = "r", **payload: Any) -> Draft:
    """A draft of a run directory; its payload is not sorted by name."""
    content = {"section": key, "new_state": "DONE"} | payload
    made = RunEvent(
        event_id=key, run_id=run, type="SECTION_STATE_CHANGED", payload=content, trace_id="a" * 32, span_id="b" * 16
    )
    return RUNDIR.draft(made)[1]


forms: dict[str, Callable[[str], Draft]] = {"bare": event, "framed": note}
each_form = pytest.mark.parametrize("form", forms)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[NdjsonLog]:
    with NdjsonLog(tmp_path / "runs") as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs/r/events.ndjson"


def reopened(log: NdjsonLog) -> NdjsonLog:
    log.close()
    return NdjsonLog(log.root)


# --- the file -----------------------------------------------------------------------------------------------------


def test_an_event_of_a_run_is_a_line_of_the_seed_and_nothing_else(log: NdjsonLog, file: Path) -> None:
    log.append("r", [event("a"), event("b")])
    first, second = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    assert list(first) == [
        "event_id", "run_id", "ts", "type", "payload", "trace_id", "span_id", "prev_hash", "event_hash",
    ]  # fmt: skip
    assert (first["prev_hash"], second["prev_hash"]) == ("", first["event_hash"])


def test_the_envelope_of_a_bare_line_is_read_from_its_names(log: NdjsonLog) -> None:
    (result,) = log.append("r", [event("a")])
    (record,) = log.read("r")
    assert (record.event_id, record.key, record.type, record.tenant) == ("a", "a", "SECTION_STATE_CHANGED", "")
    assert record.emitted_at == record.persisted_at == result.persisted_at == json.loads(record.body)["ts"]


def test_another_models_line_stands_in_a_frame_byte_for_byte(log: NdjsonLog, file: Path) -> None:
    (result,) = log.append("r", [draft := note("a\u2028", 'x","event":{')])
    line = file.read_bytes()
    body = draft.render(1, result.persisted_at)
    assert line.startswith(b'{"seq":1,"event_id":')
    assert line.endswith(b'","event":' + body + b"}\n")
    assert json.loads(line)["event"] == json.loads(body)
    assert log.read("r")[0].body == body


def test_both_kinds_of_lines_may_stand_in_one_file(log: NdjsonLog) -> None:
    """Older versions did not keep the models apart. What names no model is appended to any run still."""
    for draft in (event("a"), note("b", tenant="", model=""), event("c")):
        log.append("r", [draft])
    log = reopened(log)
    for draft in (note("d", tenant="", model=""), event("e")):
        log.append("r", [draft])
    assert [(r.seq, r.key) for r in log.read("r")] == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    assert list(log.verify()) == []


def test_a_log_without_hashes_is_read_and_continued(log: NdjsonLog, file: Path) -> None:
    file.parent.mkdir()
    lines = []
    for key in ("a", "b"):
        members: dict[str, Any] = {
            "event_id": key,
            "run_id": "r",
            "ts": "2026-11-15T09:30:00Z",
            "type": "NOTED",
            "payload": {},
        }
        lines.append(json.dumps(members | {"trace_id": "a" * 32, "span_id": "b" * 16}) + "\n")
    file.write_text("".join(lines))
    assert keys(log.read("r")) == ["a", "b"]
    assert log.append("r", [event("c")])[0].seq == 3
    assert list(log.verify()) == []


def test_files_are_the_owners_alone(log: NdjsonLog, file: Path) -> None:
    log.append("r", [event("a")])
    log.save_snapshot("r", snapshot(1))
    log.close()
    modes = {path.stat().st_mode & 0o777 for path in Path(log.root).rglob("*") if path.is_file()}
    assert (modes, file.parent.stat().st_mode & 0o777) == ({0o600}, 0o700)


def test_ids_that_begin_with_a_dot_do_not_meet_the_logs_own_files(log: NdjsonLog) -> None:
    names = [".blobs", ".locks", "%.blobs", "%", "..."]
    ref = log.put_blob(b"data")
    for name in names:
        log.append(name, notes(name))
    assert [info.stream for info in log.streams()] == sorted(names)
    log.delete_stream(".blobs")
    log.delete_stream(".locks")
    assert [keys(log.read(name)) for name in ("%.blobs", "%", "...")] == [["%.blobs"], ["%"], ["..."]]
    assert log.get_blob(ref) == b"data"


# --- damage -------------------------------------------------------------------------------------------------------


def reads_right(log: NdjsonLog, right: list[Any]) -> bool:
    """Whether a read gives a beginning of the right records, or is refused."""
    try:
        found = stored(log, "r")
    except LogDamaged:
        return True
    return found == right[: len(found)]


@pytest.mark.slow
@each_form
@pytest.mark.parametrize("flip", [1, 0x80, 0xFF])
def test_every_flipped_byte_is_found(log: NdjsonLog, file: Path, form: str, flip: int) -> None:
    log.append("r", [forms[form](key) for key in "abc"])
    right = log.read("r")
    log.close()
    data = file.read_bytes()
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
        log = NdjsonLog(log.root)
        assert list(log.verify("r")), place
        # What the seed's hash leaves out is covered by the checksum of the whole alone.
        if not any(name in data[:place].rpartition(b"{")[2].rpartition(b",")[2] for name in (b"trace_id", b"span_id")):
            assert reads_right(log, right), place
        log.close()


@each_form
def test_damage_in_the_middle_says_where_and_how_much_is_intact(log: NdjsonLog, file: Path, form: str) -> None:
    log.append("r", [forms[form](key) for key in "abcd"])
    log.close()
    first, second, *rest = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([first, second[:-20], *rest]))
    log = NdjsonLog(log.root)
    assert keys(log.read("r", limit=1)) == ["a"]
    for call in (lambda: log.read("r"), lambda: list(log.lines("r")), lambda: log.append("r", [forms[form]("e")])):
        with pytest.raises(LogDamaged) as caught:
            call()
        details = caught.value.details
        assert (details["stream"], details["seq"], details["offset"]) == ("r", 2, len(first) + 1)
        assert details["intact"] == 1
    info = log.stream("r")
    assert info is not None
    assert info.last_seq == 1


def test_a_changed_payload_breaks_the_chain(log: NdjsonLog, file: Path) -> None:
    log.append("r", [event(key) for key in "abc"])
    log.close()
    file.write_bytes(file.read_bytes().replace(b'"section":"b"', b'"section":"x"'))
    log = NdjsonLog(log.root)
    (finding,) = [f for f in log.verify() if f.code != "log.event_changed"]
    assert (finding.code, finding.seq, finding.severity) == ("EVENT_CHAIN_BROKEN", 2, "damage")
    with pytest.raises(LogDamaged):
        log.read("r")


@each_form
@pytest.mark.parametrize("edit", ["dropped", "doubled", "swapped"])
def test_lines_dropped_doubled_or_swapped_are_found(log: NdjsonLog, file: Path, form: str, edit: str) -> None:
    log.append("r", [forms[form](key) for key in "abcd"])
    log.close()
    a, b, c, d, _ = file.read_bytes().split(b"\n")
    edited = {"dropped": [a, c, d], "doubled": [a, b, b, c, d], "swapped": [a, c, b, d]}[edit]
    file.write_bytes(b"\n".join([*edited, b""]))
    log = NdjsonLog(log.root)
    assert "damage" in [finding.severity for finding in log.verify()]
    with pytest.raises(LogDamaged):
        list(log.lines("r"))


@each_form
def test_a_file_that_lost_its_end_is_told_from_one_that_never_had_it(log: NdjsonLog, file: Path, form: str) -> None:
    log.append("r", [forms[form](key) for key in "abc"])
    log.close()
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(b"\n", 0, -1) + 1])
    assert [finding.code for finding in NdjsonLog(log.root).verify()] == ["log.events_missing"]


@each_form
@pytest.mark.parametrize("tail", [b'{"seq":3,"even', b"\0" * 700, b'{"event_id":"c\0\0\0"}\n', b"\0\0\0}\n"])
def test_a_torn_tail_is_not_read_and_is_cut_with_evidence(log: NdjsonLog, file: Path, form: str, tail: bytes) -> None:
    log.append("r", [forms[form]("a"), forms[form]("b")])
    log.close()
    file.write_bytes(file.read_bytes() + tail)
    log = NdjsonLog(log.root)
    assert keys(log.read("r")) == ["a", "b"]
    assert log.append("r", [forms[form]("c")])[0].seq == 3
    assert file.with_name("events.ndjson.torn-1").read_bytes() == tail
    assert [finding.code for finding in log.recoveries] == ["log.torn_tail"]
    assert keys(reopened(log).read("r")) == ["a", "b", "c"]


@each_form
@pytest.mark.parametrize("welded", [b"", b'{"seq":3,"event_id":"x'])
@pytest.mark.parametrize("ending", [b"", b"\x0b"])
def test_a_whole_line_in_a_torn_tail_is_kept(
    log: NdjsonLog, file: Path, form: str, welded: bytes, ending: bytes
) -> None:
    log.append("r", [forms[form]("a"), forms[form]("b")])
    log.close()
    first, second, _ = file.read_bytes().split(b"\n")
    file.write_bytes(first + b"\n" + welded + second + ending)
    log = NdjsonLog(log.root)
    assert log.append("r", [forms[form]("c")])[0].seq == 3
    assert keys(log.read("r")) == ["a", "b", "c"]


# --- repair -------------------------------------------------------------------------------------------------------


@each_form
def test_repair_keeps_the_damaged_file_and_the_intact_beginning(log: NdjsonLog, file: Path, form: str) -> None:
    log.append("r", [forms[form](key) for key in "abcd"])
    log.close()
    data = file.read_bytes().replace(b'"b"', b'"B"', 1)
    file.write_bytes(data)
    log = NdjsonLog(log.root)
    (told,) = log.repair("r", dry_run=True)
    assert (told.severity, told.seq, file.read_bytes()) == ("damage", 2, data)
    (done,) = log.repair("r")
    assert [file.with_name(name).read_bytes() for name in done.details["setAside"]] == [data]
    assert keys(log.read("r")) == ["a"]
    assert log.append("r", [forms[form]("e")])[0].seq == 2
    assert findings(log) == []


def test_repair_of_a_healthy_run_changes_nothing(log: NdjsonLog, file: Path) -> None:
    log.append("r", [event("a")])
    before = file.read_bytes()
    assert log.repair("r") == []
    assert (file.read_bytes(), log.append("r", [event("b")])[0].seq) == (before, 2)


# --- snapshots and their index ------------------------------------------------------------------------------------


def kept(log: NdjsonLog, seq: int) -> StoredSnapshot:
    body = RUNDIR.dump(RUNDIR.fold(RUNDIR.initial("r"), log.lines("r", until_seq=seq)))
    made = StoredSnapshot("rundir", 1, seq, digest(body), body)
    log.save_snapshot("r", made)
    return made


def test_the_snapshot_file_holds_exactly_the_snapshot(log: NdjsonLog, file: Path) -> None:
    log.append("r", [event("a")])
    saved = kept(log, 1)
    assert file.with_name("snapshot.json").read_bytes() == saved.body


def test_a_snapshot_that_somebody_else_put_there_is_not_believed_and_not_removed(log: NdjsonLog, file: Path) -> None:
    log.append("r", [event("a")])
    file.with_name("snapshot.json").write_bytes(b"{}")
    log = reopened(log)
    assert log.load_snapshot("r", "rundir") is None
    assert file.with_name("snapshot.json").read_bytes() == b"{}"


@pytest.mark.parametrize("damage", [b"", b"{}", b"\0" * 50])
def test_a_damaged_index_costs_nothing_but_time(log: NdjsonLog, file: Path, damage: bytes) -> None:
    log.append("r", [event(key) for key in "abc"])
    kept(log, 3)
    log.close()
    file.with_name("index.json").write_bytes(damage)
    log = NdjsonLog(log.root)
    assert log.load_snapshot("r", "rundir") is None
    assert len(list(log.lines("r", after_seq=2))) == 1
    assert log.load_snapshot("r", "rundir") is None
    assert log.append("r", [event("d")])[0].seq == 4
    made = kept(log, 4)
    assert reopened(log).load_snapshot("r", "rundir") == made


def test_a_snapshot_of_events_that_are_gone_is_not_believed(log: NdjsonLog, file: Path) -> None:
    log.append("r", [event("a")])
    older = file.read_bytes()
    log.append("r", [event("b")])
    kept(log, 2)
    log.close()
    file.write_bytes(older)
    log = NdjsonLog(log.root)
    assert log.load_snapshot("r", "rundir") is None
    assert keys(log.read("r")) == ["a"]
    assert list(log.lines("r", after_seq=2)) == []


def test_reading_behind_a_snapshot_reads_only_what_is_behind_it() -> None:
    disk = SimulatedDisk()
    log = NdjsonLog(Path("/runs"), disk=disk)
    log.append("r", [event(f"k{number}", filler="x" * 2000) for number in range(2000)])
    kept(log, 2000)
    log.append("r", [event("tail")])
    log.close()
    log, before = NdjsonLog(Path("/runs"), disk=disk), disk.calls["read"]
    loaded = log.load_snapshot("r", "rundir")
    assert loaded is not None
    assert len(list(log.lines("r", after_seq=loaded.seq))) == 1
    assert disk.calls["read"] - before < 10


# --- one writer ----------------------------------------------------------------------------------------------------

_holder = """
import sys
from runstate.logs.registry import open_log
from runstate.conformance.notes import notes
log = open_log(sys.argv[1])
log.append("r", notes("theirs"))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process(log: NdjsonLog) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has written to the run "r", and holds it until its stdin ends."""
    command = [sys.executable, "-c", _holder, f"ndjson:{log.root}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_run_that_another_process_writes_is_busy_and_can_be_read(
    log: NdjsonLog, other_process: subprocess.Popen[bytes]
) -> None:
    for call in (
        lambda: log.append("r", notes("mine")),
        lambda: log.save_snapshot("r", snapshot(1)),
        lambda: log.delete_stream("r"),
        lambda: log.repair("r"),
    ):
        with pytest.raises(LogBusy):
            call()
    assert keys(log.read("r")) == ["theirs"]
    assert log.append("another", notes("mine"))[0].seq == 1


def test_a_killed_writer_leaves_its_run_to_the_next(log: NdjsonLog, other_process: subprocess.Popen[bytes]) -> None:
    other_process.kill()
    other_process.wait()
    assert log.append("r", notes("mine"))[0].seq == 2


def test_runs_beyond_the_bound_are_let_go_of(log: NdjsonLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "writers_max", 2)
    for turn in range(2):
        for name in "abcd":
            log.append(name, notes(f"{turn}"))
    other = NdjsonLog(log.root)
    assert other.append("a", notes("now free"))[0].seq == 3
    with pytest.raises(LogBusy):
        other.append("d", notes("held"))
    other.close()


def test_a_damaged_run_is_let_go_of_so_that_another_process_can_repair_it(log: NdjsonLog, file: Path) -> None:
    log.append("r", [event(key) for key in "abc"])
    log.close()
    file.write_bytes(file.read_bytes().replace(b'"b"', b'"B"'))
    log, other = NdjsonLog(log.root), NdjsonLog(log.root)
    with pytest.raises(LogDamaged):
        log.append("r", [event("d")])
    assert len(other.repair("r")) == 1
    other.close()
    assert log.append("r", [event("d")])[0].seq == 2


def test_threads_share_flushes() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    disk = SimulatedDisk()
    log = NdjsonLog(Path("/runs"), disk=disk)
    log.append("r", notes("first"))
    before = disk.calls["sync"]
    start = Barrier(17)
    run = log._runs["r"]

    def write(number: int) -> None:
        start.wait()
        log.append("r", notes(f"k{number}"))

    with ThreadPoolExecutor(16) as pool:
        with run.turn:  # All of them are in line before the first has its turn.
            done = [pool.submit(write, number) for number in range(16)]
            start.wait()
            while len(run._line._line) < 16:
                time.sleep(0)
        for future in done:
            future.result()
    assert disk.calls["sync"] - before == 1
    assert len(stored(log, "r")) == 17


@pytest.mark.slow
def test_a_run_can_be_read_and_verified_while_another_process_writes_to_it(log: NdjsonLog) -> None:
    with Worker(f"ndjson:{log.root}") as worker:
        worker.start(task := Task("r", 200, threads=4))
        seen: list[str] = []
        looks = 0
        while len(seen) < 300:
            found = keys(stored(log, "r"))
            assert found[: len(seen)] == seen
            assert list(log.verify("r")) == []
            seen, looks = found, looks + 1
        told = worker.finish()
    check_stored(log, [task], told)
    assert looks > 3


# --- opening ------------------------------------------------------------------------------------------------------


def test_opening(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        open_url(f"ndjson:{tmp_path}/missing", create=False)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "file").write_text("mine")
    for path in ("file", "file/below"):
        with pytest.raises(NotALog):
            open_url(f"ndjson:{tmp_path}/{path}")
    with pytest.raises(LogFailed):
        open_url(f"ndjson:{tmp_path}/no/such")
    with pytest.raises(InvalidUrl):
        open_url("ndjson:")
    assert isinstance(open_log(f"ndjson:{tmp_path}/runs"), NdjsonLog)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("error", ["EROFS", "EACCES", "ENOLCK"])
def test_a_directory_that_cannot_be_written_is_read_and_says_so(error: str) -> None:
    import errno

    disk = SimulatedDisk()
    log = NdjsonLog(Path("/runs"), disk=disk)
    log.append("r", notes("a"))
    log.close()
    log = NdjsonLog(Path("/runs"), create=False, disk=disk)
    disk.fail("lock", error=getattr(errno, error), persistent=True)
    assert keys(log.read("r")) == ["a"]
    refusal = "cannot lock files" if error == "ENOLCK" else f"cannot be written: {os.strerror(getattr(errno, error))}"
    with pytest.raises(LogFailed if error == "ENOLCK" else NotWritable, match=refusal):
        log.append("r", notes("b"))


def test_a_forked_child_is_refused(log: NdjsonLog) -> None:
    log.append("r", notes("a"))
    if not (child := os.fork()):
        try:
            log.append("r", notes("b"))
        except LogClosed as refused:
            os._exit(0 if "forked" in str(refused) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert log.append("r", notes("b"))[0].seq == 2


def test_what_is_no_run_is_not_listed(log: NdjsonLog) -> None:
    log.append("r", notes("a"))
    (Path(log.root) / "empty").mkdir()
    (Path(log.root) / "file").write_text("")
    (Path(log.root) / "back\\slash").mkdir()
    (Path(log.root) / "started").mkdir()
    (Path(log.root) / "started/events.ndjson").write_bytes(b'{"seq":1,')
    assert [info.stream for info in log.streams()] == ["r"]
    assert list(log.verify()) == []


def test_deleting_takes_what_workers_have_put_beside_the_events(log: NdjsonLog, file: Path) -> None:
    log.append("r", [event("a")])
    (file.parent / "artifacts/deep").mkdir(parents=True)
    (file.parent / "artifacts/deep/page.html").write_text("x")
    log.delete_stream("r")
    assert [path.name for path in Path(log.root).iterdir() if not path.name.startswith(".locks")] == []


def test_pages_of_a_long_run_do_not_read_it_again_from_its_beginning() -> None:
    disk = SimulatedDisk()
    log = NdjsonLog(Path("/runs"), disk=disk)
    log.append("r", numbered(3000))
    log.close()
    log, before = NdjsonLog(Path("/runs"), disk=disk), disk.calls["read"]
    assert len(stored(log, "r", page=10)) == 3000
    assert disk.calls["read"] - before < 3000


@pytest.mark.slow
def test_a_page_of_many_runs_opens_only_what_is_on_it(tmp_path: Path) -> None:
    opened: list[str] = []

    class Watched(RealDisk):
        def open(self, path: PurePath, *, create: bool = False, read_only: bool = False) -> File:
            if path.name == "events.ndjson":
                opened.append(path.parent.name)
            return super().open(path, create=create, read_only=read_only)

    names = [f"run-{number:03}" for number in range(300)]
    with NdjsonLog(tmp_path) as log:
        for name in names:
            log.append(name, [event("a", name)])
    with NdjsonLog(tmp_path, disk=Watched()) as log:
        page = log.streams(after="run-099", limit=50)
    assert [info.stream for info in page] == names[100:150]
    assert set(opened) == set(names[100:150])
