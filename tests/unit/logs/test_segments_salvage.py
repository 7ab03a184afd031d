"""Salvage of a damaged session: every event that can be proven stays, and what cannot be proven is named."""

from __future__ import annotations

import pytest
from tests.crash.segments_work import bare, blob_of, opened, ref_of, root
from tests.unit.logs.test_segments_damage import each_form, home, manifest, put, segment, small_session

from runstate.conformance.notes import findings, keys, note, snapshot, stored
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import LogDamaged
from runstate.logs.log import Finding, Record
from runstate.models.canonical import digest


def repaired(disk: SimulatedDisk, *, salvage: bool) -> tuple[Finding, list[Record]]:
    """What a repair says and leaves. It does what its dry run has said, exactly, and then everything works again."""
    before = disk.tree()
    (would,) = opened(disk).repair("r", dry_run=True, salvage=salvage)
    assert disk.tree() == before
    log = opened(disk)
    (done,) = log.repair("r", salvage=salvage)
    assert done == would
    left = stored(log, "r")
    assert (len(left), findings(log)) == (done.details["kept"], [])
    listed = [finding.details["file"] for finding in log.verify("r")]
    assert listed == done.details["setAside"]
    held = {bytes(content) for content in disk.tree().values() if content}
    lost = [
        path for path, content in before.items() if content and content not in held and "snapshot." not in path.name
    ]
    assert lost == []
    assert log.repair("r", salvage=salvage) == []
    assert log.append("r", [bare("after")])[0].seq == len(left) + 1
    return done, left


@each_form
def test_every_flipped_byte_of_the_manifest_costs_a_plain_repair_events_and_a_salvage_none(form: str) -> None:
    start = small_session(form)
    right, size = stored(opened(start), "r"), len(start.read(manifest))
    for place in range(0, size, 11):
        disk = start.killed()
        disk.flip_bit(manifest, place, place % 7)
        plain, _ = repaired(disk.killed(), salvage=False)
        assert plain.details["salvageable"] == 5 - plain.details["kept"], place
        assert "--salvage" in plain.message
        done, left = repaired(disk, salvage=True)
        assert (left, done.details["lost"], done.details.get("unproven")) == (right, 0, None), place
        assert opened(disk).load_snapshot("r", "notes") == snapshot(4)
        assert opened(disk).collect_blobs().removed == []


edits = [
    "dropped",
    "doubled",
    "swapped",
    "first gone",
    "junk",
    "zeros",
    "two gone",
    "last gone",
    "all but one",
    "gone",
    "empty",
]


@each_form
@pytest.mark.parametrize("edit", edits)
def test_the_segments_outlive_whatever_happens_to_the_manifest(form: str, edit: str) -> None:
    disk = small_session(form)
    right = stored(opened(disk), "r")
    lines = disk.read(manifest).split(b"\n")[:-1]
    edited = {
        "dropped": [*lines[:2], *lines[3:]],
        "doubled": [*lines[:3], *lines[2:]],
        "swapped": [*lines[:2], lines[3], lines[2], *lines[4:]],
        "first gone": lines[1:],
        "junk": [*lines[:4], b"x" * len(lines[4]), *lines[5:]],
        "zeros": [*lines[:4], bytes(len(lines[4])), *lines[5:]],
        "two gone": [*lines[:3], *lines[5:]],
        "last gone": [*lines[:4]],
        "all but one": lines[:1],
        "empty": [],
    }
    disk.remove(manifest)
    if edit != "gone":
        put(disk, manifest, b"".join(line + b"\n" for line in edited[edit]))
    assert [info.stream for info in opened(disk).streams()] == ["r"]
    done, left = repaired(disk, salvage=True)
    assert left == right
    # Only a digest, or a lost line that fits into the chain, proves bare lines; framed ones have a checksum each.
    unproven = {
        "two gone": [(4, 4)],
        "last gone": [(4, 5)],
        "all but one": [(3, 5)],
        "gone": [(1, 5)],
        "empty": [(1, 5)],
    }
    expected = unproven.get(edit) if form == "bare" else None
    assert done.details.get("unproven") == expected
    assert ("Kept without proof" in done.message) == bool(expected)


def test_a_manifest_that_is_gone_is_damage_even_beside_a_single_segment() -> None:
    disk = SimulatedDisk()
    opened(disk).append("r", [bare("a"), bare("b")])
    disk.remove(manifest)
    (finding,) = opened(disk).verify("r")
    assert (finding.code, finding.severity) == ("log.manifest_cut", "damage")
    assert [info.stream for info in opened(disk).streams()] == ["r"]
    for call in (lambda log: log.read("r"), lambda log: list(log.lines("r")), lambda log: log.append("r", [bare("c")])):
        with pytest.raises(LogDamaged):
            call(opened(disk))
    plain, _ = repaired(disk.killed(), salvage=False)
    assert "'runstate repair --salvage' keeps 2 more, 2 of them without proof" in plain.message
    assert keys(repaired(disk, salvage=True)[1]) == ["a", "b"]


