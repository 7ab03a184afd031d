"""Damage to a session's files: found, located and named, never read as something else, repaired only when asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

import pytest
from tests.crash.segments_work import bare, blob_of, forms, opened, ref_of, root

from runstate.conformance.notes import findings, keys, note, snapshot, stored
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import LogDamaged, StreamNotFound
from runstate.logs.frames import framed
from runstate.logs.log import Finding, Record
from runstate.logs.segments import SegmentsLog
from runstate.logs.segments.manifest import Manifest, Segment
from runstate.models.canonical import digest

home = root / "sessions/r"
manifest = home / "manifest.jsonl"
each_form = pytest.mark.parametrize("form", forms)


def segment(first: int, last: int) -> PurePosixPath:
    return home / f"events/{first:08d}-{last:08d}.jsonl"


def small_session(form: str = "bare") -> SimulatedDisk:
    """Two plans that were merged, one that was not, two pins, a snapshot."""
    disk = SimulatedDisk()
    log = opened(disk)
    log.put_blob(blob_of("a"))
    log.append("r", [forms[form]("a", ref_of("a")), forms[form]("b", "")])
    log.append("r", [forms[form]("c", "")])
    log.compact("r")
    log.put_blob(blob_of("d"))
    log.append("r", [forms[form]("d", ref_of("d"))])
    log.append("r", [forms[form]("e", "")])
    log.save_snapshot("r", snapshot(4))
    log.close()
    return disk


def put(disk: SimulatedDisk, path: PurePosixPath, data: bytes) -> None:
    """Make a file hold something, behind the log's back."""
    if disk.exists(path):
        disk.remove(path)
    with disk.create(path) as file:
        file.append(data)


def reads_right(disk: SimulatedDisk, right: list[Record]) -> bool:
    """Whether a read gives the right lines, or a beginning of them and then a refusal that says how many they are."""
    lines, found, intact = opened(disk).lines("r"), list[bytes](), len(right)
    try:
        found.extend(lines)
    except LogDamaged as error:
        intact = error.details["intact"]
    return found == [record.body for record in right[:intact]]


# --- each single byte ---------------------------------------------------------------------------------------------


def names_the_place(finding: Finding, path: PurePosixPath, place: int) -> bool:
    if path.parent.name == "sha256":
        return path.name in finding.message
    if path.name.startswith("snapshot."):
        return path.name in finding.message
    at = finding.details
    return bool(home / at["file"] == path and at["offset"] <= place < at["offset"] + at["bytes"])


@pytest.mark.slow
@each_form
def test_each_flipped_byte_of_each_file_is_found_located_and_named(form: str) -> None:
    disk = small_session(form)
    right = stored(opened(disk), "r")
    files = {path: data for path, data in disk.tree().items() if data}
    assert len(files) == 7  # The manifest, three segments, a snapshot, two blobs.
    for path, data in files.items():
        is_event = path.is_relative_to(home) and not path.name.startswith("snapshot.")
        for place in range(len(data)):
            for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255)[place % 3 :: 3]:
                for bit in range(8):
                    if flip >> bit & 1:
                        disk.flip_bit(path, place, bit)
                what = (path, place, flip)
                found = list(opened(disk).verify())
                assert any(names_the_place(finding, path, place) for finding in found), (what, found)
                assert reads_right(disk, right), what
                if is_event:
                    with pytest.raises(LogDamaged) as caught:
                        opened(disk).append("r", [bare("new")])
                    assert home / caught.value.details["file"] == path, what
                for bit in range(8):
                    if flip >> bit & 1:
                        disk.flip_bit(path, place, bit)
    assert findings(opened(disk)) == []


# --- segments ------------------------------------------------------------------------------------------------------


@each_form
def test_damage_says_where_and_how_much_is_intact_and_refuses_appends(form: str) -> None:
    disk = small_session(form)
    disk.flip_bit(segment(3, 3), 9, 2)
    log = opened(disk)
    assert keys(log.read("r", limit=3)) == ["a", "b", "c"]
    lines = log.lines("r")
    assert [next(lines), next(lines), next(lines)] == [record.body for record in log.read("r", limit=3)]
    calls = (
        lambda: log.read("r"),
        lambda: list(lines),
        lambda: log.append("r", [forms[form]("new", "")]),
        lambda: log.adopt("r", stored(opened(small_session(form)), "r")),
        lambda: log.compact("r"),
    )
    for call in calls:
        with pytest.raises(LogDamaged) as caught:
            call()
        told = caught.value.details
        assert (told["stream"], told["seq"], told["intact"], told["reason"]) == ("r", 4, 3, "log.segment_damaged")
        assert (told["file"], told["offset"]) == ("events/00000003-00000003.jsonl", 0)
        assert told["bytes"] == len(disk.read(segment(3, 3)))


