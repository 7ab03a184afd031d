"""The segments log's own promises: its files, pins, merges, the collector, one writer at a time."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from tests.crash.segments_work import bare

from runstate.conformance.notes import as_held, keys, note, notes, numbered, snapshot, stored
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.conformance.threads import meanwhile, race_all
from runstate.copying import copy_stream
from runstate.errors import InvalidUrl, LogBusy, LogDamaged, LogFailed, LogFull, LogNotFound, NotALog, NotWritable
from runstate.logs.blob_refs import blob_refs
from runstate.logs.log import BlobRef, Record
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.registry import open_log
from runstate.logs.segments import Collected, SegmentsLog, open_url
from runstate.logs.segments import log as log_module
from runstate.logs.segments import session as session_module
from runstate.logs.segments.compaction import Limits
from runstate.models.session import SESSION
from runstate.storage.disk import RealDisk


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentsLog]:
    with SegmentsLog(tmp_path / "log", limits=Limits(segment_events_max=4)) as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "log/sessions/r"


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Callable[[], SegmentsLog]]:
    """More handles on the same log."""
    made: list[SegmentsLog] = []

    def open_again() -> SegmentsLog:
        made.append(SegmentsLog(tmp_path / "log", limits=Limits(segment_events_max=4)))
        return made[-1]

    yield open_again
    for each in made:
        each.close()


def manifest_of(home: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (home / "manifest.jsonl").read_bytes().split(b"\n")[:-1]]


def segments_in(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "events").iterdir())


# --- files --------------------------------------------------------------------------------------------------------


def test_one_append_is_one_segment_and_one_line_of_the_manifest(log: SegmentsLog, home: Path) -> None:
    log.append("r", [bare("a"), bare("b")])
    log.append("r", [bare("c")])
    assert segments_in(home) == ["00000000-00000001.jsonl", "00000002-00000002.jsonl"]
    first, second = manifest_of(home)
    data = (home / "events/00000000-00000001.jsonl").read_bytes()
    assert {name: value for name, value in first.items() if name != "crc"} == {
        "manifestIndex": 0,
        "kind": "segment_closed",
        "firstEventIndex": 0,
        "lastEventIndex": 1,
        "path": "events/00000000-00000001.jsonl",
        "sha256": sha256(data).hexdigest(),
        "bytes": len(data),
    }
    assert (second["manifestIndex"], second["firstEventIndex"], second["lastEventIndex"]) == (1, 2, 2)


def test_a_line_of_a_session_stands_bare(log: SegmentsLog, home: Path) -> None:
    session = {"sessionId": "r", "eventId": "00000000-0000-4000-8000-000000000000", "kind": "session_created"}
    event = SESSION.parse(json.dumps(session | {"dedupeKey": "session_created", "data": {}}).encode())
    stream, draft = SESSION.draft(event)
    (result,) = log.append(stream, [draft])
    line = draft.render(1, result.persisted_at)
    assert (home / "events/00000000-00000000.jsonl").read_bytes() == line + b"\n"
    assert json.loads(line)["eventIndex"] == 0
    assert log.read("r") == [
        Record("r", 1, draft.event_id, "session_created", draft.key, "", "", result.persisted_at, line)
    ]


def test_another_models_line_stands_in_a_frame_byte_for_byte(log: SegmentsLog, home: Path) -> None:
    (result,) = log.append("r", [draft := note("a\u2028", 'x","event":{')])
    line = (home / "events/00000000-00000000.jsonl").read_bytes()
    body = draft.render(1, result.persisted_at)
    assert line.startswith(b'{"seq":1,"event_id":')
    assert line.endswith(b'","event":' + body + b"}\n")
    assert log.read("r")[0].body == body


@pytest.mark.parametrize(
    "other",
    [{"tenant": "t"}, {"emitted_at": "2026-11-15T09:30:00Z"}, {"key": "x"}, {"type": "x"}, {"event_id": "x"}],
    ids=lambda other: next(iter(other)),
)
def test_a_line_that_does_not_say_its_whole_envelope_is_framed(log: SegmentsLog, other: dict[str, str]) -> None:
    (held,) = as_held("r", [bare("a")])
    log.adopt("r", [record := msgspec.structs.replace(held, **other)])
    assert log.read("r") == [record]


def test_both_kinds_of_lines_may_stand_in_one_session(log: SegmentsLog) -> None:
    """Older versions did not keep the models apart. What names no model is appended to any session still."""
    log.append("r", [bare("a"), note("b", tenant="", model=""), bare("c")])
    log.append("r", [note("d", tenant="", model=""), bare("e")])
    assert [(r.seq, r.key) for r in log.read("r")] == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    assert list(log.lines("r")) == [record.body for record in log.read("r")]
    assert list(log.verify()) == []


def test_files_are_the_owners_alone(log: SegmentsLog, home: Path) -> None:
    log.append("r", [note("a", log.put_blob(b"data"))])
    log.save_snapshot("r", snapshot(1))
    paths = list(Path(log.root).rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}


def test_ids_that_begin_with_a_dot_do_not_meet_the_logs_own_files(log: SegmentsLog) -> None:
    names = [".blobs", ".deleted.1.tmp", "%.blobs", "%", "..."]
    ref = log.put_blob(b"data")
    for name in names:
        log.append(name, [note(name, ref)])
    assert [info.stream for info in log.streams()] == sorted(names)
    log.delete_stream(".blobs")
    assert [keys(log.read(name)) for name in names[1:]] == [[name] for name in names[1:]]
    assert log.collect_blobs().removed == []


@pytest.mark.parametrize("version", ["segments", "segments-2"])
def test_a_session_of_each_version_is_read(golden: Path, version: str) -> None:
    with SegmentsLog(golden / version, create=False) as log:
        assert list(log.verify()) == []
        assert keys(log.read("golden")) == ["a", "b", "c", "d", "e", "ü\u2028"]
        assert [record.tenant for record in log.read("golden")] == ["", "", "", "", "", "acme"]
        assert [info.model for info in log.streams()] == [head.model for head in log.heads()] == ["session"]
        assert log.load_snapshot("golden", "notes") == snapshot(5)
        assert [log.get_blob(BlobRef(ref)) for ref in golden_refs] == [b"one", b"two"]


def test_a_framed_session_of_an_older_version_records_no_model_and_is_gone_on_from(
    golden: Path, tmp_path: Path
) -> None:
    shutil.copytree(golden / "segments-framed", tmp_path / "old")
    with SegmentsLog(tmp_path / "old", create=False) as log:
        assert log.read("s") == as_held("s", [note("a", "ü\u2028"), note("b"), note("c", tenant="t-2")])
        assert log.append("s", [note("d")])[0].seq == 4
        assert log.append("s", [note("e", model="other")])[0].seq == 5
        assert [info.model for info in log.streams()] == [head.model for head in log.heads()] == [""]
        assert list(log.verify()) == []


def test_the_frame_of_the_first_event_alone_names_the_model(log: SegmentsLog, home: Path) -> None:
    log.append("r", [note("a"), note("b")])
    log.append("r", [note("c")])
    lines = b"".join(path.read_bytes() for path in sorted(home.rglob("events/*"))).split(b"\n")[:-1]
    assert [b',"model":"notes","crc":"' in line for line in lines] == [True, False, False]


def test_records_of_another_model_that_look_like_those_of_a_session_are_framed(
    log: SegmentsLog, tmp_path: Path
) -> None:
    log.append("r", [bare("a"), bare("b")])
    with SegmentsLog(tmp_path / "own") as target:
        target.adopt("r", log.read("r"), model="own")
        assert target.read("r") == log.read("r")
        assert [info.model for info in target.streams()] == ["own"]


def test_a_session_of_the_last_version_is_written_byte_for_byte(golden: Path, tmp_path: Path) -> None:
    with SegmentsLog(tmp_path / "log") as log:
        write_golden(log)
    for path in (golden / "segments-2").rglob("*"):
        if path.is_file():
            assert (tmp_path / "log" / path.relative_to(golden / "segments-2")).read_bytes() == path.read_bytes()


golden_refs = [f"sha256:{sha256(data).hexdigest()}" for data in (b"one", b"two")]


def write_golden(log: SegmentsLog) -> None:
    """Two plans that were merged, one with two new pins of which one is an old one, one of another model."""
    log.put_blob(b"one")
    events = [bare("a", golden_refs[0], "golden"), *(bare(key, "", "golden") for key in "bc")]
    events += [bare("d", golden_refs[0], "golden"), bare("e", golden_refs[1], "golden"), note("ü\u2028")]
    held = as_held("golden", events)
    log.adopt("golden", held[:2])
    log.adopt("golden", held[2:3])
    log.compact("golden")
    log.put_blob(b"two")
    log.adopt("golden", held[3:5])
    log.save_snapshot("golden", snapshot(5))
    log.adopt("golden", held[5:])


# --- opening ------------------------------------------------------------------------------------------------------


def test_a_url_names_a_directory_and_its_limits(tmp_path: Path) -> None:
    with open_log(f"segments:{tmp_path}/a?segment_events_max=2&segment_bytes_max=2048") as opened:
        assert isinstance(opened, SegmentsLog)
        for key in "abcd":
            opened.append("r", notes(key))
        assert opened.compact("r") == 2
    assert segments_in(tmp_path / "a/sessions/r") == ["00000000-00000001.jsonl", "00000002-00000003.jsonl"]


@pytest.mark.parametrize(
    "rest",
    ["", "//", "?segment_events_max=5", "\0", "d?segment_events_max=1", "d?segment_events_max=x", "d?other=1",
     "d?segment_bytes_max=0", "d?segment_bytes_max=99999999999", "d?segment_events_max="],
)  # fmt: skip
def test_a_url_without_a_directory_or_with_a_bad_option_is_refused(rest: str) -> None:
    with pytest.raises(InvalidUrl):
        open_url(f"segments:{rest}")


def test_what_is_not_there_is_not_made_unless_asked_for(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        open_url(f"segments:{tmp_path}/no", create=False)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotALog):
        open_url(f"segments:{tmp_path}/file")
    with pytest.raises(LogFailed):
        open_url(f"segments:{tmp_path}/no/such/place")


def test_reading_makes_no_files(log: SegmentsLog) -> None:
    before = list(Path(log.root).rglob("*"))
    log.read("r")
    log.stream("r")
    list(log.verify())
    assert list(Path(log.root).rglob("*")) == before


def test_more_sessions_than_are_kept_in_mind_are_all_written(log: SegmentsLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "sessions_max", 3)
    for turn in range(2):
        for number in range(8):
            log.append(f"s{number}", notes(f"k{turn}"))
    assert [info.last_seq for info in log.streams()] == [2] * 8
    assert len(log._sessions) == 3


# --- the transaction ----------------------------------------------------------------------------------------------


def test_a_plan_takes_three_flushes_and_a_fourth_for_its_pins() -> None:
    disk = SimulatedDisk()
    log = SegmentsLog(Path("/log"), disk=disk)
    order: list[str] = []

    def observe(phase: str, operation: str, what: str) -> None:
        if phase == "before" and operation in ("create", "write", "sync", "rename", "sync_directory"):
            name = "manifest" if "manifest" in what else "events" if operation == "sync_directory" else "segment"
            order.append(f"{operation} {name}")

    log.append("r", [bare("a")])
    ref = log.put_blob(b"data")
    disk.observer = observe
    segment = ["create segment", "write segment", "sync segment", "rename segment", "sync_directory events"]
    manifest = ["write manifest", "sync manifest"]
    log.append("r", [bare("b"), bare("c")])
    assert order == [*segment, *manifest]
    order.clear()
    log.append("r", [bare("d", ref), bare("e", ref)])
    assert order == [*segment, *manifest, *manifest]
    order.clear()
    log.append("r", [bare("f", ref)])
    assert order == [*segment, *manifest]


def test_what_another_handle_has_appended_is_seen_and_gone_on_with(
    log: SegmentsLog, opener: Callable[[], SegmentsLog]
) -> None:
    other = opener()
    for number in range(6):
        (first,) = log.append("r", notes(f"a{number}"), expected_seq=2 * number)
        (second,) = other.append("r", notes(f"b{number}"))
        assert (first.seq, second.seq) == (2 * number + 1, 2 * number + 2)
        assert log.append("r", notes(f"b{number}"))[0].idempotent
    assert len(log.read("r")) == len(other.read("r")) == 12
    assert list(log.verify()) == []


def test_a_session_deleted_and_begun_again_by_another_handle_is_another_session(
    log: SegmentsLog, opener: Callable[[], SegmentsLog]
) -> None:
    other = opener()
    log.append("r", notes("a", "b"))
    other.delete_stream("r")
    assert log.read("r") == []
    other.append("r", notes("b", "c", "d"))
    assert log.append("r", notes("a"))[0].seq == 4
    assert keys(log.read("r")) == ["b", "c", "d", "a"]
    found = log.find("r", "b")
    assert found is not None
    assert found.seq == 1


def test_threads_of_one_handle_wait_for_each_other(log: SegmentsLog) -> None:
    race_all([lambda n=n: log.append("r", notes(f"k{n}")) for n in range(24)])  # type: ignore[misc]
    assert sorted(keys(stored(log, "r"))) == sorted(f"k{n}" for n in range(24))


def test_a_reader_in_this_process_sees_nothing_that_is_not_flushed() -> None:
    disk = SimulatedDisk()
    log = SegmentsLog(Path("/log"), disk=disk)
    log.append("r", [bare("a")])
    seen: list[list[str]] = []

    def observe(phase: str, operation: str, what: str) -> None:
        if operation == "sync" and "manifest" in what:
            disk.observer = None
            seen.append(keys(log.read("r")))
            disk.observer = observe

    disk.observer = observe
    log.append("r", [bare("b")])
    assert seen == [["a"], ["a"]]
    assert keys(log.read("r")) == ["a", "b"]


# --- pins ---------------------------------------------------------------------------------------------------------


def test_what_an_event_refers_to_and_the_log_holds_is_pinned_once(log: SegmentsLog, home: Path) -> None:
    one, two = log.put_blob(b"one"), log.put_blob(b"two")
    unheld = f"sha256:{'0' * 64}"
    log.append("r", [bare("a"), bare("b", one), bare("c", unheld), bare("d", one)])
    log.append("r", [bare("e", one), bare("f", two)])
    pins = [line for line in manifest_of(home) if line["kind"] == "snapshot_pinned"]
    assert [(pin["manifestIndex"], pin["eventIndex"], pin["snapshotRef"]) for pin in pins] == [(1, 1, one), (3, 5, two)]
    assert [pin["createdByEventId"] for pin in pins] == ["evt-b", "evt-f"]


def test_a_line_refers_to_each_of_its_strings_that_has_the_form_of_a_reference() -> None:
    one, two = f"sha256:{'a' * 64}", f"sha256:{'0' * 64}"
    assert blob_refs(f'{{"x":["{two}","{one}"],"y":"{two}","z":"{one}0","w":"see {one}"}}'.encode()) == [two, one]


def test_what_adopted_records_refer_to_is_pinned(log: SegmentsLog, home: Path) -> None:
    ref = log.put_blob(b"one")
    log.adopt("r", as_held("r", [bare("a", ref)]))
    assert [line.get("snapshotRef") for line in manifest_of(home)] == [None, ref]


# --- merging ------------------------------------------------------------------------------------------------------


def test_small_segments_are_merged_up_to_the_limits_and_never_split(log: SegmentsLog, home: Path) -> None:
    for plan in (["a"], ["b", "c"], ["d", "e"], ["f"], [f"big{n}" for n in range(9)], ["g"], ["h"]):
        log.append("r", notes(*plan))
    before = stored(log, "r")
    assert log.compact("r") == 3
    assert segments_in(home) == [
        "00000000-00000002.jsonl",
        "00000003-00000005.jsonl",
        "00000006-00000014.jsonl",
        "00000015-00000016.jsonl",
    ]
    assert stored(log, "r") == before
    assert list(log.verify()) == []
    assert log.compact("r") == 0
    assert log.append("r", notes("i"))[0].seq == 18


def test_a_merged_segment_is_limited_by_bytes_too(tmp_path: Path) -> None:
    with SegmentsLog(tmp_path / "log", limits=Limits(segment_bytes_max=2048)) as log:
        for number in range(4):
            log.append("r", [note(f"k{number}", "x" * 600)])
        log.compact("r")
        sizes = [path.stat().st_size for path in (tmp_path / "log/sessions/r/events").iterdir()]
        assert len(sizes) == 2
        assert max(sizes) <= 2048


def test_the_manifest_only_grows_when_segments_are_merged(log: SegmentsLog, home: Path) -> None:
    log.append("r", notes("a"))
    log.append("r", notes("b"))
    before = (home / "manifest.jsonl").read_bytes()
    parts = [(home / "events" / name).read_bytes() for name in segments_in(home)]
    log.compact("r")
    assert (home / "manifest.jsonl").read_bytes().startswith(before)
    merged = (home / "events/00000000-00000001.jsonl").read_bytes()
    assert merged == b"".join(parts)
    # Each digest that was ever written down is that of a range of the merged file.
    offset = 0
    for line in manifest_of(home)[:2]:
        size = line["bytes"]
        assert isinstance(size, int)
        assert sha256(merged[offset : offset + size]).hexdigest() == line["sha256"]
        offset += size


def test_many_small_segments_are_merged_without_being_asked(log: SegmentsLog, home: Path) -> None:

    for number in range(session_module.segments_spare + 2):
        log.append("r", notes(f"k{number}"))
    assert len(segments_in(home)) < session_module.segments_spare / 2
    assert keys(stored(log, "r")) == [f"k{number}" for number in range(session_module.segments_spare + 2)]
    assert list(log.verify()) == []


def test_a_reader_goes_on_when_its_segments_are_merged_away(
    log: SegmentsLog, opener: Callable[[], SegmentsLog]
) -> None:
    for number in range(8):
        log.append("r", [note(f"k{number}", "x" * 100)])
    reader = opener()
    lines = reader.lines("r")
    first = next(lines)
    assert log.compact("r") == 6
    assert [first, *lines] == list(log.lines("r"))
    assert keys(reader.read("r", after_seq=2, limit=3)) == ["k2", "k3", "k4"]
    assert reader.append("r", notes("new"))[0].seq == 9


def test_a_reader_goes_on_when_its_segments_are_merged_away_and_an_append_of_its_handle_has_failed(
    log: SegmentsLog, opener: Callable[[], SegmentsLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        log.append("r", notes(f"k{number}"))
    lines = log.lines("r")
    first = next(lines)
    opener().compact("r")
    with monkeypatch.context() as patched:
        patched.setattr(RealDisk, "create", full)
        with pytest.raises(LogFull):
            log.append("r", notes("new"))
    assert [first, *lines] == list(log.lines("r"))


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_a_reader_whose_session_is_deleted_ends(log: SegmentsLog, opener: Callable[[], SegmentsLog]) -> None:
    for number in range(8):
        log.append("r", notes(f"k{number}"))
    lines = log.lines("r")
    next(lines)
    opener().delete_stream("r")
    assert list(lines) == []


@pytest.mark.parametrize("events", [1, 20])
def test_a_reader_whose_session_is_begun_again_is_told_to_read_again_and_gets_no_mixture(
    log: SegmentsLog, opener: Callable[[], SegmentsLog], events: int
) -> None:
    for number in range(8):
        log.append("r", notes(f"k{number}"))
    lines, other = log.lines("r"), opener()
    next(lines)
    other.delete_stream("r")
    other.append("r", [note(f"other{number}") for number in range(events)])
    with pytest.raises(LogBusy, match="begun again") as caught:
        list(lines)
    assert caught.value.details == {"stream": "r"}
    assert len(list(log.lines("r"))) == events


def test_a_reader_of_a_session_that_is_cut_back_meanwhile_reads_what_is_left(
    log: SegmentsLog, opener: Callable[[], SegmentsLog], home: Path
) -> None:
    for number in range(8):
        log.append("r", notes(f"k{number}"))
    right, lines = list(log.lines("r")), log.lines("r")
    first = next(lines)
    (home / "events/00000005-00000005.jsonl").write_bytes(b"")
    opener().repair("r")
    assert [first, *lines] == right[:5]


def test_readers_beside_a_writer_that_merges_always_see_a_prefix(
    log: SegmentsLog, opener: Callable[[], SegmentsLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "segments_spare", 3)
    reader = opener()

    def watch(is_over: Callable[[], bool]) -> list[int]:
        seen = []
        while not is_over():
            found = keys(reader.read("r"))
            assert found == [f"k{number}" for number in range(len(found))]
            assert [f for f in reader.verify("r") if f.severity == "damage"] == []
            seen.append(len(found))
        return seen

    with meanwhile(watch) as watcher:
        for number in range(60):
            log.append("r", notes(f"k{number}"))
    assert watcher.result() == sorted(watcher.result())


# --- snapshots ----------------------------------------------------------------------------------------------------


def test_a_snapshot_that_is_ahead_of_its_session_is_not_kept(log: SegmentsLog) -> None:
    log.append("r", notes("a", "b"))
    log.save_snapshot("r", snapshot(2))
    log.save_snapshot("r", snapshot(3))
    log.append("r", notes("c"))
    assert log.load_snapshot("r", "notes") == snapshot(2)


@pytest.mark.parametrize("events", [1, 3])
def test_a_late_snapshot_of_a_deleted_session_is_not_kept_for_one_of_the_same_name(
    log: SegmentsLog, opener: Callable[[], SegmentsLog], events: int
) -> None:
    log.append("r", notes("a", "b"))
    other = opener()
    other.delete_stream("r")
    other.append("r", numbered(events))
    log.save_snapshot("r", snapshot(2))
    assert log.load_snapshot("r", "notes") is other.load_snapshot("r", "notes") is None
    assert list(log.verify()) == []
    log.save_snapshot("r", snapshot(events))  # By now this handle has seen the new one.
    assert other.load_snapshot("r", "notes") == snapshot(events)


def test_a_snapshot_of_another_history_is_not_believed_and_found(
    log: SegmentsLog, opener: Callable[[], SegmentsLog], home: Path
) -> None:
    log.append("r", notes("a", "b"))
    log.save_snapshot("r", snapshot(2))
    old = (home / "snapshot.notes.json").read_bytes()
    log.delete_stream("r")
    log.append("r", notes("a", "c", "d"))
    (home / "snapshot.notes.json").write_bytes(old)
    assert opener().load_snapshot("r", "notes") is None
    assert [(found.code, found.severity) for found in log.verify()] == [("snapshot.digest_mismatch", "damage")]
    log.save_snapshot("r", snapshot(1))
    assert opener().load_snapshot("r", "notes") == snapshot(1)


# --- the collector ------------------------------------------------------------------------------------------------


def test_blobs_that_nothing_refers_to_are_collected(log: SegmentsLog) -> None:
    kept, dropped, garbage = (log.put_blob(data) for data in (b"kept", b"dropped", b"garbage"))
    log.append("r", [bare("a", kept)])
    log.append("s", [note("a", dropped)])
    log.delete_stream("s")
    would = log.collect_blobs(dry_run=True)
    assert log.get_blob(garbage) == b"garbage"
    done = log.collect_blobs()
    assert sorted(done.removed) == sorted(would.removed) == sorted([dropped, garbage])
    assert (done.kept, done.removed_bytes, done.streams, done.dry_run) == (1, 14, 1, False)
    assert log.get_blob(kept) == b"kept"
    assert log.collect_blobs() == Collected(removed=[], removed_bytes=0, kept=1, recent=0, streams=1, dry_run=False)


def test_a_blob_that_was_put_is_safe_until_the_next_append(log: SegmentsLog, opener: Callable[[], SegmentsLog]) -> None:
    ref, collector = log.put_blob(b"data"), opener()
    for each in (collector, log):
        with pytest.raises(LogBusy):
            each.collect_blobs()
    log.append("r", [bare("a", ref)])
    assert collector.collect_blobs().removed == []
    assert log.get_blob(ref) == b"data"
    unused = log.put_blob(b"unused")
    log.append("r", [bare("b")])
    assert collector.collect_blobs().removed == [unused]
    log.put_blob(b"another")
    log.close()
    assert len(collector.collect_blobs().removed) == 1


def test_a_blob_stays_safe_when_the_append_that_refers_to_it_is_refused(
    log: SegmentsLog, opener: Callable[[], SegmentsLog]
) -> None:
    ref, other = log.put_blob(b"data"), opener()
    with other._turn("r") as session, session.locked(), pytest.raises(LogBusy):
        log.append("r", [bare("a", ref)])
    with pytest.raises(LogBusy):
        other.collect_blobs()
    log.append("r", [bare("a", ref)])
    assert other.collect_blobs().removed == []


def test_another_threads_append_does_not_let_go_of_a_blob(log: SegmentsLog, opener: Callable[[], SegmentsLog]) -> None:
    ref = log.put_blob(b"data")
    race_all([lambda: log.append("s", notes("a"))])
    with pytest.raises(LogBusy):
        opener().collect_blobs()
    race_all([lambda: log.append("r", [bare("a", ref)])])  # Whoever stores what refers to it lets go of it.
    assert opener().collect_blobs().removed == []


def test_a_blob_that_two_threads_have_put_is_safe_until_both_have_appended(
    log: SegmentsLog, opener: Callable[[], SegmentsLog]
) -> None:
    ref, other = log.put_blob(b"data"), ThreadPoolExecutor(1)
    assert other.submit(log.put_blob, b"data").result() == ref
    other.submit(log.append, "s", notes("a")).result()
    with pytest.raises(LogBusy):
        opener().collect_blobs()
    log.append("r", [bare("a", ref)])
    assert opener().collect_blobs().removed == []
    assert log.get_blob(ref) == b"data"
    other.shutdown()


def test_a_thread_that_has_ended_keeps_the_collector_away_no_longer_than_to_the_next_append(
    log: SegmentsLog, opener: Callable[[], SegmentsLog]
) -> None:
    ended = Thread(target=log.put_blob, args=(b"data",))
    ended.start()
    ended.join()
    with pytest.raises(LogBusy):
        opener().collect_blobs()
    log.append("r", notes("a"))
    assert len(opener().collect_blobs().removed) == 1
    ended = Thread(target=log.put_blob, args=(b"data",))
    ended.start()
    ended.join()
    assert len(log.collect_blobs().removed) == 1  # Its own handle knows without an append.


def test_no_event_that_refers_to_a_blob_is_stored_while_blobs_are_collected(log: SegmentsLog, home: Path) -> None:
    ref = log.put_blob(b"data")
    log.append("r", [bare("a", ref)])
    collector = RealDisk().lock(Path(log.root) / ".locks/.blobs")
    for call in (lambda: log.append("r", [bare("b", ref[:-1] + "0")]), lambda: log.put_blob(b"x")):
        with pytest.raises(LogBusy):
            call()
    assert log.append("r", [bare("c")])[0].seq == 2  # One that refers to nothing need not wait.
    collector.release()
    assert log.append("r", [bare("b", ref)])[0].seq == 3


def test_a_damaged_session_stops_the_collector(log: SegmentsLog, home: Path) -> None:
    log.put_blob(b"garbage")
    log.append("r", notes("a"))
    log.append("s", notes("a"))
    segment = home / "events/00000000-00000000.jsonl"
    segment.write_bytes(segment.read_bytes()[:-2])
    for dry_run in (True, False):
        with pytest.raises(LogDamaged):
            log.collect_blobs(dry_run=dry_run)
    log.repair("r")
    assert len(log.collect_blobs().removed) == 1


def test_unfinished_blobs_of_a_killed_writer_are_swept(log: SegmentsLog) -> None:
    log.put_blob(b"data")
    log.append("r", notes("a"))
    blobs = Path(log.root) / "snapshots/sha256"
    leftover = blobs / f"{sha256(b'data').hexdigest()}.0123456789abcdef.tmp"
    leftover.write_bytes(b"half")
    log.collect_blobs()
    assert list(blobs.iterdir()) == []


def test_what_somebody_else_has_put_among_the_blobs_is_left_alone(log: SegmentsLog) -> None:
    garbage = log.put_blob(b"data")
    log.append("r", notes("a"))
    blobs, name = Path(log.root) / "snapshots/sha256", sha256(b"x").hexdigest()
    foreign = ["README", "notes.tmp", f"{name}.bak", name.upper(), f"{name[1:]}.0.tmp", ".hidden"]
    for each in foreign:
        (blobs / each).write_bytes(b"precious")
    done = log.collect_blobs()
    assert (done.removed, done.removed_bytes, done.kept) == ([garbage], 4, 0)
    assert sorted(path.name for path in blobs.iterdir()) == sorted(foreign)


def aside_dangling(home: Path) -> None:
    home.rename(home.parents[1] / "away")
    home.symlink_to(home.parents[1] / "not mounted")


def all_dangling(home: Path) -> None:
    home.parent.rename(home.parents[1] / "away")
    home.parent.symlink_to(home.parents[1] / "not mounted")


def events_dangling(home: Path) -> None:
    (home / "events").rename(home.parents[1] / "away")
    (home / "events").symlink_to(home.parents[1] / "not mounted")
    (home / "manifest.jsonl").unlink()


def manifest_a_directory(home: Path) -> None:
    (home / "manifest.jsonl").unlink()
    (home / "manifest.jsonl").mkdir()


doubts: dict[str, Callable[[Path], object]] = {
    "a link to nowhere": aside_dangling,
    "all sessions behind a link to nowhere": all_dangling,
    "events behind a link to nowhere": events_dangling,
    "a name with a dot": lambda home: home.rename(home.with_name(".r-aside")),
    "a name with a sign in front": lambda home: home.rename(home.with_name("%r")),
    "a name that is no stream's": lambda home: home.rename(home.with_name("r\n")),
    "a file": lambda home: (home.rename(home.parents[1] / "away"), home.write_bytes(b"")),
    "a directory within": lambda home: (home / "older").mkdir(),
    "a manifest that is a directory": manifest_a_directory,
}


@pytest.mark.parametrize("doubt", doubts.values(), ids=list(doubts))
def test_at_any_doubt_about_what_stands_among_the_sessions_nothing_is_collected(
    log: SegmentsLog, opener: Callable[[], SegmentsLog], home: Path, doubt: Callable[[Path], object]
) -> None:
    ref = log.put_blob(b"needed")
    log.append("r", [bare("a", ref)])
    log.append("s", notes("a"))
    doubt(home)
    for dry_run in (True, False):
        with pytest.raises((LogDamaged, LogFailed)):
            opener().collect_blobs(dry_run=dry_run)
    assert log.get_blob(ref) == b"needed"


def test_what_a_crash_leaves_of_a_session_or_a_deletion_does_not_stop_the_collector(
    log: SegmentsLog, home: Path
) -> None:
    log.put_blob(b"garbage")
    log.append("s", notes("a"))
    home.mkdir()
    (home.with_name(".deleted.0123456789abcdef.tmp")).mkdir()
    assert len(log.collect_blobs().removed) == 1


def test_a_session_deleted_while_blobs_are_collected_does_not_stop_the_collector(
    log: SegmentsLog, opener: Callable[[], SegmentsLog], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append("r", [bare("a", log.put_blob(b"needed no more"))])
    other, names = opener(), RealDisk.names

    def deleting(disk: RealDisk, path: Path) -> list[str]:
        found = names(disk, path)
        if path == home.parent and home.exists():
            monkeypatch.setattr(RealDisk, "names", names)
            other.delete_stream("r")
        return found

    monkeypatch.setattr(RealDisk, "names", deleting)
    assert len(log.collect_blobs().removed) == 1


# --- copies -------------------------------------------------------------------------------------------------------


def test_a_copy_of_a_session_into_another_log_and_back_is_the_same(log: SegmentsLog, tmp_path: Path) -> None:
    ref = log.put_blob(b"data")
    log.append("r", [bare("a", ref), bare("b")])
    with NdjsonLog(tmp_path / "runs") as other, SegmentsLog(tmp_path / "back") as back:
        copy_stream(log, other, "r")
        copy_stream(other, back, "r")
        assert stored(back, "r") == stored(log, "r")
        assert back.collect_blobs().removed == []
        assert back.get_blob(ref) == b"data"


def test_heads_tell_how_far_each_session_has_come(log: SegmentsLog) -> None:
    log.append("r", numbered(3))
    log.append("s", notes("a"))
    assert [(head.stream, head.weight, head.last_seq) for head in log.heads()] == [("r", 3, 3), ("s", 1, 1)]
    assert [head.version for head in log.heads(versions=False)] == ["", ""]


@pytest.mark.parametrize("place", ["snapshots", "snapshots/sha256"])
def test_the_collector_deletes_nothing_through_a_link(tmp_path: Path, place: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with SegmentsLog(theirs) as log:
        ref = log.put_blob(b"referred to by an event of theirs")
        log.append("r", [bare("a", ref)])
    with SegmentsLog(ours) as log:
        log.append("r", [bare("a")])
        (ours / place).parent.mkdir(exist_ok=True)
        (ours / place).symlink_to(theirs / place)
        with pytest.raises(LogFailed):
            log.collect_blobs()
    with SegmentsLog(theirs) as log:
        assert log.get_blob(ref)


@pytest.mark.parametrize("scheme", ["segments", "ndjson"])
def test_a_stream_whose_directory_is_a_link_is_neither_deleted_nor_repaired(tmp_path: Path, scheme: str) -> None:
    ours, theirs = f"{scheme}:{tmp_path / 'ours'}", f"{scheme}:{tmp_path / 'theirs'}"
    below = "sessions" if scheme == "segments" else ""
    for url in (ours, theirs):
        with open_log(url) as log:
            log.append("r", [bare("a")])
    (tmp_path / "ours" / below / "s").symlink_to(tmp_path / "theirs" / below / "r")
    before = {path: path.read_bytes() for path in (tmp_path / "theirs").rglob("*") if path.is_file()}
    with open_log(ours) as log:
        for call in (log.delete_stream, log.repair):
            with pytest.raises((LogFailed, NotWritable)):
                call("s")
    assert {path: path.read_bytes() for path in (tmp_path / "theirs").rglob("*") if path.is_file()} == before