def test_what_stands_before_the_damage_in_a_merged_segment_is_proven_by_the_digests_of_its_parts() -> None:
    disk = small_session()
    right = stored(opened(disk), "r")
    disk.flip_bit(segment(0, 2), len(disk.read(segment(0, 2))) - 5, 0)
    plain, left = repaired(disk.killed(), salvage=False)
    assert (left, plain.details["lostRange"], plain.details["salvageable"]) == ([], [1, 5], 2)
    done, left = repaired(disk, salvage=True)
    assert left == right[:2]
    assert (done.details["lostRange"], done.details["provenAside"]) == ([3, 5], [(4, 5)])
    assert "Proven behind a gap, and readable in the files that are set aside: seq 4 to 5" in done.message
    assert disk.read(home / "events/00000004-00000004.jsonl.damaged-1").count(b"\n") == 1


def test_each_framed_line_before_the_damage_in_a_segment_is_proven_by_its_own_checksum() -> None:
    disk = SimulatedDisk()
    opened(disk).append("r", [note(key) for key in "abcde"])
    right, data = stored(opened(disk), "r"), disk.read(segment(0, 4))
    for place in range(0, len(data), 13):
        damaged = disk.killed()
        damaged.flip_bit(segment(0, 4), place, 1)
        done, left = repaired(damaged, salvage=True)
        intact = data[:place].count(b"\n")
        assert left == right[:intact]
        behind = done.details.get("provenAside", [])
        assert sum(last - first + 1 for first, last in behind) >= 4 - intact - 1


def test_lines_that_a_digest_contradicts_are_not_put_back() -> None:
    disk = small_session()
    right = stored(opened(disk), "r")
    disk.flip_bit(segment(3, 3), len(disk.read(segment(3, 3))) - 5, 0)
    lines = disk.read(manifest).split(b"\n")
    put(disk, manifest, b"\n".join(lines[1:]))
    assert repaired(disk, salvage=True)[1] == right[:3]


def test_a_segment_behind_the_intact_end_of_the_manifest_never_happened_for_a_salvage_either() -> None:
    disk = small_session()
    right = stored(opened(disk), "r")
    other = small_session()
    opened(other).append("r", [bare("never acknowledged")])
    put(disk, segment(5, 5), other.read(segment(5, 5)))
    disk.flip_bit(manifest, 30, 0)
    assert repaired(disk, salvage=True)[1] == right


def test_a_lost_last_line_is_reported_until_repair_and_salvage_brings_its_segment_back() -> None:
    disk = small_session()
    log = opened(disk)
    log.save_snapshot("r", snapshot(5))
    right = stored(log, "r")
    put(disk, manifest, b"".join(line + b"\n" for line in disk.read(manifest).split(b"\n")[:6]))
    assert [finding.code for finding in opened(disk).verify("r")] == ["log.events_missing"]
    plain, left = repaired(disk.killed(), salvage=False)
    assert (left, plain.details["lostRange"]) == (right[:4], [5, 5])
    assert repaired(disk, salvage=True)[1] == right


def test_the_segment_that_a_torn_line_names_is_set_aside_and_never_deleted() -> None:
    disk = small_session()
    disk.remove(home / "snapshot.notes.json")  # It tells that there were more events: then it is damage.
    right, data = stored(opened(disk), "r"), disk.read(segment(4, 4))
    put(disk, manifest, disk.read(manifest)[:-30])
    before = disk.tree()
    (would,) = opened(disk).repair("r", dry_run=True)
    assert disk.tree() == before
    log = opened(disk)
    assert stored(log, "r") == right[:4]
    assert log.append("r", [bare("new")])[0].seq == 5
    assert log.recoveries == [would]
    aside = ["manifest.jsonl.torn-1", "events/00000004-00000004.jsonl.torn-1"]
    assert [finding.details["file"] for finding in log.verify("r")] == would.details["setAside"] == aside
    assert disk.read(home / aside[1]) == data


def test_pins_of_lost_lines_are_derived_again_and_kept_from_the_collector() -> None:
    disk = small_session()
    disk.remove(manifest)
    repaired(disk, salvage=True)
    assert opened(disk).collect_blobs().removed == []
    disk.remove(root / f"snapshots/sha256/{digest(blob_of('d'))}")
    (finding,) = findings(opened(disk))
    assert (finding.code, finding.seq, finding.details) == ("blob.missing", 4, {"ref": ref_of("d")})