def test_the_intact_part_of_a_damaged_session_is_listed() -> None:
    disk = small_session()
    disk.flip_bit(segment(4, 4), 9, 2)
    disk.flip_bit(segment(3, 3), 9, 2)
    (info,) = opened(disk).streams()
    assert (info.last_seq, info.events, info.last_persisted_at) == (
        3,
        3,
        opened(disk).read("r", limit=3)[2].persisted_at,
    )
    disk.flip_bit(segment(0, 2), 9, 2)
    (info,) = opened(disk).streams()
    assert (info.last_seq, info.first_persisted_at) == (0, "")


def test_damage_in_a_merged_segment_is_located_by_the_digests_of_what_was_merged() -> None:
    disk = small_session()
    data = disk.read(segment(0, 2))
    last_line = data[:-1].rindex(b"\n") + 1
    disk.flip_bit(segment(0, 2), last_line + 5, 0)
    (finding,) = opened(disk).verify("r")
    assert (finding.code, finding.seq) == ("log.segment_damaged", 1)
    assert (finding.details["offset"], finding.details["bytes"]) == (last_line, len(data) - last_line)


@pytest.mark.parametrize("change", ["gone", "short", "long", "empty", "zeros", "another"])
def test_a_segment_that_is_not_what_was_closed_ends_the_readable_log(change: str) -> None:
    disk = small_session()
    right, path = stored(opened(disk), "r"), segment(3, 3)
    data = disk.read(path)
    if change == "gone":
        disk.remove(path)
    else:
        other = {"short": data[:-1], "long": data * 2, "empty": b"", "zeros": bytes(len(data))}
        put(disk, path, other.get(change, disk.read(segment(4, 4))))
    (finding,) = opened(disk).verify("r")
    assert (finding.seq, finding.details["file"], finding.details["intact"]) == (4, "events/00000003-00000003.jsonl", 3)
    assert finding.code == ("log.segment_missing" if change == "gone" else "log.segment_damaged")
    assert reads_right(disk, right)
    with pytest.raises(LogDamaged):
        opened(disk).append("r", [bare("new")])


def test_a_merged_segment_that_is_not_what_it_was_made_of_is_found() -> None:
    disk = small_session()
    log, right = opened(disk), Manifest()
    right.extend(disk.read(manifest))
    closed = [Segment(s.first, s.last, digest(b"x") if s.last == 1 else s.sha256, s.bytes) for s in right.closed]
    put(disk, manifest, Manifest().written(closed))
    (finding,) = log.verify("r")
    assert (finding.code, finding.seq, finding.severity) == ("log.merge_unproven", 1, "damage")


def test_two_events_under_one_key_are_found() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    log.append("r", [note("a"), note("b")])
    lines = disk.read(segment(0, 1)).replace(b'"key":"b"', b'"key":"a"').split(b"\n")[:-1]
    twice = [framed(Record("r", n, "e", "noted", "a", "", "", "", b"{}"), "") for n in range(1, len(lines) + 1)]
    data = b"".join(line + b"\n" for line in twice)
    put(disk, segment(0, 1), data)
    put(disk, manifest, Manifest().written([Segment(0, 1, digest(data), len(data))]))
    assert [(finding.code, finding.seq) for finding in opened(disk).verify()] == [("log.key_twice", 2)]


# --- the manifest --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", ["dropped", "doubled", "swapped", "first gone", "junk", "zeros in the middle"])
def test_lines_of_the_manifest_dropped_doubled_swapped_or_overwritten_are_found(edit: str) -> None:
    disk = small_session()
    right = stored(opened(disk), "r")
    lines = disk.read(manifest).split(b"\n")[:-1]
    assert [b"segment_closed" in line for line in lines] == [True, False, True, True, True, False, True]
    edited = {
        "dropped": [*lines[:2], *lines[3:]],
        "doubled": [*lines[:3], *lines[2:]],
        "swapped": [*lines[:2], lines[3], lines[2], *lines[4:]],
        "first gone": lines[1:],
        "junk": [*lines[:2], b"x" * len(lines[2]), *lines[3:]],
        "zeros in the middle": [*lines[:2], bytes(len(lines[2])), *lines[3:]],
    }[edit]
    put(disk, manifest, b"\n".join([*edited, b""]))
    (finding,) = [f for f in opened(disk).verify("r") if f.severity == "damage"]
    assert (finding.code, finding.details["file"]) == ("log.manifest_damaged", "manifest.jsonl")
    assert reads_right(disk, right)
    with pytest.raises(LogDamaged):
        opened(disk).append("r", [bare("new")])


