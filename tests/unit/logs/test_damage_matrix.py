"""Every kind of damage to every file of a session and of a run, against one oracle; `docs/formats` has its tables.

Whatever happened: no read gives a wrong event, or too few of them without `verify` reporting damage; a stream does not
vanish; `repair` does what its dry run said; then nothing is damaged, and every line that was there before is still
in some file; a salvage keeps at least what follows without a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

import pytest
from tests.crash.segments_work import forms as session_forms
from tests.crash.segments_work import opened as open_sessions
from tests.crash.test_ndjson_crashes import forms as run_forms
from tests.crash.test_ndjson_crashes import keep_snapshot
from tests.damage_oracle import Subject, beyond_streams, check_repair, damage_in, read_all
from tests.unit.logs.test_ndjson_salvage import opened as open_runs
from tests.unit.logs.test_segments_damage import put, small_session

from runstate.conformance.notes import stored
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import LogDamaged
from runstate.logs.log import Finding, Record
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.ndjson import run as run_module
from runstate.logs.segments import SegmentsLog
from runstate.models.model import Draft


@dataclass(frozen=True)
class Case:
    open: Callable[[SimulatedDisk], SegmentsLog | NdjsonLog]
    disk: Callable[[], SimulatedDisk]
    new: Callable[[], Draft]
    home: PurePosixPath
    is_proven: bool
    """Whether each line proves itself."""


def small_run(number: int) -> SimulatedDisk:
    """A batch and single events, a blob, a snapshot, a key file and an event behind it."""
    disk, form = SimulatedDisk(), run_forms[number]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "keys_behind_max", 3)
        log = open_runs(disk)
        log.put_blob(b"an artifact")
        log.append("r", [form[1]("k0"), form[1]("k1")])
        for key in ("k2", "k3"):
            log.append("r", [form[1](key)])
        keep_snapshot(log, form)
        log.close()
        log = open_runs(disk)
        log.append("r", [form[1]("k4")])
        log.close()
    return disk.killed()


session, run = PurePosixPath("/log/sessions/r"), PurePosixPath("/runs/r")
cases = {
    "segments-bare": Case(
        open_sessions, lambda: small_session("bare"), lambda: session_forms["bare"]("new", ""), session, False
    ),
    "segments-framed": Case(
        open_sessions, lambda: small_session("framed"), lambda: session_forms["framed"]("new", ""), session, True
    ),
    "ndjson-bare": Case(open_runs, lambda: small_run(0), lambda: run_forms[0][1]("new"), run, True),
    "ndjson-framed": Case(open_runs, lambda: small_run(1), lambda: run_forms[1][1]("new"), run, True),
}


# --- damage ----------------------------------------------------------------------------------------------------------


def contents(data: bytes) -> Iterator[tuple[str, bytes | None]]:
    """What may become of a file."""
    size, lines = len(data), data.split(b"\n")[:-1]
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    for place in {*range(0, size, max(1, size // 9)), size - 1} if data else ():
        yield f"flip at {place}", data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
    for place in {0, 1, size // 2, size - 1, *ends[:-1], *(end + 9 for end in ends[:-1])}:
        yield f"cut at {place}", data[:place]
    for start, stop in ((0, size), (size // 2, size), (size // 3, size // 3 + 40)):
        yield f"zeroed from {start}", data[:start] + bytes(min(stop, size) - start) + data[stop:]
    yield "doubled", data * 2
    for at in range(len(lines)):
        yield f"line {at} doubled", b"".join(line + b"\n" for line in [*lines[: at + 1], *lines[at:]])
        yield f"line {at} gone", b"".join(line + b"\n" for line in [*lines[:at], *lines[at + 1 :]])
        yield f"line {at} foreign", b"".join(line + b"\n" for line in [*lines[:at], b'{"from":"us"}', *lines[at:]])
        if at:
            swapped = [*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]]
            yield f"line {at} swapped", b"".join(line + b"\n" for line in swapped)
    yield "foreign", b"a file of another program\n"
    yield "deleted", None


def damaged_disks(case: Case, start: SimulatedDisk) -> Iterator[tuple[str, PurePosixPath | None, SimulatedDisk]]:
    files = {path: data for path, data in start.tree().items() if data is not None and ".locks" not in path.parts}
    for path, data in files.items():
        for what, content in contents(data):
            if content != data:
                disk = start.killed()
                disk.remove(path)
                if content is not None:
                    put(disk, path, content)
                yield f"{path.name}: {what}", path, disk
    other = case.disk().killed()
    for path in files:
        if path.is_relative_to(case.home) and (foreign := other.read(path)) != files[path]:
            disk = start.killed()
            put(disk, path, foreign)
            yield f"{path.name}: of another history", None, disk
    segments = [path for path in files if path.parent.name == "events"]
    for one, second in pairwise(segments):
        disk = start.killed()
        put(disk, one, files[second])
        put(disk, second, files[one])
        yield f"{one.name} and {second.name} swapped", one, disk
    for place in ("notes.txt", "events.ndjson.bak", "events/readme", "events/00000001-00000003.jsonl"):
        if start.exists((case.home / place).parent):
            disk = start.killed()
            put(disk, case.home / place, b"another program's\n")
            yield f"{place} added", None, disk


# --- the oracle ------------------------------------------------------------------------------------------------------


def raw_lines(disk: SimulatedDisk) -> list[bytes]:
    """The lines of the events' files as they stand there."""
    files = [data for path, data in sorted(disk.tree().items()) if data and path.suffix in (".ndjson", ".jsonl")]
    return [line for data in files for line in data.split(b"\n") if line and b"manifestIndex" not in line]


