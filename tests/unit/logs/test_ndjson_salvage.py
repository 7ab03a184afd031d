"""Repair and salvage of a damaged run: as the dry run says, no proven event lost, losses reported until repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

import pytest
from tests.crash.test_ndjson_crashes import Form, each_form, forms, keep_snapshot, root

from runstate.conformance.notes import findings, keys, stored
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import LogDamaged
from runstate.logs.log import Finding, Record
from runstate.logs.ndjson import NdjsonLog

home = root / "r"
file = home / "events.ndjson"
sent = [f"k{number}" for number in range(6)]


def small_run(form: Form, *, is_closed: bool = True) -> SimulatedDisk:
    disk = SimulatedDisk()
    log = NdjsonLog(root, disk=disk)
    for key in sent:
        log.append("r", [form[1](key)])
    if is_closed:
        keep_snapshot(log, form)
        log.close()
    return disk.killed()


def put(disk: SimulatedDisk, path: PurePosixPath, data: bytes) -> None:
    if disk.exists(path):
        disk.remove(path)
    with disk.create(path) as new:
        new.append(data)


def opened(disk: SimulatedDisk) -> NdjsonLog:
    return NdjsonLog(root, disk=disk)


def repaired(disk: SimulatedDisk, form: Form, *, salvage: bool) -> tuple[list[Finding], list[Record]]:
    """What a repair says and leaves. It does what its dry run has said, exactly, and then everything works again."""
    before = disk.tree()
    would = opened(disk).repair("r", dry_run=True, salvage=salvage)
    assert disk.tree() == before
    log = opened(disk)
    done = log.repair("r", salvage=salvage)
    assert done == would
    left = stored(log, "r")
    assert findings(log) == []
    named = [name for finding in done for name in finding.details["setAside"]]
    assert [finding.details["file"] for finding in log.verify("r")] == sorted(named)
    assert not left or log.repair("r", salvage=salvage) == []
    assert log.append("r", [form[1]("after")])[0].seq == len(left) + 1
    log.close()
    return done, left


edits: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "flipped": lambda lines: [*lines[:2], lines[2].replace(b"k2", b"k9"), *lines[3:]],
    "dropped": lambda lines: [*lines[:2], *lines[3:]],
    "doubled": lambda lines: [*lines[:3], *lines[2:]],
    "swapped": lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
    "foreign": lambda lines: [*lines[:2], b'{"from":"another program"}', *lines[2:]],
    "deep": lambda lines: [*lines[:2], b'{"a":' * 100_000 + b"1" + b"}" * 100_000, *lines[2:]],
    "zeros": lambda lines: [*lines[:2], bytes(len(lines[2])), *lines[3:]],
    "welded": lambda lines: [*lines[:2], lines[2] + b"\x0b" + lines[3], *lines[4:]],
}
held_by_stream = {"doubled", "swapped", "foreign", "deep", "welded"}


@each_form
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("edit", edits)
def test_a_salvage_keeps_every_proven_event_in_the_run_or_beside_it(form: Form, edit: str, is_closed: bool) -> None:
    disk = small_run(form, is_closed=is_closed)
    right = stored(opened(disk), "r")
    lines = disk.read(file).split(b"\n")[:-1]
    put(disk, file, b"".join(line + b"\n" for line in edits[edit](lines)))
    (plain,), left = repaired(disk.killed(), form, salvage=False)
    intact = 3 if edit == "doubled" else 2
    assert left == right[:intact]
    assert plain.details["salvageable"] == (6 - intact if edit in held_by_stream else 3)
    assert "--salvage" in plain.message
    (done,), left = repaired(disk, form, salvage=True)
    if edit in held_by_stream:
        assert (left, done.details["lost"]) == (right, 0)
        assert done.details["setAside"] == ["events.ndjson.damaged-1"]
        return
    assert left == right[:2]
    assert done.details["setAside"] == ["events.ndjson.damaged-1", "events.ndjson.salvaged-1"]
    assert done.details["provenAside"] == 3
    if is_closed or form[0] == "notes" or edit != "dropped":
        assert (done.details["lost"], done.details["lostRange"]) == (4, [3, 6])
    assert disk.read(home / "events.ndjson.salvaged-1").split(b"\n")[:-1] == lines[3:]


def test_lines_without_hashes_are_not_given_other_seqs_by_a_salvage() -> None:
    disk = SimulatedDisk()
    opened(disk).close()
    members = b'"run_id":"r","ts":"2026-11-15T12:00:00.000Z","type":"x","payload":{},"trace_id":"","span_id":""}'
    line = b'{"event_id":"%b",' + members
    disk.make_directory(home)
    put(disk, file, b"".join((*(line % b"abc"[n : n + 1] + b"\n" for n in (0, 1)), b"junk\n", line % b"c", b"\n")))
    (done,), left = repaired(disk, forms[0], salvage=True)
    assert (keys(left), done.details["lostRange"]) == (["a", "b"], [3, 4])


@each_form
@pytest.mark.parametrize("cut", ["lines", "inside a line", "all", "file"])
def test_a_lost_tail_is_reported_and_appends_are_refused_until_repair(form: Form, cut: str) -> None:
    disk = small_run(form)
    right, data = stored(opened(disk), "r"), disk.read(file)
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    put(disk, file, data[: {"lines": ends[3], "inside a line": ends[3] + 40, "all": 0, "file": 0}[cut]])
    if cut == "file":
        disk.remove(file)
    intact = 0 if cut in ("all", "file") else 4
    for _ in range(2):
        (finding,) = opened(disk).verify("r")
        assert (finding.code, finding.severity, finding.seq) == ("log.events_missing", "damage", intact + 1)
        with pytest.raises(LogDamaged) as caught:
            opened(disk).append("r", [form[1]("new")])
        assert caught.value.details["reason"] == "log.events_missing"
    assert [info.stream for info in opened(disk).streams()] == ["r"]
    if not intact:
        with pytest.raises(LogDamaged):
            opened(disk).read("r")
        with pytest.raises(LogDamaged):
            list(opened(disk).lines("r"))
    else:
        assert stored(opened(disk), "r") == right[:intact]
    deleted = disk.killed()
    opened(deleted).delete_stream("r")
    assert (opened(deleted).streams(), deleted.exists(home)) == ([], False)
    done, left = repaired(disk, form, salvage=False)
    assert left == right[:intact]
    assert (done[0].code, done[0].details["lostRange"]) == ("log.events_missing", [intact + 1, 6])


@each_form
def test_a_line_that_lacks_only_its_newline_is_no_lost_event(form: Form) -> None:
    disk = small_run(form)
    right, data = stored(opened(disk), "r"), disk.read(file)
    put(disk, file, data[:-1])
    assert [finding.code for finding in opened(disk).verify("r")] == ["log.torn_tail"]
    log = opened(disk)
    assert log.append("r", [form[1]("new")])[0].seq == 7
    assert stored(log, "r")[:6] == right


def test_a_changed_trace_id_is_reported_until_repair_whatever_is_appended() -> None:
    form = forms[0]
    disk = small_run(form)
    put(disk, file, disk.read(file).replace(b"a" * 32, b"b" + b"a" * 31, 1))
    for _ in range(2):
        (finding,) = opened(disk).verify("r")
        assert (finding.code, finding.severity) == ("log.event_changed", "damage")
        with pytest.raises(LogDamaged):
            opened(disk).append("r", [form[1]("new")])
    (done,), left = repaired(disk, form, salvage=False)
    assert (keys(left), done.details["lost"]) == (sent, 0)