def test_zeros_over_a_line_and_not_over_the_pin_behind_it_are_damage() -> None:
    disk = small_session()
    lines = disk.read(manifest).split(b"\n")[:-1]
    put(disk, manifest, b"\n".join([*lines[:4], bytes(len(lines[4])), lines[5], b""]))
    assert next(finding.code for finding in opened(disk).verify("r")) == "log.manifest_damaged"


@pytest.mark.parametrize("lines", [0, 1, 4])
def test_a_manifest_cut_short_is_told_by_the_segments_behind_its_end(lines: int) -> None:
    disk = small_session()
    known = opened(disk)
    right = stored(known, "r")
    put(disk, manifest, b"".join(line + b"\n" for line in disk.read(manifest).split(b"\n")[:lines]))
    assert "log.manifest_cut" in [finding.code for finding in opened(disk).verify("r")]
    assert reads_right(disk, right)
    calls: list[Callable[[SegmentsLog], object]] = [
        lambda log: log.append("r", [bare("new")]),
        lambda log: log.read("r"),
        lambda log: list(log.lines("r")),
        lambda log: log.find("r", "e"),
        lambda log: log.compact("r"),
    ]
    for log in (opened(disk), known):
        for call in calls:
            with pytest.raises(LogDamaged) as caught:
                call(log)
            assert caught.value.details["reason"] == "log.manifest_cut"
        assert [info.stream for info in log.streams()] == ["r"]
    assert disk.exists(segment(3, 3))
    (finding,) = opened(disk).repair("r")
    assert disk.exists(home / "events/00000004-00000004.jsonl.damaged-1")
    assert opened(disk).append("r", [bare("new")])[0].seq == finding.details["intact"] + 1


def test_a_manifest_that_is_gone_is_told_by_the_segments() -> None:
    disk = small_session()
    disk.remove(manifest)
    with pytest.raises(LogDamaged) as caught:
        opened(disk).read("r")
    assert caught.value.details["reason"] == "log.manifest_cut"
    assert [info.stream for info in opened(disk).streams()] == ["r"]
    with pytest.raises(LogDamaged):
        opened(disk).append("r", [bare("new")])
    assert disk.exists(segment(0, 2))


@pytest.mark.parametrize("grown", [1, 7])
def test_a_session_begun_again_between_two_looks_is_not_taken_for_one_cut_short(
    monkeypatch: pytest.MonkeyPatch, grown: int
) -> None:
    """The names are those of the old session, the manifest is the new one's, which perhaps grows on meanwhile."""
    disk = small_session()
    reader, writer, names = opened(disk), opened(disk), disk.names
    new = [f"k{number}" for number in range(grown)]

    def begin_again(path: PurePosixPath) -> list[str]:
        found = names(path)
        monkeypatch.setattr(disk, "names", grow)
        with monkeypatch.context() as undisturbed:
            undisturbed.setattr(disk, "names", names)
            writer.delete_stream("r")
            writer.append("r", [bare(new[0])])
        return found

    def grow(path: PurePosixPath) -> list[str]:
        monkeypatch.setattr(disk, "names", names)
        for key in new[1:]:
            writer.append("r", [bare(key)])
        return names(path)

    monkeypatch.setattr(disk, "names", begin_again)
    assert keys(reader.read("r")) == new
    assert findings(reader) == []


def test_a_manifest_that_lost_its_last_line_is_told_by_a_snapshot_of_its_event() -> None:
    disk = small_session()
    log = opened(disk)
    log.save_snapshot("r", snapshot(5))
    put(disk, manifest, b"".join(line + b"\n" for line in disk.read(manifest).split(b"\n")[:6]))
    assert [finding.code for finding in opened(disk).verify("r")] == ["log.events_missing"]
    assert opened(disk).load_snapshot("r", "notes") is None