def lines_of(disk: SimulatedDisk, lines: list[bytes]) -> set[bytes]:
    """Those of the lines that stand anywhere on the disk."""
    everything = b"\n".join(data for data in disk.tree().values() if data)
    return {line for line in lines if line in everything}


def follows(case: Case, disk: SimulatedDisk, path: PurePosixPath | None, lines: list[bytes]) -> int:
    """How many events from the first on certainly can be proven."""
    there = lines_of(disk, lines)
    count = next((at for at, line in enumerate(lines) if line not in there), len(lines))
    if not case.is_proven and path is not None and path.parent.name == "events":
        return min(count, int(path.name.split("-")[0]))
    return count


def check_before(case: Case, disk: SimulatedDisk, right: list[Record], what: str) -> list[Finding]:
    findings = list(case.open(disk).verify())
    codes = {(finding.code, finding.seq) for finding in findings}
    assert [info.stream for info in case.open(disk).streams()] == ["r"], what
    found, error = read_all(case.open(disk), "r")
    if ("log.event_changed", 1) not in codes:  # A run's hashes leave out trace ids; only `verify` knows them.
        assert found == right[: len(found)], what
    if error is not None:
        assert error.details["intact"] == len(found), what
        assert (error.details["reason"], error.details["seq"]) in codes, (what, codes)
    if damage_in(findings) and not all(finding.code.startswith(beyond_streams) for finding in damage_in(findings)):
        with pytest.raises(LogDamaged):
            case.open(disk).append("r", [case.new()])
    else:
        log = case.open(after := disk.killed())
        assert log.append("r", [case.new()])[0].seq == len(right) + 1, what
        assert stored(case.open(after), "r")[: len(right)] == right, what
    return findings


def check_repaired(
    case: Case, disk: SimulatedDisk, right: list[Record], lines: list[bytes], what: str, *, salvage: bool
) -> int:
    there = lines_of(disk, lines)
    subject = Subject(lambda: case.open(disk), disk.tree, {"r": right}, lambda _: case.new(), what)
    would, found = check_repair(subject, "r", salvage=salvage)
    if "log.event_changed" not in {finding.code for finding in would}:
        assert found == right[: len(found)], what
    for finding in damage_in(would):
        assert finding.details["kept"] + finding.details["lost"] >= len(right), (what, finding)
    assert there <= lines_of(disk, lines), what
    return len(found)


@pytest.mark.parametrize("name", cases)
def test_no_damage_gives_a_wrong_answer_and_no_repair_loses_a_line(name: str) -> None:
    case = cases[name]
    start = case.disk().killed()
    right, lines = stored(case.open(start), "r"), raw_lines(start)
    seen = 0
    for what, path, disk in damaged_disks(case, start):
        findings = damage_in(check_before(case, disk, right, what))
        least = follows(case, disk, path, lines)
        seen += bool(findings)
        plain = check_repaired(case, disk.killed(), right, lines, what, salvage=False)
        kept = check_repaired(case, disk, right, lines, what, salvage=True)
        # Where a file is of another history, nothing tells which of the two is right.
        assert kept >= (plain if "history" in what else max(plain, least)), what
        if not findings:
            assert kept == len(right), what
    assert seen > 40
