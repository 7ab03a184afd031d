"""A repair whose calls to the disk fail: no line is lost, and the next repair ends as if none had failed."""

from __future__ import annotations

import pytest
from tests.crash.faults import every_fault
from tests.damage_oracle import damage_in
from tests.unit.logs.test_damage_matrix import Case, cases, lines_of, raw_lines
from tests.unit.logs.test_segments_damage import put

from runstate.conformance.notes import keys, stored
from runstate.conformance.simulated_disk import SimulatedDisk, every_crash


def damaged(case: Case, what: str) -> tuple[SimulatedDisk, list[bytes]]:
    """A stream with damage in the middle, and its lines as they stood before."""
    disk = case.disk().killed()
    lines = raw_lines(disk)
    if "ndjson" in what:
        file = case.home / "events.ndjson"
        whole = disk.read(file).split(b"\n")[:-1]
        # A foreign line, which a salvage passes over, and a flip, behind which it can only set aside.
        changed = [whole[0], b"foreign", whole[1], whole[2].replace(b"k2", b"k9"), *whole[3:]]
        put(disk, file, b"".join(line + b"\n" for line in changed))
    else:
        disk.flip_bit(case.home / "manifest.jsonl", 30, 0)
        segment = case.home / "events/00000000-00000002.jsonl"
        disk.flip_bit(segment, len(disk.read(segment)) - 9, 0)
    return next(disk.crash_states(states_max=2)), lines  # The first is the one that has lost nothing.


def outcome(case: Case, disk: SimulatedDisk, salvage: bool) -> list[str]:
    """What a repair leaves, after which nothing is damaged and the stream goes on."""
    log = case.open(disk)
    if log.stream("r") is not None:
        log.repair("r", salvage=salvage)
    assert damage_in(list(log.verify("r"))) == []
    left = keys(stored(log, "r"))
    assert log.append("r", [case.new()])[0].seq == len(left) + 1
    log.close()
    return left


@pytest.mark.parametrize("salvage", [False, True], ids=["plain", "salvage"])
@pytest.mark.parametrize("name", cases)
def test_a_failure_of_any_call_of_a_repair_loses_no_line(name: str, salvage: bool) -> None:
    case = cases[name]
    start, lines = damaged(case, name)
    there, right = lines_of(start, lines), outcome(case, start.killed(), salvage)
    for during, disk, log in every_fault(start, case.open, lambda log: log.repair("r", salvage=salvage)):
        log.close()
        for crashed in (disk.killed(), *disk.crash_states(states_max=2)):
            assert there <= lines_of(crashed, lines), during
            assert outcome(case, crashed, salvage) == right, during


@pytest.mark.parametrize("salvage", [False, True], ids=["plain", "salvage"])
@pytest.mark.parametrize("name", cases)
def test_a_power_cut_at_any_moment_of_a_repair_loses_no_line(name: str, salvage: bool) -> None:
    case = cases[name]
    start, lines = damaged(case, name)
    there, right = lines_of(start, lines), outcome(case, start.killed(), salvage)

    def repairing(disk: SimulatedDisk) -> list[str]:
        case.open(disk).repair("r", salvage=salvage)
        return ["repaired"]

    for crash in every_crash(repairing, start.killed(), states_max=40):
        assert there <= lines_of(crash.disk, lines), crash.during
        assert outcome(case, crash.disk, salvage) == right, crash.during