torn_tails = {
    "nothing but a brace": b"{",
    "a beginning": b'{"manifestIndex":7,"kind":"segment_cl',
    "a longer beginning": b'{"manifestIndex":7,"kind":"segment_closed","firstEventIndex":5,"lastEventIndex":5,"pa',
    "zeros": b"\0" * 180,
    "a beginning and zeros": b'{"manifestIndex":7,"kind":"segm' + b"\0" * 150,
    "zeros and an end": b"\0" * 90 + b'99","bytes":140,"crc":"00000000"}\n',
    "zeros and pins": b"\0" * 90
    + b'99","crc":"00000000"}\n{"manifestIndex":8,"kind":"snapshot_pinned","eventIndex":4,"snapshotRef":"x"}\n',
}


@pytest.mark.parametrize("tail", torn_tails.values(), ids=list(torn_tails))
def test_what_a_crash_leaves_at_the_end_of_the_manifest_never_happened(tail: bytes) -> None:
    disk = small_session()
    right = stored(opened(disk), "r")
    put(disk, manifest, disk.read(manifest) + tail)
    assert [finding.severity for finding in opened(disk).verify()] in ([], ["warning"])
    log = opened(disk)
    assert stored(log, "r") == right
    assert log.append("r", [bare("new")])[0].seq == 6
    assert [finding.code for finding in log.recoveries] == ["log.torn_tail"]
    assert disk.read(home / "manifest.jsonl.torn-1") == tail
    assert findings(opened(disk)) == []


changed_tails = {
    "other words": b"xxxxxxxxxxxx",
    "a line of another place": b'{"manifestIndex":6,"kind":"segment_closed"',
    "a whole line that does not fit": b'{"manifestIndex":7,"kind":"segment_closed","bytes":1,"crc":"00000000"}\n',
    "a zero in a whole line": b'{"manifestIndex":7,"kind":"segment_\0losed","bytes":1,"crc":"00000000"}\n',
}


@pytest.mark.parametrize("tail", changed_tails.values(), ids=list(changed_tails))
def test_what_no_crash_leaves_at_the_end_of_the_manifest_is_damage(tail: bytes) -> None:
    disk = small_session()
    data = disk.read(manifest)
    put(disk, manifest, data + tail)
    (finding,) = opened(disk).verify()
    assert (finding.code, finding.seq, finding.details["offset"]) == ("log.manifest_damaged", 6, len(data))
    with pytest.raises(LogDamaged):
        opened(disk).append("r", [bare("new")])


@pytest.mark.parametrize("newline", [b"", b"\0"], ids=["no newline", "a zero in its place"])
def test_a_line_that_lacks_only_its_newline_is_whole(newline: bytes) -> None:
    disk = small_session()
    reader = opened(disk)
    right = stored(reader, "r")
    data = disk.read(manifest)
    put(disk, manifest, data[:-1] + newline)
    assert stored(opened(disk), "r") == right
    log = opened(disk)
    assert stored(log, "r") == right
    assert log.append("r", [bare("new")])[0].seq == 6
    assert disk.read(manifest).startswith(data)
    assert keys(stored(log, "r")) == keys(stored(reader, "r")) == [*keys(right), "new"]
    assert findings(opened(disk)) == []


# --- strays --------------------------------------------------------------------------------------------------------


def test_a_segment_without_its_line_never_happened_and_goes_with_the_next_append() -> None:
    disk = small_session()
    right = stored(opened(disk), "r")
    put(disk, segment(5, 9), b"never acknowledged\n")
    assert stored(opened(disk), "r") == right
    assert findings(opened(disk)) == []
    assert opened(disk).append("r", [bare("new")])[0].seq == 6
    assert disk.names(home / "events") == [segment(*span).name for span in [(0, 2), (3, 3), (4, 4), (5, 5)]]


def test_a_stray_that_no_crash_leaves_is_told_and_left_alone() -> None:
    disk = small_session()
    put(disk, segment(1, 3), b"from somewhere\n")
    (finding,) = opened(disk).verify()
    assert (finding.code, finding.severity) == ("log.orphan_segment", "warning")
    opened(disk).append("r", [bare("new")])
    assert disk.read(segment(1, 3)) == b"from somewhere\n"


def test_the_last_copy_of_events_is_not_removed_with_the_leftovers_of_a_merge() -> None:
    disk = small_session()
    data = disk.read(segment(0, 2))
    put(disk, segment(0, 1), data[: data[:-1].rindex(b"\n") + 1])
    log = opened(disk)
    log.append("r", [bare("new")])
    assert not disk.exists(segment(0, 1))
    put(disk, segment(0, 1), data[: data[:-1].rindex(b"\n") + 1])
    disk.flip_bit(segment(0, 2), 3, 0)
    with pytest.raises(LogDamaged):
        opened(disk).append("r", [bare("newer")])
    assert disk.exists(segment(0, 1))


# --- a directory under another name ------------------------------------------------------------------------------


def test_a_session_in_the_directory_of_another_is_found_and_never_read_as_that_one() -> None:
    disk = small_session()
    disk.rename(home, home.with_name("s"))
    log = opened(disk)
    assert reads_right(disk, [])
    calls: list[Callable[[], object]] = [
        lambda: log.read("s"),
        lambda: list(log.lines("s")),
        lambda: list(log.lines("s", after_seq=1)),
        lambda: log.append("s", [bare("new", session="s")]),
    ]
    for call in calls:
        with pytest.raises(LogDamaged, match="'r'") as caught:
            call()
        told = caught.value.details
        assert (told["reason"], told["intact"], told["file"]) == (
            "log.out_of_order",
            0,
            "events/00000000-00000002.jsonl",
        )
    assert log.load_snapshot("s", "notes") is None
    (finding,) = log.verify("s")
    assert (finding.code, finding.seq) == ("log.out_of_order", 1)
    (done,) = log.repair("s")
    assert done.code == "log.out_of_order"
    assert disk.exists(root / "sessions/s/events/00000004-00000004.jsonl.damaged-1")
    assert log.append("s", [bare("new", session="s")])[0].seq == 1
    assert findings(log) == []


# --- repair --------------------------------------------------------------------------------------------------------


@each_form
def test_a_repair_keeps_the_damaged_files_and_cuts_back_to_the_last_valid_segment(form: str) -> None:
    disk = small_session(form)
    right = stored(opened(disk), "r")
    disk.flip_bit(segment(3, 3), 9, 2)
    before = disk.tree()
    log = opened(disk)
    (would,) = log.repair("r", dry_run=True)
    assert disk.tree() == before
    (done,) = log.repair("r")
    assert (done.code, done.seq, done.details["intact"]) == (would.code, would.seq, 3)
    assert stored(log, "r") == right[:3]
    assert findings(log) == []
    assert log.load_snapshot("r", "notes") is None
    for name in ("manifest.jsonl", "events/00000003-00000003.jsonl", "events/00000004-00000004.jsonl"):
        assert disk.read(home / f"{name}.damaged-1") == before[home / name]
    assert log.append("r", [forms[form]("e", "other")])[0].seq == 4
    assert log.repair("r") == []
    assert log.collect_blobs().removed == []  # The evidence refers to the blob of the event that was cut off.


def test_no_repair_overwrites_the_evidence_of_another() -> None:
    disk = small_session()
    for number in (1, 2, 3):
        log = opened(disk)
        log.append("r", [bare(f"n{number}")])
        last = disk.names(home / "events")
        file = home / "events" / [name for name in last if name.endswith(".jsonl")][-1]
        disk.flip_bit(file, 9, 1)
        opened(disk).repair("r")
        assert disk.exists(home / f"manifest.jsonl.damaged-{number}")
    assert keys(stored(opened(disk), "r")) == ["a", "b", "c", "d", "e"]


def test_a_session_without_an_intact_segment_is_cut_back_to_nothing() -> None:
    disk = small_session()
    disk.flip_bit(manifest, 3, 0)
    log = opened(disk)
    assert len(log.repair("r")) == 1
    assert (log.stream("r"), log.read("r")) == (None, [])
    assert log.append("r", [bare("again")])[0].seq == 1
    assert findings(log) == []


def test_what_is_not_there_cannot_be_repaired() -> None:
    with pytest.raises(StreamNotFound):
        opened(SimulatedDisk()).repair("r")


def test_a_handle_that_was_open_before_sees_the_repaired_session() -> None:
    disk = small_session()
    before: SegmentsLog = opened(disk)
    assert len(before.read("r")) == 5
    disk.flip_bit(segment(4, 4), 9, 2)
    opened(disk).repair("r")
    assert keys(before.read("r")) == ["a", "b", "c", "d"]
    assert before.append("r", [bare("e", "another")])[0].seq == 5
    assert before.read("r")[4].body != b""


# --- blobs ---------------------------------------------------------------------------------------------------------


def test_a_pinned_blob_that_is_gone_is_found() -> None:
    disk = small_session()
    disk.remove(root / f"snapshots/sha256/{digest(blob_of('d'))}")
    (finding,) = opened(disk).verify()
    assert (finding.code, finding.seq, finding.severity) == ("blob.missing", 4, "damage")
